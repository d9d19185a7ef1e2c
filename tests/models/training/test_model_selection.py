"""Errors from the moments of the folds are those of fitting and scoring row by row.

The penalties that cross-validation chooses are those that trying everything on the rows would choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime.errors import TrainingError
from anytime.folds import FoldStream
from anytime.groups import FeatureGroups, load_groups
from anytime.moments.accumulate import fold_moments_of
from anytime.moments.moments import Gram, Moments
from anytime.selection import GroupOrder, sequence
from anytime.training.fit import Fit, fit
from anytime.training.least_squares import Fold, LeastSquares, split
from anytime.training.model_selection import COARSE, FINE, Choice, Errors, choose
from anytime.training.options import Options
from anytime.types import Float, Index
from models import literal
from models.present import present
from models.problems import grouped
from models.properties import quick
from models.refusals import assert_refused

GRID = tuple(np.logspace(-7, 1, 20).tolist())
"""The penalties of alpha "cv": 20 from 1e-7 to 10."""


@dataclass(frozen=True, eq=False)
class Folded:
    """Rows in folds."""

    X: Float = field(repr=False)
    Y: Float = field(repr=False)
    weights: Float | None = field(repr=False)
    folds: Index = field(repr=False)
    count: int

    @property
    def w(self) -> Float:
        return np.ones(len(self.X)) if self.weights is None else self.weights

    def parts(self, chunk: int | None = None, jobs: int = 1) -> list[Moments]:
        return fold_moments_of(self.X, self.Y, self.weights, self.folds, self.count, chunk_rows=chunk, n_jobs=jobs)

    def split(self, chunk: int | None = None) -> list[Fold]:
        return split(self.parts(chunk))

    def rowwise(self, fold: int, prefixes: Sequence[Index], alpha: float) -> list[float]:
        """Errors on a fold of ridges on some columns, fitted on the standardised rows of the others."""
        out = self.folds == fold
        X, Y, w = self.X[~out], self.Y[~out], self.w[~out]
        known = np.where(np.isnan(X), 0.0, w[:, np.newaxis])
        mean = (known * np.nan_to_num(X)).sum(axis=0) / known.sum(axis=0)
        filled = np.where(np.isnan(X), mean, X)
        scale = np.sqrt(np.average((filled - mean) ** 2, axis=0, weights=w))
        constant = scale < 1e-9
        Xs = np.where(constant, 0.0, filled - mean) / np.where(constant, 1.0, scale)
        held = (np.where(np.isnan(self.X[out]), mean, self.X[out]) - mean) / np.where(constant, 1.0, scale)
        y_mean = np.average(Y, axis=0, weights=w)
        y_scale = np.sqrt(np.average((Y - y_mean) ** 2, axis=0, weights=w))
        rows = literal.Rows(Xs, (Y - y_mean) / y_scale, alpha, w)
        fits = (y_mean + held[:, each] @ rows.coefficients(each.tolist()) * y_scale for each in prefixes)
        return [np.average((self.Y[out] - fit) ** 2, axis=0, weights=self.w[out]).mean() for fit in fits]

    def errors_of(self, columns: Index, ends: Index, alpha: float) -> Errors:
        """Errors (folds, steps + 1) of the prefixes of some columns, row by row."""
        rows = [self.rowwise(fold, [columns[:end] for end in ends], alpha) for fold in range(self.count)]
        return Errors(np.array(rows), np.array([self.w[self.folds == fold].sum() for fold in range(self.count)]))


@dataclass(frozen=True, eq=False)
class Folding(Folded):
    """Rows in folds, and an order of their columns."""

    columns: Index
    ends: Index

    def found(self, alphas: Sequence[float], chunk: int | None = None) -> Errors:
        return prefix_errors(self.split(chunk), self.columns, self.ends, alphas)

    def expected(self, alpha: float) -> Errors:
        return self.errors_of(self.columns, self.ends, alpha)


@dataclass(frozen=True, eq=False)
class Problem(Folded):
    """Rows in folds, and groups with costs."""

    groups: FeatureGroups

    def order(self, alpha: float, gram: Gram | None = None) -> GroupOrder:
        return sequence(gram or Gram.of(Moments.merged(self.parts())), self.groups, "fr", alpha)

    def fitted(self, **options: Any) -> Fit:
        return fit(self.parts(), self.groups, Options(method="fr", alpha="cv", **options))

    def errors(self, order: GroupOrder, alpha: float) -> Errors:
        return self.errors_of(order.columns, order.ends, alpha)


def prefix_errors(folds: Sequence[Fold], columns: Index, ends: Index, alphas: Sequence[float]) -> Errors:
    """Errors (folds, alphas, steps + 1) of the prefixes of some columns."""
    return Errors(
        np.array([fold.errors(columns, ends, alphas) for fold in folds]), np.array([fold.weight for fold in folds])
    )


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


def made(seed: int, rows: int, count: int, coef: Sequence[float], groups: FeatureGroups = GROUPS) -> Problem:
    """Independent columns with these coefficients."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, len(coef)))
    Y = X @ np.array(coef)[:, np.newaxis] + rng.normal(size=(rows, 1))
    return Problem(X, Y, None, np.arange(rows) % count, count, groups)


