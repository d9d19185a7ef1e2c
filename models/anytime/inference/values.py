"""The values of a group: what is accepted, what it means, and what is refused; the only module that decides it.

Every way to a prediction passes its values here: `Prediction.add`, extractors, and all messages of the service. The
client reduces containers by `plain_values` before it sends them. The columns of a table are read by `anytime.data`,
with the same readers of levels and dates, and pass the last step here. Values become numbers (rows, features) in three
steps:

1. Containers become arrays of numbers, or lists (`plain_values`). The columns of a frame, of a structured array and of
   a labelled row are selected by name. A masked element and `pandas.NA` are missing values. Decimals, fractions, and
   arrays or tensors without dimensions are numbers. An array with a unit is refused, since a model knows no units.
2. Elements become numbers (`numbers_of`): None and NaN are missing; a level is its index, and a date is seconds. Text
   is never a number. A flat list is one row.
3. Infinities, and numbers beyond `LARGEST`, are refused, as are indices of no level.
"""

from __future__ import annotations

import reprlib
import struct
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dasum

from anytime.errors import ValuesError, listed, summary
from anytime.features.readers import Reader
from anytime.model.model import Model, RowLayout
from anytime.types import Float

LARGEST = 1e100
"""Largest accepted value: sums of products with coefficients stay finite, so that there is always an answer."""

MAX_COPIED = 2**13
"""Numbers that BLAS may copy."""

_PLAIN = frozenset((float, int, bool, str, type(None)))
"""Types of elements that mean what they are."""

_NUMERIC = "biuf"
"""Kinds of arrays of numbers."""

_NUMBERS = (type(None), int, float, np.floating)
"""Types of numbers among plain elements; long doubles of numpy have no type in Python."""

_SCALARS = frozenset(np.dtype(code).type for code in "?bhilqBHILQefdg")
"""Types of numbers of numpy."""

_ROWS = (list, tuple)


class LabelledError(ValuesError):
    """Error: values have names of columns, and the caller did not say which columns the group has."""


class ElementError(ValuesError):
    """Error: an element of a list is invalid; `index` is its place, (row, column) or (column,), from 0."""

    index: tuple[int, ...] = ()


def _refused(
    group: str, features: Sequence[str] | None, rows: int | None, what: str, *, flat: bool = False
) -> ValuesError:
    expected = "rows x features" + ", nested or flat" * flat
    if features is not None:
        expected = f"{rows or 1} x {len(features)} values ({expected})"
    return ValuesError(f"values of group {group!r} are {what}; expected {expected}")


# Containers


def plain_values(
    group: str, features: Sequence[str] | None, values: Any, rows: int | None = None
) -> NDArray[Any] | Sequence[Any]:
    """Return the values of a group as an array of numbers, or as a list or a tuple of elements or of rows.

    Parameters
    ----------
    group : str
        Name of the group, for messages.
    features : Sequence[str] | None
        Names of the group's columns in order; None if they are unknown.
    values
        An array, a frame, a list of numbers or of rows, or a single number for a group of one column.
    rows : int | None
        Number of rows, for messages.

    Raises
    ------
    LabelledError
        The columns of the values have names, and `features` is None.
    ValuesError
        The names of the columns are not those of the group, the array has a unit, a conversion fails, or the values
        are a single one of several columns.
    """
    if type(values) is np.ndarray and values.ndim and values.dtype.kind in _NUMERIC:
        return values
    if type(values) is list or type(values) is tuple:
        kinds = set(map(type, values))
        if kinds <= _PLAIN or (kinds <= {list, tuple} and set(map(type, chain.from_iterable(values))) <= _PLAIN):
            return values
    try:
        plain = _plain(group, features, values)
    except ValuesError:
        raise
    except Exception as error:  # the conversion of a foreign object may raise anything
        raise _refused(group, features, rows, f"not an array ({summary(error)})") from error
    if isinstance(plain, np.ndarray | list):
        return plain
    is_number = isinstance(plain, _NUMBERS[1:]) or (plain is None and values is not None)  # missing, but not forgotten
    if not is_number or (features is not None and len(features) > 1):
        raise _refused(group, features, rows, f"a single value, {reprlib.repr(plain)}")
    return [plain]


def _plain(group: str, features: Sequence[str] | None, value: Any, depth: int = 0) -> Any:
    """Return an array of numbers, or lists at most two deep of numbers, text, None, or something invalid."""
    if type(value) in _PLAIN or isinstance(value, bytes):
        return value
    if type(value) in _SCALARS:
        return value.item()
    if value is np.ma.masked or type(value).__name__ in ("NAType", "NaTType"):  # of pandas: they are equal to nothing
        return None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Decimal | Fraction):  # as databases return numbers
        return float(value)
    labels = labels_of(value)
    if labels is not None:
        found = _by_name(group, features, *labels, value)
    elif isinstance(value, Sequence):
        if depth > 1 or (type(value) in _ROWS and set(map(type, value)) <= _PLAIN):
            return value
        parts = value.tolist() if isinstance(value, array) else [_plain(group, features, v, depth + 1) for v in value]
        return [each.tolist() if isinstance(each, np.ndarray) else each for each in parts]
    elif not any(hasattr(value, name) for name in ("__array__", "__dlpack__", "__array_interface__")):
        return value
    else:
        units = [unit for name in ("unit", "units") if (unit := getattr(value, name, None)) is not None]
        if units and hasattr(value, "__array__"):
            raise ValuesError(
                f"values of group {group!r} have the unit {units[0]}; expected plain numbers: convert them to the unit "
                "of the training table first"
            )
        found = _array(value)
    if found.dtype.kind in _NUMERIC:
        return found if found.ndim else found.item()
    return _plain(group, features, found.tolist(), depth)


