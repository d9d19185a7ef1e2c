"""Values of one group on the wire: lists of numbers, or numbers packed as bytes."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from anytime.model.model import Model
from anytime_service.errors import FieldError

__all__ = ["Dtype", "Packed", "Values", "array_of"]

Number: TypeAlias = float | bool | None
Values: TypeAlias = list[Number | list[Number]]
"""Values of one group: (rows, features) as nested lists, or a flat list for one row; null where one is missing."""

Dtype: TypeAlias = Literal["f4", "f8"]
"""Little-endian floats of 4 or 8 bytes."""


class Packed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of one group packed row after row, little-endian; NaN where one is missing. In MessagePack only."""

    dtype: Dtype
    values: bytes


def array_of(
    model: Model, group: str, values: Values | bytes, dtype: Dtype | None, max_rows: int
) -> np.ndarray[Any, Any]:
    """Values as an array, (rows, features) or flat, of a float type.

    Raises
    ------
    FieldError
        Ragged lists, bytes that are no whole number of rows, or too many rows.
    """
    if isinstance(values, bytes):
        array = _unpacked(model, group, values, dtype)
    elif dtype is not None:
        raise FieldError("dtype", f"values of group {group!r} are lists and have no dtype; leave it out, or pack them")
    else:
        try:
            array = np.array(values, dtype=np.float64)
        except ValueError as error:
            raise FieldError(
                f"groups.{group}", f"values of group {group!r} are ragged; every row has as many as the group features"
            ) from error
    if len(array) > max_rows and array.ndim > 1:
        raise FieldError("rows", f"there are {len(array)} rows; expected at most {max_rows}, in several predictions")
    return array


def _unpacked(model: Model, group: str, values: bytes, dtype: Dtype | None) -> np.ndarray[Any, Any]:
    if dtype is None:
        raise FieldError("dtype", f"values of group {group!r} are bytes without a dtype; expected 'f4' or 'f8' beside")
    place = model.places.get(group)
    width = 1 if place is None else place.stop - place.start  # an unknown group is refused by the prediction
    size = width * int(dtype[1])
    if len(values) % size:
        raise FieldError(
            f"groups.{group}",
            f"values of group {group!r} are {len(values)} bytes; expected rows of {width} x {dtype}, {size} bytes each",
        )
    return np.frombuffer(values, dtype=f"<{dtype}").reshape(-1, width)
