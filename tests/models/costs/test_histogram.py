"""Quantiles of a histogram against a literal interpolation, bucket by bucket."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime.costs.distributions import Histogram
from models.properties import quick


def literal(histogram: Histogram, q: float) -> float:
    """Prometheus' `histogram_quantile`: linear inside a bucket; the lower end of the bucket up to +Inf."""
    rank, below, low = q * sum(histogram.counts), 0, 0.0
    for high, count in zip(histogram.bounds, histogram.counts, strict=False):
        if count and below + count >= rank:
            return low + (high - low) * (rank - below) / count
        below, low = below + count, high
    return low


HISTOGRAMS = [
    {"bounds": (1.0, 2.0, 5.0), "counts": (0, 0, 40, 0), "sum": 40 * 2.3},
    {"bounds": (1.0, 2.0, 5.0), "counts": (10, 20, 30, 0), "sum": 10 * 0.5 + 20 * 1.5 + 30 * 3.5},
    {"bounds": (0.5, 1.0, 2.0, 5.0, 10.0), "counts": (3, 0, 10, 5, 1, 0), "sum": 45.0},
    {"bounds": (1.0, 10.0), "counts": (10, 0, 10), "sum": 10 * 0.5 + 10 * 14.0},
    {"bounds": (1.0,), "counts": (0, 5), "sum": 5.0},
]


@pytest.mark.parametrize("content", HISTOGRAMS, ids=str)
def test_quantiles_are_interpolated_linearly_inside_their_bucket(content: dict[str, Any]) -> None:
    histogram = Histogram(**content)
    q = np.linspace(0.0, 1.0, 41)
    np.testing.assert_allclose(histogram.quantiles(q), [literal(histogram, each) for each in q.tolist()], rtol=1e-9)


@pytest.mark.parametrize(
    ("bounds", "counts", "quantiles", "bucket"),
    [
        ((1.0, 2.0, 3.0), (10, 0, 10, 0), {0.25: 0.5, 0.5: 1.0, 0.75: 2.5, 1.0: 3.0}, (0.5, (0.0, 1.0))),
        ((1.0, 10.0), (10, 0, 10), {0.25: 0.5, 0.75: 10.0, 1.0: 10.0}, (0.9, (10.0, np.inf))),
        ((2.0, 5.0), (0, 100, 0), {0.5: 3.5}, (0.5, (2.0, 5.0))),
    ],
    ids=["at the end of a bucket, the next is empty", "beyond the last bound it is that bound", "in the middle"],
)
def test_quantiles_by_hand(bounds: Any, counts: Any, quantiles: dict[float, float], bucket: Any) -> None:
    histogram = Histogram(bounds=bounds, counts=counts, sum=300.0)
    np.testing.assert_allclose(histogram.quantiles(np.array([list(quantiles)])), [list(quantiles.values())])
    assert (bucket[0], histogram.bucket(bucket[0])) == bucket


@pytest.mark.parametrize("value", [2.0 + 1e-9, 3.5, 5.0])
def test_the_mean_is_exact_wherever_the_values_lie_in_their_bucket(value: float) -> None:
    assert Histogram(bounds=(2.0, 5.0), counts=(0, 100, 0), sum=100 * value).mean == pytest.approx(value)


@quick(max_examples=60)
@given(values=st.lists(st.floats(1e-3, 60.0), min_size=1, max_size=40), q=st.floats(0.0, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], q: float) -> None:
    bounds = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
    counts = np.bincount(np.searchsorted(bounds, values, side="left"), minlength=len(bounds) + 1)
    histogram = Histogram(bounds=bounds, counts=tuple(counts.tolist()), sum=float(np.sum(values)))
    low, high = histogram.bucket(q)
    found = float(histogram.quantiles(np.array(q)))
    assert low <= found <= high
    if abs(q * len(values) - round(q * len(values))) > 1e-6:
        assert found == pytest.approx(literal(histogram, q))
        assert low <= float(np.quantile(values, q, method="inverted_cdf")) <= high
    assert histogram.mean == pytest.approx(np.mean(values))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"bounds": (1.0, 2.0), "counts": (1, 2), "sum": 3.0}, "2 counts for 2 bounds"),
        ({"bounds": (2.0, 1.0), "counts": (1, 2, 0), "sum": 3.0}, "not positive and increasing"),
        ({"bounds": (0.0, 1.0), "counts": (1, 2, 0), "sum": 3.0}, "not positive and increasing"),
        ({"bounds": (1.0,), "counts": (0, 0), "sum": 0.0}, "all 0"),
        ({"bounds": (1.0,), "counts": (2, -1), "sum": 0.0}, "negative"),
        ({"bounds": (1.0,), "counts": (2, 1), "sum": -1.0}, "greater than or equal to 0"),
    ],
    ids=str,
)
def test_an_invalid_histogram_is_refused(content: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Histogram(**content)
