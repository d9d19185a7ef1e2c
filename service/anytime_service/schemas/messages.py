"""Messages of clients: bodies of requests, their lines, and the frames of a WebSocket, in JSON and MessagePack.

A decoded list of values stays a list: the prediction converts and checks it, once. A `Tensor` is all that is known of
values before they are read: to which columns they belong, their datatype, and their rows. Packed values of MessagePack
and the inputs of the Open Inference Protocol are tensors.

Before a message is decoded, its size is checked: decoding and converting a list takes about 0.05 us a number, and a
number in JSON takes as little as two bytes. Lists therefore hold at most `max_json_values` values a message, counted by
their commas, so that one message occupies the event loop for about 3 ms; larger values are packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar, cast

import msgspec
import numpy as np

from anytime.errors import ValuesError
from anytime.inference.values import numbers_of
from anytime.model.model import GroupPosition, Model
from anytime_service.errors import FieldError, MalformedBodyError
from anytime_service.limits.table import FIELDS, NAME_LENGTH, NAMES
from anytime_service.limits.turns import AT_ONCE
from anytime_service.schemas.codecs import JSON, Content, Decoder, Form, decoders, located, map_size, read, too_large
from anytime_service.schemas.options import Amount, PredictionOptions, StatedOptions
from anytime_service.schemas.problem import Problem

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

SUBPROTOCOL = "anytime.v1"  # subprotocol of the WebSocket

_NUMBER_BYTES = 9  # maximum bytes of a number in MessagePack

GroupName: TypeAlias = Annotated[str, msgspec.Meta(max_length=int(NAME_LENGTH))]
MANY = msgspec.Meta(max_length=int(NAMES))  # of the groups in a message

Dtype: TypeAlias = Literal["f4", "f8"]  # Little-endian floats of 4 or 8 bytes

Id: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=128)] | int
"""Id of a prediction on its connection; an id may be used only once."""

Received: TypeAlias = Mapping[str, Values | Array]
"""Values of groups as a prediction accepts them, by name."""

Message = TypeVar("Message")
V = TypeVar("V")
"""What the values of a group are decoded to: lists or bytes; `Raw` where they are decoded later, or encoded already."""


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


class Packed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of one group packed row after row, little-endian; NaN for a missing value. Only in MessagePack."""

    dtype: Dtype
    values: memoryview  # of the message, without a copy


class PredictRequest(StatedOptions, Generic[V], frozen=True, kw_only=True):
    """The body of a prediction request: the values of the groups computed so far, by name, and options.

    In MessagePack the values may be packed, see `Packed`; in a large body all of them must be. An option is here or in
    the query; `model` and `overload` only in the query.
    """

    groups: Annotated[dict[GroupName, Annotated[V, VALUES_SCHEMA]], MANY]


class GroupLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a streamed body: one group, sent as soon as it is computed; `took_ms` is its computing time."""

    group: GroupName
    values: Values
    took_ms: Amount | None = None


class SessionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The optional body of a request that creates a session."""

    model: str | None = None
    rows: Annotated[int, msgspec.Meta(ge=1)] | None = None


class SessionCreated(msgspec.Struct, frozen=True):
    """A new session; it ends `expires_in_s` seconds after its last use."""

    id: str
    model: str
    version: str
    expires_in_s: float


class SessionTook(msgspec.Struct, frozen=True):
    """The reply to stored groups: `prefix` of `steps` is complete; `replaced` lists groups that were stored before."""

    prefix: int
    steps: int
    replaced: tuple[str, ...]


class BeginFrame(PredictionOptions, frozen=True, kw_only=True, tag_field="type", tag="begin"):
    """Begin a prediction, with its options."""

    id: Id


class GroupFrame(msgspec.Struct, Generic[V], frozen=True, forbid_unknown_fields=True, tag_field="type", tag="group"):
    """Send the values of a group.

    `took_ms` is the computing time of the group; after the answer, the client may send it with empty values.
    """

    id: Id
    group: GroupName
    values: Annotated[V, VALUES_SCHEMA]
    took_ms: Amount | None = None


