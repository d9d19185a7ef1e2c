"""Distributions of the time that groups take, and the quality at each deadline that follows from them.

A distribution is samples, or the histogram that a service exports, of the duration of a call with `rows` rows. They are
stored in a JSON file; without `rows`, a call had one row::

    {"format": 1, "unit": "ms", "source": "anytime profile", "rows": 100, "paired": true,
     "groups": {"hog": {"samples": [2.41, 2.38]}, "speed": {"bounds": [0.1, 0.2], "counts": [7, 3, 0], "sum": 0.96}}}

Samples are `paired` if samples at the same position belong to the same input: a large picture is slow for every group,
so random costs must be drawn together. Histograms have no pairs.

A sequence is computed group by group, so prefix k is complete at T_k, the sum of its groups' random times; at the
deadline d the answer is that of the last prefix with T_k <= d. The time of a row is assumed to be independent of how
well it is predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from heapq import heappop, heappush
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator
from scipy.optimize import nnls

from anytime._files import read_text
from anytime.errors import GroupsError, listed
from anytime.groups import MAX_ROWS, CallCost, FeatureGroups, milliseconds
from anytime.model.model import Model
from anytime.types import Float, Index

NEGLIGIBLE = 1e-6
"""A part of a fitted cost that is at most this share of the longest time is left out."""

_CONFIG = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, ignored_types=(cached_property,))


class Histogram(BaseModel):
    """The number of values in each bucket, and the sum of all values in the unit of the bounds."""

    model_config = _CONFIG

    bounds: tuple[float, ...] = Field(min_length=1)
    """Upper ends of the buckets, increasing; the first bucket begins at 0, and one without an end follows the last."""
    counts: tuple[int, ...]
    """Values in each bucket, above the previous bound and up to its own; one more than there are bounds."""
    sum: float = Field(ge=0)

    @model_validator(mode="after")
    def _rules(self) -> Self:
        if len(self.counts) != len(self.bounds) + 1:
            raise ValueError(f"{len(self.counts)} counts for {len(self.bounds)} bounds; expected one more count")
        if self.bounds[0] <= 0 or any(low >= high for low, high in pairwise(self.bounds)):
            raise ValueError("the bounds are not positive and increasing; expected the upper ends of buckets, in order")
        if min(self.counts) < 0 or not any(self.counts):
            raise ValueError("the counts are negative, or all 0; expected at least one value")
        return self

    @property
    def count(self) -> int:
        return sum(self.counts)

    def scaled(self, factor: float) -> Histogram:
        """Return the histogram of the values times a factor above 0."""
        return Histogram(bounds=tuple(each * factor for each in self.bounds), counts=self.counts, sum=self.sum * factor)

    def value(self, quantile: float | None) -> float:
        """Return the mean, or a quantile."""
        return self.mean if quantile is None else float(self.quantiles(np.array(quantile)))

    @property
    def mean(self) -> float:
        """Exact, because the sum is known; random draws follow the quantiles and not the sum."""
        return self.sum / self.count

    def bucket(self, q: float) -> tuple[float, float]:
        """Return the lower and upper end of the bucket that contains the q-quantile."""
        edges = (0.0, *self.bounds, np.inf)
        k = int(self._buckets(np.array(q)))
        return edges[k], edges[k + 1]

    def quantiles(self, q: Float) -> Float:
        """Return quantiles for q from 0 to 1 in any shape, as Prometheus' `histogram_quantile`.

        They are interpolated linearly inside a bucket; in the last one every quantile is its lower end.
        """
        k, counts = self._buckets(q), np.array(self.counts)
        edges = np.array([0.0, *self.bounds, self.bounds[-1]])
        share = (q * self.count - (np.cumsum(counts) - counts)[k]) / counts[k]
        # Rounding must not leave the bucket.
        return np.asarray(np.clip(edges[k] + share * (edges[k + 1] - edges[k]), edges[k], edges[k + 1]))

    def _buckets(self, q: Float) -> Index:
        """Return the bucket of each quantile: the first with values at or below which at least this share lies."""
        filled = np.flatnonzero(self.counts)
        # Rounding of q times the count must lead neither to the next bucket nor beyond the last one.
        rank = np.searchsorted(np.cumsum(self.counts)[filled], np.asarray(q) * self.count * (1 - 1e-12))
        return np.asarray(filled[np.minimum(rank, len(filled) - 1)])


class Samples(BaseModel):
    """Individually measured values."""

    model_config = _CONFIG

    samples: tuple[Annotated[float, Field(ge=0)], ...] = Field(min_length=1)

    @property
    def count(self) -> int:
        return len(self.samples)

    @cached_property
    def array(self) -> Float:
        return np.array(self.samples, dtype=np.float64)

    def quantiles(self, q: Float) -> Float:
        return np.asarray(np.quantile(self.array, q, method="inverted_cdf"), dtype=np.float64)


def _kind(group: Any) -> str:
    """Return whether a group is samples or a histogram, so that validation reports the errors of that type."""
    is_samples = "samples" in group if isinstance(group, Mapping) else isinstance(group, Samples)
    return "samples" if is_samples else "histogram"


_Group = Annotated[Annotated[Samples, Tag("samples")] | Annotated[Histogram, Tag("histogram")], Discriminator(_kind)]


class CostDistributions(BaseModel):
    """Distributions of the duration of a call of each group, in milliseconds; the module docstring describes them."""

    model_config = _CONFIG

    format: Literal[1] = 1
    unit: Literal["ms"] = "ms"
    source: str = ""
    rows: int = Field(default=1, ge=1, le=MAX_ROWS, exclude_if=lambda rows: rows == 1)
    paired: bool = False
    groups: dict[str, _Group] = Field(min_length=1)

    @model_validator(mode="after")
    def _rules(self) -> Self:
        groups = self.groups.values()
        if self.paired and not (
            all(isinstance(group, Samples) for group in groups) and len({group.count for group in groups}) == 1
        ):
            raise ValueError("paired groups need samples, the same number for each group")
        return self

    @classmethod
    def measured(cls, times: Mapping[str, Float], source: str, rows: int = 1) -> CostDistributions:
        """Return the distributions of paired samples, (count,) milliseconds each, to four significant digits."""
        return cls(
            source=source,
            rows=rows,
            paired=True,
            groups={name: Samples(samples=tuple(map(_rounded, values.tolist()))) for name, values in times.items()},
        )

    @classmethod
    def load(cls, path: str | Path) -> CostDistributions:
        """Read and validate a file; raise GroupsError if it does not exist or has other content."""
        try:
            return cls.model_validate_json(read_text(Path(path), repr(str(path)), GroupsError))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise GroupsError(
                f"{str(path)!r} contains no cost distributions ({where}: {first['msg'].lower()}); expected a file "
                "from 'anytime profile' or 'anytime costs' with --distributions"
            ) from None

    def text(self) -> str:
        return self.model_dump_json() + "\n"

    def draw(self, names: Iterable[str], draws: int, rng: np.random.Generator) -> Float:
        """Return random costs of groups, (draws, groups), in milliseconds; if paired, each row belongs to one input."""
        groups = [self.groups[name] for name in names]
        if self.paired:
            inputs = rng.integers(next(iter(self.groups.values())).count, size=draws)
            columns = [group.array[inputs] for group in groups if isinstance(group, Samples)]
        else:
            columns = [group.quantiles(rng.random(draws)) for group in groups]
        return np.stack(columns, axis=1) if columns else np.zeros((draws, 0))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def rounded_cost(cost: CallCost) -> float | CallCost:
    """Return a cost as groups state it, to four significant digits."""
    return CallCost(fixed=_rounded(cost.fixed), per_row=_rounded(cost.per_row)).scaled(1.0)


def fitted_cost(rows: Sequence[float], times: Sequence[float], weights: Sequence[float] | None = None) -> CallCost:
    """Return the cost of a call by its number of rows, by non-negative least squares of relative errors.

    Parameters
    ----------
    rows : Sequence[float]
        Numbers of rows, or means of them, at least one.
    times : Sequence[float]
        Time of a call with each number of rows.
    weights : Sequence[float] | None
        Of each number of rows, the number of calls; equal if None.
    """
    r, t = np.array(rows, dtype=np.float64), np.array(times, dtype=np.float64)
    scale = np.sqrt(np.ones(len(r)) if weights is None else np.array(weights)) / np.maximum(t, 1e-9)
    if len(r) < 2:
        return CallCost(per_row=float(t[0] / r[0]))
    found = nnls(np.column_stack([scale, scale * r]), scale * t)[0]
    # Rounding may make a part tiny that should be 0.
    fixed, per_row = np.where(found * [1, r.max()] > NEGLIGIBLE * t.max(), found, 0.0).tolist()
    return CallCost(fixed=fixed, per_row=per_row)


def priced(groups: FeatureGroups, costs: dict[str, float | CallCost]) -> FeatureGroups:
    """Return the groups with these costs in milliseconds, by name; other groups keep theirs, converted.

    Raises GroupsError for a cost of an unknown group, or if a group without a new cost has one that is not a time.
    """
    for name in costs:
        groups.position(name)  # raises for an unknown group
    factor = milliseconds(groups.cost_unit)
    unknown = [name for name, cost in zip(groups.names, groups.costs, strict=True) if name not in costs and cost > 0]
    if factor is None and unknown:
        raise GroupsError(
            f"{listed(unknown)} have no measured cost, and {groups.cost_unit!r} is not a unit of time; "
            "give their costs in ms, and cost_unit ms"
        )
    scaled = {group.name: group.call_cost.scaled(factor or 0.0) for group in groups.groups}
    return groups.with_prices(scaled | costs, "ms")


class Estimate(NamedTuple):
    """Means over draws, and the standard errors of these means; for one draw an error is 0."""

    mean: Float
    error: Float

    @classmethod
    def of(cls, values: Float) -> Estimate:
        draws = len(values)
        spread = values.std(axis=0, ddof=1) if draws > 1 else np.zeros(values.shape[1:])
        return cls(np.asarray(values.mean(axis=0)), np.asarray(spread / np.sqrt(draws)))


class RandomTimes(NamedTuple):
    """Times at which each prefix is complete, in random draws."""

    times: Float
    """(draws, steps + 1) milliseconds; increasing along each row, from 0 for the base rate."""

    def reached(self, deadlines: Float) -> Index:
        """Return the last prefix that is complete by each deadline, (draws, deadlines)."""
        return np.stack([(self.times <= deadline).sum(axis=1) - 1 for deadline in deadlines], axis=1)

    def prefixes(self, deadlines: Float) -> Estimate:
        return Estimate.of(self.reached(deadlines).astype(np.float64))

    def expected(self, values: Float, deadlines: Float) -> Estimate:
        """Return the expected value by each deadline, (deadlines,), of a quantity of each prefix, (steps + 1,)."""
        return Estimate.of(values[self.reached(deadlines)])

    def timeliness(self, explained: Float, stop: float) -> tuple[float, float]:
        """Return the mean of `explained` (steps + 1,) over the time up to `stop` milliseconds; and its standard error.

        This is the "step" variant of `anytime.model.curve.timeliness` at a risk of 1, averaged over draws.
        """
        spent = np.diff(np.minimum(self.times, stop), axis=1, append=stop)
        mean, error = Estimate.of(spent @ explained / stop)
        return float(mean), float(error)


def completions(
    steps: Sequence[Sequence[int]], costs: Float, workers: int = 1, needs: Sequence[Iterable[int]] | None = None
) -> RandomTimes:
    """Return the times of prefixes, given `costs` (draws, groups) in ms and the columns of them that each step adds.

    Several `workers` compute groups at the same time, as `anytime.Runner` does: each takes the next group of the
    sequence whose `needs`, the columns of other groups, are complete.
    """
    if workers == 1:
        added = [costs[:, list(columns)].sum(axis=1) for columns in steps]
    else:
        order = list(chain.from_iterable(steps))
        needed = [frozenset(each).intersection(order) for each in needs or [()] * costs.shape[1]]
        ends = np.array([_ends(order, needed, row, workers) for row in costs.tolist()])
        added = [ends[:, list(columns)].max(axis=1, initial=0.0) for columns in steps]
    combined = np.cumsum if workers == 1 else np.maximum.accumulate
    return RandomTimes(combined(np.array([np.zeros(len(costs)), *added]), axis=0).T)


def _ends(order: Sequence[int], needs: Sequence[frozenset[int]], costs: Sequence[float], workers: int) -> list[float]:
    """Return the time at which each group ends if several workers compute them in order; 0 for groups not in it."""
    ends, waiting, done = [0.0] * len(costs), list(order), set[int]()
    running: list[tuple[float, int]] = []
    now = 0.0
    while waiting or running:
        for group in list(waiting):
            if len(running) == workers:
                break
            if needs[group] <= done:
                waiting.remove(group)
                heappush(running, (now + costs[group], group))
        now, group = heappop(running)
        ends[group] = now
        done.add(group)
    return ends


def simulate(
    model: Model,
    distributions: CostDistributions,
    draws: int,
    rng: np.random.Generator,
    rows: int | None = None,
    workers: int = 1,
) -> RandomTimes:
    """Draw the times at which each prefix of a model is complete, for a prediction of `rows` rows and some workers.

    None is the number of rows of the calls that were measured. For another number, times scale as the model's costs of
    a call. Groups without features are not computed; they take their cost in the model. Raises GroupsError if that is
    not a time, or if a group with features has no distribution. A standard error falls as 1 / sqrt(draws).
    """
    groups = model.groups
    if missing := [name for name in groups.featured if name not in distributions.groups]:
        raise GroupsError(f"no distribution for {listed(missing)}; expected one for each group with features")
    rows = distributions.rows if rows is None else rows
    then, now = groups.call_costs(distributions.rows), groups.call_costs(rows)
    scales = np.divide(now, then, out=np.full(len(groups), rows / distributions.rows), where=then > 0)
    drawn = [name for name in groups.names if name in distributions.groups]
    at = [groups.positions[name] for name in drawn]
    others = [i for i, name in enumerate(groups.names) if name not in distributions.groups and now[i] != 0]
    factor = milliseconds(groups.cost_unit)
    if others and factor is None:
        raise GroupsError(
            f"group {groups.names[others[0]]!r} without features costs {groups.amount(now[others[0]])}, which is not a "
            "time; give costs in ms"
        )
    costs = np.zeros((draws, len(groups)))
    costs[:, at] = distributions.draw(drawn, draws, rng) * scales[at]
    costs[:, others] = (factor or 0.0) * now[others]
    steps = [[groups.positions[name] for name in step.adds] for step in model.manifest.steps]
    return completions(steps, costs, workers, groups.prerequisites)
