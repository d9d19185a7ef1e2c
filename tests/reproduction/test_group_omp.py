"""The Group-OMP paper's experiments: designs, paths and scores against their definitions, and their sections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anytime.types import Float
from anytime_reproduction.experiment import Estimate, Finding, Section, Setting
from anytime_reproduction.group_omp.boston import BOSTON, READINGS, TABLE_2, expansion, splits
from anytime_reproduction.group_omp.simulations import (
    DESIGNS,
    MEASURES,
    METHODS,
    SCORINGS,
    VARIATIONS,
    Compared,
    Design,
    Rows,
    by_name,
    f1,
    group_lasso,
    group_omp,
    groups_with,
    held_out_errors,
    lasso,
    model_errors,
    ols,
    omp,
    row_names,
    trials,
)
from anytime_reproduction.group_omp.table_1 import GROUP_OMP, TABLE_1
from anytime_reproduction.sets import consecutive_groups
from reproduction.runs_for_tests import assert_complete

QUICK = Setting(quick=True)


def drawn(design: Design, rows: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    X = design.draw(rng, rows)
    return Rows(X, X @ design.truth + design.noise * rng.normal(size=rows), design.groups)


# Designs.


@pytest.mark.parametrize("design", DESIGNS, ids=["1", "2", "3", "4"])
def test_drawn_rows_have_the_moments_that_are_stated(design: Design) -> None:
    rows = 40_000
    X = design.draw(np.random.default_rng(3), rows)
    # Every mean of products within six of its own standard errors, of which 2,500 are looked at.
    products = np.einsum("ni,nj->nij", X[:4000], X[:4000])
    error = products.std(axis=0) / np.sqrt(rows)
    assert np.all(np.abs(X.T @ X / rows - design.second) <= 6 * error + 1e-12)
    assert np.all(np.abs(X.mean(axis=0) - design.mean) <= 6 * X.std(axis=0) / np.sqrt(rows))


@pytest.mark.parametrize(
    ("number", "variables", "groups"), [(1, 6, {1, 3, 5}), (2, 6, {3, 6}), (3, 15, {1, 2, 3}), (4, 30, {1, 2, 3})]
)
def test_true_groups_are_those_of_the_paper(number: int, variables: int, groups: set[int]) -> None:
    design = DESIGNS[number - 1]
    assert design.support.sum() == variables
    assert {int(g) + 1 for g in np.flatnonzero(groups_with(design.support, design.groups))} == groups
    # OLS selects all, so that its published F1 shows the paper's own counts.
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


@pytest.mark.parametrize("design", DESIGNS, ids=["1", "2", "3", "4"])
def test_group_omp_is_the_procedure_of_figure_1(design: Design) -> None:
    rows = drawn(design, 120)
    path = group_omp(rows)
    for w, (selected, fitted) in zip(path, literal_group_omp(rows, len(design.sizes)), strict=True):
        assert set(np.flatnonzero(groups_with(w != 0, rows.groups)).tolist()) == set(selected)
        np.testing.assert_allclose(rows.X @ w, fitted, rtol=0, atol=1e-8 * np.abs(rows.y).max())


def test_omp_is_group_omp_of_single_columns() -> None:
    rows = drawn(DESIGNS[3], 200)
    single = replace(rows, groups=consecutive_groups([1] * rows.X.shape[1], np.ones(rows.X.shape[1])))
    np.testing.assert_allclose(omp(rows), group_omp(single), rtol=0, atol=1e-9 * np.abs(rows.y).max())


@pytest.mark.parametrize("method", METHODS)
def test_every_path_ends_at_least_squares_and_those_with_a_parameter_begin_with_nothing(method: str) -> None:
    rows = drawn(DESIGNS[3], 200)
    path = METHODS[method](rows)
    end = np.linalg.lstsq(rows.X, rows.y, rcond=None)[0]
    # The penalised paths end at a ten-thousandth of the first penalty.
    np.testing.assert_allclose(rows.X @ path[-1], rows.X @ end, rtol=0, atol=2e-3 * np.abs(rows.y).max())
    assert method == "OLS" or not path[0].any()


@pytest.mark.parametrize("design", DESIGNS, ids=["1", "2", "3", "4"])
def test_lasso_points_meet_the_conditions_of_their_optimum(design: Design) -> None:
    rows = drawn(design, design.rows[0])
    A = rows.X / rows.lengths
    first = np.abs(A.T @ rows.y).max()
    path = lasso(rows)
    for w, penalty in zip(path[1::20], np.geomspace(first, 1e-4 * first, len(path))[1::20], strict=True):
        slope = A.T @ (rows.y - rows.X @ w)
        assert np.all(np.abs(slope) <= penalty + 1e-6 * first)
        np.testing.assert_allclose(slope[w != 0], penalty * np.sign(w[w != 0]), rtol=0, atol=1e-6 * first)


@pytest.mark.parametrize("root", [0.0, 0.5])
@pytest.mark.parametrize("design", DESIGNS, ids=["1", "2", "3", "4"])
def test_group_lasso_points_meet_the_conditions_of_their_optimum_on_orthonormalised_groups(
    design: Design, root: float
) -> None:
    rows = drawn(design, design.rows[0])
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
    assert groups_with(
        np.array([False, True, False, False, False, False]), consecutive_groups([2, 3, 1], np.ones(3))
    ).tolist() == [True, False, False]


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


@pytest.mark.parametrize(
    ("published", "error", "verdict"),
    [(1.3, 0.0, "yes"), (1.35, 0.1, "by both errors"), (1.35, 0.0, "no"), (0.5, 0.1, "no")],
)
def test_published_means_agree_within_three_errors_of_ours_or_of_both(
    published: float, error: float, verdict: str
) -> None:
    assert Compared("here", "OLS", Estimate(published, error), Estimate(1.0, 0.1)).verdict == verdict


# Sections.


def simulated(
    means: Callable[[str, str, str], float], runs: int = 20, noise: Callable[[str], float] = lambda _: 0.0
) -> dict[str, Any]:
    """Results of some runs, a little about some means (by variation, row and measure), and noise of each row alone."""

    def about(name: str, row: str, measure: str) -> list[float]:
        return [
            means(name, row, measure) + (0.01 if run % 2 else -0.01) + (noise(row) if run % 4 < 2 else -noise(row))
            for run in range(runs)
        ]

    results: dict[str, Any] = {}
    for name, varied in VARIATIONS.items():
        rows = [row for method in varied.methods for row in row_names(method).values()]
        scored = {row: {measure: about(name, row, measure) for measure in MEASURES} for row in rows}
        results[f"{name}-0"] = dict.fromkeys(SCORINGS, scored)
    return results


def as_published(name: str, row: str, measure: str) -> float:
    return TABLE_1[measure][row][VARIATIONS[name].design - 1].mean


def differing(wrong: Callable[[str, str, str], bool], runs: int = 20) -> Section:
    """The section on results as published, but for cells that are larger by 30."""
    return GROUP_OMP.section(QUICK, simulated(lambda *cell: as_published(*cell) + 30.0 * wrong(*cell), runs))


def finding(section: Section, words: str) -> Finding:
    """The first finding with these words."""
    return next(each for each in section.findings if words in each.text)


def test_the_section_says_so_where_all_agrees() -> None:
    section = GROUP_OMP.section(QUICK, simulated(as_published))
    assert [f.agrees for f in section.findings if f.text.startswith("Experiment")] == [True] * 4
    assert not any("explains" in f.text or "still differ" in f.text for f in section.findings)
    assert "is within three standard errors." in finding(section, "model error of OLS").text


def test_the_section_reports_what_differs_and_which_explanation_is_accepted() -> None:
    section = differing(lambda *cell: cell == ("printed-4", "OLS", "ME"))
    fourth = finding(section, "Experiment 4 as printed")
    assert fourth.agrees is False
    assert all(words in fourth.text for words in ("26 of 27", "outside: OLS"))
    explained = [f for f in section.findings if "450 training rows" in f.text]
    assert [f.agrees for f in explained] == [True]
    assert "published 46.845, as printed 76.845, with it 46.845" in explained[0].text
    assert not any("still differ" in f.text for f in section.findings)
    touchstone = finding(section, "model error of OLS")
    assert touchstone.agrees is False
    assert "in experiment 4: the published figures there do not come from the design as we read it" in touchstone.text


def test_the_section_reports_an_explanation_that_is_not_accepted() -> None:
    section = differing(lambda name, *cell: VARIATIONS[name].design == 4 and cell == ("OLS", "ME"))
    found = [f for f in section.findings if "450 training rows" in f.text]
    assert [f.agrees for f in found] == [False]
    assert "no tested explanation has more agreeing cells than the 26 as printed" in found[0].text
    assert "experiment, 1: OLS, experiment 4, ME." in finding(section, "still differ").text


def test_one_explanation_is_accepted_for_an_experiment_and_other_cells_still_differ() -> None:
    broken = {"OLS": ("rows-4",), "Lasso (Oracle)": ("rows-4",), "OMP (Oracle)": ("noise-4",)}

    def wrong(name: str, row: str, measure: str) -> bool:
        """450 rows fix two cells, less noise fixes a third: they exclude each other."""
        return VARIATIONS[name].design == 4 and measure == "ME" and name not in broken.get(row, (name,))

    section = differing(wrong)
    found = [f for f in section.findings if f.text.startswith("Experiment 4: ")]
    assert [f.agrees for f in found] == [False]
    assert "450 training rows instead of 300 explains part of the difference: 26 of 27 cells" in found[0].text
    assert "Also tested: noise of deviation 15, as in experiment 3 (25 of 27)." in found[0].text
    assert "experiment, 1: OMP (Oracle), experiment 4, ME." in finding(section, "still differ").text
    table = next(t for t in section.tables if t.name == "group-omp-explanations")
    assert [row[0] for row in table.rows if row[-1] == "yes"] == ["450 training rows instead of 300"]


def test_an_explanation_that_spoils_what_agreed_is_charged_with_it() -> None:
    def wrong(name: str, row: str, measure: str) -> bool:
        changed = {"printed-4": ("OLS",), "noise-4": ("Lasso (Oracle)", "OMP (Oracle)")}.get(name, ())
        return VARIATIONS[name].design == 4 and measure == "ME" and (row in changed or name == "rows-4")

    text = finding(differing(wrong), "Experiment 4: ").text
    assert all(words in text for words in ("no tested explanation", "as in experiment 3 (25 of 27)"))


def test_few_runs_have_no_verdict_on_published_means() -> None:
    section = differing(lambda *_: True, runs=4)
    texts = [f for f in section.findings if "consistently" not in f.text]
    assert [f.agrees for f in texts] == [None] * 6
    assert all("too few" in f.text for f in texts)
    assert not any("do not come from the design" in f.text or "explains" in f.text for f in texts)
    assert "4 runs are too few to compare explanations" in texts[-1].text


def claims(results: dict[str, Any]) -> dict[str, Finding]:
    section = GROUP_OMP.section(QUICK, results)
    return {kind: finding(section, f"Chosen by {kind}") for kind in ("oracle", "hold-out")}


def test_the_claim_agrees_where_every_cell_goes_as_published_even_those_against_it() -> None:
    found = claims(simulated(as_published))
    assert [f.agrees for f in found.values()] == [True, True]
    assert (
        "1 of 36 published cells contradict it (Group Lasso on ME in experiment 1), 1 of them also here"
        in found["oracle"].text
    )
    assert "4 of 36 published cells contradict it" in found["hold-out"].text
    assert "36 of 36 cells have the direction" in found["hold-out"].text


def test_the_claim_is_undecided_where_the_intervals_contain_zero() -> None:
    found = claims(simulated(as_published, runs=4, noise=lambda row: 100.0 if "Group-OMP" in row else 0.0))
    assert [f.agrees for f in found.values()] == [None, None]
    assert (
        "0 of 36 cells have the direction of Table 1, 36 are not significant, 0 have the opposite direction."
        in found["oracle"].text
    )


def test_the_claim_differs_where_a_cell_goes_the_other_way() -> None:
    cells = {
        ("printed-2", "Group-OMP (Oracle)", "ME"): 0.95,  # worse
        ("printed-1", "Group-OMP (Holdout)", "F1 (Group)"): 0.622,  # better
    }
    found = claims(simulated(lambda *cell: cells[cell] if cell in cells else as_published(*cell)))
    assert [f.agrees for f in found.values()] == [False, False]
    assert "1 have the opposite direction (against it: Group Lasso on ME in experiment 2)." in found["oracle"].text
    assert "1 have the opposite direction (for Group-OMP: OMP on F1 (Group) in experiment 1)." in found["hold-out"].text


@pytest.mark.parametrize(
    ("values", "direction"),
    [
        ([1.0, 1.1, 0.9], 1),
        ([-1.0, -1.1, -0.9], -1),
        ([1.0, 1.8], 0),  # over three standard errors from 0, which two values do not show by Student's t
        ([5.0], 0),
        ([0.0, 0.0], 0),
    ],
)
def test_a_direction_needs_an_interval_without_zero(values: list[float], direction: int) -> None:
    assert Estimate.of(values).direction == direction


def test_batches_share_out_a_hundred_repetitions() -> None:
    runs = GROUP_OMP.runs(Setting())
    for name in VARIATIONS:
        mine = [run for run in runs if run.arguments["name"] == name]
        repeated = [r.arguments["first"] + i for r in mine for i in range(r.arguments["count"])]
        assert repeated == list(range(100))
    assert len({run.name for run in runs}) == len(runs)
    results: dict[str, Any] = {"a-b-0": {"x": [1]}, "a-0": {"x": [2]}, "a-1": {"x": [3, 4]}}
    assert by_name(results, ("a", "a-b")) == {"a": {"x": [2, 3, 4]}, "a-b": {"x": [1]}}


def test_the_section_of_a_quick_run_has_its_tables() -> None:
    results = {f"{name}-0": trials(QUICK, name, 0, 2) for name in VARIATIONS}
    section = GROUP_OMP.section(QUICK, results)
    assert {run.name for run in GROUP_OMP.runs(QUICK)} == set(results)
    assert_complete(section)


def test_expansion_leaves_a_binary_variable_alone() -> None:
    X = np.array([[0.0, 2.0], [1.0, 3.0], [1.0, 4.0]])
    powers = expansion(X, ("chas", "rm"))
    assert [len(group.features) for group in powers.terms.groups] == [1, 3]
    np.testing.assert_array_equal(powers.expand(X), np.column_stack([X[:, 0], X[:, 1], X[:, 1] ** 2, X[:, 1] ** 3]))


def test_boston_runs_on_the_stand_in_and_says_so() -> None:
    results = {run.name: run.work(QUICK, **{**run.arguments, "count": 2}) for run in BOSTON.runs(QUICK)}
    section = BOSTON.section(QUICK, results)
    assert "diabetes" in section.findings[0].text
    assert not any("CHAS" in words for words in section.text)
    assert not any("published means lie" in f.text for f in section.findings)
    assert_complete(section)


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


def boston_results(
    error: Callable[[str, str], float],
    *,
    splits: int = 20,
    spread: Callable[[str], float] = lambda _: 0.1,
    ols: tuple[float, ...] = (),
    inside: float = 14.0,
) -> dict[str, Any]:
    """Results of some splits, about some errors (by reading and method) by a spread; sizes as published."""

    def about(reading: str, method: str) -> list[float]:
        if ols and method == "OLS":
            return [ols[i % len(ols)] for i in range(splits)]
        return [error(reading, method) + (spread(method) if i % 2 else -spread(method)) for i in range(splits)]

    return {
        f"{reading}-0": {
            "what": "Boston Housing",
            "real": True,
            "variables": 13,
            "methods": {
                m: {"error": about(reading, m), "variables": [TABLE_2[m]["variables"].mean] * splits} for m in METHODS
            },
            "ols": {
                "inside": [inside] * splits,
                "outside": [3] * splits,
                "top": [0.9] * splits,
                "unscaled": about(reading, "OLS"),
            },
        }
        for reading in READINGS
    }


def published_error(_: str, method: str) -> float:
    return TABLE_2[method]["error"].mean


def boston_finding(results: dict[str, Any], words: str) -> Finding:
    return finding(BOSTON.section(QUICK, results), words)


def test_boston_says_where_it_agrees_and_where_not() -> None:
    section = BOSTON.section(QUICK, boston_results(published_error))
    assert [f.agrees for f in section.findings[:2]] == [True, True]
    assert not any("other readings" in f.text for f in section.findings)

    worse = boston_results(lambda r, m: published_error(r, m) + (9.0 if m == "Group-OMP" and r == "read" else 0))
    section = BOSTON.section(QUICK, worse)
    assert [f.agrees for f in section.findings[:2]] == [False, True]
    others = finding(section, "other readings")
    assert others.agrees
    assert "nearest: no intercept or fitted again" in others.text


def test_boston_has_no_verdict_on_published_means_by_few_splits() -> None:
    found = BOSTON.section(QUICK, boston_results(lambda *_: 90.0, splits=3)).findings
    assert [f.agrees for f in found[:3]] == [None] * 3
    assert all("3 splits are too few for a verdict" in f.text for f in found[:3])


def test_boston_judges_the_claim_by_intervals() -> None:
    least = boston_finding(boston_results(published_error), "most accurate")
    assert least.agrees is True
    assert "is less than that of OLS, Lasso, OMP, Group Lasso (" in least.text

    noisy = boston_results(published_error, spread=lambda m: 9.0 if m == "Lasso" else 0.1)
    undecided = boston_finding(noisy, "most accurate")
    assert undecided.agrees is None
    assert "not significantly different from that of Lasso" in undecided.text

    ahead = boston_results(lambda r, m: 17.7 if m == "Group-OMP" else published_error(r, m) - (m == "Lasso"))
    differs = boston_finding(ahead, "most accurate")
    assert differs.agrees is False
    assert "more than that of Lasso" in differs.text
    assert boston_finding(ahead, "sparsest").agrees is True


def test_boston_says_of_the_error_of_ols_what_the_splits_show() -> None:
    rare = boston_results(published_error, ols=(20.0, 20.0, 20.0, 100.0))
    even = boston_results(published_error, inside=29.0)
    for results, mean, source in (
        (rare, "its mean rests on few splits", "without them its mean is 14.00: that is where the error comes from"),
        (even, "its mean does not rest on few splits", "29.00: that is not where the error comes from"),
    ):
        text = boston_finding(results, "The error of OLS").text
        assert all(words in text for words in (mean, source))
