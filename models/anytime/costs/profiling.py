"""Time measurement of extractors, on rows of a table or inputs from a module.

Every group of every input is measured, in an order that computes required groups first. The groups of one input are
computed one after the other, as in a prediction, so that each sees the caches as its neighbours leave them. Data that a
group stores in the input for its dependents is present when these are measured, and the first such group pays for it,
as in production. A group without features is measured if it has an extractor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anytime._linalg import single_blas_thread
from anytime.costs.distributions import fitted_cost
from anytime.data.formats import Table
from anytime.errors import ExtractorError, refuse, summary
from anytime.groups import PATTERN, CallCost, FeatureGroups
from anytime.inference.extraction import Arrival, Extraction, Task
from anytime.inference.planning import check_extractors, tasks_of
from anytime.inference.workers import Workers
from anytime.types import Float

MIN_BATCHES = 10
"""Minimum number of calls per row count in each repeat, for tables with few rows."""


@dataclass(frozen=True)
class TableInputs:
    """Rows of a table: `{column: value}` for one of them, `{column: array}` for several.

    Each call creates a new dict, so that data which an extractor stores in it is not available to the next call.
    """

    columns: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, table: Table, limit: int) -> Self:
        """Return the first `limit` rows of a table; raise TableError if it is unreadable or has none."""
        batches = list(table.batches(table.columns, limit, stop=limit))
        if not batches[0].rows:
            raise table.no_rows()
        return cls({name: np.concatenate([batch.columns[name] for batch in batches]) for name in table.columns})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Return a row as Python numbers and strings, NaN or None if missing."""
        return {name: column[row : row + 1].tolist()[0] for name, column in self.columns.items()}

    def together(self, rows: list[int]) -> dict[str, NDArray[Any]]:
        """Return the columns of several rows."""
        return {name: column[rows] for name, column in self.columns.items()}


def inputs_of(found: Any, limit: int, what: str) -> tuple[Any, ...]:
    """Return the first `limit` items of an iterable or of the one that a function returns; at least one."""
    try:
        iterable = found() if callable(found) else found
        usable = isinstance(iterable, Iterable) and not isinstance(iterable, str | bytes | Mapping)
        items = tuple(islice(iterable, limit)) if usable else ()
    except Exception as error:
        raise ExtractorError(f"{what} failed ({summary(error)}); expected an iterable of inputs") from error
    refuse(
        {
            f"{what} is {type(iterable).__name__}; expected an iterable of inputs": not usable,
            f"{what} has no inputs; expected at least one": not items,
        },
        ExtractorError,
    )
    return items


Inputs: TypeAlias = TableInputs | Sequence[Any]
"""What extractors receive: rows of a table, or inputs, each unchanged for one row, a list of them for several.

An input that caches an extractor's result makes the second call look fast: provide enough inputs, and measure each
once.
"""


@dataclass(frozen=True, eq=False)
class GroupTimes:
    """Measured times of one group: for each number of rows, the duration of each call in milliseconds, (calls,)."""

    times: Mapping[int, Float]
    first: Float
    """Duration of the first call of each input, (inputs,), with the last number of rows: no cache has its values."""

    @property
    def rows(self) -> int:
        """The last number of rows."""
        return list(self.times)[-1]

    @property
    def per_row(self) -> Float:
        """Milliseconds per row, (calls,), of calls with the last number of rows."""
        return self.times[self.rows] / self.rows

    @property
    def cold(self) -> float:
        """Median milliseconds per row of the first call of each input."""
        return float(np.median(self.first)) / self.rows

    def cost(self, quantile: float) -> CallCost:
        """Return a quantile of the duration of a call: by its rows, or per row if one number of rows was measured."""
        times = [float(np.quantile(each, quantile, method="inverted_cdf")) for each in self.times.values()]
        return fitted_cost(list(self.times), times)

    @property
    def scaling(self) -> CallCost | None:
        """Growth of the median duration with rows; None for a single row count."""
        return fitted_cost(list(self.times), [*map(np.median, self.times.values())]) if len(self.times) > 1 else None


@dataclass(frozen=True, eq=False)
class Profile:
    """Measured times of every group that has an extractor, in the order in which they were computed."""

    groups: Mapping[str, GroupTimes]
    timer_ms: float
    """Duration of two clock readings; every measured time includes it."""

    @property
    def rows(self) -> int:
        """The last number of rows of a call, that of `times`."""
        return next(iter(self.groups.values())).rows

    @property
    def times(self) -> dict[str, Float]:
        """Milliseconds per call, by group, (calls,): values at the same position belong to the same input."""
        return {name: measured.times[measured.rows] for name, measured in self.groups.items()}


