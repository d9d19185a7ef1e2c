"""Learn bases from a uniform sample of the rows, in one pass, whatever the size and the source of the table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anytime.errors import GroupsError, TrainingError
from anytime.features.bases import (
    LEVEL_ROWS,
    MIN_LEVEL_ROWS,
    NUMERIC,
    UNSTATED,
    Basis,
    Clamp,
    ColumnSample,
    Kind,
    are_whole,
    checked,
    default_basis,
    learned,
)
from anytime.features.bases.categories import MAX_LEVELS
from anytime.features.bases.hinge import Octiles
from anytime.features.expansion import Column
from anytime.features.readers import Levels
from anytime.groups import ColumnBasis, FeatureGroups
from anytime.types import Bool, Float, Index

CLAMPS = ("auto", "off", "outliers")
"""Clamps that are no quantile."""

SAMPLE_ROWS = 200_000
SAMPLE_VALUES = 2**25
"""Largest number of values of a sample, 256 MiB: a sample of a wide table has fewer rows."""

MIN_MISSING = 0.01
"""Share of the rows from which missing values of a column have an indicator."""

QUANTILES = 21
"""Number of stored quantiles of a column: every 5 %."""

Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""Some rows: an array (rows,) for each column, of booleans, integers, floats or text; NaN or None where missing."""


def checked_clamp(clamp: Clamp) -> Clamp:
    """Return the option; raise TrainingError unless Q is from 0 to below .5."""
    if clamp in (None, *CLAMPS) or (not isinstance(clamp, str | bool) and clamp is not None and 0 <= clamp < 0.5):
        return clamp
    raise TrainingError(f"clamp is {clamp!r}; expected a quantile Q from 0 to below 0.5, or {' or '.join(CLAMPS)}")


def checked_level_rows(least: int | Literal["auto"]) -> int | Literal["auto"]:
    """Return the option; raise TrainingError unless it is a whole number, 2 or more, or "auto"."""
    if least == "auto" or (isinstance(least, Integral) and not isinstance(least, bool) and least >= 2):
        return least
    raise TrainingError(f"min_level_rows is {least!r}; expected a whole number, 2 or more, or 'auto'")


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
    try:
        basis = checked(given.basis or "", given, ColumnSample(np.empty(0), 0))
        parts = basis.described().model_dump(exclude_unset=True)
    except GroupsError:
        return False
    has_other_levels = kind != "factor" and any(isinstance(v, str) != (kind == "text") for v in given.levels or ())
    if kind not in basis.fits or "range" not in given.model_fields_set or has_other_levels:
        return False
    return set(parts) <= given.model_dump(exclude_none=True).keys()


