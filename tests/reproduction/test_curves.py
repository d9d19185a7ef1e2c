"""The curves of the figures are those of the models that training would give."""

from __future__ import annotations

import numpy as np
import pytest

from anytime.evaluation.evaluate import held_out_curve
from anytime.training.fit import fit
from anytime.training.options import Options
from anytime_reproduction.experiment import Result, Setting
from anytime_reproduction.sets import load_set
from anytime_reproduction.uai.timeliness import CURVES, METHODS, PROBLEMS, draw_curves

QUICK = Setting(quick=True)


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {run.name: run.work(QUICK, **run.arguments) for run in CURVES.runs(QUICK)}


def test_curves_are_those_of_a_trained_model_on_rows_held_out() -> None:
    data, problem = load_set("kddcup99", QUICK), PROBLEMS[0]
    train, test = data.splits[0]
    moments = data.moments
    assert problem.alpha is not None
    fitted = fit([moments[part] for part in train], data.groups, Options(method="fr", alpha=problem.alpha))
    explained, _, _, risk = held_out_curve(fitted.prefixes, moments[test])
    found = draw_curves(QUICK, "kddcup99", problem.alpha, None)
    curves = found["methods"]["CS-G-FR"]
    np.testing.assert_allclose(curves["test"], explained, atol=1e-9)
    np.testing.assert_allclose(curves["train"], fitted.sequence.explained_variance, atol=1e-9)
    assert found["risk"] == pytest.approx(risk)
    rows = np.flatnonzero(data.part == test)
    predicted = fitted.prefixes.predict_all(data.X[rows])[:, :, 0] >= 0.5
    np.testing.assert_allclose(curves["measure"], np.mean(predicted == (data.y[rows] >= 0.5), axis=1))


def test_every_method_ends_where_all_groups_are_in(results: dict[str, Result]) -> None:
    for result in results.values():
        assert set(result["methods"]) == {*METHODS, "Doubling", "Sparse", "Sparse (shrunken)"}
        ends = {name: curves["train"][-1] for name, curves in result["methods"].items()}
        shrunken = ends.pop("Sparse (shrunken)")
        assert np.ptp(list(ends.values())) < 1e-8
        assert shrunken > 0.9 * ends["CS-G-FR"]


def test_forward_regression_buys_most_in_the_first_step(results: dict[str, Result]) -> None:
    for result in results.values():
        greedy = {name: c for name, c in result["methods"].items() if name in METHODS}
        density = {name: c["train"][1] / c["costs"][1] for name, c in greedy.items()}
        assert density["CS-G-FR"] == pytest.approx(max(density.values()))


def test_the_section_has_the_figures_of_the_paper(results: dict[str, Result]) -> None:
    section = CURVES.section(QUICK, results)
    assert [figure.name for figure in section.figures] == [
        "figure-3a",
        "figure-3b",
        "figure-4",
        "figure-5ab",
        "figure-5cd",
    ]
    for figure in section.figures:
        assert all(words in chart.svg() for chart in figure.charts for words in ("cost (", 'class="legend"'))


def test_what_a_curve_says_depends_on_the_curve(results: dict[str, Result]) -> None:
    blind = {name: {**result, "methods": dict(result["methods"])} for name, result in results.items()}
    for result in blind.values():
        result["methods"]["G-OMP"] = result["methods"]["CS-G-OMP"]
    findings = CURVES.section(QUICK, blind).findings
    assert [f.verdict for f in findings if ": costs:" in f.text] == ["undecided"] * len(PROBLEMS)
    assert all(f.agrees is None or isinstance(f.agrees, bool) for f in findings)
