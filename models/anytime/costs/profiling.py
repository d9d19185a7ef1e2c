"""What extractors are called with when they are measured: rows of a table, or inputs that a module makes.

What extractors take here: every group of every input, in an order that computes first what others require.

The groups of one input are computed one after the other, as in a prediction, so that each finds the caches as its
neighbours leave them; what a group keeps with the input for those that require it is there when they are measured. The
first such group pays for it, as in life: a group without features is computed by nobody, and not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from anytime._linalg import single_blas_thread
from anytime.data.formats import Table
from anytime.errors import ExtractorError, TableError, summary
from anytime.groups import FeatureGroups
from anytime.inference.extractors import check_extractors
from anytime.types import Float

__all__ = [
    "Inputs",
    "Measured",
    "ModuleInputs",
    "Profile",
    "Scaling",
    "TableInputs",
    "measurements",
    "profile",
    "required_first",
]


class Inputs(Protocol):
    """Rows that extractors are called with."""

    @property
    def count(self) -> int:
        """How many there are."""

    def one(self, row: int) -> Any:
        """What an extractor of one row is called with."""

    def batch(self, rows: Sequence[int]) -> Any:
        """What an extractor of several rows is called with."""


@dataclass(frozen=True)
class TableInputs:
    """Rows of a table: `{column: value}` for one of them, `{column: array}` for several.

    A row is a new dict each time, so that nothing an extractor keeps there is at hand the next time.
    """

    columns: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, table: Table, limit: int) -> TableInputs:
        """The first `limit` rows.

        Raises
        ------
        TableError
            The table has no rows, or cannot be read.
        """
        batches, rows = [], 0
        for batch in table.batches(table.columns, limit):
            batches.append(batch.columns)
            rows += batch.rows
            if rows >= limit:
                break
        if not batches:
            raise TableError(f"{table.name} has no rows; expected at least one")
        return cls({name: np.concatenate([each[name] for each in batches])[:limit] for name in table.columns})

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.columns.values())))

    def one(self, row: int) -> dict[str, Any]:
        """A row as Python's own numbers and strings; NaN or None where a value is missing."""
        return {name: column[row : row + 1].tolist()[0] for name, column in self.columns.items()}

    def batch(self, rows: Sequence[int]) -> dict[str, NDArray[Any]]:
        """Columns of several rows, (rows,) each."""
        return {name: column[np.asarray(rows)] for name, column in self.columns.items()}


@dataclass(frozen=True)
class ModuleInputs:
    """Inputs of somebody's own: each as it is for one row, a list of them for several.

    An input that keeps what an extractor found, as a cache would, makes it look quick the second time: give as many
    inputs as are needed, and measure each once.
    """

    kept: tuple[Any, ...]

    @classmethod
    def of(cls, found: Any, limit: int, what: str) -> ModuleInputs:
        """The first `limit` of an iterable, or of what a function returns.

        Raises
        ------
        ExtractorError
            It is neither, or there are none.
        """
        items = found() if callable(found) else found
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
            raise ExtractorError(f"{what} is {type(items).__name__}; expected an iterable of inputs")
        kept = tuple(islice(items, limit))
        if not kept:
            raise ExtractorError(f"{what} has no inputs; expected at least one")
        return cls(kept)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.kept)

    def one(self, row: int) -> Any:
        """An input."""
        return self.kept[row]

    def batch(self, rows: Sequence[int]) -> list[Any]:
        """Several inputs."""
        return [self.kept[row] for row in rows]


FEWEST_BATCHES = 10
"""Calls with so many rows that are measured at least in each repeat, of tables with few rows."""

CLOCK_LOOKS = 1001
"""Pairs of looks at the clock from which its own share is told."""

Clock = Callable[[], int]
Progress = Callable[[int], None]


class Scaling(NamedTuple):
    """What a call takes by its number of rows: `base` + `per_row` * rows, in milliseconds."""

    base: float
    per_row: float


@dataclass(frozen=True, eq=False)
class Measured:
    """What one group takes.

    Attributes
    ----------
    times : for each number of rows, what each call took in milliseconds, (calls,).
    """

    times: Mapping[int, Float]

    @property
    def per_row(self) -> Float:
        """Milliseconds for a row, (calls,), of calls with the last number of rows."""
        rows = list(self.times)[-1]
        return self.times[rows] / rows

    @property
    def scaling(self) -> Scaling | None:
        """How time grows with rows, by least squares of relative errors of the medians; None of one number of rows."""
        if len(self.times) < 2:
            return None
        rows = np.array(list(self.times), dtype=np.float64)
        medians = np.array([np.median(times) for times in self.times.values()])
        scale = np.maximum(medians, 1e-9)
        found, _ = nnls(np.column_stack([1 / scale, rows / scale]), medians / scale)
        return Scaling(float(found[0]), float(found[1]))


