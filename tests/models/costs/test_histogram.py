"""A histogram with its sum: the distribution of largest entropy, against numerical integration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from anytime.costs.distributions import Histogram
from models.properties import quick

FINE = 200_001


def literal(histogram: Histogram) -> tuple[np.ndarray, np.ndarray]:
    """Places and their cumulative probabilities: each bucket's mass spread as exp(t x), on a fine grid."""
    edges = np.array([0.0, *histogram.bounds])
    held = [k for k, count in enumerate(histogram.counts[:-1]) if count]

    def spread(t: float) -> list[tuple[np.ndarray, np.ndarray]]:
        pieces = []
        for k in held:
            x = np.linspace(edges[k], edges[k + 1], FINE)
            weight = np.exp(t * (x - (edges[k + 1] if t > 0 else edges[k])))
            middle = (x[1:] + x[:-1]) / 2
            mass = (weight[1:] + weight[:-1]) / 2
            pieces.append((middle, histogram.counts[k] * mass / mass.sum()))
        return pieces

    def missing(t: float) -> float:
        return histogram.sum - sum(float(x @ mass) for x, mass in spread(t))

    t = brentq(missing, -200.0, 200.0)
    pieces = spread(t)
    x = np.concatenate([piece[0] for piece in pieces])
    mass = np.concatenate([piece[1] for piece in pieces])
    return x, np.cumsum(mass) / histogram.count


HISTOGRAMS = [
    {"bounds": (1.0, 2.0, 5.0), "counts": (0, 0, 40, 0), "sum": 40 * 2.3},
    {"bounds": (1.0, 2.0, 5.0), "counts": (0, 0, 40, 0), "sum": 40 * 4.6},
    {"bounds": (1.0, 2.0, 5.0), "counts": (10, 20, 30, 0), "sum": 10 * 0.5 + 20 * 1.5 + 30 * 3.5},
    {"bounds": (0.5, 1.0, 2.0, 5.0, 10.0), "counts": (3, 0, 10, 5, 1, 0), "sum": 45.0},
]


@pytest.mark.parametrize("told", HISTOGRAMS, ids=str)
def test_quantiles_are_those_of_the_largest_entropy(told: dict[str, Any]) -> None:
    histogram = Histogram(**told)
    x, below = literal(histogram)
    q = np.linspace(0.013, 0.987, 25)
    expected = x[np.searchsorted(below, q)]
    np.testing.assert_allclose(histogram.quantiles(q), expected, rtol=1e-3)


@pytest.mark.parametrize("told", HISTOGRAMS, ids=str)
def test_the_mean_of_the_quantiles_is_the_exact_mean(told: dict[str, Any]) -> None:
    histogram = Histogram(**told)
    q = (np.arange(100_000) + 0.5) / 100_000
    assert histogram.quantiles(q).mean() == pytest.approx(histogram.mean, rel=1e-4)


def test_a_sum_that_asks_for_no_slope_interpolates_linearly() -> None:
    histogram = Histogram(bounds=(1.0, 3.0), counts=(10, 10, 0), sum=10 * 0.5 + 10 * 2.0)
    np.testing.assert_allclose(histogram.quantiles(np.array([0.25, 0.5, 0.75])), [0.5, 1.0, 2.0], rtol=1e-6)


def test_values_that_are_all_the_same_are_found_though_the_bucket_is_wide() -> None:
    for value in (2.0 + 1e-9, 2.05, 3.5, 4.95, 5.0):
        histogram = Histogram(bounds=(2.0, 5.0), counts=(0, 100, 0), sum=100 * value)
        assert histogram.quantiles(np.array(0.5)) == pytest.approx(value, rel=0.02)
        assert histogram.bucket(0.5) == (2.0, 5.0)


def test_values_beyond_the_last_bound_are_an_exponential_tail_with_the_rest_of_the_sum() -> None:
    histogram = Histogram(bounds=(1.0, 10.0), counts=(10, 0, 10), sum=10 * 0.5 + 10 * 14.0)
    assert histogram.bucket(0.9) == (10.0, np.inf)
    assert histogram.quantiles(np.array(0.75)) == pytest.approx(10 + 4 * np.log(2))
    assert histogram.quantiles(np.array(0.25)) == pytest.approx(0.5)
    assert np.isfinite(histogram.quantiles(np.array(1.0)))
    short = Histogram(bounds=(1.0,), counts=(0, 5), sum=5.0)
    assert short.quantiles(np.array(0.9)) == 1.0


@quick(max_examples=60)
@given(
    values=st.lists(st.floats(1e-3, 40.0), min_size=1, max_size=40),
    q=st.floats(0.0, 1.0),
)
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], q: float) -> None:
    bounds = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
    places = np.searchsorted(bounds, values, side="left")
    counts = np.bincount(places, minlength=len(bounds) + 1)
    histogram = Histogram(bounds=bounds, counts=tuple(counts.tolist()), sum=float(np.sum(values)))
    low, high = histogram.bucket(q)
    found = float(histogram.quantiles(np.array(q)))
    assert low <= found <= high
    true = float(np.quantile(values, q, method="inverted_cdf"))
    if abs(q * len(values) - round(q * len(values))) > 1e-6:
        assert low <= true <= high
    assert histogram.mean == pytest.approx(np.mean(values))


def test_rounding_does_not_lead_a_quantile_out_of_its_bucket() -> None:
    rng = np.random.default_rng(0)
    for total in rng.uniform(290.0, 310.0, 1000):  # near the sum at which values are spread evenly, 300
        histogram = Histogram(bounds=(10.0, 20.0), counts=(0, 20, 0), sum=float(total))
        found = histogram.quantiles(np.array([0.0, 1e-15, 1e-9, 1.0 - 1e-9, 1.0]))
        assert found.min() >= 10.0
        assert found.max() <= 20.0


@pytest.mark.parametrize(
    ("told", "why"),
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
def test_what_is_no_histogram_is_refused(told: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Histogram(**told)
