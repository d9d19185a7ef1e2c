"""The penalties that cross-validation chooses are those that trying everything on the rows would choose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime.errors import TrainingError
from anytime.folds import FoldStream
from anytime.groups import FeatureGroups, load_groups
from anytime.moments.accumulate import Block, accumulate, fold_moments_of
from anytime.moments.moments import Gram, Moments
from anytime.selection import GroupOrder, sequence
from anytime.training.fit import Fit, fit
from anytime.training.least_squares import split
from anytime.training.model_selection import EVERY, Curves, Errors, choose, nested_errors, prefix_errors
from anytime.training.options import GRID, Options
from anytime.types import Float, Index
from models import literal
from models.properties import quick


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows in folds, and groups with costs."""

    X: Float = field(repr=False)
    Y: Float = field(repr=False)
    weights: Float | None = field(repr=False)
    folds: Index = field(repr=False)
    count: int
    groups: FeatureGroups

    @property
    def w(self) -> Float:
        return np.ones(len(self.X)) if self.weights is None else self.weights

    def parts(self, chunk: int | None = None, jobs: int = 1) -> list[Moments]:
        return fold_moments_of(self.X, self.Y, self.weights, self.folds, self.count, chunk_rows=chunk, n_jobs=jobs)

    def order(self, alpha: float, gram: Gram | None = None) -> GroupOrder:
        return sequence(gram or Gram.of(Moments.merged(self.parts())), self.groups, "fr", alpha)

    def fitted(self, **options: Any) -> Fit:
        return fit(self.parts(), self.groups, Options(method="fr", alpha="cv", **options))

    def rowwise(self, fold: int, columns: Index, alpha: float) -> float:
        """Error on a fold of a ridge fitted on the rows of the others."""
        out = self.folds == fold
        X, Y, w = self.X[~out], self.Y[~out], self.w[~out]
        mean, y_mean = np.average(X, axis=0, weights=w), np.average(Y, axis=0, weights=w)
        scale = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=w))
        y_scale = np.sqrt(np.average((Y - y_mean) ** 2, axis=0, weights=w))
        rows = literal.Rows((X - mean) / scale, (Y - y_mean) / y_scale, alpha, w)
        fitted = ((self.X[out] - mean) / scale)[:, columns] @ rows.coefficients(columns.tolist()) * y_scale + y_mean
        return float(np.average((self.Y[out] - fitted) ** 2, axis=0, weights=self.w[out]).mean())

    def errors(self, order: GroupOrder, alpha: float) -> Errors:
        """Errors (folds, steps + 1) of the prefixes of an order, row by row."""
        prefixes = [order.columns[:end] for end in order.ends]
        rows = [[self.rowwise(fold, columns, alpha) for columns in prefixes] for fold in range(self.count)]
        return Errors(np.array(rows), np.array([self.w[self.folds == fold].sum() for fold in range(self.count)]))


GROUPS = load_groups(
    {
        "groups": [
            {"name": "a", "features": ["a0", "a1"], "cost": 2.0},
            {"name": "b", "features": ["b0"], "cost": 1.0},
            {"name": "c", "features": ["c0", "c1", "c2"], "cost": 5.0},
            {"name": "d", "features": ["d0"], "cost": 0.5},
        ]
    }
)


@st.composite
def problems(draw: st.DrawFn, groups: FeatureGroups = GROUPS) -> Problem:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, D, P, count = draw(st.integers(25, 60)), len(groups.features), draw(st.integers(1, 2)), draw(st.integers(2, 4))
    X = rng.normal(size=(n, D)) @ (np.eye(D) + 0.5 * rng.normal(size=(D, D)))
    Y = X @ rng.normal(size=(D, P)) + draw(st.sampled_from((0.3, 2.0, 8.0))) * rng.normal(size=(n, P))
    weights = rng.uniform(0.2, 3.0, n) if draw(st.booleans()) else None
    return Problem(X, Y, weights, FoldStream(count, rng).take(n), count, groups)


def stated(folds: Any, grid: Sequence[float], order: Any, *, one_se: bool = False, **others: Any) -> Any:
    """Return a problem of some folds, whose orders are learned by a function of the penalty."""
    options = SimpleNamespace(grid=grid, one_se=one_se)
    known = {"errors": None, "rough": None, "horizon": None, "n_jobs": 1} | others
    problem: Any = SimpleNamespace(folds=folds, options=options, data=None, orders=lambda _: order, **known)
    problem.curves = Curves(problem)
    return problem