@st.composite
def problems(draw: st.DrawFn, groups: FeatureGroups = GROUPS) -> Problem:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, D, P, count = draw(st.integers(25, 60)), len(groups.features), draw(st.integers(1, 2)), draw(st.integers(2, 4))
    X = rng.normal(size=(n, D)) @ (np.eye(D) + 0.5 * rng.normal(size=(D, D)))
    Y = X @ rng.normal(size=(D, P)) + draw(st.sampled_from((0.3, 2.0, 8.0))) * rng.normal(size=(n, P))
    weights = rng.uniform(0.2, 3.0, n) if draw(st.booleans()) else None
    return Problem(X, Y, weights, FoldStream(count, rng).take(n), count, groups)


class Stated(LeastSquares):
    """A problem of some folds, whose orders are learned by a function of the penalty; `errors` are of all folds."""

    folds: Any = ()
    data: Any = None
    n_jobs: Any = 1

    def __init__(
        self,
        folds: Any,
        grid: Sequence[float],
        order: Any,
        *,
        one_se: bool = False,
        errors: Any = None,
        n_jobs: int = 1,
    ) -> None:
        options = SimpleNamespace(grid=grid, one_se=one_se, epsilon=None)
        self.__dict__.update(folds=folds, order=order, options=options, known={}, n_jobs=n_jobs)
        if errors is not None:
            measured: Any = lambda requests: (errors(order, alphas).folds for order, alphas, _ in requests)  # noqa: E731
            self.__dict__.update(errors=measured, one_by_one=True)

    def orders(self, data: Any) -> Any:  # noqa: ARG002
        return self.__dict__["order"]


def test_where_orders_may_stop_the_cost_axis_ends_at_the_cost_of_all_groups() -> None:
    stopped: Any = SimpleNamespace(costs=np.array([0.0, 2.0, 3.0]))
    problem = Stated((), (1.0,), None)
    terms = SimpleNamespace(expansion=SimpleNamespace(terms=GROUPS))
    problem.__dict__.update(terms=terms, options=SimpleNamespace(epsilon=0.1))
    assert problem.area(stopped, np.array([[4.0, 2.0, 1.0]])) == pytest.approx((8.0 + 2.0 + 5.5) / 8.5)


def errors_of(choice: Choice[Any]) -> Float:
    """Mean errors of the prefixes that were chosen."""
    return present(choice.measured).mean


def area(order: GroupOrder, errors: Float) -> Float:
    """Mean error over the cost axis; while a step is paid for, the prefix before it counts."""
    widths = np.diff(order.costs)
    return np.asarray(errors[..., :-1] @ widths / widths.sum())


def chosen(errors: Errors, one_se: bool) -> int:
    """Index of the least error, or of the last within a standard error of it."""
    best = int(errors.mean.argmin())
    if not one_se:
        return best
    return int(np.flatnonzero(errors.mean <= errors.mean[best] + errors.standard_error[best])[-1])


# Errors.


@st.composite
def foldings(draw: st.DrawFn) -> Folding:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any))
    n, D, P, count = draw(st.integers(40, 90)), sum(sizes), draw(st.integers(1, 3)), draw(st.integers(2, 5))
    X = rng.normal(size=(n, D)) @ (np.eye(D) + 0.3 * rng.normal(size=(D, D))) + 4.0
    Y = X @ rng.normal(size=(D, P)) * [1.0, 20.0, 0.1][:P] + rng.normal(size=(n, P))
    X[rng.random(X.shape) < draw(st.sampled_from((0.0, 0.1)))] = np.nan
    folds = np.arange(n) % count
    weights = rng.uniform(0.1, 3.0, n) if draw(st.booleans()) else None
    return Folding(X, Y, weights, folds, count, rng.permutation(D), np.cumsum([0, *sizes]))


