"""Rows become moments: the same whatever their type, layout and number of threads, and to the last digits."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import sparse

from anytime.errors import TrainingError
from anytime.moments.accumulate import accumulate, check_memory, fold_moments_of, jobs_of, moments_of
from anytime.moments.moments import Gram, Moments
from anytime.types import Float, Index
from models.problems import blocks_of, weighted_by
from models.properties import quick
from models.refusals import assert_refused
from waiting import WAIT_S


def _jobs(results: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results.put((jobs_of(-1), len(caught)))


def test_a_daemonic_process_has_one_job_without_a_warning() -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_jobs, args=(results,), daemon=True)
    process.start()
    assert results.get(timeout=WAIT_S) == (1, 0)
    process.join(WAIT_S)


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows with weights, some cells missing."""

    X: Float = field(repr=False)
    Y: Float = field(repr=False)
    weights: Float | None = field(repr=False)

    def taken(self, rows: Any) -> Sample:
        return Sample(self.X[rows], self.Y[rows], None if self.weights is None else self.weights[rows])

    @property
    def w(self) -> Float:
        return np.ones(len(self.X)) if self.weights is None else self.weights


@st.composite
def samples(draw: st.DrawFn, missing: tuple[float, ...] = (0.0, 0.1, 0.6), least: int = 1) -> Sample:
    rows, features, responses = draw(st.integers(least, 120)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    X = rng.normal(size=(rows, features)) * rng.choice([0.01, 1.0, 100.0], features) + rng.choice(
        [0.0, -3.0, 50.0], features
    )
    X[:, rng.random(features) < 0.2] = rng.choice([0.0, 0.1, 7.0])
    X[rng.random(X.shape) < draw(st.sampled_from(missing))] = np.nan
    Y = rng.normal(size=(rows, responses)) + 20.0
    return Sample(X, Y, weighted_by(draw(st.sampled_from(("none", "positive", "counts"))), rng, rows))


def literal(sample: Sample, fill: Float) -> tuple[Float, Float]:
    """Mean and scatter by two passes in extended precision.

    Each gap is filled by the weighted mean of its column, or by `fill` where none is known.
    """
    X = sample.X.copy()
    for x, otherwise in zip(X.T, fill, strict=True):
        known = ~np.isnan(x) & (sample.w > 0)
        x[np.isnan(x)] = np.average(x[known], weights=sample.w[known]) if known.any() else otherwise
    Z = np.hstack([X, sample.Y]).astype(np.longdouble)
    w = sample.w.astype(np.longdouble)[:, np.newaxis]
    mean = (w * Z).sum(axis=0) / w.sum()
    return mean.astype(np.float64), ((w * (Z - mean)).T @ (Z - mean)).astype(np.float64)


DIGITS = 1e-10
"""Share of a column's deviation by which its moments may differ: its mean is at most 5,000 deviations."""

MEAN = 1e-13
"""Share of a mean that is rounding: chunks of one row leave 5e-15."""


def assert_close(found: Moments, mean: Float, scatter: Float, digits: float) -> None:
    """Raise if imputed moments differ by more than `digits` of the deviations and the rounding of the means."""
    full, weight = found.imputed(), found.weight
    deviation, rounding = np.sqrt(np.maximum(np.diagonal(scatter), 0.0) / weight), MEAN * np.abs(mean) + 1e-15
    assert (np.abs(full.mean - mean) <= digits * deviation + rounding).all()
    size = deviation + rounding
    allowed = np.outer(size, size) - (1 - digits) * np.outer(deviation, deviation)
    assert (np.abs(full.scatter - scatter) <= weight * allowed).all()


def assert_literal(found: Moments, rows: int, sample: Sample, digits: float = DIGITS) -> None:
    """Raise if the moments of so many rows are not those of a sample with its gaps filled by the means."""
    assert (found.rows, found.weight) == pytest.approx((rows, sample.w.sum()), rel=1e-12)
    if found.weight > 0:
        assert_close(found, *literal(sample, found.fill), digits)


def assert_same(found: Moments, expected: Moments, digits: float = DIGITS) -> None:
    """Raise if the moments are not those of the same table, whatever their fill."""
    assert (found.rows, found.missing) == (expected.rows, expected.missing)
    assert found.weight == pytest.approx(expected.weight, rel=1e-12)
    if expected.weight > 0:
        full = expected.refilled(found.fill).imputed()
        assert_close(found, full.mean, full.scatter, digits)


# The rows.


@quick(max_examples=100)
@given(samples(), st.integers(1, 130), st.sampled_from((1, 2, 3)))
def test_moments_are_those_of_the_rows_with_gaps_filled_by_the_means(sample: Sample, chunk: int, jobs: int) -> None:
    moments = moments_of(sample.X, sample.Y, sample.weights, n_jobs=jobs, chunk_rows=chunk)
    assert moments.missing == tuple((j, j + 1) for j in np.flatnonzero(np.isnan(sample.X).any(axis=0)).tolist())
    assert_literal(moments, len(sample.X), sample)


@quick(max_examples=100)
@given(samples(), st.lists(st.integers(0, 120), max_size=5), st.integers(1, 50), st.sampled_from((1, 2, 3)))
def test_any_cut_into_blocks_chunks_and_threads_gives_the_same_moments(
    sample: Sample, cuts: list[int], chunk: int, jobs: int
) -> None:
    whole = moments_of(sample.X, sample.Y, sample.weights)
    edges = sorted({0, *(min(cut, len(sample.X)) for cut in cuts), len(sample.X)})
    parts = blocks_of(edges, sample.X, sample.Y, sample.weights)
    assert_same(accumulate(parts, n_jobs=jobs, chunk_rows=chunk)[0], whole)
    assert_same(Moments.merged(moments_of(part.X, part.Y, part.weights, chunk_rows=chunk) for part in parts), whole)


# Digits.


def exact_correlations(X: Float, Y: Float) -> tuple[Float, Float]:
    """Deviations and correlations of [X, Y] by two passes in extended precision, gaps filled by the means."""
    Z = np.column_stack([X, Y]).astype(np.longdouble)
    Z = np.where(np.isnan(Z), 0.0, Z - np.nanmean(Z, axis=0))
    deviation = np.sqrt((Z * Z).mean(axis=0))
    Z = Z / deviation
    return deviation.astype(np.float64), (Z.T @ Z / len(Z)).astype(np.float64)


def assert_digits(X: Float, y: Float, moments: Moments, digits: float = 1e-6) -> None:
    deviation, correlation = exact_correlations(X, y)
    gram = Gram.of(moments)
    D = X.shape[1]
    assert not gram.constant.any()
    assert np.abs(gram.x_scale / deviation[:D] - 1).max() < digits
    assert np.abs(gram.S - correlation[:D, :D]).max() < digits
    assert np.abs(gram.q - correlation[:D, D:]).max() < digits


def far_from_zero(rows: int) -> tuple[Float, Float]:
    """Columns with mean 1e8 and deviation 1, -1e8 and .5, and 0 and 1; they are correlated."""
    rng = np.random.default_rng(1)
    common = rng.normal(size=rows)
    X = np.column_stack([1e8 + common, -1e8 + 0.5 * rng.normal(size=rows) - 0.2 * common, rng.normal(size=rows)])
    return X, common + rng.normal(size=rows)


def in_batches(size: int) -> Callable[[Float, Float], Moments]:
    return lambda X, y: accumulate(blocks_of(range(0, len(X) + 1, size), X, y[:, np.newaxis]))[0]


READ: dict[str, Callable[[Float, Float], Moments]] = {
    "at once": moments_of,
    "in chunks": partial(moments_of, chunk_rows=90),
    "by two threads": partial(moments_of, chunk_rows=150, n_jobs=2),
    "in machines that never met": lambda X, y: Moments.merged(moments_of(X[k::7], y[k::7]) for k in range(7)),
    "row by row": in_batches(1),
    "in batches of 30": in_batches(30),
    "in batches of 300": in_batches(300),
}
GAPS: dict[str, Any] = {
    "none": np.zeros((600, 1), dtype=bool),
    "a fifth": np.random.default_rng(2).random((600, 3)) < 0.2,
    **{f"begins at {late}": (np.arange(600) < late)[:, np.newaxis] & [True, False, False] for late in (30, 300, 450)},
}


@pytest.mark.parametrize("gaps", GAPS)
@pytest.mark.parametrize("read", READ)
def test_a_column_far_from_zero_keeps_its_digits_with_gaps_however_it_is_read(read: str, gaps: str) -> None:
    X, y = far_from_zero(600)
    X = np.where(GAPS[gaps], np.nan, X)
    assert_digits(X, y, READ[read](X, y))


# Types and layouts.


def strided(X: Float) -> Float:
    wide = np.full((2 * len(X), 2 * X.shape[1]), 77.0)
    wide[::2, ::2] = X
    return wide[::2, ::2]


LAYOUTS: dict[str, Callable[[Float], Any]] = {
    "float32": lambda X: X.astype(np.float32),
    "float16": lambda X: X.astype(np.float16),
    "int8": lambda X: X.astype(np.int8),
    "int64": lambda X: X.astype(np.int64),
    "uint8": lambda X: X.astype(np.uint8),
    "Fortran order": np.asfortranarray,
    "every other cell": strided,
    "backwards twice": lambda X: np.ascontiguousarray(X[::-1])[::-1],
    "read-only": lambda X: np.frombuffer(X.tobytes()).reshape(X.shape),
    "big-endian": lambda X: X.astype(">f8"),
    "list": lambda X: X.tolist(),
    "csr": sparse.csr_array,
    "csc": sparse.csc_array,
    "csr of uint8": lambda X: sparse.csr_matrix(X.astype(np.uint8)),
    "coo": sparse.coo_array,
}


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_type_and_layout_equals_float64(layout: str, jobs: int) -> None:
    rng = np.random.default_rng(3)
    X = rng.integers(0, 100, size=(300, 6)).astype(np.float64)
    X[rng.random(X.shape) < 0.5] = 0.0
    Y = X @ rng.normal(size=(6, 2))
    folds = rng.integers(0, 3, 300)
    expected = fold_moments_of(X, Y, None, folds, 3)
    found = fold_moments_of(LAYOUTS[layout](X), Y, None, folds, 3, n_jobs=jobs, chunk_rows=37)
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other, 1e-12)
    weights = rng.uniform(0.1, 3.0, 300)
    whole = moments_of(LAYOUTS[layout](X), Y, weights, n_jobs=jobs, chunk_rows=37)
    assert_same(whole, moments_of(X, Y, weights), 1e-12)