def area(order: GroupOrder, errors: Float) -> Float:
    """Mean error over the cost axis; while a step is paid for, the prefix before it counts."""
    widths = np.diff(order.costs)
    mean: Float = errors[..., :-1] @ widths / widths.sum()
    return mean


def chosen(errors: Errors, one_se: bool) -> int:
    """Index of the least error, or of the last within a standard error of it."""
    best = int(errors.mean.argmin())
    if not one_se:
        return best
    return int(np.flatnonzero(errors.mean <= errors.mean[best] + errors.standard_error[best])[-1])


@pytest.mark.parametrize("one_se", [False, True], ids=["least error", "one standard error"])
def test_the_choice_is_that_of_trying_every_penalty_on_the_rows(one_se: bool) -> None:
    grid = (1e-6, 1e-3, 1e-1, 1.0, 10.0)

    @quick(max_examples=25)
    @given(problems())
    def check(problem: Problem) -> None:
        choice = choose(stated(split(problem.parts()), grid, problem.order, one_se=one_se))
        orders = [problem.order(alpha) for alpha in grid]
        curves = [problem.errors(order, alpha) for order, alpha in zip(orders, grid, strict=True)]
        areas = np.stack([area(order, curve.folds) for order, curve in zip(orders, curves, strict=True)], axis=1)
        best = chosen(Errors(areas, curves[0].weights), one_se)
        assert choice.alpha == grid[best]
        assert choice.sequence.steps == orders[best].steps
        of_order = [problem.errors(orders[best], alpha) for alpha in grid]
        for k in range(len(choice.alphas)):
            column = Errors(np.stack([e.folds[:, k] for e in of_order], axis=1), curves[0].weights)
            # The base rate has no penalty: all errors are equal, but for rounding.
            if k > 0:
                assert choice.alphas[k] == grid[chosen(column, one_se)]
            assert choice.errors is not None
            assert choice.errors[k] == pytest.approx(
                column.mean.min() if not one_se else column.mean[grid.index(choice.alphas[k])], rel=1e-7
            )

    check()