@quick(max_examples=60)
@given(foldings(), st.integers(5, 100))
def test_errors_are_those_of_fitting_and_scoring_rows(table: Folding, chunk: int) -> None:
    alphas = [1e-7, 1e-3, 0.7]
    errors, expected = table.found(alphas, chunk), [table.expected(alpha) for alpha in alphas]
    np.testing.assert_allclose(errors.folds, np.stack([each.folds for each in expected], axis=1), rtol=1e-7)
    np.testing.assert_allclose(errors.mean, [each.mean for each in expected], rtol=1e-7)


@quick(max_examples=30)
@given(foldings())
def test_without_penalty_copies_do_no_harm(table: Folding) -> None:
    D = table.X.shape[1]
    columns, ends = np.concatenate([table.columns, table.columns + D]), np.append(table.ends, 2 * D)
    twice = replace(table, X=np.hstack([table.X, table.X]), columns=columns, ends=ends)
    once, found = table.found([0.0]).folds, twice.found([0.0]).folds
    np.testing.assert_allclose(found, np.concatenate([once, once[..., -1:]], axis=-1), rtol=1e-7)


def test_the_mean_weighs_folds_by_their_rows_and_the_standard_error_is_of_their_spread() -> None:
    errors = Errors(np.array([[1.0, 2.0], [2.0, 2.0], [4.0, 2.0]]), np.array([1.0, 1.0, 2.0]))
    assert errors.mean.tolist() == [2.75, 2.0]
    variance = (1.75**2 + 0.75**2 + 2 * 1.25**2) / 4
    assert errors.standard_error.tolist() == pytest.approx([np.sqrt(variance / 2), 0.0])
    equal = Errors(np.array([1.0, 2.0, 4.0, 9.0]), np.full(4, 7.0))
    assert float(equal.standard_error) == pytest.approx(np.std([1, 2, 4, 9], ddof=1) / 2)


def halves(rows: int = 40) -> Folding:
    rng = np.random.default_rng(0)
    X, folds = rng.normal(size=(rows, 3)), np.arange(rows) % 4
    return Folding(X, X[:, :1] + rng.normal(size=(rows, 1)), None, folds, 4, np.arange(3), np.arange(4))


def test_folds_without_rows_or_weight_are_left_out() -> None:
    table = halves()
    assert len(replace(table, folds=table.folds * 2, count=8).split()) == 4
    kept = table.folds != 2
    weightless = replace(table, weights=kept.astype(np.float64))
    without = replace(table, X=table.X[kept], Y=table.Y[kept], folds=table.folds[kept])
    np.testing.assert_allclose(weightless.found([0.1]).mean, without.found([0.1]).mean, rtol=1e-10)


@pytest.mark.parametrize("used", [0, 1])
def test_fewer_than_two_folds_with_rows_are_refused(used: int) -> None:
    table = halves()
    assert_refused(
        lambda: replace(table, weights=np.where(table.folds < used, 1.0, 0.0)).split(),
        f"{used} of 4 folds have rows",
        "fixed alpha",
        error=TrainingError,
    )


@pytest.mark.parametrize("missing", [0.0, 0.1], ids=["whole", "gaps"])
@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
@pytest.mark.parametrize("alpha", [0.0, 1e-5])
@pytest.mark.parametrize("seed", range(4))
def test_a_column_that_is_constant_outside_one_fold_does_no_harm(
    seed: int, alpha: float, weighted: bool, missing: float
) -> None:
    rng = np.random.default_rng(seed)
    n = 120
    folds, X = rng.integers(0, 3, n), rng.normal(size=(n, 3))
    X[:, 1] = np.where(folds == 2, 0.3 * rng.normal(size=n), 0.0) + 0.1
    X[rng.random(n) < missing, 1] = np.nan
    Y = X[:, [0]] + rng.normal(size=(n, 1))
    weights = rng.uniform(0.5, 2, n) if weighted else None
    table = Folding(X, Y, weights, folds, 3, np.array([1, 0, 2]), np.arange(4))
    assert table.split()[2].train.constant.tolist() == [False, True, False]
    errors = table.found([alpha]).folds[:, 0]
    np.testing.assert_allclose(errors, table.expected(alpha).folds, rtol=1e-6)
    assert errors[2, 1] == pytest.approx(errors[2, 0], rel=1e-12)


def test_a_response_that_is_constant_outside_one_fold_is_predicted_by_its_constant() -> None:
    rng = np.random.default_rng(5)
    folds, X = np.arange(60) % 3, rng.normal(size=(60, 2))
    Y = np.column_stack([X[:, 0] + rng.normal(size=60), np.where(folds == 1, rng.normal(size=60), 0.1)])
    table = Folding(X, Y, None, folds, 3, np.arange(2), np.arange(3))
    first, second = replace(table, Y=Y[:, :1]).expected(1e-5).folds[1], np.mean((Y[folds == 1, 1] - 0.1) ** 2)
    np.testing.assert_allclose(table.found([1e-5]).folds[1, 0], (first + second) / 2, rtol=1e-9)


