"""Values of groups on the wire: lists, and the one type of tensors that every binding reads.

A decoded list stays a list: the prediction converts and checks it, once. A `Tensor` is all that is known of values
before they are read: to which columns they belong, their datatype, and their rows. Packed values of MessagePack and the
inputs of the Open Inference Protocol are tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy as np

from anytime.errors import ValuesError
from anytime.inference.values import numbers_of
from anytime.model.model import GroupPosition
from anytime_service.errors import FieldError

Array: TypeAlias = np.ndarray[Any, Any]
Value: TypeAlias = float | bool | str | None
Values: TypeAlias = list[Value | list[Value]]
"""Values of one group: (rows, features) as nested lists, or a flat list for one row; null for a missing value.

Text is a level of a text column. Packed values contain the index of the level instead, and so do arrays.
"""

VALUES_SCHEMA = msgspec.Meta(extra_json_schema=msgspec.json.schema(Values))
"""Schema of values that are decoded after the rest of their message."""

DATATYPES: Mapping[str, np.dtype[Any]] = {
    "FP64": np.dtype("<f8"),
    "FP32": np.dtype("<f4"),
    "FP16": np.dtype("<f2"),
    **{
        f"{sign}{bits}": np.dtype(f"<{sign[0].lower()}{bits // 8}")
        for sign in ("INT", "UINT")
        for bits in (8, 16, 32, 64)
    },
    "BOOL": np.dtype("u1"),
}
"""Datatypes of inputs, and the NumPy types of their bytes."""

TEXT = "BYTES"  # datatype of text


def of_field(field: str, error: ValuesError) -> FieldError:
    """Return an error about the values in a field of a request, with the place of the invalid element, if known."""
    return FieldError(field + "".join(f"[{number}]" for number in getattr(error, "index", ())), str(error))


def check_rows(rows: int | None, most: int, field: str = "rows") -> None:
    """Raise FieldError if there are more rows than a prediction may have; None is not known yet."""
    if rows is not None and not 1 <= rows <= most:
        raise FieldError(field, f"there are {rows} rows; expected 1 to {most}; use several predictions for more rows")


def count_rows(values: Any) -> int:
    """Return the number of rows of received values; 1 for a flat list, and for bytes, whose width is unknown."""
    is_nested = isinstance(values, list | np.ndarray) and len(values) and isinstance(values[0], list | np.ndarray)
    return len(values) if is_nested else 1


@dataclass(frozen=True, slots=True)
class Tensor:
    """Columns of a group, checked against the model except for their values.

    `name` is what the request calls it, and `field` its place there, for errors. `columns` are the indices of its
    columns in the group. No encoding of a protocol is part of it, so every binding can use it: it passes the bytes or
    the list that it has received.
    """

    field: str
    name: str
    group: str
    position: GroupPosition
    columns: Sequence[int]
    datatype: str
    rows: int

    @property
    def nbytes(self) -> int | None:
        """Number of its bytes; None if that depends on its values."""
        return None if self.datatype == TEXT else self.rows * len(self.columns) * DATATYPES[self.datatype].itemsize

    def array(self, values: Any) -> Array:
        """Return values (rows, columns), NaN where missing; a category is the index of its level.

        The values are bytes of the datatype, or a list, flat or nested. Raise FieldError if a value is invalid, or not
        in the range of the datatype, or if there are not as many as the shape has.
        """
        in_bytes, is_text = isinstance(values, bytes), self.datatype == TEXT
        if in_bytes:
            values = [*self._texts(values)] if is_text else self._numbers(values)
        features, readers = [self.position.features[j] for j in self.columns], self.position.expansion.readers
        own = {i: readers[j] for i, j in enumerate(self.columns) if j in readers}
        checked = partial(numbers_of, self.group, features, rows=self.rows, flat=True)
        try:
            if is_text:
                return checked(own, values)
            numbers = checked({}, values)
            if self.datatype == "BOOL" or (not in_bytes and DATATYPES[self.datatype].kind != "f"):
                self._check_range(numbers[~np.isnan(numbers)])
            # Places in errors are those of the data.
            return checked(own, numbers if isinstance(values[0], list) else numbers.ravel()) if own else numbers
        except ValuesError as error:
            if in_bytes:
                raise FieldError(f"{self.field}.data", str(error)) from error
            raise of_field(f"{self.field}.data", error) from error

    def coded(self, content: bytes | memoryview) -> Array:
        """Return bytes as an array (rows, columns) in which a category is the index of its level already.

        A client has the indices of the sorted levels, see `ModelColumn`; the model's are in the order of frequency.
        """
        array = self._numbers(content)
        for j, categories in self.position.expansion.categories.items():
            order = sorted(range(len(categories.labels)), key=categories.labels.__getitem__)
            codes = array[:, j]
            known = np.isin(codes, np.arange(len(order)))
            array = array if array.flags.writeable else array.copy()
            array[known, j] = np.array(order)[codes[known].astype(np.intp)]
        return array

    def _numbers(self, content: bytes | memoryview) -> Array:
        return np.frombuffer(content, DATATYPES[self.datatype]).reshape(self.rows, len(self.columns))

    def _texts(self, content: bytes) -> Iterator[str | None]:
        """Yield the texts of the bytes after the JSON, as many as there are rows."""
        empty = None if "" not in self.position.expansion.categories[self.columns[0]].labels else ""
        at = 0
        for number in range(self.rows):
            length = int.from_bytes(content[at : at + 4], "little")
            text, at = content[at + 4 : at + 4 + length], at + 4 + length
            if at > len(content):
                break
            try:
                yield text.decode() or empty
            except UnicodeDecodeError as error:
                raise FieldError(f"{self.field}.data", f"text {number} of input {self.name!r} is not UTF-8") from error
        if at != len(content):
            raise FieldError(
                f"{self.field}.parameters.binary_data_size",
                f"the {len(content)} bytes of input {self.name!r} are not {self.rows} texts; expected each text after "
                "its length in 4 bytes, little-endian",
            )

    def _check_range(self, array: Array) -> None:
        limits = np.iinfo(DATATYPES[self.datatype])
        low, high = (0, 1) if self.datatype == "BOOL" else (limits.min, limits.max)
        wrong = array[(array < low) | (array >= high + 1) | (array != np.trunc(array))]
        if wrong.size:
            raise ValuesError(
                f"{self.field}.data has {wrong[0]:g}; expected {self.datatype} values, whole numbers from {low} to "
                f"{high}"
            )
