"""Values of one group on the wire: lists of numbers, or numbers packed as bytes.

`array_of` converts short values, and `read_values` values of any length. Both check the number of rows; all other
checks are those of `Prediction.checked`. Converting a list takes about 0.2 us a number, and a number in JSON takes as
little as two bytes: converting a megabyte in one call would block the event loop for 100 ms. Therefore a long list is
cut at the ends of rows or numbers. Each piece is converted, and after `PAUSE_MS` of work the code yields to the loop.
Text may contain any character, so a list for a group with categories is cut where the decoder finds the rows.
The decoder's scan of the complete text, which finds the values, remains one call; `max_json_bytes` bounds its time.
"""

from __future__ import annotations

import asyncio
import re
import reprlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, TypeAlias, cast

import msgspec
import numpy as np

from anytime.inference.prediction import coded_values
from anytime.model.model import GroupPosition, Model
from anytime_service.clock import now_ms
from anytime_service.errors import FieldError, MalformedBodyError
from anytime_service.schemas.codecs import JSON, MSGPACK, Decoder, Form, decoders, located, of_group

AT_ONCE = 16 * 1024  # maximum bytes of a list, or of a message that may contain one, that are converted without a pause
CODED_AT_ONCE = 2048  # values of groups with categories, some perhaps text, that are converted without a pause
PAUSE_MS = 0.5  # working time after which a conversion yields to the event loop

Array: TypeAlias = np.ndarray[Any, Any]
Value: TypeAlias = float | bool | str | None
Values: TypeAlias = list[Value | list[Value]]
"""Values of one group: (rows, features) as nested lists, or a flat list for one row; null for a missing value.

Text is a level of a text column. Packed values contain the index of the level instead, and so do arrays.
"""

VALUES_SCHEMA = msgspec.Meta(extra_json_schema=msgspec.json.schema(Values))
"""Schema of values that are decoded after the rest of their message."""

Dtype: TypeAlias = Literal["f4", "f8"]  # Little-endian floats of 4 or 8 bytes
_NUMBER_BYTES = 9  # maximum bytes of a number in MessagePack
_ROW_END = re.compile(rb"\]\s*,")
_PLACE = re.compile(r"\[(\d+)\](.*)", re.DOTALL)
_ITEMS = decoders(list[msgspec.Raw])
_LISTS = decoders(Values)


