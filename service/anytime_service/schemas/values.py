"""Values of one group on the wire: lists of numbers, or numbers packed as bytes.

Long lists of values, converted piece by piece, so that the event loop serves others in between.

Converting a list takes about 0.2 us a number, and JSON has a number in two bytes: a megabyte that is converted at once
stops the loop for 100 ms. So a long list is cut where a row or a number ends. A piece is decoded and becomes an array,
and after `PAUSE_MS` of work the loop has its turn. A decoder's pass over the whole text, to find where the values are,
is one call and remains; `max_json_bytes` bounds it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from anytime.model.model import Model
from anytime_service.clock import now_ms
from anytime_service.errors import FieldError, MalformedBodyError
from anytime_service.schemas.codecs import JSON, MSGPACK, Form, located, of_group

__all__ = [
    "AT_ONCE",
    "PAUSE_MS",
    "Dtype",
    "Packed",
    "Pauses",
    "UnevenRowsError",
    "Values",
    "array_of",
    "is_long",
    "long_array",
    "long_array_of",
    "malformed",
]

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


AT_ONCE = 16 * 1024
"""Bytes of a list, or of a message that may have one, that are converted without a pause."""

PAUSE_MS = 0.5
"""Work after which the loop has its turn."""

_NUMBER_BYTES = 9
"""Most bytes that a number has in MessagePack."""

_ROW_END = re.compile(rb"\]\s*,")
_PLACE = re.compile(r"\[(\d+)\](.*)", re.DOTALL)
_RAW_ROWS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_LISTS: dict[str, Any] = {JSON.name: msgspec.json.Decoder(Values), MSGPACK.name: msgspec.msgpack.Decoder(Values)}


class UnevenRowsError(ValueError):
    """Rows have different numbers of values, or more than a row may have."""


class Pauses:
    """Turns for the rest of the loop during long work."""

    def __init__(self) -> None:
        self._begun_ms = now_ms()

    async def pause(self) -> None:
        """Let the loop have its turn, if the work since the last turn took `PAUSE_MS`."""
        if now_ms() - self._begun_ms > PAUSE_MS:
            await asyncio.sleep(0)
            self._begun_ms = now_ms()


def is_long(form: Form, content: memoryview) -> bool:
    """Whether values are lists that take long to convert; packed values never do."""
    return content.nbytes > AT_ONCE and (form is JSON or _head(content[:5])[1] > 0)


async def long_array_of(
    form: Form, model: Model, group: str, content: bytes, max_rows: int, pauses: Pauses
) -> np.ndarray[Any, Any]:
    """Convert long values of a group, see `long_array`; the number of rows is checked before any is decoded.

    Raises
    ------
    msgspec.ValidationError
        Something is not a number.
    FieldError
        Too many rows, or uneven ones.
    """
    place = model.places.get(group)
    if place is None:
        return np.empty(0)  # the prediction refuses the group by its name
    rows = _count_rows(form, content)
    if rows > max_rows:
        raise FieldError("rows", f"there are {rows} rows; expected at most {max_rows}, in several predictions")
    width = place.stop - place.start
    try:
        return await long_array(form, content, width, pauses)
    except UnevenRowsError as error:
        raise FieldError(
            f"groups.{group}", f"values of group {group!r} are ragged: {error}; expected {width} numbers in each row"
        ) from error


def malformed(error: msgspec.ValidationError, group: str) -> MalformedBodyError:
    """Return the error for a message whose `values` have something that is not a number."""
    message, place = located(error)
    return of_group(MalformedBodyError(f"values{place}: {message}", f"values{place}"), group)


async def long_array(form: Form, content: bytes, width: int, pauses: Pauses) -> np.ndarray[Any, Any]:
    """Convert a well-formed list of numbers, or of lists of numbers.

    Parameters
    ----------
    width : most numbers that a row may have.

    Returns
    -------
    Array (rows, columns), or flat for a flat list; NaN where a value is missing.

    Raises
    ------
    msgspec.ValidationError
        Something is not a number; the message names its place in the whole list.
    UnevenRowsError
        Rows are of different lengths, or too long.
    """
    parts: list[np.ndarray[Any, Any]] = []
    first = 0
    for piece in (_json_pieces if form is JSON else _msgpack_pieces)(content, width):
        values = _decoded(form, piece, first)
        first += len(values)
        try:
            parts.append(np.array(values, dtype=np.float64))
        except ValueError as error:
            raise UnevenRowsError("rows are of different lengths") from error
        if parts[-1].shape[1:] != parts[0].shape[1:]:
            raise UnevenRowsError("rows are of different lengths")
        await pauses.pause()
    whole = np.concatenate(parts) if parts else np.empty(0)
    await pauses.pause()  # before the prediction takes it
    return whole


def _count_rows(form: Form, content: bytes) -> int:
    """Return how many rows a list of rows has, without decoding it; 1 for a flat list."""
    if form is JSON:
        return max(content.count(b"[") - 1, 1)
    count, at = _head(content[:5])
    return count if _head(content[at : at + 5])[1] else 1


def _json_pieces(content: bytes, width: int) -> Iterator[bytes]:
    """Cut a list into lists; what is not a list is one piece, which the decoder refuses."""
    at, end = content.find(b"[") + 1, content.rfind(b"]")
    if content[: max(at, 1)].strip() != b"[":
        yield content
        return
    nested = content[at : at + AT_ONCE].lstrip()[:1] == b"["
    while at < end:
        if nested:
            match = _ROW_END.search(content, at + AT_ONCE, end)
            cut = match.end() - 1 if match else end
        else:
            cut = content.find(b",", at + AT_ONCE, end)
            cut = cut if cut > 0 else end
        if nested and content.count(b",", at, cut) > AT_ONCE // 2 + width:
            raise UnevenRowsError(f"a row has more than {width} values")
        yield b"[%b]" % content[at:cut]
        at = cut + 1


def _msgpack_pieces(content: bytes, width: int) -> Iterator[bytes]:
    """Cut a list into lists of some rows each; a flat list is one piece, unless it is longer than a row may be."""
    count, at = _head(content[:5])
    if not _head(content[at : at + 5])[1]:
        if count > width:
            raise UnevenRowsError(f"a flat list has {count} values")
        yield content
        return
    rows: list[bytes] = []
    size = 0
    for row in map(bytes, _RAW_ROWS.decode(content)):
        if len(row) > _NUMBER_BYTES * (width + 1):
            raise UnevenRowsError(f"a row has more than {width} values")
        rows.append(row)
        size += len(row)
        if size > AT_ONCE:
            yield b"\xdd" + len(rows).to_bytes(4, "big") + b"".join(rows)
            rows, size = [], 0
    if rows:
        yield b"\xdd" + len(rows).to_bytes(4, "big") + b"".join(rows)


def _head(content: bytes | memoryview) -> tuple[int, int]:
    """Return how many items a MessagePack array has, and the bytes of its head: 0 and 0 for anything else."""
    kind = content[0] if len(content) else 0
    if kind & 0xF0 == 0x90:
        return kind & 0x0F, 1
    size = {0xDC: 2, 0xDD: 4}.get(kind, 0)
    return int.from_bytes(content[1 : 1 + size], "big"), size and 1 + size


def _decoded(form: Form, piece: bytes, first: int) -> Any:
    """Decode a piece; an error names the place in the whole list, whose item `first` the piece begins with."""
    try:
        return _LISTS[form.name].decode(piece)
    except msgspec.ValidationError as error:
        message, place = located(error)
        item = _PLACE.fullmatch(place)
        if item is None:
            raise
        raise msgspec.ValidationError(f"{message} - at `$[{int(item[1]) + first}]{item[2]}`") from error
    except msgspec.DecodeError as error:  # a piece that ends inside a string
        raise msgspec.ValidationError(f"expected numbers, or lists of numbers - at `$[{first}]`") from error
