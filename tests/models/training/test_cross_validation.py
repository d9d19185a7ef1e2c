"""Errors from the moments of the folds are those of fitting and scoring row by row."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime.errors import TrainingError
from anytime.moments.accumulate import fold_moments_of
from anytime.training.least_squares import Fold, split
from anytime.training.model_selection import Errors, prefix_errors
from anytime.types import Float, Index
from models import literal
from models.properties import quick


@dataclass(frozen=True, eq=False)
class Table:
    """Rows in folds, and an order of their columns."""

    X: Float = field(repr=False)
    Y: Float = field(repr=False)
    weights: Float | None = field(repr=False)
    folds: Index = field(repr=False)
    count: int
    columns: Index
    ends: Index

    @property
    def w(self) -> Float:
        return np.ones(len(self.X)) if self.weights is None else self.weights

    def split(self, chunk: int | None = None) -> list[Fold]:
        return split(fold_moments_of(self.X, self.Y, self.weights, self.folds, self.count, chunk_rows=chunk))


def rowwise_errors(table: Table, alpha: float) -> Float:
    """Errors (folds, steps + 1) of a ridge on the standardised training rows, scored on the held-out rows."""
    errors = []
    for fold in range(table.count):
        out = table.folds == fold
        X, Y, w = table.X[~out], table.Y[~out], table.w[~out]
        known = np.where(np.isnan(X), 0.0, w[:, np.newaxis])
        mean = (known * np.nan_to_num(X)).sum(axis=0) / known.sum(axis=0)
        filled = np.where(np.isnan(X), mean, X)
        scale = np.sqrt(np.average((filled - mean) ** 2, axis=0, weights=w))
        constant = scale < 1e-9
        Xs = np.where(constant, 0.0, filled - mean) / np.where(constant, 1.0, scale)
        held = (np.where(np.isnan(table.X[out]), mean, table.X[out]) - mean) / np.where(constant, 1.0, scale)
        y_mean = np.average(Y, axis=0, weights=w)
        y_scale = np.sqrt(np.average((Y - y_mean) ** 2, axis=0, weights=w))
        own = []
        for end in table.ends:
            used = table.columns[:end]
            W = literal.Rows(Xs, (Y - y_mean) / y_scale, alpha, w).coefficients(used.tolist())
            residuals = table.Y[out] - (y_mean + held[:, used] @ W * y_scale)
            own.append(np.average(residuals**2, axis=0, weights=table.w[out]).mean())
        errors.append(own)
    return np.array(errors)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any))
    n, D, P, count = draw(st.integers(40, 90)), sum(sizes), draw(st.integers(1, 3)), draw(st.integers(2, 5))
    X = rng.normal(size=(n, D)) @ (np.eye(D) + 0.3 * rng.normal(size=(D, D))) + 4.0
    Y = X @ rng.normal(size=(D, P)) * [1.0, 20.0, 0.1][:P] + rng.normal(size=(n, P))
    X[rng.random(X.shape) < draw(st.sampled_from((0.0, 0.1)))] = np.nan
    folds = np.arange(n) % count
    weights = rng.uniform(0.1, 3.0, n) if draw(st.booleans()) else None
    ends = np.cumsum([0, *sizes])
    return Table(X, Y, weights, folds, count, rng.permutation(D), ends)


@quick(max_examples=60)
@given(tables(), st.integers(5, 100))
def test_errors_are_those_of_fitting_and_scoring_rows(table: Table, chunk: int) -> None:
    alphas = [1e-7, 1e-3, 0.7]
    errors = prefix_errors(table.split(chunk), table.columns, table.ends, alphas)
    assert errors.folds.shape == (table.count, 3, len(table.ends))
    for i, alpha in enumerate(alphas):
        expected = rowwise_errors(table, alpha)
        np.testing.assert_allclose(errors.folds[:, i], expected, rtol=1e-7)
        weights = [table.w[table.folds == fold].sum() for fold in range(table.count)]
        np.testing.assert_allclose(errors.mean[i], np.average(expected, axis=0, weights=weights), rtol=1e-7)


@quick(max_examples=30)
@given(tables())
def test_without_penalty_copies_do_no_harm(table: Table) -> None:
    D = table.X.shape[1]
    twice = Table(
        np.hstack([table.X, table.X]),
        table.Y,
        table.weights,
        table.folds,
        table.count,
        np.concatenate([table.columns, table.columns + D]),
        np.append(table.ends, 2 * D),
    )
    once = prefix_errors(table.split(), table.columns, table.ends, [0.0]).folds
    found = prefix_errors(twice.split(), twice.columns, twice.ends, [0.0]).folds
    np.testing.assert_allclose(found[..., :-1], once, rtol=1e-7)
    np.testing.assert_allclose(found[..., -1], once[..., -1], rtol=1e-7)


def test_the_mean_weighs_folds_by_their_rows_and_the_standard_error_is_of_their_spread() -> None:
    errors = Errors(np.array([[1.0, 2.0], [2.0, 2.0], [4.0, 2.0]]), np.array([1.0, 1.0, 2.0]))
    assert errors.mean.tolist() == [2.75, 2.0]
    variance = (1.75**2 + 0.75**2 + 2 * 1.25**2) / 4
    assert errors.standard_error.tolist() == pytest.approx([np.sqrt(variance / 2), 0.0])
    equal = Errors(np.array([1.0, 2.0, 4.0, 9.0]), np.full(4, 7.0))
    assert float(equal.standard_error) == pytest.approx(np.std([1, 2, 4, 9], ddof=1) / 2)


# Folds.


def halves(rows: int = 40) -> Table:
    rng = np.random.default_rng(0)
    X, folds = rng.normal(size=(rows, 3)), np.arange(rows) % 4
    return Table(X, X[:, :1] + rng.normal(size=(rows, 1)), None, folds, 4, np.arange(3), np.arange(4))


def test_each_fold_is_held_out_of_the_training_part_of_the_others() -> None:
    table = halves()
    for fold, held in enumerate(table.split()):
        assert held.train.weight == 30
        assert held.held.weight == 10
        np.testing.assert_allclose(held.train.x_mean, table.X[table.folds != fold].mean(axis=0), atol=1e-14)


def test_folds_without_rows_or_weight_are_left_out() -> None:
    table = halves()
    parts = fold_moments_of(table.X, table.Y, None, table.folds * 2, 8)
    assert len(split(parts)) == 4
    weights = np.where(table.folds == 2, 0.0, 1.0)
    parts = fold_moments_of(table.X, table.Y, weights, table.folds, 4)
    found = prefix_errors(split(parts), table.columns, table.ends, [0.1]).mean[0]
    kept = weights > 0
    parts = fold_moments_of(table.X[kept], table.Y[kept], None, table.folds[kept], 4)
    np.testing.assert_allclose(found, prefix_errors(split(parts), table.columns, table.ends, [0.1]).mean[0], rtol=1e-10)


@pytest.mark.parametrize("used", [0, 1])
def test_fewer_than_two_folds_with_rows_are_refused(used: int) -> None:
    table = halves()
    weights = np.where(table.folds < used, 1.0, 0.0)
    with pytest.raises(TrainingError, match=f"{used} of 4 folds have rows.*fixed alpha"):
        split(fold_moments_of(table.X, table.Y, weights, table.folds, 4))


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
    table = Table(X, Y, weights, folds, 3, np.array([1, 0, 2]), np.arange(4))
    held = table.split()
    assert held[2].train.constant.tolist() == [False, True, False]
    errors = prefix_errors(held, table.columns, table.ends, [alpha]).folds[:, 0]
    np.testing.assert_allclose(errors, rowwise_errors(table, alpha), rtol=1e-6)
    assert errors[2, 1] == pytest.approx(errors[2, 0], rel=1e-12)


def test_a_response_that_is_constant_outside_one_fold_is_predicted_by_its_constant() -> None:
    rng = np.random.default_rng(5)
    folds, X = np.arange(60) % 3, rng.normal(size=(60, 2))
    Y = np.column_stack([X[:, 0] + rng.normal(size=60), np.where(folds == 1, rng.normal(size=60), 0.1)])
    table = Table(X, Y, None, folds, 3, np.arange(2), np.arange(3))
    errors = prefix_errors(table.split(), table.columns, table.ends, [1e-5]).folds[1, 0]
    second = np.mean((Y[folds == 1, 1] - 0.1) ** 2)
    first = rowwise_errors(Table(X, Y[:, :1], None, folds, 3, np.arange(2), np.arange(3)), 1e-5)[1]
    np.testing.assert_allclose(errors, (first + second) / 2, rtol=1e-9)


def test_a_perfect_fit_has_no_negative_error() -> None:
    rng = np.random.default_rng(6)
    X = rng.normal(size=(50, 3)) + 100
    Y = X @ np.array([[1.0], [2.0], [3.0]])
    table = Table(X, Y, None, np.arange(50) % 2, 2, np.arange(3), np.arange(4))
    errors = prefix_errors(table.split(), table.columns, table.ends, [0.0]).folds
    assert (errors >= 0).all()
    assert errors[..., -1].max() < 1e-10
