"""Sequences agree with the slow literal oracle, step by step, and keep the laws of the algorithms.

The oracle follows the library's own sequence: at each step it scores every candidate given that prefix. The library
must have taken the oracle's choice, or one that only rounding tells from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from anytime.groups import FeatureGroups, load_groups
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.selection import GroupOrder, sequence
from anytime.types import Float
from models import literal
from models.judge import Judge, check_every_step
from models.likelihood_problems import METHODS
from models.literal import Method, NormalEquations, Problem, Rows, columns_of, literal_step
from models.problems import any_groups, grouped, messy_table, plain_groups, weighted_by
from models.properties import quick

# Problems: small, and as unpleasant as real tables are.


@dataclass(frozen=True, eq=False)
class Case:
    """A table, its groups and a penalty."""

    X: Float = field(repr=False)
    Y: Float = field(repr=False)
    weights: Float | None = field(repr=False)
    groups: FeatureGroups
    alpha: float

    def rows(self, kind: type[Rows] = Rows) -> Rows:
        return kind(*literal.standardise(self.X, self.Y, self.weights), self.alpha, self.weights)

    @property
    def gram(self) -> Gram:
        return Gram.of(moments_of(self.X, self.Y, self.weights))

    def learned(self, method: Any, **options: Any) -> GroupOrder:
        return sequence(self.gram, self.groups, method, self.alpha, **options)


@st.composite
def cases(
    draw: st.DrawFn,
    groups: st.SearchStrategy[FeatureGroups] = any_groups,
    alphas: Sequence[float] = (1e-7, 1e-5, 1e-2, 1.0, 0.0),
    messy: bool = True,
) -> Case:
    """Tables over some groups; messy ones have copies, sums, constants, missing cells."""
    chosen = draw(groups)
    alpha = draw(st.sampled_from(alphas))
    width = len(chosen.features)
    rows = draw(st.integers(max(20, 2 * width + 10) if alpha == 0 else 20, 80))
    responses = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = ["fresh", "copy", "negated", "constant", "binary", *(["sum"] if alpha > 0 else [])]
    mess = draw(st.sampled_from((0.0, 0.3, 0.7))) if messy else 0.0
    missing = draw(st.sampled_from((0.0, 0.1))) if messy else 0.0
    X = messy_table(rng, rows, width, kinds, mess, missing)
    share = draw(st.sampled_from((0.5, 1.0)))
    signal = np.nan_to_num(X) @ (rng.normal(size=(width, responses)) * (rng.random((width, 1)) < share))
    Y = signal + draw(st.sampled_from((0.1, 1.0, 5.0))) * rng.normal(size=(rows, responses)) + 3.0
    return Case(X, Y, weighted_by(draw(st.sampled_from(("none", "positive", "counts"))), rng, rows), chosen, alpha)


@pytest.mark.parametrize("doubling", [False, True], ids=["greedy", "doubling"])
@pytest.mark.parametrize("cost_blind", [False, True], ids=["costs", "blind"])
@pytest.mark.parametrize("method", METHODS)
def test_every_step_is_the_literal_choice(method: Method, cost_blind: bool, doubling: bool) -> None:
    @quick(max_examples=100)
    @given(cases())
    def check(case: Case) -> None:
        learned = case.learned(method, cost_blind=cost_blind, doubling=doubling)
        options: dict[str, Any] = {"method": method, "cost_blind": cost_blind, "doubling": doubling}
        check_every_step(case.rows(), case.groups, learned, atol=1e-9 * case.Y.shape[1] / 2, **options)

    check()


@quick(max_examples=60)
@given(cases(), st.sampled_from(METHODS), st.booleans(), st.booleans())
def test_the_judge_finds_the_literal_choice_right(case: Case, method: Method, blind: bool, doubling: bool) -> None:
    judge = Judge(case.rows(), case.groups, method, blind, doubling)
    selected: list[int] = []
    while len(selected) < len(case.groups):
        choice = literal_step(judge.problem, case.groups, selected, method=method, cost_blind=blind, doubling=doubling)
        assert choice.adds in judge.right_steps(selected)
        selected.extend(choice.adds)


# Rules, on designs where everything is known.


def orthogonal(signal: Sequence[float], groups: FeatureGroups, alpha: float = 1e-5) -> Case:
    """Columns of a Hadamard matrix, uncorrelated to the last bit, and their sum with the coefficients `signal`."""
    H = np.ones((1, 1))
    while len(H) <= len(signal):
        H = np.block([[H, H], [H, -H]])
    X = H[:, 1 : len(signal) + 1]
    return Case(X, (X @ np.array(signal))[:, np.newaxis], None, groups, alpha)


def order_of(learned: GroupOrder) -> list[tuple[int, ...]]:
    return [step.adds for step in learned.steps]


KNOWN: dict[str, tuple[list[float], FeatureGroups, list[tuple[int, ...]]]] = {
    "of equal densities the cheaper step goes first": (
        [2.0, 1.0, 4.0],
        grouped([1, 1, 1], [4.0, 1.0, 16.0]),
        [(1,), (0,), (2,)],
    ),
    "a costly visit is left when its tests buy too little": (
        [1.0, 1.1, 0.6],
        grouped([0, 1, 1, 1], [10.0, 1.0, 1.0, 1.0], {1: [0], 2: [0]}),
        [(3,), (0, 2), (1,)],
    ),
    # Candidates 1 and 2 open the same union at the same density: 1 is the cheaper step, and free once 0 is paid.
    "a free member goes first in its bundle though it adds nothing": (
        [3.0, 0.1],
        grouped([0, 0, 1, 1], [2.0, 0.0, 1.0, 1.0], {1: [0], 2: [0]}),
        [(0, 1), (2,), (3,)],
    ),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rule", KNOWN)
def test_uncorrelated_columns_are_ordered_by_the_rules(rule: str, method: Method) -> None:
    signal, groups, expected = KNOWN[rule]
    assert order_of(orthogonal(signal, groups).learned(method)) == expected


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cost_blind", [False, True], ids=["costs", "blind"])
def test_of_equal_densities_and_costs_the_first_in_the_file_goes_first(method: Method, cost_blind: bool) -> None:
    case = orthogonal([1.0, 2.0, 1.0, 2.0], grouped([1, 1, 1, 1], [2.0, 2.0, 2.0, 2.0]))
    assert order_of(case.learned(method, cost_blind=cost_blind)) == [(1,), (3,), (0,), (2,)]


@pytest.mark.parametrize("method", ["omp", "fr", "no-whiten"])
def test_a_dear_visit_is_bought_for_the_tests_it_opens_and_they_follow(method: Method) -> None:
    tests = range(1, 11)
    groups = grouped([0, *(1 for _ in tests), 1], [10.0, *(1.0 for _ in tests), 1.0], {g: [0] for g in tests})
    steps = order_of(orthogonal([1.0, 1.1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.6], groups).learned(method))
    assert steps[0] == (0, 2)
    assert sorted(steps[1:10]) == [(1,), *((g,) for g in range(3, 11))]
    assert steps[10] == (11,)


@pytest.mark.parametrize("method", METHODS)
def test_doubling_begins_with_the_cheapest_and_says_where_it_had_to_break(method: Method) -> None:
    case = orthogonal([9.0, 1.0, 2.0, 5.0], grouped([1, 1, 1, 1], [16.0, 1.0, 1.0, 2.0]))
    learned = case.learned(method, doubling=True)
    assert (order_of(learned), learned.doubling_until) == ([(2,), (1,), (3,), (0,)], 3)
    assert case.learned(method).doubling_until is None


# Laws.


untied = cases(plain_groups(costs=(0.7, 1.1, 2.3, 3.9, 8.2)), alphas=(1e-5, 1e-2, 1.0), messy=False)
"""Generic problems: no two scores are equal."""


@quick(max_examples=60)
@given(untied, st.sampled_from(METHODS), st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_the_groups_file_does_not_matter_without_ties(
    case: Case, method: Method, blind: bool, random: Random
) -> None:
    places = list(range(len(case.groups)))
    random.shuffle(places)
    shuffled = FeatureGroups(groups=tuple(case.groups.groups[g] for g in places))
    other = replace(case, X=case.X[:, columns_of(case.groups, places)], groups=shuffled)
    a, b = case.learned(method, cost_blind=blind), other.learned(method, cost_blind=blind)
    assert order_of(a) == [tuple(places[g] for g in adds) for adds in order_of(b)]
    assert [s.explained_variance for s in b.steps] == pytest.approx([s.explained_variance for s in a.steps], abs=1e-9)


@quick(max_examples=60)
@given(untied, st.sampled_from(METHODS), st.booleans(), st.integers(0, 2**32 - 1))
def test_units_and_origins_of_columns_do_not_matter(case: Case, method: Method, blind: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, Y = (
        table * 10 ** rng.uniform(-3, 3, table.shape[1]) * rng.choice([-1, 1], table.shape[1])
        + rng.uniform(-10, 10, table.shape[1])
        for table in (case.X, case.Y)
    )
    a, b = case.learned(method, cost_blind=blind), replace(case, X=X, Y=Y).learned(method, cost_blind=blind)
    assert order_of(a) == order_of(b)
    assert [s.explained_variance for s in b.steps] == pytest.approx([s.explained_variance for s in a.steps], abs=1e-9)


@quick(max_examples=40)
@given(untied, st.sampled_from(METHODS), st.integers(0, 2**32 - 1))
def test_a_weight_is_a_number_of_copies_of_a_row(case: Case, method: Method, seed: int) -> None:
    copies = np.random.default_rng(seed).integers(1, 4, len(case.X))
    weighted = replace(case, weights=copies.astype(np.float64))
    repeated = replace(case, X=np.repeat(case.X, copies, axis=0), Y=np.repeat(case.Y, copies, axis=0), weights=None)
    assert order_of(weighted.learned(method)) == order_of(repeated.learned(method))


@quick(max_examples=40)
@given(cases(plain_groups(costs=(3.0,)), alphas=(1e-5, 1e-2, 1.0), messy=False), st.sampled_from(METHODS))
def test_equal_costs_are_no_costs(case: Case, method: Method) -> None:
    assert order_of(case.learned(method)) == order_of(case.learned(method, cost_blind=True))


# The oracle itself, by hand.


def test_ratios_and_best_sets_by_hand() -> None:
    F = {frozenset[int](): 0.0, frozenset({0}): 0.2, frozenset({1}): 0.3, frozenset({0, 1}): 0.7}
    assert literal.submodularity_ratio(F) == pytest.approx(0.5)
    assert literal.submodularity_ratio({**F, frozenset({0, 1}): 0.5}) == 1.0
    assert literal.brute_force_best(F, [1.0, 2.0], 2.0) == 0.3
    assert literal.brute_force_best(F, [1.0, 2.0], 3.0) == 0.7


# Real tables.


REAL_OPTIONS = [(method, blind, False) for method in METHODS for blind in (False, True)] + [("fr", False, True)]


def check_real(problem: Problem, case: Case, method: Method, blind: bool, doubling: bool) -> None:
    wanted = literal.literal_sequence_of(problem, case.groups, method=method, cost_blind=blind, doubling=doubling)
    learned = case.learned(method, cost_blind=blind, doubling=doubling)
    assert [tuple(case.groups.names[g] for g in step.adds) for step in learned.steps] == [step.adds for step in wanted]
    assert [s.cost for s in learned.steps] == pytest.approx([s.cost for s in wanted], rel=1e-12)
    F = [s.explained_variance for s in wanted]
    assert [s.explained_variance for s in learned.steps] == pytest.approx(F, rel=0, abs=1e-9)


def case_of(table: pd.DataFrame, target: str, groups: FeatureGroups) -> Case:
    X = table[list(groups.features)].to_numpy(dtype=np.float64)
    return Case(X, table[[target]].to_numpy(dtype=np.float64), None, groups, 1e-5)


@pytest.mark.parametrize(("method", "blind", "doubling"), REAL_OPTIONS)
@pytest.mark.parametrize(("name", "target"), [("mq2008", "relevance"), ("heart_cleveland", "disease")])
def test_real_tables_get_the_literal_sequence(
    shared_data: Path, name: str, target: str, method: Method, blind: bool, doubling: bool
) -> None:
    table = pd.read_parquet(shared_data / name / "data.parquet")
    case = case_of(table, target, load_groups(shared_data / name / "groups.json"))
    check_real(case.rows(), case, method, blind, doubling)


@pytest.fixture(scope="module")
def yahoo(shared_data: Path) -> tuple[Case, NormalEquations]:
    """Random groups of five features of one cost, as in the paper."""
    content = json.loads((shared_data / "yahoo_sample" / "groups.json").read_text(encoding="utf-8"))
    rng = np.random.default_rng(5)
    groups = []
    for cost in sorted({group["cost"] for group in content["groups"]}):
        features = [feature for group in content["groups"] if group["cost"] == cost for feature in group["features"]]
        rng.shuffle(features)
        for start in range(0, len(features), 5):
            part = features[start : start + 5]
            groups.append({"name": f"cost {cost} number {start // 5}", "features": part, "cost": cost * len(part)})
    table = pd.read_parquet(shared_data / "yahoo_sample" / "train.parquet")
    case = case_of(table, "relevance", load_groups({"groups": groups}))
    return case, NormalEquations.of(case.rows())


@pytest.mark.parametrize(
    ("method", "blind", "doubling"),
    [each if each[1:] == (False, False) else pytest.param(*each, marks=pytest.mark.heavy) for each in REAL_OPTIONS],
)
def test_random_groups_of_a_ranking_table_get_the_literal_sequence(
    yahoo: tuple[Case, NormalEquations], method: Method, blind: bool, doubling: bool
) -> None:
    case, problem = yahoo
    check_real(problem, case, method, blind, doubling)