def profile(
    groups: FeatureGroups,
    extractors: Mapping[str, Callable[..., Any]],
    inputs: Inputs,
    *,
    rows: Sequence[int] = (),
    parallel: int = 1,
    warm_up: int = 5,
    repeats: int = 5,
    clock: Callable[[], int] = time.perf_counter_ns,
    progress: Callable[[int], None] = lambda _: None,
) -> Profile:
    """Measure extractors, with one thread of the linear algebra library, as in a worker process.

    Raises ExtractorError, which names the group, if an extractor is missing, superfluous, fails or returns other values
    than the group's features. Where these are a pattern, the values of the first call define their number.

    Parameters
    ----------
    rows : Sequence[int]
        Row counts of a call; without, a call gets one input.
    parallel : int
        Number of threads that compute groups of an input at the same time, as `Runner(workers_per_run=...)`: groups
        slow each other down.
    warm_up : int
        Number of inputs whose groups are computed before the measurement, at least one; their values are checked.
    repeats : int
        Number of measurements of each input; `progress` is called after each. All but the first find an input in the
        caches of the processor, so `GroupTimes.first` states the first call of each input.
    clock : Callable[[], int]
        Returns nanoseconds; only differences are used.
    """
    check_extractors({group.name: group.features for group in groups.groups}, extractors)
    order = required_first(groups, extractors)
    (tasks,) = tasks_of([order], {group.name: group for group in groups.groups}, extractors)
    times: dict[str, dict[int, Float]] = {name: {} for name in order}
    widths: dict[str, int] = {}
    with single_blas_thread(), Workers(extractors, max_workers=parallel) as workers:
        for count in rows or (0,):
            batches = _batches(inputs, count)
            durations: dict[str, list[float]] = {name: [] for name in order}
            earliest: dict[str, dict[int, float]] = {name: {} for name in order}

            def called(batch: int | list[int]) -> Iterator[tuple[str, Any, float]]:
                x = (
                    inputs[batch]
                    if isinstance(batch, int)
                    else inputs.together(batch)
                    if isinstance(inputs, TableInputs)
                    else [inputs[row] for row in batch]
                )
                return _called(tasks, extractors, x, clock) if parallel == 1 else _side_by_side(tasks, workers, x)

            for number, batch in islice(cycle(enumerate(batches)), max(warm_up, 1)):
                for name, values, took_ms in called(batch):
                    earliest[name].setdefault(number, took_ms)
                    if name in groups.featured:
                        widths[name] = _checked_width(groups, name, values, max(count, 1), widths.get(name))
            for number, batch in list(enumerate(batches)) * repeats:
                for name, _, took_ms in called(batch):
                    durations[name].append(took_ms)
                    earliest[name].setdefault(number, took_ms)
                progress(1)
            for name in order:
                times[name][max(count, 1)] = np.array(durations[name])
    timer_ms = float(np.median([-(clock() - clock()) for _ in range(1001)])) / 1e6
    first = {name: np.array(list(earliest[name].values())) for name in order}  # with the last number of rows
    return Profile({name: GroupTimes(times[name], first[name]) for name in order}, timer_ms)


def measurements(inputs: Inputs, rows: Sequence[int], repeats: int) -> int:
    """Return the number of inputs, or batches of them, that `profile` measures."""
    return repeats * sum(len(_batches(inputs, count)) for count in rows or (0,))


def required_first(groups: FeatureGroups, extractors: Collection[str]) -> list[str]:
    """Return the groups that have extractors in the order of the file, but each after those that it requires."""
    order = dict.fromkeys(g for i in range(len(groups)) for g in (*groups.prerequisites[i], i))
    return [groups.names[g] for g in order if groups.names[g] in extractors]


def _called(
    tasks: Sequence[Task], extractors: Mapping[str, Callable[..., Any]], x: Any, clock: Callable[[], int]
) -> Iterator[tuple[str, Any, float]]:
    """Yield each group of an input, its values and its duration in ms, one after the other."""
    results: dict[str, Any] = {}
    for task in tasks:
        begin = clock()
        try:
            values = extractors[task.group](x, *[results[name] for name in task.uses])
        except Exception as error:
            raise _failed(task.group, summary(error)) from error
        took_ms = (clock() - begin) / 1e6
        results[task.group] = values
        yield task.group, values, took_ms


def _side_by_side(tasks: Sequence[Task], workers: Workers, x: Any) -> Iterator[tuple[str, Any, float]]:
    """Yield the same for groups that all workers compute at the same time."""
    arrivals: list[Arrival] = []

    def receive(arrival: Arrival) -> bool:
        arrivals.append(arrival)
        return arrival.error is None

    extraction = Extraction(tasks, x, receive, workers=workers.max_workers)
    workers.start(extraction)
    extraction.wait(math.inf)
    if failed := [arrival for arrival in arrivals if arrival.error is not None]:
        raise _failed(failed[0].group, str(failed[0].error))
    yield from ((arrival.group, arrival.values, arrival.took_ms) for arrival in arrivals)


def _batches(inputs: Inputs, count: int) -> Sequence[int | list[int]]:
    """Return the rows of each call: every input separately, or `count` at a time, starting over after the last row."""
    if not count:
        return list(range(len(inputs)))
    calls = max(-(-len(inputs) // count), MIN_BATCHES)
    return [[(call * count + row) % len(inputs) for row in range(count)] for call in range(calls)]


def _failed(group: str, why: str) -> ExtractorError:
    return ExtractorError(f"the extractor of group {group!r} failed ({why}); fix it or its inputs")


def _checked_width(groups: FeatureGroups, name: str, values: Any, rows: int, known: int | None) -> int:
    """Return the number of values per row; raise ExtractorError unless it is that of the group's features.

    `known` is that of an earlier call. Without it, a pattern stands for one feature or more.
    """
    features = groups.groups[groups.position(name)].features
    width = known or (None if any(map(PATTERN.search, features)) else len(features))
    wanted = ("" if rows == 1 else f"{rows} x ") + (f"{len(features)} or more" if width is None else f"{width}")
    try:
        dimensions = np.asarray(values).shape
    except ValueError:  # ragged
        dimensions = ()
    except Exception as error:
        raise ExtractorError(
            f"the extractor of group {name!r} returned values that are not an array ({summary(error)}); "
            f"expected {wanted} values"
        ) from error
    shape = (1, *dimensions) if rows == 1 and len(dimensions) == 1 else dimensions
    if len(shape) != 2 or shape[0] != rows or (shape[1] < len(features) if width is None else shape[1] != width):
        raise ExtractorError(
            f"the extractor of group {name!r} returned {' x '.join(map(str, dimensions)) or 'no array'}; "
            f"expected {wanted} values"
        )
    return int(shape[1])
