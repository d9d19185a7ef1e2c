"""Learn bases from a uniform sample of the rows, in one pass, whatever the size and the source of the table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anytime.errors import GroupsError, TableError, TrainingError
from anytime.features.bases import NUMERIC, Basis, Hinge, Kind, default_basis, learned, parsed_basis
from anytime.features.expansion import Column
from anytime.groups import ColumnBasis, FeatureGroups
from anytime.types import Bool, Float

SAMPLE_ROWS = 200_000
SAMPLE_VALUES = 2**25
"""Largest number of values of a sample, 256 MiB: a sample of a wide table has fewer rows."""

MIN_MISSING = 0.01
"""Share of the rows from which missing values of a column have an indicator."""

QUANTILES = 21
"""Number of stored quantiles of a column: every 5 %."""

Clamp: TypeAlias = float | Literal["off"] | None
"""Q of the quantiles Q and 1 - Q outside which values are clamped; None is the default of each basis."""

Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""Some rows: an array (rows,) for each column, of booleans, integers, floats or text; NaN or None where missing."""


def checked_clamp(clamp: Clamp) -> Clamp:
    """Return the option; raise TrainingError unless Q is from 0 to below .5."""
    if clamp is None or clamp == "off" or (not isinstance(clamp, str | bool) and 0 <= clamp < 0.5):
        return clamp
    raise TrainingError(f'clamp is {clamp!r}; expected a quantile Q from 0 to below 0.5, or "off"')


def needs_sample(groups: FeatureGroups, kinds: Iterable[Kind], option: str | None, clamp: Clamp) -> bool:
    """Return whether something of the columns, given the type of each, is to be learned from rows."""
    learns = option not in (None, "linear") or clamp not in (None, "off")
    return any(
        not _is_complete(groups.bases[name], kind)
        if name in groups.bases
        else learns or default_basis(kind) != "linear"
        for name, kind in zip(groups.features, kinds, strict=True)
    )


def _is_complete(given: ColumnBasis, kind: Kind) -> bool:
    """Return whether a basis in the groups file leaves nothing to learn, nor to refuse."""
    try:
        basis, size = parsed_basis(given.basis or "")
        parts = basis.learn(size, given, np.empty(0), 0).described().model_fields_set
    except GroupsError:
        return False
    if kind not in basis.fits or "range" not in given.model_fields_set:
        return False
    if kind != "factor" and any(isinstance(level, str) != (kind == "text") for level in given.levels or ()):
        return False
    return all(getattr(given, part) is not None for part in parts)


def sample_size(columns: int) -> int:
    return min(SAMPLE_ROWS, max(1, SAMPLE_VALUES // max(columns, 1)))


def sample_of(batches: Iterable[Columns], rows: int | None = None, *, seed: int = 0) -> tuple[Columns, int]:
    """Return a uniform sample of the rows, and its number of rows.

    Each row draws a number, and the rows with the smallest numbers are the sample. So the sample depends neither on the
    size of the batches nor on the number of rows after it.
    """
    rng = np.random.default_rng(seed)
    keys = np.empty(0)
    parts: list[Columns] = []
    limit, bound = rows or 1, 1.0
    for batch in batches:
        drawn = rng.random(len(next(iter(batch.values()))))
        limit = rows or sample_size(len(batch))
        chosen = drawn < bound
        keys = np.concatenate([keys, drawn[chosen]])
        parts.append({name: values[chosen] for name, values in batch.items()})
        if len(keys) > 2 * limit:
            bound = float(np.partition(keys, limit)[limit])
            parts = [_where(_joined(parts), keys < bound)]
            keys = keys[keys < bound]
    if len(keys) > limit:
        parts = [_where(_joined(parts), keys < np.partition(keys, limit)[limit])]
        keys = keys[:limit]
    return _joined(parts) if parts else {}, len(keys)


def _joined(parts: list[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _where(columns: Columns, chosen: Bool) -> Columns:
    return {name: values[chosen] for name, values in columns.items()}


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


def are_mostly(kind: Callable[[Any], object], values: NDArray[Any]) -> bool:
    """Return whether `kind`, such as `float`, converts at least half of the text of a column."""
    found = observed(values).tolist()
    return bool(found) and sum(converts(kind, text) for text in found) >= len(found) / 2


def converts(kind: Callable[[Any], object], value: Any) -> bool:
    try:
        kind(value)
    except (TypeError, ValueError):
        return False
    return True


def observed(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind == "O":
        return values[np.array([value is not None for value in values], dtype=np.bool_)]
    return values[~np.isnan(values)] if values.dtype.kind == "f" else values


def learned_groups(
    groups: FeatureGroups,
    sample: Columns,
    rows: int,
    option: str | None = None,
    clamp: Clamp = None,
    *,
    factors: Collection[str] = (),
    complete: bool = False,
) -> FeatureGroups:
    """Return the groups with bases learned from a sample where the groups file does not state them.

    Whether missing values have an indicator is decided by the training rows, unless the groups file states it. With
    `complete` the sample decides, and the groups have the basis of every column. Raise GroupsError for a basis that
    does not fit its column, TableError for a column of dates, TrainingError for an invalid `clamp`.
    """
    checked_clamp(clamp)
    bases = {}
    for name in groups.features:
        given = groups.bases.get(name, ColumnBasis())
        kind: Kind = "factor" if name in factors else kind_of(sample[name])
        values = observed(sample[name])
        if kind == "text" and name not in groups.bases and are_mostly(datetime.fromisoformat, values):
            raise TableError(
                f"column {name!r} holds dates, as {values[0]!r}; expected numbers or text: convert it to days since a "
                "fixed date, for example, leave it out, or give it the basis 'categories' in the groups file"
            )
        try:
            basis = learned(given, kind, option, values, rows)
        except GroupsError as error:
            raise GroupsError(f"column {name!r}: {error}") from None
        numbers = values.astype(np.float64) if kind in NUMERIC and basis.name != "categories" else np.empty(0)
        ends = given.range if "range" in given.model_fields_set else _range(basis, numbers, clamp)
        column = Column(name, basis, ends)
        described = column.described()
        quantiles = given.quantiles
        if "quantiles" not in given.model_fields_set and len(numbers):  # the shares of categories are means of terms
            quantiles = tuple(np.quantile(numbers, np.linspace(0, 1, QUANTILES)).tolist())
        if quantiles is not None:
            described = described.model_copy(update={"quantiles": quantiles})
        missing = given.missing
        if missing is None and complete:
            missing = rows - len(values) >= MIN_MISSING * rows > 0
        if complete or not column.is_linear or missing is not None or quantiles is not None:
            bases[name] = described.model_copy(update={"missing": missing})
    return groups.with_bases(bases)


def _range(basis: Basis, numbers: Float, clamp: Clamp) -> tuple[float, float] | None:
    if clamp is None:
        clamp = 0.0 if isinstance(basis, Hinge) else "off"
    if clamp == "off" or not len(numbers):
        return None
    low, high = np.quantile(numbers, [clamp, 1.0 - clamp]).tolist()
    return low, high
