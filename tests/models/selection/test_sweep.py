"""The sweep keeps what explicit inverses would give, after every selection, however its panel fills and empties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime.groups import FeatureGroups, load_groups
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.selection import FactoredOrder, Rule, SweepSearch, greedy, sequence
from anytime.selection.criteria import CRITERIA
from anytime.selection.least_squares import PANEL, Sweep, single_columns
from anytime.types import Float, Index
from models.properties import quick


@dataclass(frozen=True, eq=False)
class Design:
    """A problem, its groups by size, and the order in which they are selected."""

    gram: Gram = field(repr=False)
    sizes: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def slices(self) -> list[slice]:
        return [slice(end - size, end) for end, size in zip(np.cumsum(self.sizes).tolist(), self.sizes, strict=True)]

    def columns(self, groups: Sequence[int]) -> Index:
        return np.array([j for g in groups for j in range(self.slices[g].start, self.slices[g].stop)], dtype=np.intp)


def design(sizes: Sequence[int], seed: int, *, messy: bool = False, responses: int = 2) -> Design:
    rng = np.random.default_rng(seed)
    D = sum(sizes)
    X = rng.normal(size=(2 * D + 30, D)) + rng.normal(size=(2 * D + 30, 1))
    if messy:
        for j in range(1, D):
            kind, other = rng.integers(0, 8), rng.integers(0, j)
            if kind == 0:
                X[:, j] = rng.choice([-2.0, 1.0]) * X[:, other]
            elif kind == 1:
                X[:, j] = 0.1
            elif kind == 2:
                X[:, j] = X[:, other] + X[:, rng.integers(0, j)]
    Y = X @ rng.normal(size=(D, responses)) + 5 * rng.normal(size=(len(X), responses))
    return Design(Gram.of(moments_of(X, Y)), tuple(sizes), tuple(rng.permutation(len(sizes)).tolist()))


MIXED = [1 + (7 * g) % 9 for g in range(30)]
"""30 groups of 1 to 9 columns."""

SIZES: dict[str, list[int]] = {
    "one column": [1],
    "one group": [5],
    "singles": [1] * 20,
    "a panel exactly": [16] * (PANEL // 16),
    "a panel and one": [16] * (PANEL // 16) + [1],
    "many panels": MIXED,
    "a group larger than the panel": [*MIXED[:8], PANEL + 9, *MIXED[8:12]],
    "only groups larger than the panel": [PANEL + 1, PANEL + 1],
    "without features": [0, 3, 0, 2, 1, 0],
    "without features and many": [0, *MIXED, 0, 0],
}


def assert_left(sweep: Sweep, problem: Design, chosen: list[int], alpha: float, digits: float) -> None:
    """Gradients and conditional covariances of what is left equal those by an explicit inverse."""
    C, q = problem.gram.penalised(alpha)
    G = problem.columns(chosen)
    inverse = np.linalg.pinv(C[np.ix_(G, G)], rcond=1e-10, hermitian=True) if len(G) else np.zeros((0, 0))
    b, conditional = q - C[:, G] @ inverse @ q[G], C - C[:, G] @ inverse @ C[G]
    left = [g for g in range(len(problem.sizes)) if g not in chosen]
    assert np.flatnonzero(~sweep.selected).tolist() == left
    for g in left:
        columns = problem.columns([g])
        np.testing.assert_array_equal(sweep.columns[sweep.rows(g)], columns)
        np.testing.assert_allclose(sweep.b[sweep.rows(g)], b[columns], atol=digits)
        np.testing.assert_allclose(sweep.conditional(sweep.rows(g)), conditional[np.ix_(columns, columns)], atol=digits)
    sized = [g for g in left if problem.sizes[g]]
    rows = np.concatenate([np.empty(0, np.intp), *map(sweep.rows, sized[:2])])
    columns = problem.columns(sized[:2])
    np.testing.assert_allclose(sweep.conditional(rows), conditional[np.ix_(columns, columns)], atol=digits)
    stacks = (zip(each.groups.tolist(), each.blocks, strict=True) for each in sweep.classes if len(each.blocks))
    stacked = dict(chain.from_iterable(stacks))
    for g in sized if stacked else []:
        columns = problem.columns([g])
        np.testing.assert_allclose(stacked[g], conditional[np.ix_(columns, columns)], atol=digits)


def explained(C: Float, q: Float, columns: Index) -> float:
    inverse = np.linalg.pinv(C[np.ix_(columns, columns)], rcond=1e-10, hermitian=True)
    return float(np.sum(q[columns] * (inverse @ q[columns])) / 2)


@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "no blocks"])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("sizes", SIZES)
def test_what_is_left_and_what_is_gained_is_what_an_inverse_gives(sizes: str, alpha: float, blocks: bool) -> None:
    problem = design(SIZES[sizes], seed=len(sizes))
    C, q = problem.gram.penalised(alpha)
    sweep = Sweep(problem.gram, problem.slices, alpha, blocks=blocks)
    chosen: list[int] = []
    assert_left(sweep, problem, chosen, alpha, 1e-13)
    F = 0.0
    for group in problem.order:
        F += sweep.select(group)
        chosen.append(group)
        assert pytest.approx(explained(C, q, problem.columns(chosen)), abs=1e-9) == F
        assert_left(sweep, problem, chosen, alpha, 1e-9)
    columns, factor, z = problem.columns(problem.order), sweep.solved.factor, sweep.solved.z
    assert not factor.dropped.any()
    np.testing.assert_allclose(factor.L, np.linalg.cholesky(C[np.ix_(columns, columns)]), atol=1e-9)
    np.testing.assert_allclose(factor.L @ z, q[columns], atol=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 1e-7], ids=str)
@pytest.mark.parametrize(
    "sizes", ["singles", "many panels", "a group larger than the panel", "without features and many"]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_copies_sums_and_constants_change_nothing_for_the_others(sizes: str, alpha: float, seed: int) -> None:
    problem = design(SIZES[sizes], seed, messy=True)
    C, q = problem.gram.penalised(alpha)
    sweep = Sweep(problem.gram, problem.slices, alpha, blocks=True)
    chosen: list[int] = []
    F = 0.0
    for group in problem.order:
        promised = float(CRITERIA["fr"]().scores(sweep)[group])
        gain = sweep.select(group)
        assert gain == pytest.approx(promised, abs=1e-9)
        assert gain >= 0
        F += gain
        chosen.append(group)
        columns = problem.columns(chosen)
        A = C[np.ix_(columns, columns)]
        W = (
            np.linalg.pinv(A, rcond=1e-10, hermitian=True) @ q[columns]
            if alpha == 0
            else np.linalg.solve(A, q[columns])
        )
        assert pytest.approx(float(np.sum(q[columns] * W)) / 2, abs=1e-9) == F
        for g in np.flatnonzero(~sweep.selected).tolist():
            left = problem.columns([g])
            np.testing.assert_allclose(sweep.b[sweep.rows(g)], q[left] - C[np.ix_(left, columns)] @ W, atol=1e-9)
    columns, factor, z = problem.columns(problem.order), sweep.solved.factor, sweep.solved.z
    assert factor.dropped.any() == (alpha == 0)
    assert not z[factor.dropped].any()
    W = factor.backward(z)
    assert not W[factor.dropped].any()
    np.testing.assert_allclose(C[np.ix_(columns, columns)] @ W, q[columns], atol=1e-7)
    if alpha == 0:
        assert int((~factor.dropped).sum()) == np.linalg.matrix_rank(C, tol=1e-8, hermitian=True)


# Groups of one column go a shorter way, to the same sequence and coefficients.

B = {"name": "b", "features": ["y"], "cost": 1}


def the_long_way(gram: Gram, groups: FeatureGroups, alpha: float, *, cost_blind: bool) -> FactoredOrder:
    """By the sweep over groups of any size."""
    criterion = CRITERIA["fr"]().on(gram)
    sweep = Sweep(gram, groups.slices, alpha, blocks=True)
    found = greedy(SweepSearch(groups, sweep, criterion), Rule("fr", cost_blind=cost_blind))
    return replace(found, state=sweep.solved)


def problem(rng: np.random.Generator, width: int, responses: int, kind: str) -> tuple[Gram, FeatureGroups]:
    """Columns that are correlated, constant or copies of each other, at costs of few values, zero among them."""
    X = rng.normal(size=(3 * width + 20, width))
    X[:, 1:] += 0.7 * X[:, :-1]
    if kind == "ties":
        X[:, 2::4] = X[:, 1 : X[:, 2::4].shape[1] * 4 : 4][:, : X[:, 2::4].shape[1]]
        X[:, 3::7] = 5.0
    Y = X @ rng.normal(size=(width, responses)) + rng.normal(size=(len(X), responses))
    costs = rng.integers(0 if kind == "free" else 1, 4, width).astype(float)
    named = [{"name": f"g{j}", "features": [f"x{j}"], "cost": float(cost)} for j, cost in enumerate(costs)]
    return Gram.of(moments_of(X, Y)), load_groups({"groups": named})


@quick(max_examples=60)
@given(
    st.integers(0, 10_000),
    st.sampled_from([1, 2, 5, 40, 127, 128, 129, 260]),
    st.integers(1, 3),
    st.sampled_from(["plain", "ties", "free"]),
    st.booleans(),
    st.sampled_from([0.0, 1e-5, 0.1]),
)
def test_the_short_way_comes_to_the_same(
    seed: int, width: int, responses: int, kind: str, cost_blind: bool, alpha: float
) -> None:
    gram, groups = problem(np.random.default_rng(seed), width, responses, kind)
    ours = sequence(gram, groups, "fr", alpha, cost_blind=cost_blind)
    theirs = the_long_way(gram, groups, alpha, cost_blind=cost_blind)
    np.testing.assert_allclose(ours.explained_variance, theirs.explained_variance, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(ours.costs, theirs.costs)
    np.testing.assert_array_equal(ours.columns, theirs.columns)
    np.testing.assert_array_equal(ours.state.factor.dropped, theirs.state.factor.dropped)
    np.testing.assert_allclose(ours.state.factor.L, theirs.state.factor.L, atol=1e-7)
    np.testing.assert_allclose(ours.state.z, theirs.state.z, atol=1e-7)
    assert [step.adds for step in ours.steps] == [step.adds for step in theirs.steps]


def test_it_is_taken_where_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    gram, groups = problem(np.random.default_rng(0), 9, 1, "plain")
    taken = Mock(wraps=single_columns)
    monkeypatch.setattr("anytime.selection.least_squares.single_columns", taken)
    sequence(gram, groups, "fr", 0.1)
    assert taken.call_count == 1
    for options in ({"doubling": True}, {"epsilon": 0.1}, {"first": (groups.names[3],)}, {"method": "omp"}):
        sequence(gram, groups, **{"method": "fr", "alpha": 0.1} | options)  # type: ignore[arg-type]
    assert taken.call_count == 1


@pytest.mark.parametrize(
    ("changes", "single"),
    [({}, True), ({"features": ["y", "z"]}, False), ({"requires": ["a"]}, False), ({"features": []}, False)],
    ids=str,
)
def test_which_groups_are_single_columns(
    changes: dict[str, Any], single: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Mock(wraps=single_columns)
    monkeypatch.setattr("anytime.selection.least_squares.single_columns", taken)
    gram, _ = problem(np.random.default_rng(0), 9, 1, "plain")
    groups = load_groups({"groups": [{"name": "a", "features": ["x"], "cost": 1}, B | changes]})
    sequence(gram.restricted(np.arange(len(groups.features))), groups, "fr", 0.1)
    assert taken.call_count == single
