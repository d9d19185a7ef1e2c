"""The tables of timeliness: what is measured, and how a claim of the paper is judged."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anytime.evaluation.evaluate import held_out_curve
from anytime.groups import FeatureGroups
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.selection import sequence
from anytime.training.fit import fit
from anytime.training.options import Options
from anytime.types import Float
from anytime_reproduction.comparison import compare
from anytime_reproduction.experiment import Estimate, Result, Results, Setting
from anytime_reproduction.sets import load_set, regrouping
from anytime_reproduction.uai import timeliness
from anytime_reproduction.uai.timeliness import (
    COLUMNS,
    CURVES,
    METHODS,
    ORDER,
    PROBLEMS,
    TABLE_1,
    TABLE_2,
    Claim,
    draw_curves,
    measure_groupings,
)
from anytime_reproduction.uai.training_time import (
    TRAINING_TIME,
    Equations,
    TimedPath,
    clocked,
    counted,
    from_products,
    from_rows,
    grown,
    literal_fr,
    literal_omp,
    timed,
)
from models import literal
from models.literal import Method
from models.problems import grouped

QUICK = Setting(quick=True)


@pytest.mark.parametrize(
    ("strictly", "estimate", "verdict"),
    [
        (False, Estimate(0.003, 0.001, 10), True),
        (False, Estimate(-0.001, 0.001, 10), None),
        (False, Estimate(-0.003, 0.001, 10), False),
        (False, Estimate(0.0, 0.0, 10), True),
        (True, Estimate(0.003, 0.001, 10), True),
        (True, Estimate(0.003, 0.001, 2), None),  # two runs know little of their error
        (True, Estimate(-0.003, 0.001, 10), False),
        (True, Estimate(0.0, 0.0, 10), False),
    ],
)
def test_the_whole_interval_refutes_a_claim_and_one_of_more_also_needs_the_whole_of_it(
    strictly: bool, estimate: Estimate, verdict: bool | None
) -> None:
    assert Claim("a", "b", strictly=strictly).judged(estimate) is verdict


@pytest.mark.usefixtures("smaller_stand_ins")
def test_a_grouping_is_the_mean_of_its_splits_by_every_method() -> None:
    found = measure_groupings(QUICK, "mq2008", 5, 2, 1e-5)
    data = load_set("mq2008", QUICK)
    groups, order = regrouping(QUICK, data.groups, 5)
    splits = [data.split(number).ordered(order) for number in range(len(data.splits))]
    compared = [compare(split.gram, groups, 1e-5, split.held, 0.99) for split in splits]
    for side in ("test", "train"):
        means = {m: np.mean([getattr(each, side)[m].timeliness for each in compared]) for m in COLUMNS}
        assert {method: found[side][method][0] for method in COLUMNS} == pytest.approx(means)


def fabricated(gap: float) -> Results:
    """Results of Table 1 in which every method is `gap` behind the one that the paper has before it."""
    ranked = ("CS-G-FR", "CS-G-OMP", "Single", "No-Whiten", "Sparse", "G-OMP")
    values = {method: 0.5 - gap * (ranked.index(method) if method in ranked else 9) for method in COLUMNS}
    return {
        f"set-{k}": {side: {m: [v + 0.01 * k] for m, v in values.items()} for side in ("train", "test")}
        for k in range(3)
    }


def test_table_1_agrees_where_the_order_holds_and_differs_where_not() -> None:
    holds = TABLE_1.section(QUICK, fabricated(0.01))
    assert all(finding.agrees for finding in holds.findings)
    assert "Doubling loses most" in holds.text[-1]
    assert [finding.agrees for finding in TABLE_1.section(QUICK, fabricated(-0.01)).findings] == [False] * len(ORDER)


@pytest.mark.parametrize("quick", [True, False])
def test_without_real_data_only_the_stand_ins_are_measured(quick: bool) -> None:
    names = {run.name.rsplit("-", 1)[0] for run in TABLE_2.runs(Setting(quick=quick))}
    assert names == {"yahoo", "yahoo-validated", "mq2008"}
    assert {run.name.rsplit("-", 1)[0] for run in TABLE_2.runs(Setting(Path("data")))} == {*names, "kddcup99"}


def test_a_lead_of_shrunken_weights_is_distinguished_from_one_of_their_order() -> None:
    results = {run.name: {**fabricated_sizes(), "groupings": [run.name]} for run in TABLE_2.runs(QUICK)}

    def said_of_every_lead(words: str) -> list[bool]:
        texts = [each.text for each in TABLE_2.section(QUICK, results).findings if "order of entry" in each.text]
        return [words in text for text in texts]

    assert said_of_every_lead("refitted in that order it has no lead") == [True] * 3
    for result in results.values():
        result["test"]["Sparse"] = [0.9, 0.91, 0.92]
    assert all(said_of_every_lead("the order explains part of it"))


def fabricated_sizes() -> Result:
    """One size of Table 2 in which shrunken weights lead and refitted ones do not."""
    values = dict.fromkeys(COLUMNS, 0.5) | {"Sparse (shrunken)": 0.6, "Sparse": 0.45}
    sides = {side: {m: [v, v + 0.01, v + 0.02] for m, v in values.items()} for side in ("train", "test")}
    return {**sides, "alpha": 0.1, "groupings": ["a", "b", "c"]}


@pytest.mark.usefixtures("smaller_stand_ins")
def test_groupings_that_are_the_same_count_once_and_sizes_that_add_none_are_left_out() -> None:
    found = {size: measure_groupings(QUICK, "mq2008", size, 3, 1e-5) for size in (5, 15, 20)}
    assert len(found[5]["groupings"]) == 3
    assert len(found[5]["test"]["CS-G-FR"]) == 3
    assert found[15]["groupings"] == found[20]["groupings"]
    assert len(found[20]["test"]["CS-G-FR"]) == 5  # the splits
    results = {run.name: {**fabricated_sizes(), "groupings": ["one"]} for run in TABLE_2.runs(QUICK)}
    table = next(t for t in TABLE_2.section(QUICK, results).tables if t.name == "table-2-mq2008")
    assert [each.heading for each in table.columns] == ["method", "s=5 stand-in"]
    assert "At s=5 all groupings are the same" in table.caption
    assert "s=20 gives the same groups as a smaller size" in table.caption


def test_methods_that_cannot_be_distinguished_are_noted_and_do_not_agree() -> None:
    results = {f"set-{k}": {side: {key: [0.5 + k] for key in COLUMNS} for side in ("train", "test")} for k in range(3)}
    (finding,) = TABLE_1.section(QUICK, results).findings
    assert finding.verdict == "undecided"
    assert "no difference" in finding.text


def test_a_claim_that_the_runs_do_not_refute_is_undecided_and_has_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    results = fabricated(0.01)
    for k, lead in enumerate((-0.03, -0.001, 0.001)):
        test = results[f"set-{k}"]["test"]
        test["CS-G-FR"] = [test["CS-G-OMP"][0] + lead]
    assert "CS-G-FR less CS-G-OMP on held-out rows: " in TABLE_1.reported(QUICK, results).findings[-1].text
    monkeypatch.setattr(timeliness, "load_set", lambda name, _: load_set(name, QUICK))
    agreed, undecided = TABLE_1.reported(Setting(Path("data")), results).findings
    assert (agreed.verdict, agreed.claims) == ("agrees", len(ORDER) - 1)
    assert undecided.verdict == "undecided"
    difference = Estimate.of([-0.03, -0.001, 0.001])
    low, high = difference.mean - difference.margin, difference.mean + difference.margin
    assert "CS-G-FR >= CS-G-OMP on held-out rows is not refuted" in undecided.text
    assert f"{difference.mean:+.4f} ({low:+.4f} to {high:+.4f}, 3 runs)" in undecided.text


@pytest.mark.parametrize("quick", [True, False])
def test_findings_on_stand_ins_have_no_word_of_a_verdict_and_name_the_sets_measured(quick: bool) -> None:
    setting = Setting(quick=quick)
    results = {run.name: {**fabricated_sizes(), "groupings": [run.name]} for run in TABLE_2.runs(setting)}
    section = TABLE_2.reported(setting, results)
    notice = "Not a reproduction: no published data here (stand-ins for yahoo_sample, mq2008)."
    assert section.findings[0].text == notice
    assert {finding.verdict for finding in section.findings} == {"noted"}
    for text in (*section.text, *(finding.text for finding in section.findings)):
        assert not re.search("refuted|agree|differs|undecided|confirm", text)


# The curves of the figures are those of the models that training would give.


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


# The time of training.

SETTING = Setting(quick=True)
ALPHA = 1e-5
SELECT: dict[Method, Callable[[Equations, FeatureGroups], TimedPath]] = {"fr": literal_fr, "omp": literal_omp}


def problem(seed: int = 0) -> tuple[Float, Float, FeatureGroups]:
    """Groups of unlike sizes and costs, one free; one column constant, one a copy, one a sum."""
    rng = np.random.default_rng(seed)
    groups = grouped([3, 1, 4, 2, 2, 1], [2.0, 1.0, 5.0, 0.0, 3.0, 1.0])
    X = rng.normal(size=(80, 13)) + rng.normal(size=(80, 1))
    X[:, 5], X[:, 8], X[:, 9] = 7.0, X[:, 0], X[:, 3] + X[:, 4]
    return X, X @ rng.normal(size=13) + rng.normal(size=80), groups


def equations(kind: str, X: Float, y: Float) -> Equations:
    gram = Gram.of(moments_of(X, y))
    return from_products(gram) if kind == "products" else from_rows(X, y, gram)


@pytest.mark.parametrize("method", ["fr", "omp"])
@pytest.mark.parametrize("kind", ["products", "rows"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_literal_ways_are_the_papers_algorithms_and_our_sequence(method: Method, kind: str, seed: int) -> None:
    X, y, groups = problem(seed)
    found = SELECT[method](equations(kind, X, y), groups)
    oracle = literal.literal_sequence(X, y, groups, method=method, alpha=ALPHA)
    assert [groups.names[g] for g in found.order] == [step.adds[-1] for step in oracle]
    np.testing.assert_allclose(found.explained, [step.explained_variance for step in oracle], atol=1e-9)
    ours = sequence(Gram.of(moments_of(X, y)), groups, method, ALPHA)
    assert found.order.tolist() == [step.adds[-1] for step in ours.steps]
    np.testing.assert_allclose(found.explained, ours.explained_variance[1:], atol=1e-8)


@pytest.mark.parametrize("method", ["fr", "omp"])
def test_the_search_with_a_clock_is_our_sequence(method: Method) -> None:
    X, y, groups = problem()
    gram = Gram.of(moments_of(X, y))
    found, ours = clocked(gram, groups, method), sequence(gram, groups, method, ALPHA)
    assert found.order.tolist() == [step.adds[-1] for step in ours.steps]
    np.testing.assert_array_equal(found.explained, ours.explained_variance[1:])
    assert (np.diff(found.seconds, prepend=0.0) >= 0).all()


def test_literal_fr_makes_a_quarter_as_many_times_the_products_as_there_are_groups() -> None:
    assert counted(grouped([5] * 100, [1.0] * 100), np.arange(100)) == pytest.approx(25, rel=0.05)
    # Of two groups: both alone and one pair, against one alone and one pair.
    assert counted(grouped([1, 2], [1.0, 1.0]), np.array([0, 1])) == pytest.approx((1 + 4 + 9) / (1 + 9))


@pytest.fixture(scope="module")
def timings() -> dict[str, Any]:
    yahoo = {f"yahoo-{size}": timed(SETTING, "yahoo_sample", size, 1) for size in (20, 10)}
    return {**yahoo, "kddcup99": timed(SETTING, "kddcup99", None, 2), **{"made-40": grown(SETTING, 40)}}


def test_on_the_stand_ins_all_ways_agree(timings: dict[str, Any]) -> None:
    for name in ("yahoo-20", "yahoo-10", "kddcup99"):
        result = timings[name]
        assert all(match["order"] and match["difference"] < 1e-8 for match in result["same"].values())
        assert all(each == sorted(each) and len(each) == result["groups"] for each in result["seconds"].values())


def test_the_section_reports_what_was_measured(timings: dict[str, Any]) -> None:
    section = TRAINING_TIME.section(SETTING, timings)
    assert section.findings[0].agrees is True
    assert section.findings[2].agrees is None  # stand-ins prove nothing of published times
    rows = section.tables[0].rows
    assert [row[0] for row in rows] == [f"{name} (stand-in)" for name in ("yahoo-20", "yahoo-10", "kddcup99")]
    assert all(len(row) == len(section.tables[0].columns) for row in rows)
    assert len(section.figures[0].charts) == 2


def test_findings_follow_the_results(timings: dict[str, Any]) -> None:
    changed = deepcopy(timings)
    changed["yahoo-10"]["same"]["OMP"]["order"] = False
    changed["kddcup99"]["seconds"]["FR, rows"] = [1e3] * changed["kddcup99"]["groups"]
    section = TRAINING_TIME.section(Setting(data=None, yahoo=None), changed)
    assert section.findings[0].agrees is False
    assert "yahoo-10 OMP" in section.findings[0].text
    assert "Not within a factor of 2" in section.findings[2].text


def test_runs_are_alone_for_they_measure_time() -> None:
    for setting in (SETTING, Setting()):
        assert all(run.alone for run in TRAINING_TIME.runs(setting))
