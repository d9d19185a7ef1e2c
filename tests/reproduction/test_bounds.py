"""The bounds experiment checks the inequalities correctly and reports violations; certificates are measured alike."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime.moments.moments import Gram, Moments
from anytime.selection import sequence
from anytime.training.guarantee import bound, doubling_bound, subset_values
from anytime_reproduction.experiment import Result, Setting
from anytime_reproduction.sets import load_set, recosted
from anytime_reproduction.uai.bounds import (
    BOUNDS,
    CERTIFICATES,
    PROBLEMS,
    ProblemName,
    best_of_sets,
    certified,
    cheapest,
    check_doubling,
    check_prefixes,
    checked_problem,
    drawn_costs,
    small_problem,
)
from models import literal
from models.properties import quick
from reproduction.runs_for_tests import assert_complete

SETTING = Setting(quick=True)
ALPHA = 1e-5


def of(name: ProblemName, number: int) -> Any:
    """A problem of six groups at drawn costs, F of all sets, and the optimum."""
    _, gram, groups = small_problem(SETTING, name, 6)
    groups = recosted(groups, drawn_costs(np.random.default_rng(5), 6, number))
    values = subset_values(gram, groups, ALPHA)
    F = {frozenset(members): float(values[code]) for code, members in enumerate(_subsets(6))}
    return gram, groups, F, best_of_sets(values, groups.costs)


@pytest.mark.parametrize("name", ["kddcup99", "one cause"])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("gamma", [0.2, 1.0, 5.0])
def test_prefixes_are_held_against_every_set(name: ProblemName, number: int, gamma: float) -> None:
    gram, groups, F, best = of(name, number)
    found = sequence(gram, groups, "omp", ALPHA)
    result = check_prefixes(found, best, gamma)
    margins, reached = [], []
    for B, explained in zip(found.costs[1:], found.explained_variance[1:], strict=True):
        for members in F:
            K = literal.cost_of(groups, sorted(members))
            if K > 0:
                optimum = literal.brute_force_best(F, groups.costs.tolist(), K)
                margins.append((explained - bound(gamma, B, K) * optimum) / optimum)
        reached.append(explained / literal.brute_force_best(F, groups.costs.tolist(), B))
    assert result["margin"] == pytest.approx(min(margins), abs=1e-9)
    assert (result["broken"] > 0) == (min(margins) < -1e-9)
    assert result["reached"] == pytest.approx(min(reached), rel=1e-6)


@pytest.mark.parametrize("ratio", [0.5, 20.0])
def test_doubling_is_held_against_every_set_of_a_quarter(ratio: float) -> None:
    gram, groups, F, best = of("families", 0)
    found = sequence(gram, groups, "fr", ALPHA, doubling=True)
    result = check_doubling(found, best, ratio)
    until = found.costs[found.doubling_until or 0]
    shares = []
    for budget in np.arange(1, until + 0.5, 0.5):  # costs are whole
        optimum = literal.brute_force_best(F, groups.costs.tolist(), budget / 4)
        if optimum > 0:
            shares.append(found.explained_variance[np.flatnonzero(found.costs <= budget)[-1]] / optimum)
    assert shares
    assert result["until"] == until
    assert result["reached"] == pytest.approx(min(shares))
    assert result["margin"] == pytest.approx(min(shares) - doubling_bound(ratio))
    assert (result["broken"] > 0) == (min(shares) < doubling_bound(ratio))


def _subsets(count: int) -> list[list[int]]:
    return [[g for g in range(count) if code >> g & 1] for code in range(2**count)]


@quick(max_examples=80)
@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0, 2.5]), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_the_best_of_all_sets_is_that_of_plain_search(costs: list[float], seed: int) -> None:
    values = np.random.default_rng(seed).uniform(0, 1, 2 ** len(costs))
    values[0] = 0.0
    found = best_of_sets(values, np.array(costs))
    sets = [(sum(costs[g] for g in members), values[code]) for code, members in enumerate(_subsets(len(costs)))]
    assert found.costs[0] == 0
    assert (np.diff(found.values) > 0).all()
    for budget in [*(cost for cost, _ in sets), 0.0, 0.15, 99.0]:
        assert found.within(np.array([budget]))[0] == max(value for cost, value in sets if cost <= budget + 1e-9)


def test_of_a_large_set_the_cheapest_groups_are_tried() -> None:
    data = load_set("mq2008", SETTING)
    few = cheapest(data, 7)
    assert len(few.groups) == 7
    assert few.groups.costs.max() <= np.sort(data.groups.costs)[7]
    column = {feature: data.X[:, j] for j, feature in enumerate(data.groups.features)}
    np.testing.assert_array_equal(few.X, np.column_stack([column[feature] for feature in few.groups.features]))
    assert cheapest(few, 7) is few


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return {name.replace(" ", "-"): checked_problem(SETTING, name, 6, 2) for name in PROBLEMS}


def test_the_section_reports_that_no_bound_was_violated(results: dict[str, Any]) -> None:
    section = BOUNDS.section(SETTING, results)
    assert [finding.agrees for finding in section.findings] == [True, True, None, None, None]
    assert all("none violated" in finding.text for finding in section.findings[:2])
    assert_complete(section)


def test_the_section_reports_violations(results: dict[str, Any]) -> None:
    changed = deepcopy(results)
    changed["families"]["cases"][0]["CS-G-OMP"]["broken"] = 3
    findings = BOUNDS.section(SETTING, changed).findings
    assert [finding.agrees for finding in findings[:2]] == [False, True]
    assert "3 violated" in findings[0].text


def test_runs_are_fit_for_files_and_cover_every_problem() -> None:
    for setting in (SETTING, Setting()):
        runs = BOUNDS.runs(setting)
        assert [run.arguments["problem"] for run in runs] == list(PROBLEMS)
        assert all(run.name.replace("-", "").replace("_", "").isalnum() for run in runs)


# Certificates.

QUICK = Setting(quick=True)


@pytest.fixture(scope="module")
def result() -> Result:
    """The certificate of a set of ten groups."""
    return certified(QUICK, "boston_housing", None, 60.0)


def test_bounds_are_the_exhaustive_optimum_where_they_are_exact(result: Result) -> None:
    data = load_set("boston_housing", QUICK)
    F = subset_values(Gram.of(Moments.merged(data.moments)), data.groups, 1e-5)
    sets = np.arange(len(F))
    costs = sum(np.where(sets >> g & 1, cost, 0.0) for g, cost in enumerate(data.groups.costs))
    for cost, bounded, exact in zip(result["costs"], result["bound"], result["exact"], strict=True):
        assert exact
        assert bounded == pytest.approx(F[costs <= cost + 1e-9].max(), rel=1e-8)


def test_the_words_follow_what_was_proved(result: Result) -> None:
    runs = {run.name: result for run in CERTIFICATES.runs(QUICK)}
    section = CERTIFICATES.section(QUICK, runs)
    assert all("at 10 of 10 costs" in finding.text for finding in section.findings)
    assert "prove 100 %" in section.text[1] or "prove 9" in section.text[1]
    loose = {**result, "bound": [2 * F for F in result["F"]], "exact": [False] * len(result["F"])}
    section = CERTIFICATES.section(QUICK, dict.fromkeys(runs, loose))
    assert all("at 0 of 10 costs" in finding.text for finding in section.findings)
    assert all("at least 50 % of the best possible" in finding.text for finding in section.findings)
    assert "prove 50 % or more" in section.text[1]