@st.composite
def tables(draw: st.DrawFn) -> Problem:
    """Return rows with 12 groups of 1 to 3 correlated columns, some with hinges."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes, n, count = rng.integers(1, 4, 12), draw(st.integers(60, 300)), draw(st.integers(3, 5))
    X = rng.normal(size=(n, sizes.sum()))
    X[:, 1:] += draw(st.sampled_from((0.0, 0.5, 3.0))) * X[:, :-1]
    if draw(st.booleans()):
        X[:, 1::2] = np.maximum(X[:, :-1:2][:, : X[:, 1::2].shape[1]], 0.0)
    coef = rng.normal(size=(X.shape[1], 1)) * (rng.random((X.shape[1], 1)) < 0.4)
    Y = X @ coef + draw(st.sampled_from((0.5, 3.0, 15.0))) * rng.normal(size=(n, 1))
    names = [[f"g{g}_{j}" for j in range(size)] for g, size in enumerate(sizes)]
    content = [{"name": f"g{g}", "features": each, "cost": float(rng.uniform(0.5, 5))} for g, each in enumerate(names)]
    return Problem(X, Y, None, FoldStream(count, rng).take(n), count, load_groups({"groups": content}))


@quick(max_examples=40)
@given(tables())
def test_the_bracket_is_within_a_tenth_of_a_standard_error_of_the_whole_grid(problem: Problem) -> None:
    folds = split(problem.parts())
    asked: list[float] = []

    def order(alpha: float) -> GroupOrder:
        asked.append(alpha)
        return problem.order(alpha)

    choice = choose(stated(folds, GRID, order), every=EVERY)
    assert len(asked) <= 9
    whole = choose(stated(folds, GRID, problem.order))
    areas = []
    for found in (choice, whole):
        curve = prefix_errors(folds, found.sequence.columns, found.sequence.ends, [found.alpha]).folds[:, 0]
        areas.append(area(found.sequence, curve))
    weights = np.array([fold.weight for fold in folds])
    ours, theirs = (Errors(each[:, np.newaxis], weights) for each in areas)
    assert ours.mean[0] <= theirs.mean[0] + 0.1 * theirs.standard_error[0] * (choice.alpha != whole.alpha)
    every = prefix_errors(folds, choice.sequence.columns, choice.sequence.ends, GRID)
    assert choice.errors is not None
    best = every.mean.argmin(axis=0)
    limit = every.mean + 0.02 * every.standard_error
    assert (choice.errors <= limit[best, np.arange(len(best))] * (1 + 1e-12)).all()
    at = [GRID.index(alpha) for alpha in choice.alphas]
    assert choice.errors == pytest.approx(every.mean[at, np.arange(len(best))], rel=1e-9)


def test_threads_do_not_change_the_choice() -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(200, 7))
    problem = Problem(X, X[:, :1] + rng.normal(size=(200, 1)), None, np.arange(200) % 5, 5, GROUPS)
    one, two = (choose(stated(split(problem.parts()), GRID, problem.order, n_jobs=jobs)) for jobs in (1, 2))
    assert one.alpha == two.alpha
    assert one.alphas.tolist() == two.alphas.tolist()
    assert one.errors is not None
    assert two.errors is not None
    assert one.errors.tolist() == two.errors.tolist()


@quick(max_examples=25)
@given(problems())
def test_one_standard_error_takes_no_smaller_penalty_and_no_error_out_of_reach(problem: Problem) -> None:
    least, shy = problem.fitted(), problem.fitted(one_se=True)
    assert shy.alpha >= least.alpha
    errors = prefix_errors(split(problem.parts()), shy.sequence.columns, shy.sequence.ends, GRID)
    best = errors.mean.argmin(axis=0)
    for k, alpha in enumerate(shy.alphas):
        assert alpha >= GRID[best[k]]
        limit = errors.mean[best[k], k] + errors.standard_error[best[k], k]
        assert errors.mean[GRID.index(alpha), k] <= limit
        larger = [i for i in range(len(GRID)) if GRID[i] > alpha]
        assert all(errors.mean[i, k] > limit for i in larger)


@quick(max_examples=25)
@given(problems())
def test_each_prefix_has_the_coefficients_of_its_own_penalty(problem: Problem) -> None:
    found = problem.fitted()
    Xs, Ys = literal.standardise(problem.X, problem.Y, problem.weights)
    for k in range(1, len(found.alphas)):
        columns = found.sequence.columns[: found.sequence.ends[k]]
        W = literal.Rows(Xs, Ys, float(found.alphas[k]), problem.weights).coefficients(columns.tolist())
        raw = W * found.gram.y_scale / found.gram.x_scale[columns, np.newaxis]
        np.testing.assert_allclose(found.prefixes.coef(k), raw, rtol=1e-6, atol=1e-8)
    F = literal.Rows(Xs, Ys, found.alpha, problem.weights).explained_variance(range(Xs.shape[1]))
    assert found.curve.explained_variance[-1] == pytest.approx(F, abs=1e-9)


@quick(max_examples=20)
@given(problems(), st.integers(3, 60), st.sampled_from((1, 2, 3)), st.lists(st.integers(0, 60), max_size=4))
def test_the_choice_is_the_same_however_the_rows_are_read(
    problem: Problem, chunk: int, jobs: int, cuts: list[int]
) -> None:
    expected = problem.fitted()
    edges = sorted({0, *(min(cut, len(problem.X)) for cut in cuts), len(problem.X)})
    blocks = (
        Block(
            problem.X[a:b],
            problem.Y[a:b],
            None if problem.weights is None else problem.weights[a:b],
            problem.folds[a:b],
        )
        for a, b in pairwise(edges)
    )
    for parts in (problem.parts(chunk, jobs), accumulate(blocks, problem.count, chunk_rows=chunk)):
        found = fit(parts, problem.groups, Options(method="fr", alpha="cv"))
        assert found.alpha == expected.alpha
        assert found.sequence.columns.tolist() == expected.sequence.columns.tolist()
        assert found.alphas[1:].tolist() == expected.alphas[1:].tolist()
        assert found.errors == pytest.approx(expected.errors, rel=1e-9)


def test_the_grid_is_twenty_values_from_1e_7_to_10() -> None:
    assert len(GRID) == 20
    assert GRID[0] == pytest.approx(1e-7)
    assert GRID[-1] == pytest.approx(10.0)
    np.testing.assert_allclose(np.diff(np.log(GRID)), np.log(GRID[1] / GRID[0]))


def test_a_fixed_penalty_with_folds_has_errors_and_no_choice() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 7))
    problem = Problem(X, X[:, :1] + rng.normal(size=(60, 1)), None, np.arange(60) % 5, 5, GROUPS)
    found = fit(problem.parts(), GROUPS, Options(method="fr", alpha=0.01))
    assert found.alpha == 0.01
    assert found.alphas.tolist() == [0.01] * 5
    assert found.errors == pytest.approx(problem.errors(found.sequence, 0.01).mean, rel=1e-8)
    assert fit([Moments.merged(problem.parts())], GROUPS, Options(method="fr", alpha=0.01)).errors is None


def test_choosing_without_folds_is_refused() -> None:
    X = np.random.default_rng(0).normal(size=(30, 7))
    single = fold_moments_of(X, X[:, 0])
    with pytest.raises(TrainingError, match="needs folds"):
        fit(single, GROUPS, Options(alpha="cv"))
    with pytest.raises(TrainingError, match="cross-validation needs two"):
        fit(fold_moments_of(X, X[:, 0], None, np.zeros(30, dtype=np.intp), 3), GROUPS, Options(alpha="cv"))


# Nested.


def explicitly_nested(problem: Problem, alpha: float, outer: GroupOrder, alphas: Float) -> Float:
    """Each fold learns its own order on the other rows; a prefix is scored by the fold's longest one at its cost."""
    total = np.zeros(len(alphas))
    for fold in range(problem.count):
        rows = problem.folds != fold
        weights = None if problem.weights is None else problem.weights[rows]
        gram = Gram.of(Moments.merged(fold_moments_of(problem.X[rows], problem.Y[rows], weights)))
        own = problem.order(alpha, gram)
        for k, cost in enumerate(outer.costs):
            reached = max(i for i, c in enumerate(own.costs) if c <= cost + 1e-9)
            error = problem.rowwise(fold, own.columns[: own.ends[reached]], float(alphas[k]))
            total[k] += problem.w[~rows].sum() * error
    mean: Float = total / problem.w.sum()
    return mean