def _array(values: Any) -> NDArray[Any]:
    """Return an array or tensor of any library as an array, NaN or None where it is masked."""
    if not isinstance(values, np.ma.MaskedArray) and hasattr(values, "mask") and callable(getattr(values, "filled", 0)):
        return np.asarray(values.filled(np.nan))  # of another library
    if hasattr(values, "__dlpack__") and not hasattr(values, "__array__"):
        return np.asarray(np.from_dlpack(values))
    found = np.asarray(values)
    # Dates become those of Python, None where missing: NumPy's own become whole numbers of any unit among objects.
    if found.dtype.kind in "mM":
        found = found.astype(f"{found.dtype.kind}8[us]").astype(object)
    if isinstance(values, np.ma.MaskedArray) and (mask := np.ma.getmaskarray(values)).any():
        missing: Any = np.nan if found.dtype.kind in _NUMERIC else None
        return np.where(mask, missing, found)
    return found


def labels_of(values: Any) -> tuple[list[Any], bool] | None:
    """Return the names of the columns of a frame, a structured array or a labelled row; None if they have none.

    The second result is whether the values are a labelled row.
    """
    if isinstance(values, np.ndarray | np.generic):
        return None if values.dtype.names is None else (list(values.dtype.names), False)
    dims = getattr(values, "dims", None)
    if isinstance(dims, tuple) and dims and hasattr(values, "coords"):  # an array of xarray
        return (list(np.asarray(values.coords[dims[-1]])), True) if dims[-1] in values.coords else None
    for name in ("column_names", "columns", "index"):
        labels = getattr(values, name, None)
        if labels is not None and not callable(labels):
            return list(labels), name == "index"
    return None


def _by_name(group: str, features: Sequence[str] | None, labels: list[Any], is_row: bool, values: Any) -> NDArray[Any]:
    """Return labelled values in the order of the features: (rows, features), or (features,) for a labelled row."""
    if features is None:
        raise LabelledError(f"values of group {group!r} have the columns {listed(labels)}")
    names = [str(label) for label in labels]
    counts = Counter(names)
    if any(counts[name] != 1 for name in features):  # columns of other groups are ignored
        # Labels that pandas counts itself are no names; neither are the row numbers of a single column.
        counted = labels == list(range(len(labels))) or (is_row and len(features) == len(labels) == 1)
        if not counted or any(isinstance(label, str) for label in labels):
            raise ValuesError(
                f"values of group {group!r} have the columns {listed(names)}; expected {listed(features)}, each once, "
                "or an array without names in this order"
            )
        names = list(features)
    places = [names.index(name) for name in features]
    if is_row:
        return _array(values)[..., places]
    columns = [_array(values[labels[place]]) for place in places]
    if any(column.shape != columns[0].shape for column in columns) or columns[0].ndim > 1:
        raise ValuesError(f"values of group {group!r} have columns of different shapes; expected one value per row")
    if any(column.dtype.kind not in "iuf" for column in columns):  # one type for all would change booleans and text
        columns = [column.astype(object) for column in columns]
    return np.stack(columns, axis=-1)


# Numbers


