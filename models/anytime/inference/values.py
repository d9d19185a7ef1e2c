"""Validation of the values of one group: any array-like becomes numbers (rows, features), NaN if missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg.blas import dasum

from anytime.errors import ValuesError, listed, summary
from anytime.model.model import Expected
from anytime.types import Float, Policy, Reason

__all__ = ["LARGEST", "Answer", "checked_values"]

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


@dataclass(frozen=True)
class Answer:
    """A prediction and the groups it is based on; every field is JSON-serialisable.

    Attributes
    ----------
    model, version : name and version of the model.
    prediction : a number, a vector (several responses) or a class; a list of them if there are several rows.
    probabilities : for classification, one per class in the model's order; a list per row if there are several rows.
        Least squares on one-hot classes can leave [0, 1]; its outputs are clipped to [0, 1] and scaled to sum to one.
        Probabilities of a likelihood are returned unchanged.
    prefix : number of complete steps used; 0 is the base rate.  steps : number of steps of the model.
    groups : groups used, in sequence order.  cost : their joint cost, in the model's cost unit.
    budget : the requested budget.  complete : whether every step within the budget was used.
    missing : groups of the budget's prefix that were not received.
    imputed : features received as null and replaced by their training means.
    reason : why the answer was made now; None in an update, which is not final.
    policy : the policy that the answer follows; `note` gives the reason if a different one was requested.
    approximate : whether the optimum of the received groups is one Newton step from the nearest prefix, not exact.
    expected : quality of the groups used, measured in training.
    interval : [low, high] if regression or counts are calibrated (several responses: a list of them); a list per row
        if there are several rows. It belongs to the prefix that answered.
    prediction_set : if classes are calibrated, the classes that are likely enough, in the model's order, possibly none;
        a list per row if there are several rows. Like `interval`, None if the groups used do not form a prefix.
    elapsed_ms : milliseconds from begin to answer.
    late_groups : groups received after the deadline and before the answer was made; the policy may use them.
    unused_groups : groups that were computed too late to be used. `Runner` and the client set it; the server does not
        send it.
    replaced : groups received more than once; the last values count.
    ranking : row indices by descending score (of the second of two classes), if requested.
    """

    model: str
    version: str
    prediction: Any
    probabilities: Any
    prefix: int
    steps: int
    groups: tuple[str, ...]
    cost: float
    budget: float | None
    complete: bool
    missing: tuple[str, ...]
    imputed: tuple[str, ...]
    reason: Reason | None
    policy: Policy
    expected: Expected
    interval: list[Any] | None = None
    prediction_set: list[Any] | None = None
    elapsed_ms: float = 0.0
    late_groups: tuple[str, ...] = ()
    unused_groups: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    ranking: list[int] | None = None
    note: str | None = None
    approximate: bool = False