@quick(max_examples=20)
@given(problems())
def test_nested_errors_are_those_of_folds_that_learn_their_own_order(problem: Problem) -> None:
    found = problem.fitted(nested=True)
    held = problem.fitted()
    assert found.alpha == held.alpha
    assert found.sequence.steps == held.sequence.steps
    expected = explicitly_nested(problem, found.alpha, found.sequence, found.alphas)
    assert found.errors == pytest.approx(expected, rel=1e-7)


def test_where_all_folds_agree_on_the_order_nested_errors_are_the_plain_ones() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 7))
    Y = X @ np.array([[1, 1, 5, 0.3, 0.3, 0.3, 9.0]]).T + rng.normal(size=(200, 1))
    problem = Problem(X, Y, None, np.arange(200) % 4, 4, GROUPS)
    folds, order = split(problem.parts()), problem.order(0.01)
    plain = prefix_errors(folds, order.columns, order.ends, [0.01]).mean[0]
    nested = nested_errors(folds, lambda train: problem.order(0.01, train), order, np.full(5, 0.01))
    np.testing.assert_allclose(nested.mean, plain, rtol=1e-12)


def free_and_paid() -> FeatureGroups:
    return load_groups(
        {
            "groups": [
                {"name": "known", "features": ["k0"], "cost": 0.0},
                {"name": "also known", "features": ["k1"], "cost": 0.0},
                {"name": "paid", "features": ["p0", "p1"], "cost": 3.0},
            ]
        }
    )


def test_the_nested_error_of_the_base_rate_is_that_of_the_base_rate_though_groups_are_free() -> None:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(80, 4))
    Y = X @ np.array([[3.0], [2.0], [1.0], [1.0]]) + rng.normal(size=(80, 1))
    problem = Problem(X, Y, None, np.arange(80) % 4, 4, free_and_paid())
    nested, plain = problem.fitted(nested=True), problem.fitted()
    assert nested.errors is not None
    assert plain.errors is not None
    assert nested.errors[0] == pytest.approx(plain.errors[0], rel=1e-9)
    assert nested.errors[2:] == pytest.approx(plain.errors[2:], rel=1e-9)


