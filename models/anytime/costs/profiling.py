"""Time measurement of extractors, on rows of a table or inputs from a module.

Every group of every input is measured, in an order that computes required groups first. The groups of one input are
computed one after the other, as in a prediction, so that each sees the caches as its neighbours leave them. Data that a
group stores in the input for its dependents is present when these are measured, and the first such group pays for it,
as in production. A group without features has no extractor and is not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from anytime._linalg import single_blas_thread
from anytime.data.formats import Table
from anytime.errors import ExtractorError, summary
from anytime.groups import FeatureGroups
from anytime.inference.planning import check_extractors
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
    def of(cls, table: Table, limit: int) -> TableInputs:
        """Return the first `limit` rows of a table; raise TableError if it is unreadable."""
        batches = list(table.batches(table.columns, limit, stop=limit))
        return cls({name: np.concatenate([batch.columns[name] for batch in batches]) for name in table.columns})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows: int | list[int]) -> dict[str, Any]:
        """Return a row as Python numbers and strings, NaN or None if missing; or the columns of several rows."""
        if isinstance(rows, int):
            return {name: column[rows : rows + 1].tolist()[0] for name, column in self.columns.items()}
        return {name: column[rows] for name, column in self.columns.items()}


@dataclass(frozen=True)
class ModuleInputs:
    """Inputs from a user's module: each unchanged for one row, a list of them for several.

    An input that caches an extractor's result makes the second call look fast: provide enough inputs, and measure each
    once.
    """

    items: tuple[Any, ...]

    @classmethod
    def of(cls, found: Any, limit: int, what: str) -> ModuleInputs:
        """Return the first `limit` items of an iterable or of the one that a function returns; at least one."""
        iterable = found() if callable(found) else found
        if isinstance(iterable, str | bytes | Mapping) or not isinstance(iterable, Iterable):
            raise ExtractorError(f"{what} is {type(iterable).__name__}; expected an iterable of inputs")
        items = tuple(islice(iterable, limit))
        if not items:
            raise ExtractorError(f"{what} has no inputs; expected at least one")
        return cls(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, rows: int | list[int]) -> Any:
        return self.items[rows] if isinstance(rows, int) else [self.items[row] for row in rows]


Inputs: TypeAlias = TableInputs | ModuleInputs
"""Rows that extractors receive: one by one, or several together."""


class Scaling(NamedTuple):
    """Duration of a call by its number of rows: `base` + `per_row` * rows, in milliseconds."""

    base: float
    per_row: float


@dataclass(frozen=True, eq=False)
class GroupTimes:
    """Measured times of one group: for each number of rows, the duration of each call in milliseconds, (calls,)."""

    times: Mapping[int, Float]

    @property
    def per_row(self) -> Float:
        """Milliseconds per row, (calls,), of calls with the last number of rows."""
        rows = list(self.times)[-1]
        return self.times[rows] / rows

    @property
    def scaling(self) -> Scaling | None:
        """Growth of time with rows, by least squares of relative errors of the medians; None for a single row count."""
        if len(self.times) < 2:
            return None
        rows = np.array(list(self.times), dtype=np.float64)
        medians = np.array([np.median(times) for times in self.times.values()])
        scale = np.maximum(medians, 1e-9)
        found, _ = nnls(np.column_stack([1 / scale, rows / scale]), medians / scale)
        return Scaling(float(found[0]), float(found[1]))


@dataclass(frozen=True, eq=False)
class Profile:
    """Measured times of every group that has features, in the order in which they were computed."""

    groups: Mapping[str, GroupTimes]
    timer_ms: float
    """Duration of two clock readings; every measured time includes it."""

    @property
    def times(self) -> dict[str, Float]:
        """Milliseconds per row, by group, (calls,): values at the same position belong to the same input."""
        return {name: measured.per_row for name, measured in self.groups.items()}


def profile(
    groups: FeatureGroups,
    extractors: Mapping[str, Callable[[Any], Any]],
    inputs: Inputs,
    *,
    rows: Sequence[int] = (),
    warm_up: int = 5,
    repeats: int = 5,
    clock: Callable[[], int] = time.perf_counter_ns,
    progress: Callable[[int], None] = lambda _: None,
) -> Profile:
    """Measure extractors, with one thread of the linear algebra library, as in a worker process.

    Raises ExtractorError, which names the group, if an extractor is missing, superfluous, fails or returns other values
    than the group's features.

    Parameters
    ----------
    rows : row counts of a call; without, a call gets one input. The cost of a row is the duration of a call with the
        last count, divided by that count.
    warm_up : number of inputs whose groups are computed before the measurement, at least one; their values are checked.
    repeats : number of measurements of each input; `progress` is called after each.
    clock : returns nanoseconds; only differences are used.
    """
    check_extractors({group.name: group.features for group in groups.groups}, extractors)
    order = required_first(groups)
    times: dict[str, dict[int, Float]] = {name: {} for name in order}
    with single_blas_thread():
        for count in rows or (0,):
            batches = list(_batches(inputs, count))
            durations: dict[str, list[float]] = {name: [] for name in order}
            for batch in islice(cycle(batches), max(warm_up, 1)):
                x = inputs[batch]
                for name in order:
                    with _naming(name):
                        values = extractors[name](x)
                    _check(groups, name, values, max(count, 1))
            for batch in batches * repeats:
                x = inputs[batch]
                for name in order:
                    with _naming(name):
                        begin = clock()
                        extractors[name](x)
                        durations[name].append((clock() - begin) / 1e6)
                progress(1)
            for name in order:
                times[name][max(count, 1)] = np.array(durations[name])
    readings = [-(clock() - clock()) for _ in range(1001)]
    return Profile({name: GroupTimes(times[name]) for name in order}, float(np.median(readings)) / 1e6)


def measurements(inputs: Inputs, rows: Sequence[int], repeats: int) -> int:
    """Return the number of inputs, or batches of them, that `profile` measures."""
    return repeats * sum(len(list(_batches(inputs, count))) for count in rows or (0,))


def required_first(groups: FeatureGroups) -> list[str]:
    """Return the groups that have features in the order of the file, but each after those that it requires."""
    order = dict.fromkeys(g for i in range(len(groups)) for g in (*groups.prerequisites[i], i))
    return [groups.names[g] for g in order if groups.groups[g].features]


def _batches(inputs: Inputs, count: int) -> Iterator[int | list[int]]:
    """Yield the rows of each call: every input separately, or `count` at a time, starting over after the last row."""
    if not count:
        yield from range(len(inputs))
        return
    for number in range(max(-(-len(inputs) // count), MIN_BATCHES)):
        yield [(number * count + row) % len(inputs) for row in range(count)]


@contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ExtractorError(
            f"the extractor of group {name!r} failed ({summary(error)}); fix it or its inputs"
        ) from error


def _check(groups: FeatureGroups, name: str, values: Any, rows: int) -> None:
    width = len(groups.groups[groups.position(name)].features)
    wanted = f"{width}" if rows == 1 else f"{rows} x {width}"
    try:
        found = np.asarray(values).shape
    except ValueError:  # ragged
        found = ()
    except Exception as error:
        raise ExtractorError(
            f"the extractor of group {name!r} returned values that are not an array ({summary(error)}); "
            f"expected {wanted} values"
        ) from error
    if found != (rows, width) and not (rows == 1 and found == (width,)):
        shape = " x ".join(map(str, found)) or "no array"
        raise ExtractorError(f"the extractor of group {name!r} returned {shape}; expected {wanted} values")
