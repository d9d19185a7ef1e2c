"""Protocols of the comparisons with peers: budgets, defaults, adaptive selection, published figures and real prices.

Costs of trees and prefixes, the model that a budget allows, the columns that are paid for, differences and verdicts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import r2_score

from anytime.evaluation.evaluate import ndcg
from anytime.groups import load_groups
from benchmarks.peers import adaptive, defaults, environments, published, report
from benchmarks.peers.adapters.acquisition import permutation, sequence
from benchmarks.peers.adapters.boosting import tree_features, used_by_rounds
from benchmarks.peers.adapters.worker import Problem, Timed
from benchmarks.peers.adaptive import ADAPTIVE, SEQUENCE, AcquisitionSet, Scores, auroc, compare_sequence, cube, section
from benchmarks.peers.defaults import BY_HAND, DEFAULT, LINEAR, columns_at, compare, sheet
from benchmarks.peers.environments import Environment, prepared
from benchmarks.peers.published import PROTOCOLS, Protocol, Rows, curve, rerun
from benchmarks.peers.quality import (
    RANKING,
    Points,
    QualitySet,
    Table,
    cost_of,
    difference_error,
    feature_prices,
    mean_upto,
    value_at_budgets,
)
from benchmarks.peers.report import Part
from benchmarks.peers.solvers import Peer

GROUPS = load_groups(
    {
        "groups": [
            {"name": "speed", "features": ["v"], "cost": 1},
            {"name": "blood", "features": [], "cost": 10},
            {"name": "lab", "features": ["l0", "l1"], "cost": 4, "requires": ["blood"]},
        ]
    }
)


def test_a_model_pays_whole_groups_and_what_they_require_once() -> None:
    used = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 1], [1, 1, 1]], dtype=bool)
    assert cost_of(used, GROUPS).tolist() == [0.0, 1.0, 14.0, 14.0, 15.0]


def test_features_are_priced_at_their_share_or_at_the_whole_group() -> None:
    shared, full = feature_prices(GROUPS)
    assert shared.tolist() == [1.0, 2.0, 2.0]
    assert full.tolist() == [1.0, 4.0, 4.0]


def test_features_are_read_from_the_splits_of_a_tree() -> None:
    leaf = {"leaf_value": 1.0}
    tree = {
        "split_feature": 3,
        "left_child": {"split_feature": 0, "left_child": leaf, "right_child": leaf},
        "right_child": leaf,
    }
    assert sorted(tree_features(tree)) == [0, 3]
    assert list(tree_features(leaf)) == []
    tree_dump = {
        "split": "f12",
        "children": [{"leaf": 1.0}, {"split": "f2", "children": [{"leaf": 0.0}, {"leaf": 1.0}]}],
    }
    assert sorted(tree_features(tree_dump)) == [2, 12]
    assert list(tree_features({"leaf": 0.5})) == []


def test_features_count_from_the_first_round_that_uses_them() -> None:
    trees = [[0], [], [1], [0], [2], [2]]  # two trees a round
    assert used_by_rounds(trees, 2, (1, 2, 3), 4).tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, False],
    ]
    assert used_by_rounds(trees, 2, (2,), 4).tolist() == [[True, True, False, False]]


POINTS = Points(np.array([1.0, 5.0, 3.0]), np.array([0.5, 0.6, 0.7]), np.array([0.55, 0.9, 0.65]))


def test_a_budget_selects_the_model_that_validates_best_or_the_most_expensive_within_it() -> None:
    budgets = np.array([0.0, 1.0, 4.0, 5.0])
    assert value_at_budgets(POINTS, budgets, 0.1, chosen=True).tolist() == [0.1, 0.55, 0.65, 0.65]
    assert value_at_budgets(POINTS, budgets, 0.1, chosen=False).tolist() == [0.1, 0.55, 0.65, 0.9]
    both = POINTS.joined(Points(np.array([0.0]), np.array([0.9]), np.array([0.2])))
    assert value_at_budgets(both, budgets, 0.0, chosen=True).tolist() == [0.2] * 4


def test_the_mean_of_a_curve_is_that_of_a_step_function() -> None:
    budgets, values = np.array([0.0, 1.0, 4.0]), np.array([0.0, 1.0, 2.0])
    assert mean_upto(budgets, values, 1.0) == 0.0
    assert mean_upto(budgets, values, 2.0) == 0.5
    assert mean_upto(budgets, values, 5.0) == (0 + 3 * 1 + 1 * 2) / 5


def test_values_of_each_row_are_selected_and_averaged_like_their_means() -> None:
    rows = Points(POINTS.costs, POINTS.validation, POINTS.test[:, np.newaxis] + np.array([-0.1, 0.1]))
    budgets = np.array([0.0, 1.0, 3.0, 5.0])
    each = value_at_budgets(rows, budgets, np.array([0.0, 0.2]), chosen=True)
    whole = value_at_budgets(POINTS, budgets, 0.1, chosen=True)
    np.testing.assert_allclose(each.mean(axis=1), whole)
    np.testing.assert_allclose(mean_upto(budgets, each, 4.0).mean(), mean_upto(budgets, whole, 4.0))


def test_the_error_of_a_difference_is_that_of_a_mean() -> None:
    difference = np.random.default_rng(1).normal(size=400)
    error = difference_error(difference, np.ones(400), draws=4000)
    np.testing.assert_allclose(error, difference.std() / 20, rtol=0.05)
    assert difference_error(np.full(400, 0.3), np.ones(400)) < 1e-12


def test_units_add_up_to_the_quality_of_a_model() -> None:
    generator = np.random.default_rng(2)
    query = np.repeat(np.arange(30), generator.integers(1, 7, size=30))
    y, scores = generator.integers(0, 3, size=len(query)).astype(float), generator.normal(size=(2, len(query)))
    part = Table(np.zeros((len(y), 0)), y, query)
    problem = QualitySet("set", "", RANKING, 1, GROUPS, part, part, part)
    terms, weights = problem.units("NDCG@5", part, scores)
    expected = ndcg(y, scores.T, query)
    assert expected is not None
    np.testing.assert_allclose(terms.sum(axis=1) / weights.sum(), expected)
    terms, weights = problem.units("r2", part, scores)
    np.testing.assert_allclose(terms.sum(axis=1) / weights.sum(), [r2_score(y, row) for row in scores])
    np.testing.assert_allclose(problem.prior("r2")[0], 0.0, atol=1e-12)


def test_equal_rows_count_as_one_unit() -> None:
    X = np.array([[1.0], [2.0], [1.0], [1.0]])
    part = Table(X, np.array([0, 1, 0, 1]))
    problem = QualitySet("set", "", ("accuracy",), 2, GROUPS, part, part, part)
    terms, weights = problem.units("accuracy", part, np.array([[-1.0, 1.0, -1.0, -1.0]]))
    assert (terms.tolist(), weights.tolist()) == ([[2.0, 1.0]], [3.0, 1.0])


TWO_GROUPS = load_groups(
    {"groups": [{"name": "a", "features": ["u"], "cost": 1.0}, {"name": "b", "features": ["v", "w"], "cost": 3.0}]}
)


def bent(*, are_classes: bool) -> defaults.Problem:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = X[:, 0] + np.abs(X[:, 1]) + 0.1 * rng.normal(size=300)
    return defaults.Problem(X, np.asarray(y > 0.8, dtype=np.float64) if are_classes else y, TWO_GROUPS, are_classes)


def test_a_split_trains_on_seven_tenths_of_the_rows() -> None:
    problem = bent(are_classes=False)
    X, y, Xt, yt = problem.split(1)
    assert [len(each) for each in (X, y, Xt, yt)] == [210, 210, 90, 90]
    assert {*y, *yt} == {*problem.y}
    assert not np.array_equal(problem.split(2)[1], y)


def test_a_peer_has_the_columns_of_the_groups_within_each_share_of_the_cost() -> None:
    model = SimpleNamespace(
        curve_=SimpleNamespace(costs=np.array([0.0, 1.0, 4.0])),
        model_=SimpleNamespace(computed=[(), ("a",), ("a", "b")]),
    )
    expected = [[False, False, False], [True, False, False], [True, True, True]]
    np.testing.assert_array_equal(columns_at(model, TWO_GROUPS), expected)


@pytest.mark.parametrize("are_classes", [False, True])
def test_the_default_and_other_options_are_measured_at_each_share(are_classes: bool) -> None:
    found = defaults.measure(bent(are_classes=are_classes), 0, {}, Part("Defaults"))
    assert [*found] == [DEFAULT, LINEAR, BY_HAND]
    assert all(values.shape == (3,) for values in found.values())
    assert found[DEFAULT][2] > found[LINEAR][2] + 0.02  # the target is bent
    assert abs(found[DEFAULT][0] - 0.5 * are_classes) < 0.1  # nothing within 5 % of the cost


def test_the_default_must_not_lose_to_lines_by_a_standard_error() -> None:
    lines = np.array([[0.5, 0.6, 0.7], [0.5, 0.7, 0.7], [0.5, 0.65, 0.7]])
    found = {DEFAULT: np.array([[0.5, 0.5, 0.7], [0.5, 0.5, 0.9], [0.5, 0.5, 0.8]]), LINEAR: lines, "EBM": lines - 0.3}
    verdicts = [finding.verdict for finding in compare("set", found)]
    assert verdicts == ["holds", "missed", "holds", "ahead", "ahead", "ahead"]
    one_split = np.zeros((5, 3))
    one_split[4, 2] = 0.0387  # a loss of one standard error, but for rounding
    [*_, last] = compare("set", {DEFAULT: -one_split, LINEAR: np.zeros((5, 3))})
    assert last.verdict == "holds"
    rows = sheet("set", found).rows
    assert rows[0] == (DEFAULT, "0.5000", "0.5000", "0.8000")
    assert rows[1] == (LINEAR, "+0.0000 (0.0000)", "+0.1500 (0.0289)", "-0.1000 (0.0577)")


ACQUIRED = 400


def acquired() -> AcquisitionSet:
    """Two classes; the second group of two columns decides, and the third helps."""
    rng = np.random.default_rng(0)
    X = rng.normal(3.0, 2.0, (ACQUIRED, 4))
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
    problem = acquired()
    order = np.arange(ACQUIRED)
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
    problem: Problem = dict(acquired().split(0))
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
    scores = adaptive.measure(
        acquired(), Peer(SEQUENCE, "ours", "acquisition.sequence", ("X", "y", "Xt", "sizes", "costs")), 0
    )
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


def scores_of(mean: float, slope: float = 0.0) -> Scores:
    areas = mean + slope * np.arange(5)[:, np.newaxis] + np.zeros(3)
    return Scores(areas, areas, np.ones(5), np.ones(5), np.ones(5))


def test_a_difference_counts_beyond_its_quantile_of_95_percent() -> None:
    noise = 0.04  # paired differences of -.08 to .08, standard error .028
    of = {SEQUENCE: scores_of(0.9), "weak": scores_of(0.7), "trees": scores_of(0.82, noise), ADAPTIVE: scores_of(0.95)}
    found = compare_sequence("cube", of)
    assert [each.verdict for each in found] == ["noted", "behind"]
    assert "trees 0.9000; over 5 splits, difference +0.0000 ± 0.0283" in found[0].text
    assert "difference -0.0500 ± 0.0000" in found[1].text
    assert [each.verdict for each in compare_sequence("cube", {SEQUENCE: of[SEQUENCE], "weak": of["weak"]})] == [
        "ahead"
    ]


def test_the_section_has_quality_and_times_of_each_method() -> None:
    found = section({"cube": {SEQUENCE: scores_of(0.9), ADAPTIVE: scores_of(0.95)}}, Part("Adaptive"))
    assert [sheet.columns[:2] for sheet in found.sheets] == [("", "mean"), ("", "mean"), ("", "train (s)")]
    assert found.sheets[0].rows[1] == (ADAPTIVE, *["0.950 ± 0.000"] * 4)


PUBLISHED = 300


@pytest.fixture(autouse=True)
def no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Environment:
        return prepared(name) if name == "ours" else Environment(name, why="a test installs no peer")

    for module in (environments, report):
        monkeypatch.setattr(module, "prepared", absent)


def two_splits(*, ranked: bool = False) -> Rows:
    """A number decides, a text helps; two splits."""
    rng = np.random.default_rng(0)
    number, text = rng.normal(size=PUBLISHED), rng.choice(["a", "b"], PUBLISHED)
    y = (number + (text == "a") + rng.normal(0, 0.3, PUBLISHED) > 0.5).astype(np.intp)
    order = np.arange(PUBLISHED)
    splits = [(order[100:], order[:100]), (order[:200], order[200:])]
    query = np.repeat(np.arange(PUBLISHED // 5), 5) if ranked else None
    return Rows(pd.DataFrame({"text": text, "number": number}), y, splits, None, query)


def test_ndcg_is_that_of_the_protocol() -> None:
    y, query = np.array([0.0, 2.0, 1.0, 0.0, 0.0, 1.0, 0.0]), np.array([4, 4, 4, 2, 2, 7, 7])
    scores = np.array([3.0, 1.0, 2.0, 5.0, 1.0, 0.5, 0.5])
    second, third = 1 / np.log2(3), 1 / np.log2(4)
    expected = [1.0, (second + 3 * third) / (3 + second), second]  # none is relevant; by rank; a tie costs a rank
    np.testing.assert_allclose(published.ndcg(y, scores, query), expected)
    y = np.array([1.0, *np.zeros(10)])
    assert published.ndcg(y, np.arange(11.0), np.zeros(11)).tolist() == [0.0], "the eleventh rank does not count"


@pytest.mark.parametrize("ranked", [False, True])
def test_ours_has_the_measure_of_every_unit_within_each_budget(ranked: bool) -> None:
    budgets, found = curve(two_splits(ranked=ranked), {})
    assert budgets.tolist() == [0.0, 1.0, 2.0]
    assert found.shape == (3, 40 if ranked else 2)
    assert found[0].mean() < found[1].mean() < found[2].mean()
    assert found[2].mean() > 0.9


def test_texts_are_codes_and_nominal_for_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    scored = Mock(side_effect=lambda *given, **_: given[3].T[1:])
    monkeypatch.setattr(published, "peer_scores", scored)
    assert min(rerun(two_splits(), "ebm")) > 0.8
    (_, X, _, _, columns), options = scored.call_args
    assert set(X[:, 0]) == {0.0, 1.0}
    assert (columns.tolist(), options["nominal"], options["classes"]) == ([[True, True]], [0], 2)


def test_the_section_says_what_is_absent_and_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Protocol("rows", "a paper", "It is small.", "AUC", 0.9, {"trees": 0.7}, "ebm", lambda _: two_splits())
    monkeypatch.setattr(published, "PROTOCOLS", {"toy": toy, "telco": PROTOCOLS["telco"]})
    found = published.published(tmp_path, quick=False)
    verdicts = [each.verdict for each in found.findings]
    assert (verdicts[:3], verdicts[4:]) == (["absent", "absent", "holds"], ["absent"])
    assert "telco: not found" in found.findings[-1].text
    [sheet] = found.sheets
    assert [row[0] for row in sheet.rows] == [*published.VARIANTS, "trees, printed"]
    assert "toy: rows. Source: a paper. It is small." in found.text
    assert "trees, printed</span>" in found.pictures[0].html


def test_a_test_is_worth_what_it_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = load_groups(
        {name: {"features": [name], "cost": cost} for name, cost in (("age", 0), ("lab", 3), ("x", 2))}
    )

    def split(_name: str, _data: Path, seed: int) -> QualitySet:
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(PUBLISHED, 3))
        whole = Table(X, (X[:, 0] + X[:, 1] + rng.normal(0, 0.5, PUBLISHED) > 0).astype(np.intp))
        parts = (whole.at(rows) for rows in np.split(np.arange(PUBLISHED), [150, 200]))
        return QualitySet("small", "", ("AUC",), 2, groups, *parts)

    monkeypatch.setattr(published, "load", split)
    found = published.prices(Path(), quick=True)
    assert [row[:2] for row in found.sheets[0].rows] == [("lab", "3.00"), ("x", "2.00")]
    lab, x = ([float(str(cell).split()[0]) for cell in row[2:]] for row in found.sheets[0].rows)
    assert min(lab) > 0.1 > max(x)
    assert [finding.verdict for finding in found.findings] == ["absent"]