def test_a_perfect_fit_has_no_negative_error() -> None:
    rng = np.random.default_rng(6)
    X = rng.normal(size=(50, 3)) + 100
    table = Folding(X, X @ np.array([[1.0], [2.0], [3.0]]), None, np.arange(50) % 2, 2, np.arange(3), np.arange(4))
    errors = table.found([0.0]).folds
    assert (errors >= 0).all()
    assert errors[..., -1].max() < 1e-10


# Penalties.


@pytest.mark.parametrize("one_se", [False, True], ids=["least error", "one standard error"])
def test_the_choice_is_that_of_trying_every_penalty_on_the_rows(one_se: bool) -> None:
    grid = (1e-6, 1e-3, 1e-1, 1.0, 10.0)

    @quick(max_examples=25)
    @given(problems())
    def check(problem: Problem) -> None:
        choice = choose(Stated(problem.split(), grid, problem.order, one_se=one_se))
        orders = [problem.order(alpha) for alpha in grid]
        curves = [problem.errors(order, alpha) for order, alpha in zip(orders, grid, strict=True)]
        areas = np.stack([area(order, curve.folds) for order, curve in zip(orders, curves, strict=True)], axis=1)
        best = chosen(Errors(areas, curves[0].weights), one_se)
        assert choice.alpha == grid[best]
        assert choice.sequence.steps == orders[best].steps
        of_order = [problem.errors(orders[best], alpha) for alpha in grid]
        for k, (alpha, error) in enumerate(zip(choice.alphas, errors_of(choice), strict=True)):
            column = Errors(np.stack([e.folds[:, k] for e in of_order], axis=1), curves[0].weights)
            # The base rate has no penalty: all errors are equal, but for rounding.
            assert k == 0 or alpha == grid[chosen(column, one_se)]
            assert error == pytest.approx(column.mean[grid.index(alpha)] if one_se else column.mean.min(), rel=1e-7)

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
    folds, order = problem.split(), Mock(wraps=problem.order)
    choice = choose(Stated(folds, GRID, order), FINE)
    assert order.call_count <= 9
    whole = choose(Stated(folds, GRID, problem.order))
    weights = np.array([fold.weight for fold in folds])
    curves = (prefix_errors(folds, each.sequence.columns, each.sequence.ends, [each.alpha]) for each in (choice, whole))
    areas = (area(each.sequence, curve.folds) for each, curve in zip((choice, whole), curves, strict=True))
    ours, theirs = (Errors(each, weights) for each in areas)
    assert ours.mean[0] <= theirs.mean[0] + 0.1 * theirs.standard_error[0] * (choice.alpha != whole.alpha)
    every = prefix_errors(folds, choice.sequence.columns, choice.sequence.ends, GRID)
    best = every.mean.argmin(axis=0)
    limit = every.mean + 0.02 * every.standard_error
    assert (errors_of(choice) <= limit[best, np.arange(len(best))] * (1 + 1e-12)).all()
    at = [GRID.index(alpha) for alpha in choice.alphas]
    assert errors_of(choice) == pytest.approx(every.mean[at, np.arange(len(best))], rel=1e-9)