def test_bool_features_and_targets_are_zeros_and_ones_and_one_response_may_be_a_vector_or_a_column() -> None:
    rng = np.random.default_rng(4)
    X, y = rng.random((100, 3)) < 0.3, rng.random(100) < 0.5
    assert_same(moments_of(X, y), moments_of(X.astype(np.float64), y.astype(np.float64)[:, np.newaxis]), 1e-12)


@pytest.mark.parametrize("layout", ["float64", "gaps", "Fortran order", "csr", "csc"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_handed_in_stays_as_it_was(layout: str, jobs: int) -> None:
    rng = np.random.default_rng(6)
    dense, Y = rng.normal(size=(100, 3)), rng.normal(size=(100, 2))
    weights, folds = rng.uniform(size=100), rng.integers(0, 2, 100)
    if layout == "gaps":
        dense[rng.random(dense.shape) < 0.3] = np.nan
    X: Any = LAYOUTS[layout](dense) if layout in LAYOUTS else dense
    arrays = [*([X] if isinstance(X, np.ndarray) else [X.data, X.indices, X.indptr]), Y, weights, folds]
    before = [array.tobytes("A") for array in arrays]
    fold_moments_of(X, Y, weights, folds, 2, n_jobs=jobs, chunk_rows=9)
    assert [array.tobytes("A") for array in arrays] == before


# Weights.


@quick(max_examples=60)
@given(samples(missing=(0.0, 0.1, 0.3), least=30), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_a_weight_is_that_many_equal_rows(sample: Sample, chunk: int, seed: int) -> None:
    counts = np.random.default_rng(seed).integers(0, 4, len(sample.X))
    counts[0] = 1
    repeated = Sample(np.repeat(sample.X, counts, axis=0), np.repeat(sample.Y, counts, axis=0), None)
    assert_literal(moments_of(sample.X, sample.Y, counts, chunk_rows=chunk), len(sample.X), repeated)


@pytest.mark.parametrize("sentinel", [-9999.0, 1e9])
@pytest.mark.parametrize("weight", ["ones", "uneven"])
def test_rows_of_weight_zero_are_as_if_they_were_not_there(sentinel: float, weight: str) -> None:
    rng = np.random.default_rng(7)
    X, y = rng.normal(size=(60, 3)), rng.normal(size=60)
    weights = np.ones(60) if weight == "ones" else rng.uniform(0.5, 2.0, 60)
    out = np.arange(60) % 6 == 0
    X[out], y[out], weights[out] = sentinel, sentinel, 0.0
    found = Gram.of(moments_of(X, y, weights))
    expected = Gram.of(moments_of(X[~out], y[~out], weights[~out]))
    assert found.weight == pytest.approx(expected.weight, rel=1e-12)
    np.testing.assert_allclose(found.x_scale, expected.x_scale, rtol=1e-7)
    np.testing.assert_allclose(np.hstack([found.S, found.q]), np.hstack([expected.S, expected.q]), atol=1e-7)


# Folds.


@quick(max_examples=50)
@given(
    samples(missing=(0.0, 0.1, 0.3), least=50),
    st.integers(1, 4),
    st.integers(1, 60),
    st.sampled_from((1, 2)),
    st.integers(0, 2**32 - 1),
)
def test_each_fold_and_each_union_of_folds_is_imputed_by_its_own_means(
    sample: Sample, count: int, chunk: int, jobs: int, seed: int
) -> None:
    folds: Index = np.random.default_rng(seed).integers(0, count, len(sample.X))
    parts = fold_moments_of(sample.X, sample.Y, sample.weights, folds, count, n_jobs=jobs, chunk_rows=chunk)
    assert len(parts) == count
    chosen = [(f,) for f in range(count)] + [tuple(g for g in range(count) if g != f) for f in range(count)]
    for members in filter(None, [*chosen, tuple(range(count))]):
        rows = np.isin(folds, members)
        assert_literal(Moments.merged(parts[f] for f in members), int(rows.sum()), sample.taken(rows))


# What cannot be used.


@pytest.mark.parametrize(
    ("cells", "where"),
    [
        ([np.inf], "infinite"),
        ([-np.inf], "infinite"),
        ([np.inf, -np.inf], "infinite"),
        ([np.inf, np.nan], "infinite"),
        ([1e200], "too large"),
        ([-1e200, np.nan], "too large"),
        ([1e308, 1e308], "too large"),
    ],
    ids=str,
)
@pytest.mark.parametrize("weighted", [False, True])
def test_infinities_and_values_too_large_to_square_are_one_clear_error(
    cells: list[float], where: str, weighted: bool
) -> None:
    X, y = np.random.default_rng(11).normal(size=(30, 3)), np.arange(30.0)
    X[10 : 10 + len(cells), 2] = cells
    assert_refused(lambda: moments_of(X, y, np.full(30, 0.5) if weighted else None, chunk_rows=8), where, "2")


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e200], ids=str)
def test_a_target_that_cannot_be_squared_is_one_clear_error(value: float) -> None:
    assert_refused(
        lambda: moments_of(np.random.default_rng(12).normal(size=(30, 3)), np.where(np.arange(30) == 7, value, 1.0)),
        "target",
    )


@pytest.mark.parametrize("read", [lambda: accumulate(iter(())), lambda: moments_of(np.empty((0, 3)), np.empty(0))])
def test_no_rows_are_one_clear_error(read: Callable[[], Any]) -> None:
    assert_refused(read, "no rows")


# Constants.


@quick(max_examples=60)
@given(
    st.sampled_from((0.0, 0.1, 1 / 3, 1e8, -7.3, 1e-12)),
    st.sampled_from(("none", "positive", "counts")),
    st.integers(2, 400),
    st.integers(1, 120),
    st.sampled_from((1, 2, 3)),
    st.integers(0, 2**32 - 1),
)
def test_a_constant_is_seen_as_constant_however_it_is_read(
    value: float, weighting: str, rows: int, chunk: int, jobs: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.full(rows, value), rng.normal(size=rows)])
    weights, cut = weighted_by(weighting, rng, rows, least=1), rows // 2
    moments = moments_of(X, X, weights, n_jobs=jobs, chunk_rows=chunk)
    parts = (s for s in (slice(0, cut), slice(cut, None)))
    pieces = [moments_of(X[s], X[s], None if weights is None else weights[s], chunk_rows=chunk) for s in parts if cut]
    for found in [moments, *([Moments.merged(pieces)] if pieces else [])]:
        gram = Gram.of(found)
        assert (gram.constant.tolist(), gram.yy.tolist(), gram.x_scale[0]) == ([True, False], [0.0, 1.0], 1.0)
        assert gram.x_mean[0] == pytest.approx(value, rel=1e-12)
        assert not np.concatenate([gram.S[0], gram.q[0], gram.q[:, 0]]).any()


