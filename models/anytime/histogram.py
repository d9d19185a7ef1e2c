"""A histogram whose sum is known: counts in buckets, as a running service tells what its groups take.

Of all distributions with these counts and this sum the one is taken that assumes least, that of the largest entropy.
Its density within each bucket is proportional to exp(t x), with one t for all of them, found from the sum: a histogram
of which every value is in one bucket has its mean, and not the middle of the bucket. Where values are beyond the last
bound the sum says nothing of the buckets: they are uniform then, and an exponential tail takes the rest of the sum.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator
from scipy.optimize import brentq

from anytime.arrays import Float

__all__ = ["Histogram"]

STEEPEST = 500.0
"""Largest slope of the log-density, in widths of the widest bucket: all of its values are then at one of its ends."""


class Histogram(BaseModel):
    """How many values lie in each bucket, and their sum.

    Attributes
    ----------
    bounds : upper ends of the buckets, rising; the first begins at 0, one without an end follows the last.
    counts : values in each bucket, above the bound before and up to its own; one more than there are bounds.
    sum : of all values, in the unit of the bounds.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, ignored_types=(cached_property,)
    )

    bounds: tuple[float, ...] = Field(min_length=1)
    counts: tuple[int, ...]
    sum: float = Field(ge=0)

    @model_validator(mode="after")
    def _rules(self) -> Self:
        if len(self.counts) != len(self.bounds) + 1:
            raise ValueError(f"{len(self.counts)} counts for {len(self.bounds)} bounds; expected one more count")
        if self.bounds[0] <= 0 or any(low >= high for low, high in pairwise(self.bounds)):
            raise ValueError("the bounds do not rise from above 0; expected the upper ends of buckets, in order")
        if min(self.counts) < 0 or not any(self.counts):
            raise ValueError("the counts are negative, or all 0; expected at least one value")
        return self

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean of the values, which is exact."""
        return self.sum / self.count

    def bucket(self, q: float) -> tuple[float, float]:
        """Lower and upper end of the bucket in which the q-quantile lies, all that is certain of it."""
        edges = np.array([0.0, *self.bounds, np.inf])
        k = int(self._places(np.array([q]))[0])
        return float(edges[k]), float(edges[k + 1])

    def quantiles(self, q: Float) -> Float:
        """Quantiles of the distribution of the module's head, by q of 0 to 1 in any shape."""
        k = self._places(q)
        u = np.clip((q * self.count - self._below[k]) / self._counts[k], 0.0, 1.0)
        last = len(self.bounds)
        inside = np.minimum(k, last - 1)
        low, width = self._lows[inside], self._widths[inside]
        # Rounding must not lead out of the bucket.
        within = np.clip(low + width * _inverse(u, self._slope * width), low, np.array(self.bounds)[inside])
        tail = self.bounds[-1] - self._excess * np.log1p(-np.minimum(u, 1 - 1e-12))
        return np.where(k == last, tail, within)

    @cached_property
    def _counts(self) -> Float:
        return np.array(self.counts, dtype=np.float64)

    @cached_property
    def _below(self) -> Float:
        """Values in the buckets before each, (buckets,)."""
        return np.cumsum(self._counts) - self._counts

    @cached_property
    def _lows(self) -> Float:
        return np.array([0.0, *self.bounds[:-1]])

    @cached_property
    def _widths(self) -> Float:
        return np.diff([0.0, *self.bounds])

    @cached_property
    def _slope(self) -> float:
        """The t of the module's head."""
        counts = self._counts[:-1]
        if self.counts[-1]:
            return 0.0
        held = counts > 0
        counts, lows, widths = counts[held], self._lows[held], self._widths[held]
        widest = widths.max()

        def missing(z: float) -> float:
            """By how much the sum at this slope is short of the true one."""
            return self.sum - float(counts @ (lows + widths * _mean(z * widths / widest)))

        if missing(-STEEPEST) <= 0:  # rounding, or values at the very ends
            return float(-STEEPEST / widest)
        if missing(STEEPEST) >= 0:
            return float(STEEPEST / widest)
        return float(brentq(missing, -STEEPEST, STEEPEST, xtol=1e-9)) / float(widest)

    @cached_property
    def _excess(self) -> float:
        """By how much values beyond the last bound are above it, in the mean."""
        if not self.counts[-1]:
            return 0.0
        rest = self.sum - float(self._counts[:-1] @ (self._lows + self._widths / 2))
        return max(rest / self.counts[-1] - self.bounds[-1], 0.0)

    def _places(self, q: Float) -> np.typing.NDArray[np.intp]:
        """Bucket of each quantile, one that has values."""
        ends = np.cumsum(self._counts)
        held = np.flatnonzero(self._counts)
        # At 0 it is the first bucket that has values; rounding must not lead beyond the last one.
        at = np.searchsorted(ends[held], np.asarray(q) * self.count * (1 - 1e-12), side="left")
        found: np.typing.NDArray[np.intp] = held[np.minimum(at, len(held) - 1)]
        return found


def _mean(z: Float) -> Float:
    """Mean of the density proportional to exp(z u) on 0 to 1."""
    flat = np.abs(z) < 1e-3
    safe = np.where(flat, 1.0, z)
    return np.where(flat, 0.5 + z / 12, 1 / -np.expm1(-safe) - 1 / safe)


def _inverse(u: Float, z: Float) -> Float:
    """Quantile u of the density proportional to exp(z v) on 0 to 1."""
    flat = np.abs(z) < 1e-6
    safe = np.where(flat, 1.0, z)
    # By the end at which the density is larger, so that nothing overflows.
    falling = np.log((1 - u) + u * np.exp(-np.abs(safe))) / -np.abs(safe)
    rising = 1 + np.log(u + (1 - u) * np.exp(-np.abs(safe))) / np.abs(safe)
    return np.where(flat, u, np.where(safe < 0, falling, rising))