class PackedGroupFrame(GroupFrame[V], frozen=True, omit_defaults=True):
    """`GroupFrame` in MessagePack; its values may be bytes with a `dtype`: row after row, little-endian."""

    dtype: Dtype | None = None


class EndFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="end"):
    """Request the answer at once; the client sends no further groups."""

    id: Id


class ErrorFrame(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """Report an error; the prediction, if it is still open, is unchanged."""

    id: Id | None
    problem: Problem


class Peeked(msgspec.Struct, frozen=True):
    """The fields of an invalid message that identify it."""

    type: Any = None
    id: Id | None = None
    group: str | None = None


Frame: TypeAlias = BeginFrame | GroupFrame[Any] | EndFrame

REQUEST: Mapping[str, Decoder[PredictRequest[msgspec.Raw]]] = decoders(PredictRequest[msgspec.Raw])
GROUPS: Mapping[str, Decoder[dict[str, msgspec.Raw]]] = decoders(Annotated[dict[GroupName, msgspec.Raw], MANY])
_VALUES = decoders(Values, Packed | Values)
_LISTS = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))  # first bytes of lists in MessagePack
SESSION: Mapping[str, Decoder[SessionRequest]] = decoders(SessionRequest)
LINE = msgspec.json.Decoder(GroupLine)
_FRAMES: Mapping[str, Decoder[Frame]] = decoders(
    BeginFrame | GroupFrame[Values] | EndFrame, BeginFrame | PackedGroupFrame[memoryview | Values] | EndFrame
)
_LARGE_FRAMES: Decoder[Frame] = msgspec.msgpack.Decoder(BeginFrame | PackedGroupFrame[memoryview] | EndFrame)
"""Decoder of messages so large that their values must be packed."""

_PEEKED: Mapping[str, Decoder[Peeked]] = decoders(Peeked)
_START = 4096  # number of bytes at the start of a long message in which the server searches its type and id


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


def read_body(form: Form, content: Content, limits: ListLimits, types: Mapping[str, Decoder[Message]]) -> Message:
    """Return the decoded body of a request, `REQUEST` or `GROUPS`; `received` decodes the values.

    Raise MalformedBodyError, which names the place, if the body is invalid, and BodyTooLargeError if it has more values
    in lists than `limits` allow.
    """
    packed = limits.must_be_packed(form, content, "the body")
    body = read(form, types[form.name], content)
    groups: Any = getattr(body, "groups", body)
    if packed and any(memoryview(values)[0] in _LISTS for values in groups.values()):
        raise too_large(f"the body has values as lists and {len(content)} bytes", limits.listed)
    return body


def read_line(content: bytes, number: int, limits: ListLimits) -> GroupLine:
    """Return line `number` (from 1) of a streamed body; raise MalformedBodyError or BodyTooLargeError."""
    limits.must_be_packed(JSON, content, f"line {number}")
    try:
        return read(JSON, LINE, content, f"line {number}")
    except MalformedBodyError as error:
        if error.field is None:
            raise  # the message begins with the line number already
        named = _of_group(error, JSON, content)
        raise MalformedBodyError(f"line {number}: {named}", named.field) from error


def read_frame(form: Form, content: Content | str, limits: ListLimits) -> Frame:
    """Return a decoded message of a WebSocket.

    Raise MalformedBodyError, which names the field, if the message is invalid, and BodyTooLargeError if it has more
    values in lists than `limits` allow.
    """
    large = len(content) > limits.short and limits.must_be_packed(form, content)
    try:
        return read(form, _LARGE_FRAMES if large else _FRAMES[form.name], content, "the message")
    except MalformedBodyError as error:
        if large and error.field == "values" and "got `array`" in str(error):
            raise too_large(f"the message has values as a list and {len(content)} bytes", limits.listed) from error
        raise _of_group(error, form, content) from error.__cause__