@quick(max_examples=100)
@given(
    st.sampled_from((0.0, 0.1, 1 / 3, 1e8, -2.0)),
    st.sampled_from((0.0, 0.02, 0.3)),
    st.booleans(),
    st.integers(40, 300),
    st.integers(5, 120),
    st.integers(0, 2**32 - 1),
)
def test_a_column_that_is_constant_outside_a_fold_is_constant_in_that_training_part(
    value: float, missing: float, weighted: bool, rows: int, chunk: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    X, folds = rng.normal(size=(rows, 2)), rng.integers(0, 3, rows)
    X[:, 0] = np.where(folds == 1, value + rng.normal(size=rows), value)
    X[rng.random(rows) < missing, 0] = np.nan
    weights = rng.uniform(0.1, 3.0, rows) if weighted else None
    parts = fold_moments_of(X, rng.normal(size=rows), weights, folds, 3, chunk_rows=chunk)
    gram = Gram.of(parts[0].merge(parts[2]))
    assert gram.constant.tolist() == [True, False]
    assert not gram.S[0].any()


@pytest.mark.parametrize("begin", [600, 950])
def test_a_column_far_from_zero_that_begins_late_keeps_its_digits(begin: int) -> None:
    rng = np.random.default_rng(begin)
    x = 1e8 + rng.normal(size=1000)
    x[:begin] = np.nan
    found = Gram.of(moments_of(np.column_stack([rng.normal(size=1000), x]), rng.normal(size=1000), chunk_rows=100))
    deviations = x[begin:] - x[begin:].mean()
    assert found.x_scale[1] == pytest.approx(np.sqrt(deviations @ deviations / 1000), rel=1e-6)


def test_moments_need_a_matrix_for_each_fold_and_two_more(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 8 * 100**2 * (5 + 2)
    monkeypatch.setattr("anytime.moments.accumulate.memory_limit", lambda: needed)
    check_memory(100, 5)
    monkeypatch.setattr("anytime.moments.accumulate.memory_limit", lambda: needed - 1)
    assert_refused(
        lambda: check_memory(100, 5), f"100 terms, whose moments in 5 folds need {needed} bytes", error=TrainingError
    )
