"""Moments add up exactly, and impute exactly, as if the rows had been together from the beginning.

The Gram matrix is that of the standardised rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram, Moments
from anytime.types import Float
from models import literal
from models.properties import quick
from models.refusals import assert_refused

seeds = st.integers(0, 2**32 - 1)


def direct(X: Float, Y: Float, w: Float, fill: Float) -> Moments:
    """Moments by their definition, in two passes over the rows."""
    gaps = np.isnan(X)
    missing = np.flatnonzero(gaps.any(axis=0))
    Z = np.hstack([np.where(gaps, fill, X), Y, gaps[:, missing]])
    mean = w @ Z / (w.sum() or 1.0)
    scatter = (w[:, np.newaxis] * (Z - mean)).T @ (Z - mean)
    spans = tuple((j, j + 1) for j in missing.tolist())
    return Moments(X.shape[1], Y.shape[1], len(X), float(w.sum()), mean, scatter, fill, spans)


@dataclass(frozen=True, eq=False)
class Pieces:
    """One table in pieces, each stored with a fill of its own."""

    X: Float = field(repr=False)
    Y: Float = field(repr=False)
    w: Float = field(repr=False)
    fill: Float = field(repr=False)
    parts: list[Moments] = field(repr=False)

    def whole(self) -> Moments:
        return direct(self.X, self.Y, self.w, self.parts[0].fill)


@st.composite
def pieces(draw: st.DrawFn, missing: tuple[float, ...] = (0.0, 0.2, 0.7)) -> Pieces:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(0, 30), min_size=1, max_size=5))
    D, P, n = draw(st.integers(1, 4)), draw(st.integers(1, 3)), sum(sizes)
    X, Y = rng.normal(size=(n, D)) * 3 + 5, rng.normal(size=(n, P))
    X[rng.random(X.shape) < draw(st.sampled_from(missing))] = np.nan
    w = rng.uniform(0.1, 3, n) if draw(st.booleans()) else rng.integers(0, 3, n).astype(np.float64)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    fills = rng.normal(size=(len(sizes), D)) * draw(st.sampled_from((0.0, 4.0)))
    parts = [direct(X[a:b], Y[a:b], w[a:b], fills[i]) for i, (a, b) in enumerate(pairwise(edges))]
    return Pieces(X, Y, w, fills[0], parts)


def assert_same(found: Moments, expected: Moments) -> None:
    assert (found.rows, found.missing) == (expected.rows, expected.missing)
    assert found.weight == pytest.approx(expected.weight, rel=1e-12)
    if expected.weight > 0:
        expected = expected.refilled(found.fill)
        np.testing.assert_allclose(found.mean, expected.mean, rtol=0, atol=1e-10)
        np.testing.assert_allclose(found.scatter, expected.scatter, rtol=0, atol=1e-10 * expected.weight * 100)


@quick(max_examples=200)
@given(pieces())
def test_merged_parts_are_the_whole(table: Pieces) -> None:
    merged, whole = Moments.merged(table.parts), table.whole()
    if merged.weight > 0:
        assert_same(merged.with_indicators(tuple(sorted({*merged.missing, *whole.missing}))), whole)


@quick(max_examples=60)
@given(pieces())
def test_merging_changes_neither_part(table: Pieces) -> None:
    before = [(part.mean.tobytes(), part.scatter.tobytes(), part.fill.tobytes()) for part in table.parts]
    Moments.merged(table.parts).imputed()
    assert [(part.mean.tobytes(), part.scatter.tobytes(), part.fill.tobytes()) for part in table.parts] == before


@quick(max_examples=100)
@given(pieces(), st.integers(0, 2**32 - 1))
def test_another_fill_is_another_way_to_store_the_same_table(table: Pieces, seed: int) -> None:
    whole = table.whole()
    if whole.weight == 0:
        return
    fill = np.random.default_rng(seed).normal(size=whole.features) * 3
    assert_same(whole.refilled(fill), direct(table.X, table.Y, table.w, fill))
    assert_same(whole.refilled(fill).refilled(whole.fill), whole)


@quick(max_examples=150)
@given(pieces())
def test_imputation_by_the_means_is_exact_after_any_merge(table: Pieces) -> None:
    merged = Moments.merged(table.parts)
    if merged.weight == 0:
        return
    X = table.X.copy()
    for x, found in zip(X.T, merged.observed_mean, strict=True):
        known = ~np.isnan(x) & (table.w > 0)
        mean = np.average(x[known], weights=table.w[known]) if known.any() else found
        assert found == pytest.approx(mean, abs=1e-10)
        x[np.isnan(x)] = mean
    full = merged.imputed()
    assert full.missing == ()
    assert np.isfinite(full.mean).all()
    expected = direct(X, table.Y, table.w, full.fill)
    np.testing.assert_allclose(full.mean, expected.mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(full.scatter, expected.scatter, rtol=0, atol=1e-8 * full.weight)


@pytest.mark.parametrize("seed", range(20))
def test_a_feature_that_no_machine_has_is_constant_whatever_each_stored_for_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, y, w = rng.normal(size=(100, 2)), rng.normal(size=100), rng.uniform(0.1, 3.0, 100)
    X[:, 0] = np.nan
    one = moments_of(X[:50], y[:50], w[:50])
    other = moments_of(X[50:], y[50:], w[50:]).refilled(np.array([3.7, 0.0]))
    for merged in (one.merge(other), other.merge(one)):
        gram = Gram.of(merged)
        assert gram.constant.tolist() == [True, False]
        assert gram.x_mean[0] in (0.0, pytest.approx(3.7))
        assert not gram.q[0].any()


def test_indicators_of_features_that_never_miss_are_zero_and_change_nothing() -> None:
    rng = np.random.default_rng(2)
    X, Y = rng.normal(size=(30, 4)), rng.normal(size=(30, 1))
    X[::5, 2] = np.nan
    moments = direct(X, Y, np.ones(30), np.zeros(4))
    wider = moments.with_indicators(((0, 1), (2, 3), (3, 4)))
    assert wider.missing == ((0, 1), (2, 3), (3, 4))
    assert wider.mean[5:].tolist() == [0.0, pytest.approx(0.2), 0.0]
    np.testing.assert_array_equal(wider.imputed().scatter, moments.imputed().scatter)
    assert moments.with_indicators(moments.missing) is moments


@quick()
@given(pieces(), st.integers(0, 5))
def test_what_was_added_can_be_taken_away(pieces: Pieces, cut: int) -> None:
    kept, gone = pieces.parts[:cut], pieces.parts[cut:]
    whole = Moments.merged(pieces.parts)
    rest = reduce(Moments.without, gone, whole)
    rest = rest.with_indicators(whole.missing)
    expected = reduce(Moments.merge, kept, Moments.empty(whole.features, whole.responses, whole.fill))
    expected = expected.refilled(whole.fill).with_indicators(whole.missing)
    assert rest.rows == expected.rows
    if expected.weight == 0:
        assert rest.weight == pytest.approx(0.0, abs=1e-9)
        return
    assert rest.weight == pytest.approx(expected.weight)
    size = np.sqrt(np.diagonal(whole.scatter)) + np.abs(whole.mean) * np.sqrt(whole.weight) + 1e-9
    scale = np.outer(size, size) * max(1.0, whole.weight / expected.weight)
    assert (np.abs(rest.scatter - expected.scatter) <= 1e-9 * scale).all()
    np.testing.assert_allclose(rest.mean, expected.mean, atol=1e-7 * max(1.0, whole.weight / expected.weight))


def test_a_gap_that_was_taken_away_leaves_no_trace() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 3)), rng.normal(size=50)
    gappy = X[:20].copy()
    gappy[::4, 1] = np.nan
    rest = moments_of(np.vstack([X, gappy]), np.concatenate([y, y[:20]])).without(moments_of(gappy, y[:20]))
    assert rest.missing == ()
    np.testing.assert_allclose(rest.scatter, moments_of(X, y).scatter, atol=1e-10)


@pytest.mark.parametrize("constant", [-5.3, 0.0, 1e6])
@pytest.mark.parametrize("missing", [False, True], ids=["known", "missing"])
def test_a_column_that_is_constant_in_the_rows_that_remain_can_be_subtracted_from(
    constant: float, missing: bool
) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        X, Y, w = rng.normal(size=(12, 2)) + 5.0, rng.normal(size=(12, 1)), rng.uniform(0.1, 3.0, 12)
        X[:9, 0] = np.nan if missing else constant
        parts = [direct(X[a : a + 3], Y[a : a + 3], w[a : a + 3], np.array([constant, 0.0])) for a in range(0, 12, 3)]
        rest = reduce(Moments.without, parts[:0:-1], Moments.merged(parts))
        expected = parts[0].with_indicators(rest.missing)
        assert rest.scatter[0].tolist() == [0.0] * len(rest.mean)
        np.testing.assert_allclose(rest.mean, expected.mean, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(rest.scatter, expected.scatter, atol=1e-8)


def test_rows_that_are_not_there_cannot_be_taken_away() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 3)), rng.normal(size=50)
    few, others = moments_of(X[:10], y[:10]), moments_of(100.0 + 50.0 * X[:10], y[:10])
    whole = moments_of(X, y)
    assert_refused(lambda: few.without(whole), "cannot remove 50 rows of weight 50 from 10 rows of weight 10")
    assert_refused(lambda: whole.without(others), "not among those counted")
    assert whole.without(whole).rows == 0


def test_rows_of_no_weight_remain_without_any_value() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(10, 3)), rng.normal(size=10)
    rest = moments_of(X, y, np.repeat([1.0, 0.0], 5)).without(moments_of(X[:5], y[:5]))
    assert (rest.rows, rest.weight) == (5, 0.0)
    assert not np.vstack([rest.mean, rest.scatter]).any()


# The Gram matrix.


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


@quick(max_examples=60)
@given(seeds, st.integers(5, 60), st.booleans())
def test_second_moments_are_those_of_the_standardised_rows(seed: int, rows: int, weighted: bool) -> None:
    X, Y, w = table(seed, rows)
    w = w if weighted else np.ones(rows)
    gram = Gram.of(moments_of(X, Y, w))
    Xs, Ys = literal.standardise(X, Y, w)
    W = (w / w.sum())[:, np.newaxis]
    np.testing.assert_allclose(np.hstack([gram.S, gram.q]), Xs.T @ (W * np.hstack([Xs, Ys])), atol=1e-10)
    assert (gram.constant[3], gram.x_scale[3]) == (True, 1.0)


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
