"""Learn bases from a uniform sample of the rows, in one pass, whatever the size and the source of the table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anytime.errors import GroupsError
from anytime.features.bases import (
    MIN_LEVEL_ROWS,
    NUMERIC,
    UNSTATED,
    Clamp,
    ColumnSample,
    Kind,
    are_whole,
    default_basis,
    learned,
)
from anytime.features.bases.categories import MAX_LEVELS
from anytime.features.bases.hinge import Octiles
from anytime.features.operations import VALUE
from anytime.features.readers import Levels
from anytime.groups import ColumnBasis, FeatureGroups
from anytime.types import Bool, Float, Index

CLAMPS = ("auto", "off", "outliers")
"""Clamps that are no quantile."""

SAMPLE_ROWS = 200_000
SAMPLE_VALUES = 2**25
"""Largest number of values of a sample, 256 MiB: a sample of a wide table has fewer rows."""

MAX_RESPONSES = 10
"""Classes of a target that bases learn from."""

QUANTILES = 21
"""Number of stored quantiles of a column: every 5 %."""

Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""Some rows: an array (rows,) for each column, of booleans, integers, floats or text; NaN or None where missing."""


def needs_sample(
    groups: FeatureGroups, kinds: Iterable[Kind], option: str | None, clamp: Clamp, *, extrapolates: bool = True
) -> bool:
    """Return whether the groups lack the basis or the clamp of some column, given the type of each in the table."""
    stated = option not in (None, UNSTATED) or clamp not in (None, "auto" if extrapolates else None, "off")
    return any(
        not _is_complete(groups.bases[name], kind)
        if name in groups.bases
        else stated or default_basis(kind) != UNSTATED
        for name, kind in zip(groups.features, kinds, strict=True)
    )


def _is_complete(given: ColumnBasis, kind: Kind) -> bool:
    """Return whether a basis in the groups file leaves nothing to learn, nor to refuse."""
    has_other_levels = kind != "factor" and any(isinstance(v, str) != (kind == "text") for v in given.levels or ())
    try:
        basis = learned("", given, ColumnSample(np.empty(0), 0))
        needed = {*basis.described().model_dump(exclude_unset=True)}
    except GroupsError:
        return False
    return (
        kind in basis.fits
        and "range" in given.model_fields_set
        and not has_other_levels
        and needed <= given.model_dump(exclude_none=True).keys()
    )


