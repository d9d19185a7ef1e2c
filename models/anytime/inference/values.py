"""Values as callers have them, reduced to arrays and lists without a change of meaning.

The columns of a frame, of a structured array and of a labelled row are selected by name. A masked element and
`pandas.NA` are missing values. An array or tensor without dimensions is a number. An array with a unit is
refused, since a model knows no units. Decimals and fractions are numbers. Everything else is what `numpy.asarray`
makes of it.
"""

from __future__ import annotations

import reprlib
from array import array
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anytime.errors import ValuesError, listed, summary

_PLAIN = frozenset((float, int, bool, str, type(None)))
"""Types of elements that mean what they are."""

_NUMBERS = "biuf"
ROWS = (list, tuple)
"""Types of a list of values; a tuple, because a union is made again for each value that is compared with it."""

_ACCEPTED = (type(None), int, float, np.integer, np.floating, np.bool_)


class LabelledError(ValuesError):
    """Error: values have names of columns, and the caller did not say which columns the group has."""


def plain_values(group: str, features: Sequence[str] | None, values: Any) -> Any:
    """Return the values of a group as an array, or as a list or a tuple of elements or of rows.

    Parameters
    ----------
    group : str
        Name of the group, for messages.
    features : Sequence[str] | None
        Names of the group's columns in order; None if they are unknown.
    values
        An array, a frame, a list of numbers or of rows, or a single number for a group of one column.

    Raises
    ------
    LabelledError
        The columns of the values have names, and `features` is None.
    ValuesError
        The names of the columns are not those of the group, the array has a unit, or a conversion fails.
    """
    if type(values) is np.ndarray and values.ndim and values.dtype.kind in _NUMBERS:
        return values
    try:
        if type(values) is list or type(values) is tuple:
            return _plain_list(group, features, values)
        if isinstance(values, Decimal | Fraction):
            values = float(values)
        if type(values) in (float, int, bool):
            return [values] if features is None or len(features) == 1 else values
        return _plain_array(group, features, values)
    except ValuesError:
        raise
    except Exception as error:  # the conversion of a foreign object may raise anything
        raise ValuesError(
            f"values of group {group!r} are not an array ({summary(error)}); {_expected(features)}"
        ) from error


class ElementError(ValuesError):
    """Error: an element of a list is not a number; `index` is its place, (row, column) or (column,), from 0."""

    def __init__(self, index: tuple[int, ...], message: str) -> None:
        super().__init__(message)
        self.index = index

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.index, str(self))


def _ragged(group: str, features: Sequence[str]) -> ValuesError:
    return ValuesError(
        f"values of group {group!r} are ragged: rows are of different lengths, or nested too deeply; "
        f"{_expected(features)}"
    )


def numbers_of(group: str, features: Sequence[str], values: Sequence[Any]) -> NDArray[np.float64]:
    """Return a list of numbers, or of rows of numbers, as an array, NaN for None; in a third of the time of numpy.

    Raises
    ------
    ElementError
        An element is neither a number nor None.
    ValuesError
        Rows differ in length, or a number is too large for a float.
    """
    try:
        return np.array(array("d", values))
    except (TypeError, OverflowError):
        nested = bool(values) and isinstance(values[0], list | tuple)
    rows: Sequence[Any] = values if nested else [values]
    if (nested and not all(isinstance(row, ROWS) for row in rows)) or len({*map(len, rows)}) > 1:
        raise _ragged(group, features)
    flat, width = list(chain.from_iterable(rows)), len(rows[0])
    try:
        numbers = np.array(array("d", flat))
    except OverflowError as error:
        raise ValuesError(f"values of group {group!r} contain a number too large for a float") from error
    except TypeError:  # None, or something invalid
        at = next((at for at, each in enumerate(flat) if not isinstance(each, _ACCEPTED)), None)
        if at is not None and isinstance(flat[at], list | tuple):
            raise _ragged(group, features) from None
        if at is not None:
            raise ElementError(
                divmod(at, width) if nested else (at,),
                f"values of group {group!r}: column {features[at % width % len(features)]!r} has "
                f"{reprlib.repr(flat[at])}; expected a number, or null",
            ) from None
        try:
            numbers = np.array(flat, dtype=np.float64)
        except (TypeError, OverflowError) as error:
            raise ValuesError(
                f"values of group {group!r} are not all numbers that fit a float ({summary(error)}); "
                f"{_expected(features)}"
            ) from error
    return numbers.reshape(len(rows), width) if nested else numbers


def _expected(features: Sequence[str] | None) -> str:
    return "expected rows x features" if features is None else f"expected 1 x {len(features)} numbers, or rows of them"


def _plain_list(group: str, features: Sequence[str] | None, values: Sequence[Any]) -> Sequence[Any]:
    """Return a list whose elements, or the elements of its rows, are numbers, text, None, or something invalid."""
    kinds = set(map(type, values))
    if kinds <= _PLAIN or (kinds <= {list, tuple} and set(map(type, chain.from_iterable(values))) <= _PLAIN):
        return values
    return [_row(group, features, each) for each in values]


def _row(group: str, features: Sequence[str] | None, values: Any) -> Any:
    if type(values) is list or type(values) is tuple:
        return [each if type(each) in (*_PLAIN, list, tuple) else _element(each) for each in values]
    plain = _element(values)
    if plain is not values or type(values) in _PLAIN:
        return plain
    plain = plain_values(group, features, values) if _is_array(values) else values
    return plain.tolist() if isinstance(plain, np.ndarray) else plain