def _of_group(error: MalformedBodyError, form: Form, content: Content | str) -> MalformedBodyError:
    """Return an error about a message of one group, with the name of the group if it concerns its values."""
    group, place = peek(form, content).group, error.field or ""
    if group is None or not place.startswith("values"):
        return error
    return MalformedBodyError(f"group {group!r}: {error}", f"groups.{group}{place.removeprefix('values')}")


def peek(form: Form, content: Content | str) -> Peeked:
    """Return type, id and group of a message that `read_frame` rejected; each is None if unreadable."""
    for each in (content,) if len(content) <= AT_ONCE else _before_values(content):
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _PEEKED[form.name].decode(each)
    return Peeked()


def _before_values(content: Content | str) -> Iterator[Content | str]:
    """Yield candidate messages made of the fields before the values of a long message, without reading the values."""
    start = content[:_START]
    if isinstance(start, str):
        yield start.partition('"values"')[0].rstrip(" \t\r\n,") + "}"
        return
    fields = start.partition(b"\xa6values")[0][1:]
    for count in range(4, 0, -1):  # the original head counts all fields of the message
        yield bytes((0x80 | count,)) + fields


def received(model: Model, form: Form, groups: Mapping[str, msgspec.Raw], max_rows: int) -> Received:
    """Return the values of groups for a prediction; raises as `received_values`, and FieldError for invalid values."""
    if len(groups) > len(model.places):  # an unknown one suffices for the prediction to refuse all
        unknown = next(name for name in groups if name not in model.places)
        groups = {unknown: groups[unknown]}
    decode, found, name = _VALUES[form.name].decode, dict[str, Values | Array](), ""
    try:
        for name, content in groups.items():
            values = decode(content)
            if type(values) is Packed and map_size(content) > 2:
                raise FieldError(f"groups.{name}", f"values of group {name!r} have a key more than once; send it once")
            found[name] = received_values(model, name, values, None, max_rows)
    except UnicodeDecodeError as error:
        raise MalformedBodyError(f"the body is not {form.name}: {error}") from error
    except msgspec.ValidationError as error:
        message, place = located(error)
        field = f"groups.{name}{'.' if place[:1].isalpha() else ''}{place}"
        raise FieldError(field, f"values of group {name!r}{place and f' at {place}'}: {message}") from error
    return found


def received_values(model: Model, group: str, values: Any, dtype: Dtype | None, max_rows: int) -> Values | Array:
    """Return the decoded values of a group for a prediction: lists unchanged, packed values as an array.

    Raise FieldError if lists have a dtype, bytes do not make complete rows, or there are too many rows.
    """
    if type(values) is list and dtype is None and not (values and type(values[0]) is list):
        return values  # one row
    if isinstance(values, Packed):
        values, dtype = values.values, values.dtype
    if isinstance(values, memoryview | bytes):
        if dtype is None:
            raise FieldError(
                "dtype", f"values of group {group!r} are bytes without a dtype; expected dtype 'f4' or 'f8'"
            )
        place = model.places.get(group)
        if place is None:
            return []  # the prediction rejects an unknown group
        width = len(place.features)
        size = width * int(dtype[1])
        if len(values) % size:
            raise FieldError(
                f"groups.{group}",
                f"values of group {group!r} are {len(values)} bytes; expected rows of {width} x {dtype}, {size} bytes "
                "each",
            )
        rows = len(values) // size
        values = Tensor("values", group, group, place, range(width), f"FP{8 * int(dtype[1])}", rows).coded(values)
    elif dtype is not None:
        raise FieldError(
            "dtype", f"values of group {group!r} are lists and have no dtype; omit dtype, or pack the values"
        )
    check_rows(count_rows(values), max_rows)
    return cast("Values | Array", values)