def test_threads_do_not_change_the_choice() -> None:
    problem = made(4, 200, 5, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    one, two = (choose(Stated(problem.split(), GRID, problem.order, n_jobs=jobs)) for jobs in (1, 2))
    assert (one.alpha, one.alphas.tolist()) == (two.alpha, two.alphas.tolist())
    np.testing.assert_array_equal(errors_of(one), errors_of(two))


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
    assert found.sequence.explained_variance[-1] == pytest.approx(F, abs=1e-9)


def test_a_fixed_penalty_with_folds_has_errors_and_no_choice() -> None:
    problem = made(0, 60, 5, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    found = fit(problem.parts(), GROUPS, Options(method="fr", alpha=0.01))
    assert (found.alpha, found.alphas.tolist()) == (0.01, [0.01] * 5)
    assert found.errors == pytest.approx(problem.errors(found.sequence, 0.01).mean, rel=1e-8)
    assert fit([Moments.merged(problem.parts())], GROUPS, Options(method="fr", alpha=0.01)).errors is None


@pytest.mark.parametrize(("count", "why"), [(1, "needs folds"), (3, "cross-validation needs two")])
def test_choosing_without_folds_is_refused(count: int, why: str) -> None:
    X = np.random.default_rng(0).normal(size=(30, 7))
    assert_refused(
        lambda: fit(fold_moments_of(X, X[:, 0], None, np.zeros(30, dtype=np.intp), count), GROUPS, Options(alpha="cv")),
        why,
        error=TrainingError,
    )


# Nested.


def explicitly_nested(problem: Problem, alpha: float, outer: GroupOrder, alphas: Float) -> Float:
    """Each fold learns its own order on the other rows; a prefix is scored by the fold's longest one at its cost."""
    total = np.zeros(len(alphas))
    for fold in range(problem.count):
        rows = problem.folds != fold
        weights = None if problem.weights is None else problem.weights[rows]
        own = problem.order(alpha, Gram.of(Moments.merged(fold_moments_of(problem.X[rows], problem.Y[rows], weights))))
        for k, cost in enumerate(outer.costs):
            reached = max(i for i, c in enumerate(own.costs) if c <= cost + 1e-9)
            (error,) = problem.rowwise(fold, [own.columns[: own.ends[reached]]], float(alphas[k]))
            total[k] += problem.w[~rows].sum() * error
    return np.asarray(total / problem.w.sum())


@quick(max_examples=20)
@given(problems())
def test_nested_errors_are_those_of_folds_that_learn_their_own_order(problem: Problem) -> None:
    found, held = problem.fitted(nested=True), problem.fitted()
    assert (found.alpha, found.sequence.steps) == (held.alpha, held.sequence.steps)
    expected = explicitly_nested(problem, found.alpha, found.sequence, found.alphas)
    assert found.errors == pytest.approx(expected, rel=1e-7)


def test_the_nested_error_of_the_base_rate_is_that_of_the_base_rate_though_groups_are_free() -> None:
    problem = made(2, 80, 4, [3.0, 2.0, 1.0, 1.0], grouped([1, 1, 2], [0.0, 0.0, 3.0]))
    nested, plain = (present(problem.fitted(nested=each).errors)[[0, 2, 3]] for each in (True, False))
    np.testing.assert_allclose(nested, plain, rtol=1e-9)


# Orders that differ in their steps only.


REQUIRING = grouped([1, 2, 1], [3.0, 1.0, 2.0], {1: [0]})


def test_orders_of_equal_columns_whose_prefixes_end_elsewhere_have_errors_of_their_own() -> None:
    problem = made(3, 60, 3, [3.0, 2.8, 0.5, 2.5])
    kinds = {0.01: grouped([2, 1, 1], [2.0, 1.0, 100.0]), 0.02: grouped([1, 3, 0], [1.0, 4.0, 1.0])}
    orders = {alpha: replace(problem, groups=groups).order(alpha) for alpha, groups in kinds.items()}
    assert orders[0.01].columns.tolist() == orders[0.02].columns.tolist()
    assert len(orders[0.01].steps) == len(orders[0.02].steps)
    choice = choose(Stated(problem.split(), tuple(orders), orders.__getitem__))
    assert choice.alpha == 0.01
    expected = [problem.errors(choice.sequence, float(alpha)).mean[k] for k, alpha in enumerate(choice.alphas)]
    assert errors_of(choice) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("one_se", [False, True], ids=["least error", "one standard error"])
@pytest.mark.parametrize("least", range(20))
def test_expensive_orders_are_learned_from_the_middle_of_the_grid_towards_the_best(least: int, one_se: bool) -> None:
    problem = made(0, 60, 3, [0.0] * 4, REQUIRING)
    grid, folds = tuple(range(20)), problem.split()
    order = Mock(return_value=problem.order(1.0))
    between = 20.0 * np.sqrt(3.0) * np.array([[-1.0], [0.0], [1.0]])  # the standard error is 20

    def errors(known: GroupOrder, alphas: Iterable[float]) -> Errors:
        by_alpha = between + np.square(np.array(list(alphas)) - least)
        return Errors(np.repeat(by_alpha[:, :, np.newaxis], len(known.steps) + 1, axis=2), np.ones(3))

    exhaustive = choose(Stated(folds, grid[::4], order, one_se=one_se, errors=errors))
    order.reset_mock()
    choice = choose(Stated(folds, grid, order, one_se=one_se, errors=errors), COARSE)
    assert choice.alpha == exhaustive.alpha
    assert order.call_args_list[0] == call(8)
    assert order.call_count <= (5 if one_se else 4)
    assert choice.alphas[0] == (min(least + 4, 19) if one_se else least)
