"""Validation of the values of one group: any array-like becomes numbers (rows, features), NaN if missing."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg.blas import dasum

from anytime.errors import ValuesError, listed, summary
from anytime.types import Float

__all__ = [
    "LARGEST",
    "checked_values",
]

LARGEST = 1e100
"""Largest accepted value: sums of products with coefficients stay finite, so that there is always an answer."""


def checked_values(group: str, features: tuple[str, ...], rows: int | None, values: Any) -> Float:
    """Return the values of `group` as an array (rows, features); None and NaN are missing and become NaN.

    Parameters
    ----------
    rows : expected number of rows; None accepts any number, and a flat list is one row.

    Raises
    ------
    ValuesError
        Not an array, wrong shape, text, or numbers that are infinite or too large.
    """
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of unequal lengths
        raise ValuesError(f"values of group {group!r} are ragged; {_expected(rows or 1, features)}") from error
    except Exception as error:  # a foreign object may raise anything when converted
        raise ValuesError(
            f"values of group {group!r} are not an array ({summary(error)}); {_expected(rows or 1, features)}"
        ) from error
    if array.ndim == 1 and rows in (1, None):
        array = array[np.newaxis, :]
    expected = rows or (len(array) if array.ndim == 2 and len(array) else 1)
    if array.ndim != 2 or array.shape[1] != len(features) or len(array) != expected:
        shape = " x ".join(map(str, array.shape)) or "a single value"
        raise ValuesError(f"values of group {group!r} are {shape}; {_expected(expected, features)}")
    if array.dtype == object:
        if not all(item is None or isinstance(item, (int, float, np.integer, np.floating)) for item in array.flat):
            raise ValuesError(f"values of group {group!r} are not all numbers; {_expected(expected, features)}")
        array = np.array([np.nan if item is None else item for item in array.flat], dtype=object).reshape(array.shape)
    if array.dtype.kind not in "biufO":
        raise ValuesError(f"values of group {group!r} are not numbers; {_expected(expected, features)}")
    if array.dtype != np.float64:
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                array = array.astype(np.float64)
        except OverflowError as error:
            raise ValuesError(f"values of group {group!r} contain a number too large for a float") from error
        except (TypeError, ValueError) as error:
            raise ValuesError(
                f"values of group {group!r} are not all numbers ({summary(error)}); {_expected(expected, features)}"
            ) from error
    # True for nearly all values; false if a value is missing or too large. BLAS does not warn about overflow.
    if not dasum(array.ravel(order="K")) <= LARGEST:
        # Signalling NaNs, which raw bytes may contain, become quiet NaNs.
        array = np.where(np.isnan(array), np.nan, array)
        absurd = np.abs(array) > LARGEST
        if absurd.any():
            named = listed(np.array(features)[absurd.any(axis=0)])
            raise ValuesError(
                f"values of group {group!r} are infinite or beyond {LARGEST:g} in {named}; expected numbers, or null"
            )
    return array


def _expected(rows: int, features: tuple[str, ...]) -> str:
    return f"expected {rows} x {len(features)} numbers (rows x features)"