def sample_size(columns: int) -> int:
    return min(SAMPLE_ROWS, max(1, SAMPLE_VALUES // max(columns, 1)))


@dataclass(frozen=True)
class Sample:
    """A uniform sample of the rows; columns as in `Columns`, and the weight of each row, (rows,), or None for 1.

    Whole weights count rows. Only the ratios of other weights matter: they count as many rows as there are.
    `numbers` (rows,) are those of the rows in their table, if known. `min_level_rows` is that of `ColumnSample`.
    `is_whole` says whether these are all rows.
    """

    columns: Columns
    weights: Float | None = None
    numbers: Index = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    min_level_rows: int = MIN_LEVEL_ROWS
    selects_levels: bool = False
    is_whole: bool = True

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
        return ColumnSample(values[is_present], rows, of_present, self.min_level_rows, self.selects_levels)

    def _where(self, chosen: Bool) -> Sample:
        columns = {name: values[chosen] for name, values in self.columns.items()}
        weights = None if self.weights is None else self.weights[chosen]
        numbers = self.numbers[chosen] if len(self.numbers) else self.numbers
        return replace(self, columns=columns, weights=weights, numbers=numbers, is_whole=False)

    def every(self, step: int) -> Sample:
        """Return every so many rows."""
        return self if step == 1 else self._where(np.arange(self.rows) % step == 0)

    @classmethod
    def _joined(cls, parts: list[Sample]) -> Sample:
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
        weights = [part.weights for part in parts if part.weights is not None]
        numbers = np.concatenate([part.numbers for part in parts])
        whole = all(part.is_whole for part in parts)
        return cls(columns, np.concatenate(weights) if weights else None, numbers, is_whole=whole)


def sample_of(batches: Iterable[Sample], rows: int | None = None, *, seed: int = 0) -> Sample:
    """Return a uniform sample of the rows of all batches; all of them if they are `rows` or fewer.

    Each row draws a number, and the rows with the smallest numbers are the sample. So the sample depends neither on the
    size of the batches nor on the number of rows after it.
    """
    rng = np.random.default_rng(seed)
    keys = np.empty(0)
    parts: list[Sample] = []
    limit, bound = rows or 1, 1.0
    for batch in batches:
        drawn = rng.random(batch.rows)
        limit = rows or sample_size(len(batch.columns))
        chosen = drawn < bound
        keys = np.concatenate([keys, drawn[chosen]])
        parts.append(batch if chosen.all() else batch._where(chosen))
        if len(keys) > 2 * limit:
            bound = float(np.partition(keys, limit)[limit])
            parts = [Sample._joined(parts)._where(keys < bound)]
            keys = keys[keys < bound]
    if len(keys) > limit:
        return Sample._joined(parts)._where(keys < np.partition(keys, limit)[limit])
    return Sample._joined(parts) if parts else Sample({})


def kind_of(values: NDArray[Any]) -> Kind:
    """Return the type of a column; floats that are all whole are integers with gaps."""
    match values.dtype.kind:
        case "b":
            return "bool"
        case "i" | "u":
            return "integer"
        case "f":
            observed = values[~np.isnan(values)]
            return "integer" if len(observed) and (observed == np.floor(observed)).all() else "number"
        case _:
            return "text"


def present(values: NDArray[Any]) -> Bool:
    """Return where a value of a column is not missing, (rows,)."""
    if values.dtype.kind == "O":
        return np.array([value is not None for value in values], dtype=np.bool_)
    return ~np.isnan(values) if values.dtype.kind == "f" else np.ones(len(values), dtype=np.bool_)


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
    """Return the groups with bases learned from a sample where the groups file does not state them.

    Whether missing values have an indicator is decided by the training rows, unless the groups file states it. With
    `complete` the sample decides, and the groups have the basis of every column. `extrapolates` is that of the family:
    without it, the clamp "auto" is that of lines, too. With `further`, rows of other tables follow, which may lie
    beyond the range. Raise GroupsError for a basis that does not fit its column, TrainingError for an invalid `clamp`.
    """
    checked_clamp(clamp)
    bases = {}
    for name in groups.features:
        given = groups.bases.get(name, ColumnBasis())
        kind: Kind = "date" if groups.types.get(name) == "date" else kind_of(sample.columns[name])
        if name in factors and kind not in ("date", "number"):
            kind = "factor"
        found = sample.column(name)
        try:
            basis = learned(given, kind, option, found)
        except GroupsError as error:
            raise GroupsError(f"column {name!r}: {error}") from None
        is_numeric = kind in NUMERIC and not isinstance(basis.reader, Levels) and len(found.values) > 0
        numbers = found if is_numeric else None
        if numbers and found.values.dtype != np.float64:
            numbers = replace(found, values=found.values.astype(np.float64))
        if "range" in given.model_fields_set:
            ends = given.range
        else:
            ends = _range(basis, kind, numbers, clamp, extrapolates=extrapolates)
            if (
                isinstance(basis, Octiles)
                and basis.line is None
                and numbers
                and extrapolates
                and clamp in (None, "auto")
            ):
                # Rows of another table, which `complete` groups are for, too, may lie beyond the range.
                inside = sample.is_whole and not (complete or further) and ends == numbers.ends(0.0)
                basis = replace(basis, line="same" if inside else "own")
        column = Column(name, basis, ends)
        quantiles = given.quantiles
        if "quantiles" not in given.model_fields_set and numbers:  # the shares of categories are means of terms
            quantiles = numbers.quantiles(np.linspace(0, 1, QUANTILES))
        missing = given.missing
        if missing is None and complete:
            missing = found.rows - found.observed >= MIN_MISSING * found.rows > 0
        if complete or not column.is_linear or missing is not None or quantiles is not None:
            own: dict[str, Any] = (
                {"missing": missing} if quantiles is None else {"missing": missing, "quantiles": quantiles}
            )
            bases[name] = column.described().model_copy(update=own)
    return groups.with_bases(bases)


def rare_levels(
    groups: FeatureGroups, sample: Sample, columns: Iterable[str]
) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Return which columns of text lost all their levels, and why; and a line for each reason to lose some.

    A column whose gaps have an indicator keeps that.
    """
    lost, rare, beyond = [], [], []
    least, types = min(LEVEL_ROWS) if sample.selects_levels else sample.min_level_rows, groups.known_types
    for name in columns:
        basis = groups.bases[name] if name in groups.bases else ColumnBasis()
        if basis.levels is None or not (basis.other and types.get(name) == "text"):
            continue
        found = sample.column(name)
        values, counts = found.counts
        others = counts[~np.isin(values.astype(str), [str(level) for level in basis.levels])]
        size = f"{len(others)} {'level' if len(others) == 1 else 'levels'}, {others.sum():g} rows"
        gaps = found.rows - found.observed >= MIN_MISSING * found.rows > 0
        if len(values) and not basis.levels and not gaps:
            lost.append((name, f"has no level that {least} rows share ({size})"))
        elif len(others) and others.max() >= least:
            beyond.append(f"{name!r} ({size})")
        elif len(others) and not (basis.model_extra or {}).get("level_rows"):
            rare.append(f"{name!r} ({size})")
    said = (
        (f"levels of fewer than {least} rows share one term", rare),
        (f"levels beyond the {MAX_LEVELS} most frequent share one term", beyond),
    )
    return lost, tuple(f"{what}: {_first_ten(names)}" for what, names in said if names)


def _first_ten(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _range(
    basis: Basis, kind: Kind, numbers: ColumnSample | None, clamp: Clamp, *, extrapolates: bool
) -> tuple[float, float] | None:
    """Return the ends that a column of numbers is clamped to: what grows faster than a line of numbers stops there."""
    if basis.clamp is None or numbers is None or clamp == "off":
        return None
    if clamp is None:
        clamp = 0.0 if kind == "date" else "auto" if basis.choices else basis.clamp
    if clamp == "auto" and (basis.clamp != "off" or kind == "date" or not extrapolates):
        return numbers.without_outliers() or numbers.ends(0.0)
    return numbers.ends(clamp)