def _element(value: Any) -> Any:
    """Return an element as a number, text or None; return anything else unchanged."""
    if value is np.ma.masked or _is_na(value):
        return None
    if type(value) in _PLAIN or isinstance(value, str | bytes):
        return str(value) if isinstance(value, np.str_) else value
    if isinstance(value, Decimal | Fraction):  # as databases return numbers
        return float(value)
    if getattr(value, "shape", None) == () and _labels(value) is None:
        single = _unmasked(_as_array(value))
        return single.item() if single.dtype.kind in _NUMBERS + "OU" else value
    return value


def _is_na(value: Any) -> bool:
    """Return whether a value is `pandas.NA` or `pandas.NaT`, which are equal to nothing and have no value."""
    return type(value).__name__ in ("NAType", "NaTType")


def _is_array(values: Any) -> bool:
    return any(hasattr(values, name) for name in ("__array__", "__dlpack__", "__array_interface__")) or is_labelled(
        values
    )


def _plain_array(group: str, features: Sequence[str] | None, values: Any) -> Any:
    labels = _labels(values)
    if labels is not None:
        if features is None:
            raise LabelledError(f"values of group {group!r} have the columns {listed(list(map(str, labels)))}")
        values = _by_name(group, features, labels, values)
    elif _is_na(values):
        values = np.array(None)
    else:
        if not isinstance(values, np.ndarray) and isinstance(values, Sequence) and not isinstance(values, str | bytes):
            return _plain_list(group, features, list(values))
        for unit in ("unit", "units"):
            if hasattr(values, "__array__") and getattr(values, unit, None) is not None:
                raise ValuesError(
                    f"values of group {group!r} have the unit {getattr(values, unit)}; expected plain numbers: convert "
                    "them to the unit of the training table first"
                )
        if values is np.ma.masked:
            return np.array([np.nan])
        values = _unmasked(_as_array(values))
    if values.dtype == object and values.ndim:
        return _plain_list(group, features, values.tolist())
    single = not values.ndim and values.dtype.kind in _NUMBERS
    return values.reshape(1) if single and (features is None or len(features) == 1) else values


def _as_array(values: Any) -> NDArray[Any]:
    """Return values as an array or a masked array; tensors that only exchange their memory (DLPack) too."""
    if isinstance(values, np.ma.MaskedArray):
        return values
    if hasattr(values, "mask") and callable(getattr(values, "filled", None)):  # masked arrays of other libraries
        return np.asarray(values.filled(np.nan))
    if hasattr(values, "__dlpack__") and not hasattr(values, "__array__"):
        return np.asarray(np.from_dlpack(values))
    array = np.asarray(values)
    # Dates become those of Python, None where missing: NumPy's own become whole numbers of any unit among objects.
    return array.astype("M8[us]").astype(object) if array.dtype.kind == "M" else array


def _unmasked(values: NDArray[Any]) -> NDArray[Any]:
    """Return a masked array as an array with NaN, or None among text and objects, where it is masked."""
    if not isinstance(values, np.ma.MaskedArray):
        return values
    mask, filled = np.ma.getmaskarray(values), np.array(values.data)
    if mask.any():
        is_number = filled.dtype.kind in _NUMBERS
        if filled.dtype.kind != "f":
            filled = filled.astype(np.float64 if is_number else object)
        filled[mask] = np.nan if is_number else None
    return filled


def is_labelled(values: Any) -> bool:
    """Return whether the columns of values have names."""
    return _labels(values) is not None


def _labels(values: Any) -> list[Any] | None:
    """Return the names of the columns of a frame, a structured array or a labelled row; None if they have none."""
    if isinstance(values, np.ndarray | np.generic):
        return None if values.dtype.names is None else list(values.dtype.names)
    dims = getattr(values, "dims", None)
    if isinstance(dims, tuple) and dims and hasattr(values, "coords"):  # an array of xarray
        return list(np.asarray(values.coords[dims[-1]])) if dims[-1] in values.coords else None
    for name in ("column_names", "columns", "index"):
        labels = getattr(values, name, None)
        if labels is not None and not callable(labels):
            return list(labels)
    return None


def _by_name(group: str, features: Sequence[str], labels: list[Any], values: Any) -> NDArray[Any]:
    """Return labelled values in the order of the features: (rows, features), or (features,) for a labelled row."""
    is_row = not isinstance(values, np.ndarray | np.generic) and not any(
        hasattr(values, name) for name in ("column_names", "columns")
    )
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
        return _unmasked(_as_array(values))[..., places]
    columns = [_column(values, labels[place]) for place in places]
    if any(column.shape != columns[0].shape for column in columns) or columns[0].ndim > 1:
        raise ValuesError(f"values of group {group!r} have columns of different shapes; expected one value per row")
    if any(column.dtype.kind not in "iuf" for column in columns):  # one type for all would change booleans and text
        columns = [column.astype(object) for column in columns]
    return np.stack(columns, axis=-1)


def _column(values: Any, label: Any) -> NDArray[Any]:
    column: NDArray[Any] = _unmasked(_as_array(values[label]))
    if column.dtype.kind == "O" and not column.ndim:
        return np.array(_element(column.item()), dtype=object)
    return column
