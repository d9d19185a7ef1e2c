"""The Group-OMP paper's experiments: designs, paths and scores against their definitions, and what sections say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anytime.arrays import Float
from anytime.experiments.experiment import Estimate, Setting
from anytime.experiments.group_omp.agreement import Compared
from anytime.experiments.group_omp.boston import BOSTON
from anytime.experiments.group_omp.designs import DESIGNS, Design, groups_of
from anytime.experiments.group_omp.methods import METHODS, Rows, group_lasso, group_omp, lasso, ols, omp
from anytime.experiments.group_omp.published import TABLE_1, TABLE_2
from anytime.experiments.group_omp.scores import f1, groups_with, held_out_errors, model_errors
from anytime.experiments.group_omp.simulations import GROUP_OMP
from anytime.experiments.group_omp.splits import READINGS, expanded, splits
from anytime.experiments.group_omp.trials import MEASURES, SCORINGS, VARIATIONS, row_names, trials

QUICK = Setting(quick=True)

pytestmark = pytest.mark.usefixtures("one_blas_thread")


def drawn(design: Design, rows: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    X = design.draw(rng, rows)
    return Rows(X, X @ design.truth + design.noise * rng.normal(size=rows), design.groups)


# Designs.


@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: d.number)
def test_drawn_rows_have_the_moments_that_are_stated(design: Design) -> None:
    rows = 40_000
    X = design.draw(np.random.default_rng(3), rows)
    # Every mean of products within six of its own standard errors, of which 2,500 are looked at.
    products = np.einsum("ni,nj->nij", X[:4000], X[:4000])
    error = products.std(axis=0) / np.sqrt(rows)
    assert np.all(np.abs(X.T @ X / rows - design.second()) <= 6 * error + 1e-12)
    assert np.all(np.abs(X.mean(axis=0) - design.mean()) <= 6 * X.std(axis=0) / np.sqrt(rows))


@pytest.mark.parametrize(
    ("number", "variables", "groups"), [(1, 6, {1, 3, 5}), (2, 6, {3, 6}), (3, 15, {1, 2, 3}), (4, 30, {1, 2, 3})]
)
def test_true_groups_are_those_of_the_paper(number: int, variables: int, groups: set[int]) -> None:
    design = DESIGNS[number - 1]
    assert design.support.sum() == variables
    assert {int(g) + 1 for g in np.flatnonzero(groups_with(design.support, design.groups))} == groups
    # OLS selects all, so that its published F1 tells the paper's own counts.
    everything = np.ones(len(design.truth), dtype=np.bool_)
    assert f1(everything, design.support) == pytest.approx(TABLE_1["F1 (Var)"]["OLS"][number - 1].mean, abs=5e-4)
    found = f1(groups_with(everything, design.groups), groups_with(design.support, design.groups))
    assert found == pytest.approx(TABLE_1["F1 (Group)"]["OLS"][number - 1].mean, abs=5e-4)


def test_the_first_design_answers_as_its_formula_in_the_factors() -> None:
    design = DESIGNS[0]
    X = design.draw(np.random.default_rng(1), 200)
    W = np.where(X[:, 0::2] == 1, 1, np.where(X[:, 1::2] == 1, 0, 2))
    first, third, fifth = W[:, 0], W[:, 2], W[:, 4]
    y = 1.8 * (first == 1) - 1.2 * (first == 0) + (third == 1) + 0.5 * (third == 0) + (fifth == 1) + (fifth == 0)
    np.testing.assert_allclose(X @ design.truth, y, atol=1e-12)


def test_the_second_design_answers_as_its_formula_in_the_curves() -> None:
    design = DESIGNS[1]
    X = design.draw(np.random.default_rng(1), 200)
    w3, w6 = X[:, 8], X[:, 17]
    np.testing.assert_allclose(
        X @ design.truth, w3**3 + w3**2 + w3 + w6**3 / 3 - w6**2 + 2 / 3 * w6, rtol=1e-12, atol=1e-12
    )


# Methods.


def literal_group_omp(rows: Rows, steps: int) -> list[tuple[list[int], Float]]:
    """Figure 1 of the paper on orthonormalised groups: groups selected and fitted values, step by step."""
    Q = [np.linalg.qr(rows.X[:, columns])[0] for columns in rows.groups.slices]
    selected: list[int] = []
    fitted = np.zeros(len(rows.y))
    found = [(list(selected), fitted)]
    for _ in range(steps):
        scores = [float(np.linalg.norm(q.T @ (fitted - rows.y))) for q in Q]
        selected.append(max((j for j in range(len(Q)) if j not in selected), key=lambda j: scores[j]))
        X = np.hstack([Q[j] for j in selected])
        fitted = X @ np.linalg.lstsq(X, rows.y, rcond=None)[0]
        found.append((list(selected), fitted))
    return found


@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: d.number)
def test_group_omp_is_the_procedure_of_figure_1(design: Design) -> None:
    rows = drawn(design, 120)
    path = group_omp(rows)
    for w, (selected, fitted) in zip(path, literal_group_omp(rows, len(design.sizes)), strict=True):
        assert set(np.flatnonzero(groups_with(w != 0, rows.groups)).tolist()) == set(selected)
        np.testing.assert_allclose(rows.X @ w, fitted, rtol=0, atol=1e-8 * np.abs(rows.y).max())


def test_omp_is_group_omp_of_single_columns() -> None:
    rows = drawn(DESIGNS[3], 200)
    single = replace(rows, groups=groups_of((1,) * rows.X.shape[1]))
    np.testing.assert_allclose(omp(rows), group_omp(single), rtol=0, atol=1e-9 * np.abs(rows.y).max())


@pytest.mark.parametrize("method", METHODS)
def test_every_path_ends_at_least_squares_and_those_with_a_parameter_begin_with_nothing(method: str) -> None:
    rows = drawn(DESIGNS[3], 200)
    path = METHODS[method](rows)
    end = np.linalg.lstsq(rows.X, rows.y, rcond=None)[0]
    # The penalised paths end at a ten-thousandth of the first penalty.
    np.testing.assert_allclose(rows.X @ path[-1], rows.X @ end, rtol=0, atol=2e-3 * np.abs(rows.y).max())
    assert method == "OLS" or not path[0].any()


@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: d.number)
def test_lasso_points_meet_the_conditions_of_their_optimum(design: Design) -> None:
    rows = drawn(design, design.training)
    A = rows.X / rows.lengths
    first = np.abs(A.T @ rows.y).max()
    path = lasso(rows)
    for w, penalty in zip(path[1::20], np.geomspace(first, 1e-4 * first, len(path))[1::20], strict=True):
        slope = A.T @ (rows.y - rows.X @ w)
        assert np.all(np.abs(slope) <= penalty + 1e-6 * first)
        np.testing.assert_allclose(slope[w != 0], penalty * np.sign(w[w != 0]), rtol=0, atol=1e-6 * first)


@pytest.mark.parametrize("root", [0.0, 0.5])
@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: d.number)
def test_group_lasso_points_meet_the_conditions_of_their_optimum_on_orthonormalised_groups(
    design: Design, root: float
) -> None:
    rows = drawn(design, design.training)
    Q, R = zip(*(np.linalg.qr(rows.X[:, columns]) for columns in rows.groups.slices), strict=True)
    weights = np.array(design.sizes) ** root
    slopes = [float(np.linalg.norm(q.T @ rows.y)) for q in Q]
    first = float(np.max(np.array(slopes) / weights))
    path = group_lasso(rows, root)
    for w, penalty in zip(path[1::20], np.geomspace(first, 1e-4 * first, len(path))[1::20], strict=True):
        residual = rows.y - rows.X @ w
        for q, r, columns, weight in zip(Q, R, rows.groups.slices, weights, strict=True):
            slope, along = q.T @ residual, r @ w[columns]
            if along.any():
                np.testing.assert_allclose(
                    slope, penalty * weight * along / np.linalg.norm(along), rtol=0, atol=2e-3 * first
                )
            else:
                assert np.linalg.norm(slope) <= penalty * weight + 2e-3 * first


def test_a_copied_column_leaves_the_paths_finite_that_know_of_lost_rank() -> None:
    rows = drawn(DESIGNS[1], 100)
    X = rows.X.copy()
    X[:, 1] = X[:, 0]
    for method in (ols, group_lasso, group_omp):
        path = method(Rows(X, rows.y, rows.groups))
        assert np.isfinite(path).all()
        assert np.mean((rows.y - X @ path[-1]) ** 2) < np.mean(rows.y**2)


# Scores.


def test_f1_by_hand() -> None:
    true = np.array([True, True, True, False, False, False])
    assert f1(np.array([True, True, False, True, False, False]), true) == pytest.approx(2 / 3)
    assert f1(np.zeros(6, dtype=np.bool_), true) == 0.0
    assert f1(true, true) == 1.0
    assert groups_with(np.array([False, True, False, False, False, False]), groups_of((2, 3, 1))).tolist() == [
        True,
        False,
        False,
    ]


def test_errors_by_hand() -> None:
    path = np.array([[1.0, 0.0], [0.0, 2.0]])
    second = np.array([[2.0, 1.0], [1.0, 3.0]])
    assert model_errors(path, np.array([1.0, 1.0]), second).tolist() == [3.0, 2.0 - 2.0 + 3.0]
    assert held_out_errors(path, np.eye(2), np.array([1.0, 1.0])).tolist() == [0.5, 1.0]


def test_oracle_takes_the_least_model_error_and_hold_out_that_of_the_least_validation_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    truth = DESIGNS[0].truth
    # Validation rows are noisy, but not so much that twice the truth or nothing would pass for it.
    path = np.array([np.zeros_like(truth), 10 * truth, truth, np.where(truth == 0, 1e-6, truth)])
    monkeypatch.setitem(METHODS, "OMP", lambda _: path)
    found = trials(QUICK, "printed-1", 0, 3)["printed"]
    assert found["OMP (Oracle)"]["ME"] == [0.0] * 3
    assert found["OMP (Oracle)"]["F1 (Var)"] == [1.0] * 3
    assert max(found["OMP (Holdout)"]["ME"]) < 1e-9
    monkeypatch.setitem(METHODS, "OMP", lambda _: path[:2])
    assert trials(QUICK, "printed-1", 0, 3)["printed"]["OMP (Holdout)"]["F1 (Var)"] == [0.0] * 3


def test_a_trial_is_the_same_whatever_batch_it_is_in() -> None:
    both, second = trials(QUICK, "roots-3", 0, 2), trials(QUICK, "roots-3", 1, 1)
    row = "Group Lasso (Holdout)"
    assert both["printed"][row]["ME"][1:] == second["printed"][row]["ME"]


def test_published_means_agree_within_three_errors_of_ours_or_of_both() -> None:
    def compared(published: float, error: float) -> Compared:
        return Compared("here", "OLS", Estimate(published, error), Estimate(1.0, 0.1))

    assert compared(1.3, 0.0).verdict == "yes"
    assert compared(1.35, 0.1).verdict == "by both errors"
    assert compared(1.35, 0.0).verdict == "no"
    assert compared(0.5, 0.1).verdict == "no"


# Sections.


def simulated(means: Callable[[str, str, str], float]) -> dict[str, Any]:
    """Results of two runs each, a little about some means (by variation, row and measure)."""
    results: dict[str, Any] = {}
    for name, varied in VARIATIONS.items():
        scored: dict[str, Any] = {}
        for method in varied.methods:
            for row in row_names(method).values():
                scored[row] = {m: [means(name, row, m) - 0.01, means(name, row, m) + 0.01] for m in MEASURES}
        results[f"{name}-0"] = dict.fromkeys(SCORINGS, scored)
    return results


def as_published(name: str, row: str, measure: str) -> float:
    return TABLE_1[measure][row][VARIATIONS[name].design - 1].mean


def test_the_section_says_so_where_all_agrees() -> None:
    section = GROUP_OMP.section(QUICK, simulated(as_published))
    assert all(f.agrees for f in section.findings if f.text.startswith("Experiment"))
    assert not any("explains" in f.text or "Tested" in f.text for f in section.findings)
    assert "agrees" in next(f.text for f in section.findings if "model error of OLS" in f.text)


def test_the_section_tells_what_differs_and_which_explanation_holds() -> None:
    def differing(name: str, row: str, measure: str) -> float:
        wrong = name == "printed-4" and row == "OLS" and measure == "ME"
        return as_published(name, row, measure) + (30.0 if wrong else 0.0)

    section = GROUP_OMP.section(QUICK, simulated(differing))
    fourth = next(f for f in section.findings if f.text.startswith("Experiment 4 as printed"))
    assert fourth.agrees is False
    assert "26 of 27" in fourth.text
    assert "outside: OLS" in fourth.text
    explained = [f for f in section.findings if "450 training rows" in f.text]
    assert [f.agrees for f in explained] == [True]
    assert not any("nothing explains" in f.text for f in section.findings)
    assert next(f for f in section.findings if "model error of OLS" in f.text).agrees is False


def test_the_section_tells_an_explanation_that_does_not_hold() -> None:
    def differing(name: str, row: str, measure: str) -> float:
        wrong = VARIATIONS[name].design == 4 and row == "OLS" and measure == "ME"
        return as_published(name, row, measure) + (30.0 if wrong else 0.0)

    section = GROUP_OMP.section(QUICK, simulated(differing))
    found = [f for f in section.findings if "450 training rows" in f.text]
    assert [f.agrees for f in found] == [False]
    assert "no better than as printed" in found[0].text
    left = next(f for f in section.findings if "nothing explains" in f.text)
    assert "tested, 1: OLS, experiment 4, ME." in left.text


def test_the_section_of_a_quick_run_has_its_tables_and_figures() -> None:
    results = {f"{name}-0": trials(QUICK, name, 0, 2) for name in VARIATIONS}
    section = GROUP_OMP.section(QUICK, results)
    assert {run.name for run in GROUP_OMP.runs(QUICK)} == set(results)
    for table in section.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    for figure in section.figures:
        assert figure.draw().axes


def test_expansion_leaves_a_binary_variable_alone() -> None:
    X = np.array([[0.0, 2.0], [1.0, 3.0], [1.0, 4.0]])
    table = expanded(X, ("chas", "rm"))
    assert [len(group.features) for group in table.groups.groups] == [1, 3]
    np.testing.assert_array_equal(table.X, np.column_stack([X[:, 0], X[:, 1], X[:, 1] ** 2, X[:, 1] ** 3]))


def test_boston_runs_on_the_stand_in_and_says_so() -> None:
    results = {run.name: run.work(QUICK, **{**run.arguments, "count": 2}) for run in BOSTON.runs(QUICK)}
    section = BOSTON.section(QUICK, results)
    assert "diabetes" in section.findings[0].text
    assert not any("published means lie" in f.text for f in section.findings)
    assert section.figures[0].draw().axes


def test_no_choice_has_less_test_error_than_the_one_by_the_test_rows() -> None:
    best, ours = (splits(QUICK, reading, 0, 2)["methods"] for reading in ("by-test", "read"))
    for method in METHODS:
        assert all(a <= b for a, b in zip(best[method]["error"], ours[method]["error"], strict=True))


def test_powers_of_standardised_variables_span_the_same_groups() -> None:
    # So that Group-OMP and OLS, which see only spans, err alike; the Lasso does not.
    ours, other = (splits(QUICK, reading, 0, 2)["methods"] for reading in ("read", "standardised"))
    for method in ("OLS", "Group-OMP"):
        np.testing.assert_allclose(ours[method]["error"], other[method]["error"], rtol=1e-6)
    assert ours["Lasso"]["error"] != other["Lasso"]["error"]


def boston_results(error: Callable[[str, str], float]) -> dict[str, Any]:
    """Results of two splits, a little about some errors (by reading and method), sizes as published."""
    return {
        f"{reading}-0": {
            "what": "Boston Housing",
            "real": True,
            "variables": 13,
            "methods": {
                m: {
                    "error": [error(reading, m) - 0.1, error(reading, m) + 0.1],
                    "variables": [TABLE_2[m][1].mean] * 2,
                }
                for m in METHODS
            },
            "ols": {
                "inside": [14.0, 15.0],
                "outside": [3, 4],
                "top": [0.5, 0.9],
                "unscaled": [error(reading, "OLS") - 0.1, error(reading, "OLS") + 0.1],
            },
        }
        for reading in READINGS
    }


def test_boston_says_where_it_agrees_and_where_not() -> None:
    section = BOSTON.section(QUICK, boston_results(lambda _, m: TABLE_2[m][0].mean))
    assert [f.agrees for f in section.findings[:2]] == [True, True]
    assert not any("other readings" in f.text for f in section.findings)
    assert "90%" in next(f.text for f in section.findings if "mean of few" in f.text)

    worse = boston_results(
        lambda reading, m: TABLE_2[m][0].mean + (9.0 if m == "Group-OMP" and reading == "read" else 0)
    )
    section = BOSTON.section(QUICK, worse)
    assert [f.agrees for f in section.findings[:2]] == [False, True]
    others = next(f for f in section.findings if "other readings" in f.text)
    assert others.agrees
    assert "nearest: no intercept" in others.text
    claim = next(f for f in section.findings if "most accurate" in f.text)
    assert claim.agrees is False
