"""The sweep keeps what explicit inverses would give, after every selection, however its panel fills and empties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pytest

from anytime._linalg import factorise
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.selection.criteria import CRITERIA
from anytime.selection.least_squares import PANEL, Sweep
from anytime.types import Float, Index


@dataclass(frozen=True, eq=False)
class Design:
    """A problem, its groups by size, and the order in which they are selected."""

    gram: Gram = field(repr=False)
    sizes: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def slices(self) -> list[slice]:
        ends = np.cumsum(self.sizes).tolist()
        return [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]

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
        gain = sweep.select(group)
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


@pytest.mark.parametrize("sizes", ["singles", "many panels"])
def test_the_factor_of_the_sweep_is_that_of_the_whole_in_its_order_where_a_dropped_column_is_one_of_the_identity(
    sizes: str,
) -> None:
    problem = design(SIZES[sizes], seed=3, messy=True)
    sweep = Sweep(problem.gram, problem.slices, 0.0, blocks=False)
    for group in problem.order:
        sweep.select(group)
    columns, factor, z = problem.columns(problem.order), sweep.solved.factor, sweep.solved.z
    C, q = problem.gram.penalised(0.0, columns)
    fresh = factorise(C, np.diagonal(C))
    np.testing.assert_array_equal(factor.dropped, fresh.dropped)
    np.testing.assert_allclose(z, fresh.forward(q), atol=1e-8)
    kept = ~factor.dropped
    np.testing.assert_allclose(factor.L[np.ix_(kept, kept)], fresh.L[np.ix_(kept, kept)], atol=1e-8)
    assert factor.dropped.any()
    np.testing.assert_array_equal(factor.L[factor.dropped], np.eye(len(columns))[factor.dropped])
    np.testing.assert_allclose(factor.forward(q), z, atol=1e-8)


def test_a_sweep_does_not_change_the_problem() -> None:
    problem = design(MIXED, seed=4)
    before = problem.gram.S.tobytes(), problem.gram.q.tobytes()
    sweep = Sweep(problem.gram, problem.slices, 1e-5, blocks=True)
    for group in problem.order:
        sweep.select(group)
    assert (problem.gram.S.tobytes(), problem.gram.q.tobytes()) == before


@pytest.mark.parametrize("messy", [False, True], ids=["sound", "rank loss"])
@pytest.mark.parametrize("alpha", [0.0, 1e-5])
def test_the_gain_that_forward_regression_promises_is_the_gain_that_it_gets(alpha: float, messy: bool) -> None:
    problem = design(MIXED, seed=5, messy=messy)
    criterion = CRITERIA["fr"]().on(problem.gram)
    sweep = Sweep(problem.gram, problem.slices, alpha, blocks=True)
    for group in problem.order:
        promised = float(criterion.scores(sweep)[group])
        assert criterion.union_score(sweep, sweep.rows(group)) == pytest.approx(promised, abs=1e-10)
        assert sweep.select(group) == pytest.approx(promised, abs=1e-10)
