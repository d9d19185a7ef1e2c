"""The Gram matrix is that of the standardised rows, in training and beside it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.types import Float
from models import literal
from models.properties import quick

seeds = st.integers(0, 2**32 - 1)


def table(seed: int, rows: int, missing: float = 0.1) -> tuple[Float, Float, Float]:
    """Features (a constant among them) with gaps, two responses, weights."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 5)) @ rng.normal(size=(5, 5))
    X *= [1, 10, 0.1, 1, 1]
    X += [0, 5, -3, 100, 0]
    X[:, 3] = 0.1
    gaps = rng.random(X.shape) < missing
    gaps[0] = False
    X[gaps] = np.nan
    Y = np.nan_to_num(X)[:, :2] @ rng.normal(size=(2, 2)) + rng.normal(size=(rows, 2))
    return X, Y, rng.uniform(0.2, 3, rows)


def test_correlations_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(100, 4)) @ rng.normal(size=(4, 4)) + 3, rng.normal(size=(100, 2))
    gram = Gram.of(moments_of(X, Y))
    expected = np.atleast_2d(np.corrcoef(np.hstack([X, Y]), rowvar=False))
    np.testing.assert_allclose(gram.S, expected[:4, :4], atol=1e-13)
    np.testing.assert_allclose(gram.q, expected[:4, 4:], atol=1e-13)
    np.testing.assert_allclose(gram.x_mean, X.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(gram.x_scale, X.std(axis=0), rtol=1e-13)
    np.testing.assert_allclose(gram.y_mean, Y.mean(axis=0), rtol=0, atol=1e-13)
    np.testing.assert_allclose(gram.y_scale, Y.std(axis=0), rtol=1e-13)
    assert gram.yy.tolist() == [1.0, 1.0]
    assert gram.weight == 100


@quick(max_examples=60)
@given(seeds, st.integers(5, 60), st.booleans())
def test_second_moments_are_those_of_the_standardised_rows(seed: int, rows: int, weighted: bool) -> None:
    X, Y, w = table(seed, rows)
    w = w if weighted else np.ones(rows)
    gram = Gram.of(moments_of(X, Y, w))
    Xs, Ys = literal.standardise(X, Y, w)
    W = (w / w.sum())[:, np.newaxis]
    np.testing.assert_allclose(gram.S, Xs.T @ (W * Xs), atol=1e-10)
    np.testing.assert_allclose(gram.q, Xs.T @ (W * Ys), atol=1e-10)
    assert gram.constant[3]
    assert gram.x_scale[3] == 1.0


@quick(max_examples=60)
@given(seeds, st.floats(0.01, 100), st.floats(-100, 100))
def test_units_of_the_columns_do_not_matter(seed: int, factor: float, offset: float) -> None:
    X, Y, w = table(seed, 40)
    one, other = Gram.of(moments_of(X, Y, w)), Gram.of(moments_of(X * factor + offset, Y * factor - offset, w))
    np.testing.assert_allclose(one.S, other.S, atol=1e-9)
    np.testing.assert_allclose(one.q, other.q, atol=1e-9)


def test_a_constant_response_is_explained_by_nothing() -> None:
    rng = np.random.default_rng(1)
    gram = Gram.of(moments_of(rng.normal(size=(30, 3)), np.column_stack([rng.normal(size=30), np.full(30, 1 / 3)])))
    assert gram.yy.tolist() == [1.0, 0.0]
    assert gram.y_scale[1] == 1.0
    assert not gram.q[:, 1].any()


def test_the_penalty_is_added_to_the_diagonal_of_a_copy() -> None:
    X, Y, w = table(2, 30)
    gram = Gram.of(moments_of(X, Y, w))
    before = gram.S.tobytes(), gram.q.tobytes()
    columns = np.array([4, 1, 3])
    C, q = gram.penalised(0.25)
    part, part_q = gram.penalised(0.25, columns)
    np.testing.assert_array_equal(C, gram.S.T + np.diag([0.25, 0.25, 0.25, 1.25, 0.25]))
    np.testing.assert_allclose(part, C[np.ix_(columns, columns)], rtol=1e-12)
    np.testing.assert_array_equal(part_q, q[columns])
    for array in (C, q, part, part_q):
        array[:] = 7.0
    assert (gram.S.tobytes(), gram.q.tobytes()) == before


def test_a_constant_is_positive_definite_without_a_penalty() -> None:
    X, Y, _ = table(3, 50, missing=0.0)
    assert np.linalg.eigvalsh(Gram.of(moments_of(X, Y)).penalised(0.0)[0]).min() > 0


# Beside: another table in the training units.


def in_training_units(X: Float, Y: Float, gram: Gram) -> tuple[Float, Float]:
    filled = np.where(np.isnan(X), gram.x_mean, X)
    return (filled - gram.x_mean) / gram.x_scale, (Y - gram.y_mean) / gram.y_scale


@quick(max_examples=60)
@given(seeds, seeds, st.integers(1, 60), st.booleans())
def test_beside_has_the_second_moments_of_the_other_rows_in_training_units(
    seed: int, other_seed: int, rows: int, weighted: bool
) -> None:
    X, Y, w = table(seed, 40)
    gram = Gram.of(moments_of(X, Y, w))
    X2, Y2, w2 = table(other_seed, rows, missing=0.2)
    w2 = w2 if weighted else np.ones(rows)
    held = gram.held_out_moments(moments_of(X2 + 0.3, Y2, w2))
    Xs, Ys = in_training_units(X2 + 0.3, Y2, gram)
    W = (w2 / w2.sum())[:, np.newaxis]
    for found, expected in ((held.S, Xs.T @ (W * Xs)), (held.q, Xs.T @ (W * Ys))):
        np.testing.assert_allclose(found, expected, atol=1e-9 * (1 + np.abs(expected).max()))
    np.testing.assert_allclose(held.yy, (W * Ys**2).sum(axis=0), rtol=1e-9)
    assert held.weight == pytest.approx(w2.sum())


@quick(max_examples=40)
@given(seeds, seeds)
def test_explained_variance_on_a_test_table_is_that_of_its_rows(seed: int, other_seed: int) -> None:
    X, Y, w = table(seed, 40)
    gram = Gram.of(moments_of(X, Y, w))
    X2, Y2, _ = table(other_seed, 25, missing=0.2)
    held = gram.held_out_moments(moments_of(X2, Y2))
    C, q = gram.penalised(0.01)
    W = np.linalg.solve(C, q)
    Xs, Ys = in_training_units(X2, Y2, gram)
    F = (np.sum(Ys**2) - np.sum((Ys - Xs @ W) ** 2)) / (2 * len(Xs))
    assert np.sum(W * (held.q - 0.5 * held.S @ W)) == pytest.approx(F, rel=1e-9, abs=1e-9)


def test_beside_its_own_table_nothing_changes() -> None:
    X, Y, w = table(4, 50)
    moments = moments_of(X, Y, w)
    gram = Gram.of(moments)
    held = gram.held_out_moments(moments)
    varied = ~gram.constant
    np.testing.assert_allclose(held.S[np.ix_(varied, varied)], gram.S[np.ix_(varied, varied)], atol=1e-12)
    np.testing.assert_allclose(held.q, gram.q, atol=1e-12)
    np.testing.assert_allclose(held.yy, gram.yy, atol=1e-12)