class Packed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of one group packed row after row, little-endian; NaN for a missing value. Only in MessagePack."""

    dtype: Dtype
    values: bytes


class UnevenRowsError(ValueError):
    """Error: rows differ in length, or are too long."""


class TextError(ValueError):
    """Error: a value is text; `index` is its place, (row, column) or (column,), counted from 0."""

    def __init__(self, index: tuple[int, ...], value: str) -> None:
        super().__init__(value)
        self.index, self.value = index, value

    def of_group(self, field: str, group: str, features: Sequence[str]) -> FieldError:
        """Return the error for text in a group of numbers; `field` is the place of its values."""
        place = field + "".join(f"[{number}]" for number in self.index)
        column, shown = features[self.index[-1] % len(features)], reprlib.repr(self.value)
        return FieldError(
            place, f"values of group {group!r}: column {column!r} has {shown}; expected a number, or null"
        )


class Pauses:
    """Pauses of a long conversion, in which the event loop serves other requests."""

    def __init__(self) -> None:
        self._begun_ms = now_ms()

    def due(self) -> bool:
        return now_ms() - self._begun_ms > PAUSE_MS

    async def pause(self) -> None:
        """Yield to the event loop if a pause is due."""
        if self.due():
            await asyncio.sleep(0)
            self._begun_ms = now_ms()


def array_of(model: Model, group: str, values: Values | bytes, dtype: Dtype | None, max_rows: int) -> Array:
    """Return decoded values as an array of floats, (rows, features) or flat.

    Raise FieldError if lists are ragged or have a dtype, bytes do not make complete rows, or there are too many rows.
    """
    if isinstance(values, bytes):
        found = _unpacked(model, group, values, dtype)
    elif dtype is not None:
        raise FieldError(
            "dtype", f"values of group {group!r} are lists and have no dtype; omit dtype, or pack the values"
        )
    else:
        found = _listed(model, group, values)
    if found.ndim > 1:
        _check_rows(len(found), max_rows)
    return found


def _listed(model: Model, group: str, values: Values) -> Array:
    """Return a decoded list as an array; raise FieldError for ragged rows, and for values of the wrong type."""
    place = model.places.get(group)
    if place is None:
        return np.empty(0)  # the prediction rejects an unknown group
    try:
        if place.expansion.categories:
            return coded_values(group, place, values)
        return numbers_of(values)
    except ValueError as error:
        raise _refused(group, place, error) from error


def numbers_of(values: Values) -> Array:
    """Return a list of numbers, or of rows of numbers, as an array of floats, NaN for null.

    Raise UnevenRowsError if rows differ in length, TextError if a value is text.
    """
    try:
        return np.array(array("d", cast(list[float], values)))  # one row of numbers only: 1 us less for 10 numbers
    except TypeError:
        nested = bool(values) and isinstance(values[0], list)
    rows: list[Any] = values if nested else [values]
    try:
        flat = list(chain.from_iterable(rows))
        (width,) = set(map(len, rows))
    except (TypeError, ValueError) as error:
        raise UnevenRowsError("rows are of different lengths") from error
    try:
        numbers = np.array(array("d", flat))
    except TypeError:  # null, or something invalid
        # An array of text would need memory for the longest text in every element.
        kinds = set(map(type, flat))
        if str in kinds:
            at = next(at for at, value in enumerate(flat) if isinstance(value, str))
            raise TextError(divmod(at, width) if nested else (at,), flat[at]) from None
        if list in kinds:
            raise UnevenRowsError("rows are of different lengths") from None
        numbers = np.array(flat, dtype=np.float64)
    return numbers.reshape(len(rows), width) if nested else numbers


async def read_values(
    form: Form,
    decoder: Decoder,
    model: Model,
    group: str,
    content: msgspec.Raw,
    max_rows: int,
    pauses: Pauses,
    dtype: Dtype | None = None,
) -> Array:
    """Return encoded values of a group as an array, see `array_of`; yield to the event loop if they are a long list.

    `decoder` decodes short or packed values of this form to lists, bytes or `Packed`. Raise ValidationError if a value
    is not a number, and FieldError as `array_of`; a long list with too many rows is not decoded.
    """
    is_long = is_long_list(form, content)
    if dtype is not None or not is_long:
        values: Any = [] if is_long else decoder.decode(content)  # a list with a dtype is an error whatever it holds
        if isinstance(values, Packed):
            values, dtype = values.values, values.dtype
        return array_of(model, group, values, dtype, max_rows)
    place = model.places.get(group)
    if place is None:
        return np.empty(0)  # the prediction rejects an unknown group
    listed = bytes(content)
    try:
        if place.expansion.categories:
            return await _read_coded(form, group, place, listed, max_rows, pauses)
        _check_rows(count_rows(form, listed), max_rows)
        return await read_list(form, listed, len(place.features), pauses)
    except (FieldError, msgspec.ValidationError):
        raise
    except ValueError as error:
        raise _refused(group, place, error) from error


async def read_list(form: Form, content: msgspec.Raw | bytes, width: int, pauses: Pauses) -> Array:
    """Return a list of numbers, or of lists of at most `width` numbers, as an array with NaN for missing values.

    The array is (rows, columns), or flat for a flat list. Yield to the event loop if the list is long. Raise
    ValidationError, which names the place in the complete list, if a value is not a number. Raise ValueError if rows
    differ in length or are too long.
    """
    if not is_long_list(form, content):
        return numbers_of(_LISTS[form.name].decode(content))
    parts: list[Array] = []
    first = 0
    for piece in (_json_pieces if form is JSON else _msgpack_pieces)(bytes(content), width):
        values = _decoded(form, piece, first)
        try:
            parts.append(numbers_of(values))
        except TextError as error:
            raise TextError((error.index[0] + first, *error.index[1:]), error.value) from error
        first += len(values)
        if parts[-1].shape[1:] != parts[0].shape[1:]:
            raise UnevenRowsError("rows are of different lengths")
        await pauses.pause()
    found = np.concatenate(parts) if parts else np.empty(0)
    await pauses.pause()  # before the prediction processes the array
    return found


async def read_texts(content: msgspec.Raw, pauses: Pauses) -> Array:
    """Return a JSON list of values, or of rows of values, as an array of objects, with pauses.

    Raise ValidationError, which names the place, if an item is not a value, and ValueError if rows differ in length.
    """
    items: list[msgspec.Raw] = _ITEMS[JSON.name].decode(content)
    values: Values = []
    for start in range(0, len(items), CODED_AT_ONCE):
        values += _decoded(JSON, _joined(JSON, items[start : start + CODED_AT_ONCE]), start)
        await pauses.pause()
    found = np.array(values, dtype=object)
    if found.ndim == 1 and list in set(map(type, values)):
        raise UnevenRowsError("rows are of different lengths")
    return found


async def _read_coded(
    form: Form, group: str, place: GroupPosition, content: bytes, max_rows: int, pauses: Pauses
) -> Array:
    """Return a long list of a group with categories as an array, with pauses.

    Raise FieldError for too many rows, UnevenRowsError or ValuesError for invalid ones.
    """
    items: list[msgspec.Raw] = _ITEMS[form.name].decode(content)
    first = bytes(items[0]) if items else b""
    nested = first.startswith(b"[") if form is JSON else _head(first[:5])[1] > 0
    rows = len(items) if nested else 1
    _check_rows(rows, max_rows)
    at_once = max(CODED_AT_ONCE // len(place.features), 1)
    parts: list[Array] = []
    for start in range(0, rows, at_once):
        values = _decoded(form, _joined(form, items[start : start + at_once]) if nested else content, start)
        if nested and not all(isinstance(row, list) for row in values):
            raise UnevenRowsError("rows are of different lengths")
        parts.append(coded_values(group, place, values))
        await pauses.pause()
    return np.concatenate(parts)


def malformed(error: msgspec.ValidationError, group: str) -> MalformedBodyError:
    """Return the error for a message whose `values` contain something that is not a number."""
    message, place = located(error)
    return of_group(MalformedBodyError(f"values{place}: {message}", f"values{place}"), group)


def _refused(group: str, place: GroupPosition, error: ValueError) -> FieldError:
    """Return the error for values that are not those of their group."""
    field = f"groups.{group}"
    if isinstance(error, TextError):
        return error.of_group(field, group, place.features)
    if isinstance(error, UnevenRowsError):
        ragged = f"values of group {group!r} are ragged: {error}; expected one value per feature in each row"
        return FieldError(field, ragged)
    return FieldError(field, str(error))


def _check_rows(rows: int, max_rows: int) -> None:
    if rows > max_rows:
        raise FieldError(
            "rows", f"there are {rows} rows; expected at most {max_rows}; send more in several predictions"
        )


def _unpacked(model: Model, group: str, values: bytes, dtype: Dtype | None) -> Array:
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
    return np.frombuffer(values, dtype=f"<{dtype}").reshape(-1, width)


def is_long_list(form: Form, content: msgspec.Raw | bytes) -> bool:
    """Return whether values are a list that takes long to convert; packed values never do."""
    return len(content) > AT_ONCE and (form is JSON or _head(memoryview(content)[:5])[1] > 0)


def count_rows(form: Form, content: bytes) -> int:
    """Return the number of rows of a list, without decoding it; 1 for a flat list."""
    if form is JSON:
        return max(content.count(b"[") - 1, 1)
    count, at = _head(content[:5])
    return count if _head(content[at : at + 5])[1] else 1


def _json_pieces(content: bytes, width: int) -> Iterator[bytes]:
    """Yield pieces of a list, each a list; yield anything else unchanged, for the decoder to reject."""
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
        yield _joined(JSON, [content[at:cut]])
        at = cut + 1


def _msgpack_pieces(content: bytes, width: int) -> Iterator[bytes]:
    """Yield pieces of a list, each a list of some rows; yield a flat list unchanged if it is not too long for a row."""
    count, at = _head(content[:5])
    if not _head(content[at : at + 5])[1]:
        if count > width:
            raise UnevenRowsError(f"a flat list has {count} values")
        yield content
        return
    rows: list[bytes] = []
    size = 0
    for row in map(bytes, _ITEMS[MSGPACK.name].decode(content)):
        if len(row) > _NUMBER_BYTES * (width + 1):
            raise UnevenRowsError(f"a row has more than {width} values")
        rows.append(row)
        size += len(row)
        if size > AT_ONCE:
            yield _joined(MSGPACK, rows)
            rows, size = [], 0
    if rows:
        yield _joined(MSGPACK, rows)


def _joined(form: Form, items: Iterable[bytes | msgspec.Raw]) -> bytes:
    """Return the encoded list of encoded items."""
    items = [*map(bytes, items)]
    if form is JSON:
        return b"[%b]" % b",".join(items)
    return b"\xdd" + len(items).to_bytes(4, "big") + b"".join(items)


def _head(content: bytes | memoryview) -> tuple[int, int]:
    """Return the number of items of a MessagePack array, and the bytes of its head; 0 and 0 for anything else."""
    kind = content[0] if len(content) else 0
    if kind & 0xF0 == 0x90:
        return kind & 0x0F, 1
    size = {0xDC: 2, 0xDD: 4}.get(kind, 0)
    return int.from_bytes(content[1 : 1 + size], "big"), size and 1 + size


def _decoded(form: Form, piece: bytes, first: int) -> Any:
    """Return a decoded piece that begins with item `first`; an error names the place in the complete list."""
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