def sample_size(columns: int) -> int:
    return min(SAMPLE_ROWS, max(1, SAMPLE_VALUES // max(columns, 1)))


@dataclass(frozen=True)
class Sample:
    """A uniform sample of the rows; columns as in `Columns`, and the weight of each row, (rows,), or None for 1.

    Whole weights count rows. Only the ratios of other weights matter: they count as many rows as there are.
    `numbers` (rows,) are those of the rows in their table, if known. `min_level_rows` are those of `ColumnSample`.
    `is_whole` says whether these are all rows. `responses` (rows, P) are what bases may learn from besides the values.
    """

    columns: Columns
    weights: Float | None = None
    numbers: Index = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    min_level_rows: tuple[int, ...] = (MIN_LEVEL_ROWS,)
    is_whole: bool = True
    responses: Float | None = None

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def column(self, name: str) -> ColumnSample:
        """Return the values of a column that are present."""
        values = self.columns[name]
        is_present = present(values)
        weights = self.weights
        if weights is not None and not are_whole(weights):
            weights = weights / weights.mean()
        rows = float(len(values)) if weights is None else float(weights.sum())
        of_present = None if weights is None else weights[is_present]
        responses = None if self.responses is None else self.responses[is_present]
        return ColumnSample(values[is_present], rows, of_present, self.min_level_rows, responses)

    def part(self, chosen: Bool | slice) -> Sample:
        """Return some of the rows."""
        if not isinstance(chosen, slice) and chosen.all():
            return self
        columns = {name: values[chosen] for name, values in self.columns.items()}
        weights = None if self.weights is None else self.weights[chosen]
        numbers = self.numbers[chosen] if len(self.numbers) else self.numbers
        return replace(self, columns=columns, weights=weights, numbers=numbers, is_whole=False)

    @classmethod
    def _joined(cls, parts: list[Sample]) -> Sample:
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
        weights = [part.weights for part in parts if part.weights is not None]
        numbers = np.concatenate([part.numbers for part in parts])
        whole = all(part.is_whole for part in parts)
        return cls(columns, np.concatenate(weights) if weights else None, numbers, is_whole=whole)


class Sampler:
    """Keeps a uniform sample of the rows of all batches; all of them if they are `limit` or fewer.

    Each row draws a number, and the rows with the smallest numbers are the sample. So the sample depends neither on the
    size of the batches nor on the number of rows after it.
    """

    def __init__(self, limit: int, seed: int) -> None:
        self.limit, self._rng, self._bound = limit, np.random.default_rng(seed), 1.0
        self._keys, self._parts = np.empty(0), list[Sample]()

    def add(self, rows: int, part: Callable[[Bool], Sample]) -> None:
        """Draw from the next rows; `part` returns those that stay, (rows,)."""
        drawn = self._rng.random(rows)
        chosen = drawn < self._bound
        if self._parts and not chosen.any():
            return
        self._keys = np.concatenate([self._keys, drawn[chosen]])
        self._parts.append(part(chosen))
        if 4 * len(self._keys) > 5 * self.limit:  # a quarter more is stored at most
            self._shorten()

    def split(self, rows: Sequence[int]) -> list[Self]:
        """Return a sampler for each of some consecutive parts of all rows, given their numbers.

        Each stores only rows of the sample, and `extend` joins them.
        """
        whole, total, parts = deepcopy(self), sum(rows), [deepcopy(self) for _ in rows]
        for start in range(0, total, self.limit):
            whole.add(min(self.limit, total - start), lambda _chosen: Sample({}))
        whole.sample()
        for part, before in zip(parts, np.cumsum([0, *rows]).tolist(), strict=False):
            part._bound = whole._bound
            part._rng.bit_generator.advance(before)  # type: ignore[attr-defined]  # PCG64 draws once per number
        return parts

    def extend(self, following: Self) -> None:
        """Add the sample of the rows after those so far."""
        self._keys = np.concatenate([self._keys, following._keys])
        self._parts = [*self._parts, *following._parts]

    def _shorten(self) -> None:
        self._bound = float(np.partition(self._keys, self.limit)[self.limit])
        inside = self._keys < self._bound
        self._parts, self._keys = [Sample._joined(self._parts).part(inside)], self._keys[inside]

    def sample(self) -> Sample:
        if len(self._keys) > self.limit:
            self._shorten()
        if len(self._parts) > 1:
            self._parts = [Sample._joined(self._parts)]
        return self._parts[0] if self._parts else Sample({})


def sample_of(batches: Iterable[Sample], rows: int | None = None, *, seed: int = 0) -> Sample:
    """Return a uniform sample of the rows of all batches, as `Sampler`."""
    sampler = None
    for batch in batches:
        sampler = sampler or Sampler(rows or sample_size(len(batch.columns)), seed)
        sampler.add(batch.rows, batch.part)
    return Sample({}) if sampler is None else sampler.sample()


_KINDS: Mapping[str, Kind] = {"b": "bool", "i": "integer", "u": "integer"}


def kind_of(values: NDArray[Any]) -> Kind:
    """Return the type of a column; floats that are all whole are integers with gaps."""
    if values.dtype.kind == "f":
        observed = values[~np.isnan(values)]
        return "integer" if len(observed) and (observed == np.floor(observed)).all() else "number"
    return _KINDS.get(values.dtype.kind, "text")


def present(values: NDArray[Any]) -> Bool:
    """Return where a value of a column is not missing, (rows,)."""
    if values.dtype.kind == "O":
        return np.array([value is not None for value in values], dtype=np.bool_)
    return ~np.isnan(values) if values.dtype.kind == "f" else np.ones(len(values), dtype=np.bool_)


def responses_of(columns: Iterable[NDArray[Any]]) -> Float | None:
    """Return targets (rows, P): numbers as they are, and indicators of the most frequent other values but the first."""
    found: list[Any] = []
    for values in columns:
        if values.dtype.kind in "biuf":
            found.append(values)
        else:
            labels, counts = np.unique(values, return_counts=True)
            found += [values == label for label in labels[np.argsort(-counts, kind="stable")][1:MAX_RESPONSES]]
    return np.column_stack(found).astype(np.float64) if found else None


def learned_groups(
    groups: FeatureGroups,
    sample: Sample,
    option: str | None = None,
    clamp: Clamp = None,
    *,
    factors: Collection[str] = (),
    complete: bool = False,
    extrapolates: bool = True,
    further: bool = False,
) -> FeatureGroups:
    """Return the groups with bases learned from a sample where the groups file does not state them, column by column.

    Whether missing values have an indicator is decided by the training rows, unless the groups file states it. With
    `complete` the sample decides, and the groups have the basis of every column. `extrapolates` is that of the family:
    without it, the clamp "auto" is that of lines, too. With `further`, rows of other tables follow, which may lie
    beyond the range. Raise GroupsError for a basis that does not fit its column.
    """
    bases = {}
    for name in groups.features:
        given = groups.bases.get(name, ColumnBasis())
        kind: Kind = "date" if groups.types.get(name) == "date" else kind_of(sample.columns[name])
        if name in factors and kind not in ("date", "number"):
            kind = "factor"
        found = sample.column(name)
        basis = learned(name, given, found, kind, option)
        is_numeric = kind in NUMERIC and not isinstance(basis.reader, Levels) and len(found.values) > 0
        numbers = found if is_numeric else None
        if numbers and found.values.dtype != np.float64:
            numbers = replace(found, values=found.values.astype(np.float64))
        ends = given.range
        if "range" not in given.model_fields_set and numbers and basis.clamp is not None:
            own: Clamp = 0.0 if kind == "date" else basis.clamp
            is_line = extrapolates and (clamp, own) == ("auto", "off")
            ends = numbers.ends(own if clamp is None or is_line else clamp)
            if isinstance(basis, Octiles) and basis.line is None and extrapolates and clamp in (None, "auto"):
                # Rows of another table, which `complete` groups are for, too, may lie beyond the range.
                inside = sample.is_whole and not (complete or further) and ends == numbers.ends(0.0)
                basis = replace(basis, line="same" if inside else "own")
        quantiles = given.quantiles
        if "quantiles" not in given.model_fields_set and numbers:  # the shares of categories are means of terms
            quantiles = numbers.quantiles(np.linspace(0, 1, QUANTILES))
        missing = given.missing
        if missing is None and complete:
            missing = found.has_gaps
        if basis.points:  # what another column of the same levels would explain is explained
            sample = _without_means(sample, name)
        if complete or basis.terms != [VALUE] or ends is not None or missing is not None or quantiles is not None:
            of_rows: dict[str, Any] = {} if quantiles is None else {"quantiles": quantiles}
            bases[name] = basis.described().model_copy(update={"range": ends, "missing": missing} | of_rows)
    return groups.with_bases(bases)


def _without_means(sample: Sample, name: str) -> Sample:
    """Return a sample whose responses are those less their mean at each value of a column."""
    if sample.responses is None:
        return sample
    weights = np.ones(sample.rows) if sample.weights is None else sample.weights
    places = np.unique(sample.columns[name], return_inverse=True)[1]
    total = np.maximum(np.bincount(places, weights), np.finfo(np.float64).tiny)
    means = [np.bincount(places, weights * y) / total for y in sample.responses.T]
    return replace(sample, responses=sample.responses - np.stack(means, axis=1)[places])


def rare_levels(
    groups: FeatureGroups, sample: Sample, columns: Iterable[str]
) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Return which columns of text lost all their levels, and why; and a line for each reason to lose some.

    A column whose gaps have an indicator keeps that.
    """
    lost, rare, beyond = [], [], []
    least, types = min(sample.min_level_rows), groups.known_types
    for name in columns:
        basis = groups.bases.get(name, ColumnBasis())
        if basis.levels is None or not (basis.other and types.get(name) == "text"):
            continue
        found = sample.column(name)
        values, counts = found.counts
        others = counts[~np.isin(values.astype(str), [str(level) for level in basis.levels])]
        size = f"{len(others)} {'level' if len(others) == 1 else 'levels'}, {others.sum():g} rows"
        if len(values) and not basis.levels and not found.has_gaps:
            lost.append((name, f"has no level that {least} rows share ({size})"))
        elif len(others) and others.max() >= least:
            beyond.append(f"{name!r} ({size})")
        elif len(others) and not (basis.model_extra or {}).get("level_rows"):
            rare.append(f"{name!r} ({size})")
    said = (
        (f"levels of fewer than {least} rows share one term", rare),
        (f"levels beyond the {MAX_LEVELS} most frequent share one term", beyond),
    )
    return lost, tuple(
        f"{what}: {', '.join(names[:10])}" + f" and {len(names) - 10} more" * (len(names) > 10)
        for what, names in said
        if names
    )