def numbers_of(
    group: str,
    features: Sequence[str],
    readers: Mapping[int, Reader],
    values: Any,
    rows: int | None = None,
    *,
    coded: bool = False,
    flat: bool = False,
) -> Float:
    """Return values as numbers (rows, features): levels as their index, dates as seconds, NaN if missing.

    Parameters
    ----------
    readers : Mapping[int, Reader]
        How the columns are read that are not numbers, by their index.
    rows : int | None
        Number of rows; None accepts any, and a flat list as one row.
    coded : bool
        Whether the values are an array in which levels are indices already, -1 for other levels.
    flat : bool
        Whether a flat list may have the values of all `rows`.

    Raises
    ------
    ElementError
        An element of a list is neither missing nor of its column's type; the message names the column.
    ValuesError
        Anything else is invalid.
    """
    plain, reading = plain_values(group, features, values, rows), {} if coded else readers
    if isinstance(plain, np.ndarray) and not reading:
        numbers = plain[np.newaxis] if plain.ndim == 1 else plain
    else:
        lists = plain.tolist() if isinstance(plain, np.ndarray) else plain
        numbers = _of_lists(group, features, reading, lists, rows, flat=flat)
    _check_shape(group, features, rows, numbers.shape)
    if numbers.dtype != np.float64:
        with np.errstate(over="ignore", invalid="ignore"):
            numbers = numbers.astype(np.float64)
    # The sum of all is cheap, and small for nearly all values: not if one is missing or too large. BLAS copies an array
    # that is not aligned, as received bytes are: a large one would take its size in memory.
    cells = numbers.ravel(order="K")
    is_summed = cells.size < MAX_COPIED or cells.flags.aligned
    if not (dasum(cells) if is_summed else max(cells.max(), -cells.min())) <= LARGEST:
        # Signalling NaNs, which raw bytes may contain, become quiet NaNs.
        numbers = np.where(np.isnan(numbers), np.nan, numbers)
        absurd = np.abs(numbers) > LARGEST
        if absurd.any():
            raise ValuesError(
                f"values of group {group!r} are infinite or beyond {LARGEST:g} in "
                f"{listed(np.array(features)[absurd.any(axis=0)])}; expected numbers, or null"
            )
    for j, reader in readers.items() if coded else ():
        if (wrong := reader.invalid(numbers[:, j])) is not None:
            raise ValuesError(
                f"values of group {group!r}: column {features[j]!r} has {wrong[0]:g}; expected {wrong[1]}"
            )
    return numbers


def _check_shape(
    group: str, features: Sequence[str], rows: int | None, shape: tuple[int, ...], *, flat: bool = False
) -> None:
    rows = rows or shape[0] or 1
    if shape != (rows, len(features)):
        raise _refused(group, features, rows, " x ".join(map(str, shape)), flat=flat)


def _of_lists(
    group: str,
    features: Sequence[str],
    readers: Mapping[int, Reader],
    values: Sequence[Any],
    rows: int | None,
    *,
    flat: bool,
) -> Float:
    """Return plain lists as numbers (rows, columns); one flat row of numbers may have any length."""
    if not (readers or flat):
        try:  # in a third of the time of numpy
            return np.array(array("d", values))[np.newaxis]
        except (TypeError, OverflowError):
            pass  # rows, None, or something invalid
    # By type: an element takes 50 ns by itself.
    are_rows = {issubclass(each, _ROWS) for each in set(map(type, values))}
    nested = are_rows == {True}
    table, width = values if nested else [values], len(features)
    widths, cells = {*map(len, table)}, list(chain.from_iterable(table))
    kinds = set(map(type, cells))
    if len(are_rows) > 1 or len(widths) > 1 or not kinds.isdisjoint(_ROWS):
        raise _refused(group, features, rows, "ragged: rows are of different lengths, or nested too deeply")
    shape = (rows or 1, width) if flat and not nested and len(cells) == (rows or 1) * width else (len(table), *widths)
    _check_shape(group, features, rows, shape, flat=flat)

    def wrong(at: int, expected: str) -> ElementError:
        column, shown = features[at % width], reprlib.repr(cells[at])
        error = ElementError(f"values of group {group!r}: column {column!r} has {shown}; expected {expected}, or null")
        error.index = divmod(at, width) if nested else (at,)
        return error

    for j, reader in readers.items():
        for at in range(j, len(cells), width):
            if not reader.accepts(cells[at]):
                raise wrong(at, reader.holds)
        cells[j::width] = reader.coded(cells[j::width]).tolist()
    if readers:
        kinds = set(map(type, cells))
    invalid = {each for each in kinds if not issubclass(each, _NUMBERS)}
    if invalid:
        raise wrong([type(cell) in invalid for cell in cells].index(True), "a number")
    try:
        numbers = np.array(cells if type(None) in kinds else array("d", cells), dtype=np.float64)
    except (TypeError, OverflowError) as error:
        raise _refused(group, features, rows, f"not all numbers that fit a float ({summary(error)})") from error
    return numbers.reshape(shape)


# One row of several groups


@dataclass(eq=False)
class CheckedRow(Mapping[str, Float]):
    """Values (1, features) of several groups, all of them numbers and none missing; `numbers` are all of them, flat."""

    layout: RowLayout
    numbers: Float

    def __getitem__(self, group: str) -> Float:
        return self.numbers[np.newaxis, self.layout.slices[group]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.slices)

    def __len__(self) -> int:
        return len(self.layout.slices)


def checked_row(model: Model, values: Mapping[str, Any]) -> CheckedRow | None:
    """Return one row of several groups of numbers, in a fraction of the time that `numbers_of` takes for each.

    None if there is no group, or one whose list is not that simple: unknown, of categories, of a wrong length, with a
    missing or a large value. `numbers_of` accepts or refuses it.
    """
    layout = model.row_layout(tuple(values))
    try:
        if layout is None or [*map(len, values.values())] != layout.widths:
            return None
        numbers = np.frombuffer(struct.pack(layout.format, *chain.from_iterable(values.values())))
    except (TypeError, OverflowError, struct.error):
        return None
    return CheckedRow(layout, numbers) if dasum(numbers) <= LARGEST else None