@dataclass(frozen=True, eq=False)
class Profile:
    """What every group that has features takes.

    Attributes
    ----------
    groups : by name, in the order in which they were computed.
    timer_ms : what looking at the clock twice takes by itself; it is in every time.
    """

    groups: Mapping[str, Measured]
    timer_ms: float

    @property
    def times(self) -> dict[str, Float]:
        """Milliseconds for a row, by group, (calls,): those at one place are of the same input."""
        return {name: measured.per_row for name, measured in self.groups.items()}


def profile(
    groups: FeatureGroups,
    extractors: Mapping[str, Callable[[Any], Any]],
    inputs: Inputs,
    *,
    rows: Sequence[int] = (),
    warm_up: int = 5,
    repeats: int = 5,
    clock: Clock = time.perf_counter_ns,
    progress: Progress = lambda _: None,
) -> Profile:
    """Measure extractors, with one thread of the linear algebra library, as in a worker process.

    Parameters
    ----------
    extractors : by group; each is called with `inputs.one` or, where `rows` are given, with `inputs.batch`.
    rows : numbers of rows of a call, (); the cost of a row is that of a call with the last of them, divided.
    warm_up : inputs of which every group is computed before the clock is looked at; at least one, whose values are
        checked.
    repeats : how often each input is measured.
    clock : nanoseconds, by which differences are taken.
    progress : told of each input measured.

    Raises
    ------
    ExtractorError
        Extractors are missing or have no group; one fails, or does not return the group's features: it is named.
    """
    check_extractors(groups.names, groups.featured, extractors)
    order = required_first(groups)
    times: dict[str, dict[int, list[float]]] = {name: {} for name in order}
    with single_blas_thread():
        for count in rows or (0,):
            batches = list(_batches(inputs, count))
            for x in islice(_again(batches, inputs), max(warm_up, 1)):
                for name in order:
                    _check(groups, name, _called(name, extractors[name], x), max(count, 1))
            for name in order:
                times[name][max(count, 1)] = []
            for _ in range(repeats):
                for batch in batches:
                    x = _input(inputs, batch)
                    for name in order:
                        took = _timed(name, extractors[name], x, clock)
                        times[name][max(count, 1)].append(took)
                    progress(1)
    measured = {name: Measured({count: np.array(took) for count, took in each.items()}) for name, each in times.items()}
    return Profile(measured, _timer_ms(clock))


def measurements(inputs: Inputs, rows: Sequence[int], repeats: int) -> int:
    """How many inputs, or batches of them, `profile` measures."""
    return repeats * sum(len(list(_batches(inputs, count))) for count in rows or (0,))


def required_first(groups: FeatureGroups) -> list[str]:
    """Groups that have features in the order of the file, but each after those that it requires."""
    order = dict.fromkeys(g for i in range(len(groups)) for g in (*groups.prerequisites[i], i))
    return [groups.names[g] for g in order if groups.groups[g].features]


def _batches(inputs: Inputs, count: int) -> Iterator[int | list[int]]:
    """Rows of each call: every input by itself, or as many at a time, from the first again after the last."""
    if not count:
        yield from range(inputs.count)
        return
    for number in range(max(-(-inputs.count // count), FEWEST_BATCHES)):
        yield [(number * count + row) % inputs.count for row in range(count)]


def _input(inputs: Inputs, batch: int | list[int]) -> Any:
    return inputs.one(batch) if isinstance(batch, int) else inputs.batch(batch)


def _again(batches: Sequence[int | list[int]], inputs: Inputs) -> Iterator[Any]:
    """Inputs without end."""
    while True:
        for batch in batches:
            yield _input(inputs, batch)


def _called(name: str, extractor: Callable[[Any], Any], x: Any) -> Any:
    try:
        return extractor(x)
    except Exception as error:  # whatever somebody's extractor raises
        raise _failure(name, error) from error


def _timed(name: str, extractor: Callable[[Any], Any], x: Any, clock: Clock) -> float:
    """Milliseconds of one call."""
    begin = clock()
    try:
        extractor(x)
    except Exception as error:
        raise _failure(name, error) from error
    return (clock() - begin) / 1e6


def _failure(name: str, error: Exception) -> ExtractorError:
    return ExtractorError(f"the extractor of group {name!r} failed ({summary(error)}); mend it, or its inputs")


def _check(groups: FeatureGroups, name: str, values: Any, rows: int) -> None:
    width = len(groups.groups[groups.position(name)].features)
    wanted = f"{width}" if rows == 1 else f"{rows} x {width}"
    try:
        found = np.asarray(values).shape
    except ValueError:  # ragged
        found = ()
    except Exception as error:
        raise ExtractorError(
            f"the extractor of group {name!r} returned what cannot be read as an array ({summary(error)}); "
            f"expected {wanted} values"
        ) from error
    if found not in ((rows, width), (width,) if rows == 1 else (rows, width)):
        shape = " x ".join(map(str, found)) or "no array"
        raise ExtractorError(f"the extractor of group {name!r} returned {shape}; expected {wanted} values")


def _timer_ms(clock: Clock) -> float:
    looks = [-(clock() - clock()) for _ in range(CLOCK_LOOKS)]
    return float(np.median(looks)) / 1e6
