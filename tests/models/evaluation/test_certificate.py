"""Certificates hold against the best of all sets, found by trying them all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime.data.dataset import Dataset
from anytime.data.formats import open_table
from anytime.errors import TrainingError
from anytime.estimators import AnytimeRegressor
from anytime.evaluation.certificate.certify import CertifiedPrefix, certify, certify_prefixes
from anytime.evaluation.certificate.relaxation import SelectionProblem, Split, knapsack_bound
from anytime.groups import COST_TOLERANCE, FeatureGroups, load_groups
from anytime.model.manifest import Certificate
from anytime.model.model import Model
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.selection import sequence
from anytime.target import Target
from anytime.training.fit import fit, provenance
from anytime.training.guarantee import subset_values
from anytime.training.options import Options
from anytime.types import Bool, Float, Method
from models import literal
from models.literal import Rows, brute_force_best, explained_variance_of_subsets
from models.present import present
from models.problems import SmallTable, any_groups, grouped, messy_table, plain_groups
from models.properties import quick

ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Case(SmallTable):
    """A table whose best sets are certified."""

    @property
    def problem(self) -> SelectionProblem:
        return SelectionProblem.of(self.gram, self.groups, self.alpha)


@st.composite
def cases(
    draw: st.DrawFn,
    groups: st.SearchStrategy[FeatureGroups] = any_groups,
    alphas: Sequence[float] = (0.0, 1e-7, 1e-5, 1e-2, 1.0, 100.0),
) -> Case:
    drawn = draw(groups)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, width, responses = draw(st.integers(30, 60)), len(drawn.features), draw(st.integers(1, 3))
    X = messy_table(
        rng, rows, width, ("copy", "negated", "constant", "binary", "sum"), draw(st.sampled_from((0, 0.5))), 0
    )
    X += draw(st.sampled_from((0.0, 1.0, 3.0))) * rng.normal(size=(rows, 1)) * rng.integers(0, 2, size=width)
    Y = X @ (rng.normal(size=(width, responses)) * rng.integers(0, 2, size=(width, 1)))
    Y += draw(st.sampled_from((0.1, 3.0))) * rng.normal(size=(rows, responses))
    return Case(X, Y, drawn, draw(st.sampled_from(alphas)))


@dataclass(frozen=True, eq=False)
class Sets:
    """Every set that holds what it requires: members (sets, J), F and cost (sets,)."""

    members: Bool
    F: Float
    costs: Float

    @staticmethod
    def of(gram: Gram, groups: FeatureGroups, alpha: float) -> Sets:
        # Groups without features add nothing but costs: they are in the sets that require them only.
        telling = [g for g, group in enumerate(groups.groups) if group.features]
        alone = FeatureGroups(groups=tuple(groups.groups[g].model_copy(update={"requires": ()}) for g in telling))
        values = subset_values(gram, alone, alpha)
        members = np.zeros((len(values), len(groups)), dtype=np.bool_)
        members[:, telling] = np.arange(len(values))[:, np.newaxis] >> np.arange(len(telling)) & 1
        with_all = members.copy()
        for g, before in enumerate(groups.prerequisites):
            with_all[:, list(before)] |= members[:, [g]]
        closed = (with_all == members)[:, telling].all(axis=1)
        return Sets(with_all[closed], values[closed], with_all[closed] @ groups.costs)

    def best(self, budget: float) -> float:
        return float(self.F[self.costs <= budget * (1 + COST_TOLERANCE)].max())


def budgets(case: Case, method: Method = "fr") -> tuple[list[float], list[float]]:
    """Costs of the prefixes with their F, and costs of no prefix, where nothing is known."""
    learned = sequence(case.gram, case.groups, method, case.alpha)
    costs, F = learned.costs.tolist(), learned.explained_variance.tolist()
    others = [share * costs[-1] for share in (0.15, 0.4, 0.77)]
    return [*costs, *others], [*F, *(0.0 for _ in others)]


def holds(certified: Sequence[CertifiedPrefix], sets: Sets, problem: SelectionProblem) -> None:
    """No bound is below the best set, exact ones are it, and sets that are named are what they are said to be."""
    for prefix in certified:
        best = sets.best(prefix.cost)
        slack = ROUNDING * max(best, 1e-3)
        assert prefix.bound >= best - slack
        assert prefix.F <= prefix.reached <= best + slack
        assert 0 <= prefix.share <= 1 + ROUNDING
        if prefix.exact:
            assert prefix.bound == pytest.approx(best, rel=ROUNDING, abs=slack)
        if prefix.best is not None:
            members = problem.mask(prefix.best)
            assert (members == problem.closed(members)).all()
            assert problem.cost(members) <= prefix.cost * (1 + COST_TOLERANCE)
            assert problem.explained(members) == pytest.approx(prefix.reached, rel=1e-8)


# The promise.


@quick(max_examples=80)
@given(cases())
def test_a_search_to_its_end_finds_the_best_of_all_sets(case: Case) -> None:
    costs, F = budgets(case)
    certified = certify_prefixes(case.gram, case.groups, costs, F, case.alpha, nodes=10_000)
    holds(certified, Sets.of(case.gram, case.groups, case.alpha), case.problem)
    assert all(prefix.exact and prefix.stopped == "solved" for prefix in certified)


@quick(max_examples=90)
@given(cases(), st.integers(1, 6), st.booleans())
def test_a_search_cut_short_is_never_below_the_best_of_all_sets(case: Case, nodes: int, no_time: bool) -> None:
    costs, _ = budgets(case)
    limits: dict[str, Any] = {"seconds": 0.0} if no_time else {"nodes": nodes}
    certified = certify_prefixes(case.gram, case.groups, costs, [0.0] * len(costs), case.alpha, **limits)
    holds(certified, Sets.of(case.gram, case.groups, case.alpha), case.problem)
    for prefix in certified:
        assert prefix.stopped in ("solved", *limits)
        assert no_time or prefix.nodes <= nodes + 1
        assert no_time or prefix.stopped == "solved" or prefix.nodes >= nodes


@quick(max_examples=40)
@given(cases(), st.integers(1, 4))
def test_bounds_fall_with_the_cost(case: Case, nodes: int) -> None:
    costs, F = budgets(case)
    certified = certify_prefixes(case.gram, case.groups, costs, F, case.alpha, nodes=nodes)
    ordered = sorted(certified, key=lambda prefix: prefix.cost)
    assert all(less.bound <= more.bound and less.reached <= more.reached for less, more in pairwise(ordered))


def test_free_groups_are_in_every_set() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(50, 3))
    case = Case(X, X[:, :1] + 0.1 * rng.normal(size=(50, 1)), grouped([1, 1, 1], [0, 2, 3]), 1e-5)
    only = certify_prefixes(case.gram, case.groups, [0.0, 1.0], [0.0, 0.0], case.alpha)
    assert [(prefix.best, prefix.exact) for prefix in only] == [((0,), True)] * 2


def test_nothing_to_explain_is_explained_in_full() -> None:
    case = Case(np.random.default_rng(4).normal(size=(50, 3)), np.ones((50, 1)), grouped([1, 2], [1, 2]), 1e-5)
    assert [(p.share, p.exact) for p in certify_prefixes(case.gram, case.groups, [1.0, 3.0], [0.0, 0.0], 1e-5)] == [
        (1, True)
    ] * 2


# The bounds, each by itself.


@quick(max_examples=80)
@given(cases(plain_groups((1, 1, 2, 3, 5)), (1e-5, 1e-2, 1.0)), st.integers(0, 2**32 - 1), st.floats(0.1, 0.9))
def test_any_split_and_any_coefficients_give_a_bound(case: Case, seed: int, share: float) -> None:
    rng, sets, problem = np.random.default_rng(seed), Sets.of(case.gram, case.groups, case.alpha), case.problem
    budget = share * float(case.groups.costs.sum())
    delta = rng.exponential(size=len(problem.C)) + 1e-3
    root = 1.0 / np.sqrt(delta)
    delta *= (1 - 1e-9) * float(np.linalg.eigvalsh(root[:, np.newaxis] * problem.C * root)[0])
    u = np.linalg.solve(problem.C, problem.q) * rng.choice([0.0, 0.5, 1.0, 2.0], size=(len(problem.C), 1))
    starts = np.flatnonzero(np.diff(problem.own, prepend=-1))
    z = np.full(len(case.groups), share)
    found = knapsack_bound(problem.C, problem.q, starts, case.groups.costs / budget, Split(delta, z, 0.0), u)
    assert found.value >= sets.best(budget) * (1 - ROUNDING)
    within = sets.members[sets.costs <= budget]
    values = sets.F[sets.costs <= budget]
    for group, surplus in enumerate(found.surplus):
        assert (values[within[:, group] == (surplus <= 0)] <= found.value - abs(surplus) + ROUNDING).all()


def test_copies_are_bounded_as_one() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 4))
    X = np.repeat(x, 3, axis=1)
    Y = x @ np.array([[3.0], [2.0], [1.0], [0.5]]) + rng.normal(size=(200, 1))
    case = Case(X, Y, grouped([1] * 12, [1.0] * 12), 1e-5)
    learned = sequence(case.gram, case.groups, "fr", case.alpha)
    certified = certify_prefixes(
        case.gram, case.groups, learned.costs, learned.explained_variance, case.alpha, nodes=2_000
    )
    assert all(prefix.exact for prefix in certified)
    assert min(prefix.share for prefix in certified[1:]) > 0.999


# The surface.


def small() -> Case:
    rng = np.random.default_rng(6)
    X = rng.normal(size=(80, 9)) + rng.normal(size=(80, 1))
    Y = X @ rng.normal(size=(9, 2)) + rng.normal(size=(80, 2))
    return Case(X, Y, grouped([1, 2, 1, 3, 1, 1], [1, 2, 3, 1, 2, 5], {4: [1]}), 1e-5)


def test_progress_tells_each_prefix_once_and_runs_are_alike() -> None:
    case, reported = small(), list[int]()
    costs, F = budgets(case)
    once = certify_prefixes(case.gram, case.groups, costs, F, case.alpha, nodes=3, progress=reported.append)
    assert sorted(reported) == list(range(len(costs)))
    assert once == certify_prefixes(case.gram, case.groups, costs, F, case.alpha, nodes=3)
    assert once == certify_prefixes(case.gram, case.groups, costs, F, case.alpha, nodes=3, n_jobs=2)
    assert certify_prefixes(case.gram, case.groups, [], [], case.alpha) == []


@pytest.mark.parametrize(
    ("costs", "F", "limits", "message"),
    [
        ([1.0], [], {}, "1 costs and 0 values of F"),
        ([-1.0], [0.0], {}, "negative or not finite"),
        ([1.0], [float("nan")], {}, "negative or not finite"),
        ([1.0], [1.5], {}, "expected F at this alpha"),
        ([1.0], [0.0], {"nodes": 0}, "limits of 0 nodes"),
        ([1.0], [0.0], {"seconds": -1.0}, "-1.0 seconds"),
    ],
)
def test_what_cannot_be_certified_is_an_error(
    costs: list[float], F: list[float], limits: dict[str, int], message: str
) -> None:
    case = small()
    with pytest.raises(TrainingError, match=message):
        certify_prefixes(case.gram, case.groups, costs, F, case.alpha, **limits)  # type: ignore[arg-type]


# Real tables.


def real(folder: Path, file: str, target: str) -> tuple[Gram, FeatureGroups]:
    groups = load_groups(json.loads((folder / "groups.json").read_text(encoding="utf-8")))
    dataset = Dataset(open_table(folder / file), groups, Target("regression", (target,), None))
    return Gram.of(dataset.moments()[0]), groups


def test_hundreds_of_groups_are_certified_closely_without_branching(shared_data: Path) -> None:
    gram, groups = real(shared_data / "yahoo_sample", "train.parquet", "relevance")
    learned = sequence(gram, groups, "fr", 1e-5)
    some = [20, 60, 61, 62, 100, 160, 210]
    certified = certify_prefixes(gram, groups, learned.costs[some], learned.explained_variance[some], 1e-5, nodes=1)
    least = (0.85, 0.94, 0.94, 0.94, 0.98, 0.995, 0.9999)
    assert all(prefix.share > share for prefix, share in zip(certified, least, strict=True))


# A certified model.


def trained(
    groups: FeatureGroups, seed: int = 0, alpha: float = 1e-2, epsilon: float | None = None
) -> tuple[Model, Rows]:
    """A model by omp, which the best sets may well beat, and its rows."""
    rng = np.random.default_rng(seed)
    X = messy_table(rng, 50, len(groups.features), ("fresh", "copy", "sum", "constant"), 0.2, 0.0)
    Y = X @ rng.normal(size=(X.shape[1], 2)) + rng.normal(size=(50, 2))
    fitted = fit([moments_of(X, Y)], groups, Options(method="omp", alpha=alpha, epsilon=epsilon))
    model = fitted.model("m", Target("regression", ("a", "b")), provenance(fitted, "t"))
    return model, Rows(*literal.standardise(X, Y), alpha)


SEVEN = grouped([1, 2, 2, 1, 3, 2, 1], [1.0, 2.0, 3.0, 1.0, 5.0, 2.0, 2.0])


@pytest.fixture(scope="module")
def model() -> Model:
    return trained(SEVEN)[0]


def test_shares_are_of_the_bounds_the_base_rate_first() -> None:
    model, _ = trained(SEVEN, seed=3)
    model = certify(model, nodes=1)
    bounds, shares = present(model.manifest.certificate).bounds, present(model.certified_shares)
    assert (shares[0], bounds[0]) == (1.0, 0.0)
    F = [step.explained_variance for step in model.manifest.steps]
    assert shares[1:] == pytest.approx(np.divide(F, bounds[1:]))
    assert min(shares) < 0.999, "this table does not test anything"
    assert max(shares) <= 1.0


def test_no_share_is_above_one(model: Model) -> None:
    assert model.certified_shares is None
    low = Certificate(
        bounds=(0.0, *(step.explained_variance * (1 - 1e-12) for step in model.manifest.steps)),
        exact=(True,) * (model.steps + 1),
        nodes=1,
    )
    reported = replace(model, manifest=model.manifest.model_copy(update={"certificate": low}))
    assert reported.certified_shares == (1.0,) * (model.steps + 1)


def test_a_certified_model_has_no_version_before_it_is_saved(model: Model, tmp_path: Path) -> None:
    saved = certify(model, nodes=1).save(tmp_path / "m.safetensors")
    assert (saved.version != "", certify(saved, nodes=5).version) == (True, "")


def test_what_is_free_is_compared_with_the_base_rate() -> None:
    model, _ = trained(grouped([1, 2, 1], [0.0, 2.0, 1.0]))
    found = certify(model)
    assert present(found.manifest.certificate).bounds[0] == pytest.approx(model.manifest.steps[0].explained_variance)
    assert present(found.certified_shares)[:2] == pytest.approx((0.0, 1.0))


def test_penalties_of_prefixes_have_no_part_in_it() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(40, 11))
    y = X @ rng.normal(size=11) + 3 * rng.normal(size=40)
    groups = grouped([2, 2, 2, 2, 3], [1.0, 2.0, 1.0, 3.0, 2.0])
    model = AnytimeRegressor(groups, alpha="cv", cv=4).fit(X, y).model_
    assert len({step.alpha for step in model.manifest.steps}) > 1
    F = explained_variance_of_subsets(Rows(*literal.standardise(X, y), model.manifest.alpha), groups)
    best = [brute_force_best(F, groups.costs.tolist(), float(cost)) for cost in model.costs]
    assert present(certify(model).manifest.certificate).bounds == pytest.approx(best, rel=1e-7)