# Orders that differ in their steps only.


def requiring() -> FeatureGroups:
    return load_groups(
        {
            "groups": [
                {"name": "p", "features": ["a"], "cost": 3.0},
                {"name": "q", "features": ["b", "c"], "cost": 1.0, "requires": ["p"]},
                {"name": "r", "features": ["d"], "cost": 2.0},
            ]
        }
    )


@pytest.mark.parametrize("seed", range(6))
def test_penalties_that_take_the_same_columns_in_other_steps_are_told_apart(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 4))
    X[:, 1] = X[:, 0] + 0.05 * X[:, 1]
    signal = X[:, 0] + (X[:, 1] - X[:, 0]) * rng.uniform(0, 30) + 0.3 * X[:, 3]
    problem = Problem(X, signal[:, np.newaxis] + rng.normal(size=(60, 1)), None, np.arange(60) % 5, 5, requiring())
    found = problem.fitted()
    assert found.errors is not None
    assert found.errors.shape == found.alphas.shape == (len(found.sequence.steps) + 1,)
    for k, alpha in enumerate(found.alphas):
        assert found.errors[k] == pytest.approx(problem.errors(found.sequence, float(alpha)).mean[k], rel=1e-7)


def test_orders_of_equal_columns_whose_prefixes_end_elsewhere_have_errors_of_their_own() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 4))
    Y = X @ np.array([[3.0], [2.8], [0.5], [2.5]]) + rng.normal(size=(60, 1))
    orders = {}
    for alpha, content in (
        (0.01, [(["a", "b"], 2.0), (["c"], 1.0), (["d"], 100.0)]),
        (0.02, [(["a"], 1.0), (["b", "c", "d"], 4.0), ([], 1.0)]),
    ):
        groups = load_groups(
            {"groups": [{"name": f"g{g}", "features": f, "cost": cost} for g, (f, cost) in enumerate(content)]}
        )
        problem = Problem(X, Y, None, np.arange(60) % 3, 3, groups)
        orders[alpha] = problem.order(alpha)
    assert orders[0.01].columns.tolist() == orders[0.02].columns.tolist()
    assert len(orders[0.01].steps) == len(orders[0.02].steps)
    choice = choose(stated(split(problem.parts()), tuple(orders), lambda alpha: orders[alpha]))
    assert choice.alpha == 0.01
    for k, alpha in enumerate(choice.alphas):
        assert choice.errors is not None
        assert choice.errors[k] == pytest.approx(problem.errors(choice.sequence, float(alpha)).mean[k], rel=1e-9)


@pytest.mark.parametrize("one_se", [False, True], ids=["least error", "one standard error"])
@pytest.mark.parametrize("least", range(20))
def test_expensive_orders_are_learned_from_the_middle_of_the_grid_towards_the_best(least: int, one_se: bool) -> None:
    rng = np.random.default_rng(0)
    problem = Problem(rng.normal(size=(60, 4)), rng.normal(size=(60, 1)), None, np.arange(60) % 3, 3, requiring())
    grid, folds, sequence = tuple(range(20)), split(problem.parts()), problem.order(1.0)
    between = 20.0 * np.sqrt(3.0) * np.array([[-1.0], [0.0], [1.0]])  # the standard error is 20
    learned: list[float] = []

    def order(alpha: float) -> GroupOrder:
        learned.append(alpha)
        return sequence

    def errors(known: GroupOrder, alphas: Iterable[float]) -> Errors:
        by_alpha = between + np.square(np.array(list(alphas)) - least)
        return Errors(np.repeat(by_alpha[:, :, np.newaxis], len(known.steps) + 1, axis=2), np.ones(3))

    exhaustive = choose(stated(folds, grid[::4], order, one_se=one_se, errors=errors))
    learned.clear()
    choice = choose(stated(folds, grid, order, one_se=one_se, errors=errors), every=4)
    assert choice.alpha == exhaustive.alpha
    assert learned[0] == 8
    assert len(learned) <= (5 if one_se else 4)
    assert choice.alphas[0] == (min(least + 4, 19) if one_se else least)
