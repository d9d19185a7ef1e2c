"""Values of one group on the wire: lists of numbers, or numbers packed as bytes.

A decoded list stays a list: the prediction converts and checks it, once. Before a message is decoded, its size is
checked: decoding and converting a list takes about 0.05 us a number, and a number in JSON takes as little as two bytes.
Lists therefore hold at most `max_json_values` values a message, counted by their commas, so that one message occupies
the event loop for about 3 ms; larger values are packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np

from anytime.errors import ValuesError
from anytime.model.model import Model
from anytime_service.errors import FieldError
from anytime_service.limits.table import FIELDS, NAME_LENGTH, NAMES
from anytime_service.limits.turns import AT_ONCE
from anytime_service.schemas.codecs import JSON, Content, Form, too_large

_NUMBER_BYTES = 9  # maximum bytes of a number in MessagePack

Array: TypeAlias = np.ndarray[Any, Any]
Value: TypeAlias = float | bool | str | None
Values: TypeAlias = list[Value | list[Value]]
"""Values of one group: (rows, features) as nested lists, or a flat list for one row; null for a missing value.

Text is a level of a text column. Packed values contain the index of the level instead, and so do arrays.
"""

VALUES_SCHEMA = msgspec.Meta(extra_json_schema=msgspec.json.schema(Values))
"""Schema of values that are decoded after the rest of their message."""

GroupName: TypeAlias = Annotated[str, msgspec.Meta(max_length=int(NAME_LENGTH))]
MANY = msgspec.Meta(max_length=int(NAMES))  # of the groups in a message

Dtype: TypeAlias = Literal["f4", "f8"]  # Little-endian floats of 4 or 8 bytes


class Packed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of one group packed row after row, little-endian; NaN for a missing value. Only in MessagePack."""

    dtype: Dtype
    values: memoryview  # of the message, without a copy


@dataclass(frozen=True)
class ListLimits:
    """Limits of a message whose values are lists: its bytes, and the values in JSON."""

    size: int
    values: int

    @cached_property
    def listed(self) -> int:
        """Largest number of bytes of a message in MessagePack with lists: as many numbers as JSON may have fit."""
        return min(self.size, self.values * _NUMBER_BYTES)

    @cached_property
    def short(self) -> int:
        """Largest number of bytes of a message in JSON that no limit concerns."""
        return min(AT_ONCE, self.size, self.values)

    def must_be_packed(self, form: Form, content: Content | str, what: str = "the message") -> bool:
        """Return whether the values of a message must be packed, because of its size.

        Raise BodyTooLargeError for JSON, which has no packed values.
        """
        size = len(content)
        if form is not JSON:
            return size > self.listed
        if size > self.size:
            raise too_large(f"{what} has {size} bytes of JSON", self.size)
        if size > min(self.values, int(FIELDS)):  # fewer bytes than values
            # A field takes as long as five numbers.
            parts = ((",", 1, self.values, "values in lists of JSON"), (":", 0, int(FIELDS), "colons in JSON"))
            for sign, more, most, name in parts:
                count = content.count(sign) if isinstance(content, str) else content.count(sign.encode())
                if count + more > most:
                    raise too_large(f"{what} has {count + more} {name}", most)
        return False


def of_field(field: str, error: ValuesError) -> FieldError:
    """Return an error about the values in a field of a request, with the place of the invalid element, if known."""
    return FieldError(field + "".join(f"[{number}]" for number in getattr(error, "index", ())), str(error))


def check_rows(rows: int | None, most: int, field: str = "rows") -> None:
    """Raise FieldError if there are more rows than a prediction may have; None is not known yet."""
    if rows is not None and not 1 <= rows <= most:
        raise FieldError(field, f"there are {rows} rows; expected 1 to {most}; use several predictions for more rows")


def received_values(model: Model, group: str, values: Any, dtype: Dtype | None, max_rows: int) -> Values | Array:
    """Return the decoded values of a group for a prediction: lists unchanged, packed values as an array.

    Raise FieldError if lists have a dtype, bytes do not make complete rows, or there are too many rows.
    """
    if type(values) is list and dtype is None and not (values and type(values[0]) is list):
        return values  # one row
    if isinstance(values, Packed):
        values, dtype = values.values, values.dtype
    if isinstance(values, memoryview | bytes):
        values = _unpacked(model, group, values, dtype)
    elif dtype is not None:
        raise FieldError(
            "dtype", f"values of group {group!r} are lists and have no dtype; omit dtype, or pack the values"
        )
    check_rows(count_rows(values), max_rows)
    received: Values | Array = values
    return received


def count_rows(values: Any) -> int:
    """Return the number of rows of received values; 1 for a flat list, and for bytes, whose width is unknown."""
    is_nested = isinstance(values, list | np.ndarray) and len(values) and isinstance(values[0], list | np.ndarray)
    return len(values) if is_nested else 1


def _unpacked(model: Model, group: str, values: memoryview | bytes, dtype: Dtype | None) -> Array:
    if dtype is None:
        raise FieldError("dtype", f"values of group {group!r} are bytes without a dtype; expected dtype 'f4' or 'f8'")
    place = model.places.get(group)
    width = 1 if place is None else len(place.features)  # the prediction rejects an unknown group
    size = width * int(dtype[1])
    if len(values) % size:
        raise FieldError(
            f"groups.{group}",
            f"values of group {group!r} are {len(values)} bytes; expected rows of {width} x {dtype}, {size} bytes each",
        )
    array = np.frombuffer(values, dtype=f"<{dtype}").reshape(-1, width)
    for j, categories in () if place is None else place.expansion.categories.items():
        # A client has the indices of the sorted levels, see `ModelColumn`; the model's are in the order of frequency.
        order = sorted(range(len(categories.labels)), key=categories.labels.__getitem__)
        codes = array[:, j]
        known = np.isin(codes, np.arange(len(order)))
        array = array if array.flags.writeable else array.copy()
        array[known, j] = np.array(order)[codes[known].astype(np.intp)]
    return array
