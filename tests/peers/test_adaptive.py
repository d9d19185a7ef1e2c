"""Protocol of the comparison with adaptive selection: sets, splits, budgets and verdicts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.peers.adapters.acquisition import permutation, sequence
from benchmarks.peers.adapters.worker import Problem, Timed
from benchmarks.peers.adaptive import (
    ADAPTIVE,
    SEQUENCE,
    AcquisitionSet,
    Scores,
    auroc,
    compare_sequence,
    cube,
    measure,
    section,
)
from benchmarks.peers.report import Part
from benchmarks.peers.solvers import Peer

ROWS = 400


def small() -> AcquisitionSet:
    """Two classes; the second group of two columns decides, and the third helps."""
    rng = np.random.default_rng(0)
    X = rng.normal(3.0, 2.0, (ROWS, 4))
    y = (X[:, 2] + 0.2 * X[:, 3] > 3.6).astype(np.intp)
    X[0, 0] = np.nan
    return AcquisitionSet(X, y, np.array([1, 2, 1]), (1, 2))


def test_bits_of_the_class_are_at_its_own_columns_of_the_cube() -> None:
    X, y, sizes = cube(8_000)
    assert (X.shape, sizes.tolist(), sorted(set(y.tolist()))) == ((8_000, 20), [1] * 20, list(range(8)))
    for label in range(8):
        rows = X[y == label]
        bits = [label & 1, label >> 1 & 1, label >> 2 & 1]
        expected = np.full(20, 0.5)
        expected[label : label + 3] = bits
        np.testing.assert_allclose(rows.mean(axis=0), expected, atol=0.05)
        spread = np.where(np.isin(np.arange(20), np.arange(label, label + 3)), 0.1, 0.3)
        np.testing.assert_allclose(rows.std(axis=0), spread, rtol=0.1)


def test_the_split_is_that_of_gdfs_and_parts_are_standardised_by_the_rows_to_fit_on() -> None:
    problem = small()
    order = np.arange(ROWS)
    np.random.default_rng(3).shuffle(order)
    parts = problem.split(3)
    assert [len(parts[name]) for name in ("y", "yv", "yt")] == [240, 80, 80]
    np.testing.assert_array_equal(parts["yt"], problem.y[order[:80]])
    np.testing.assert_array_equal(parts["yv"], problem.y[order[80:160]])
    fit = problem.X[order[160:], 1]
    np.testing.assert_allclose(parts["Xt"][:, 1], (problem.X[order[:80], 1] - fit.mean()) / fit.std())
    found = np.concatenate([parts[name][:, 0] for name in ("Xt", "Xv", "X")])[np.argsort(order)]
    assert found[0] == 0  # missing: the mean


@pytest.mark.parametrize("call", [sequence, permutation])
def test_a_method_has_a_predictor_for_each_budget(call: Callable[..., Timed]) -> None:
    problem: Problem = dict(small().split(0))
    run, read = call(problem, {"classes": 2, "budgets": (1, 2), "seed": 0})
    found = read(run())
    assert found["test"].shape == (2, 80, 2)
    np.testing.assert_allclose(found["test"].sum(axis=2), 1.0, atol=1e-6)
    areas = [auroc(problem["yt"], each) for each in found["test"]]
    assert min(areas) > 0.95  # the second group is selected first
    changed = problem | {"Xt": problem["Xt"] * np.array([0.0, 1.0, 1.0, 0.0])}
    run, read = call(changed, {"classes": 2, "budgets": (1,), "seed": 0})
    np.testing.assert_allclose(read(run())["test"][0], found["test"][0])
    assert min(found[name] for name in ("fit_s", "row_s", "rows_s")) >= 0


def test_a_method_runs_in_its_process_and_is_scored() -> None:
    scores = measure(small(), Peer(SEQUENCE, "ours", "acquisition.sequence", ("X", "y", "Xt", "sizes", "costs")), 0)
    assert scores.auroc.shape == scores.accuracy.shape == (1, 2)
    assert scores.auroc.min() > 0.95
    assert scores.fit_s[0] > 0


def test_several_classes_are_scored_each_against_the_others() -> None:
    y = np.array([0, 1, 2, 2])
    likely = np.eye(3)[y]
    assert auroc(y, likely) == 1.0
    likely[0] = [0.0, 1.0, 0.0]  # class 0 is at chance, class 1 has one tie among three
    assert auroc(y, likely) == pytest.approx((0.5 + (2 + 0.5) / 3 + 1.0) / 3)
    assert auroc(np.array([0, 1]), np.array([[0.6, 0.4], [0.5, 0.5]])) == 1.0


def scores(mean: float, slope: float = 0.0) -> Scores:
    areas = mean + slope * np.arange(5)[:, np.newaxis] + np.zeros(3)
    return Scores(areas, areas, np.ones(5), np.ones(5), np.ones(5))


def test_a_difference_counts_beyond_its_quantile_of_95_percent() -> None:
    noise = 0.04  # paired differences of -.08 to .08, standard error .028
    of = {SEQUENCE: scores(0.9), "weak": scores(0.7), "trees": scores(0.82, noise), ADAPTIVE: scores(0.95)}
    found = compare_sequence("cube", of)
    assert [each.verdict for each in found] == ["noted", "behind"]
    assert "trees 0.9000; over 5 splits, difference +0.0000 ± 0.0283" in found[0].text
    assert "difference -0.0500 ± 0.0000" in found[1].text
    assert [each.verdict for each in compare_sequence("cube", {SEQUENCE: of[SEQUENCE], "weak": of["weak"]})] == [
        "ahead"
    ]


def test_the_section_has_quality_and_times_of_each_method() -> None:
    found = section({"cube": {SEQUENCE: scores(0.9), ADAPTIVE: scores(0.95)}}, Part("Adaptive"))
    assert [sheet.columns[:2] for sheet in found.sheets] == [("", "mean"), ("", "mean"), ("", "train (s)")]
    assert found.sheets[0].rows[1] == (ADAPTIVE, *["0.950 ± 0.000"] * 4)
