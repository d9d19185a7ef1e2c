"""Messages of clients: bodies of requests, their lines, and the frames of a WebSocket, in JSON and MessagePack.

Before a message is decoded, its size is checked: decoding and converting a list takes about 0.05 us a number, and a
number in JSON takes as little as two bytes. Lists therefore hold at most `max_json_values` values a message, counted by
their commas, so that one message occupies the event loop for about 3 ms; larger values are packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from anytime.model.model import Model
from anytime_service.errors import FieldError, MalformedBodyError
from anytime_service.limits.table import FIELDS, NAME_LENGTH, NAMES
from anytime_service.limits.turns import AT_ONCE
from anytime_service.schemas.codecs import JSON, Content, Decoder, Form, decoders, located, map_size, read, too_large
from anytime_service.schemas.options import Amount, PredictionOptions, StatedOptions
from anytime_service.schemas.problem import Problem
from anytime_service.schemas.values import VALUES_SCHEMA, Array, Tensor, Values, check_rows, count_rows

SUBPROTOCOL = "anytime.v1"  # subprotocol of the WebSocket

_NUMBER_BYTES = 9  # maximum bytes of a number in MessagePack

GroupName: TypeAlias = Annotated[str, msgspec.Meta(max_length=int(NAME_LENGTH))]
MANY = msgspec.Meta(max_length=int(NAMES))  # of the groups in a message

Dtype: TypeAlias = Literal["f4", "f8"]  # Little-endian floats of 4 or 8 bytes
_DATATYPES = {"f4": "FP32", "f8": "FP64"}

Id: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=128)] | int
"""Id of a prediction on its connection; an id may be used only once."""

Received: TypeAlias = Mapping[str, Values | Array]
"""Values of groups as a prediction accepts them, by name."""

Message = TypeVar("Message")
V = TypeVar("V")
"""What the values of a group are decoded to: lists or bytes; `Raw` where they are decoded later, or encoded already."""


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


class TookLine(msgspec.Struct, frozen=True):
    """The fields of a line that arrives after the answer; its values may be invalid, and only their rows count."""

    group: GroupName
    took_ms: Amount | None = None
    values: Any = None


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
_LINE = msgspec.json.Decoder(GroupLine)
LATE_LINE = msgspec.json.Decoder(TookLine)
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


def _decoded(form: Form, name: str, content: msgspec.Raw) -> Any:
    """Return the values of a group; raise FieldError, which names the place, if they are invalid."""
    try:
        values = _VALUES[form.name].decode(content)
    except UnicodeDecodeError as error:
        raise MalformedBodyError(f"the body is not {form.name}: {error}") from error
    except msgspec.ValidationError as error:
        message, place = located(error)
        field = f"groups.{name}{'.' if place[:1].isalpha() else ''}{place}"
        at = f" at {place}" if place else ""
        raise FieldError(field, f"values of group {name!r}{at}: {message}") from error
    if isinstance(values, Packed) and map_size(content) > 2:
        raise FieldError(f"groups.{name}", f"values of group {name!r} have a key more than once; send it once")
    return values


def read_line(content: bytes, number: int, limits: ListLimits) -> GroupLine:
    """Return line `number` (from 1) of a streamed body; raise MalformedBodyError or BodyTooLargeError."""
    limits.must_be_packed(JSON, content, f"line {number}")
    try:
        return read(JSON, _LINE, content, f"line {number}")
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
    return {
        name: received_values(model, name, _decoded(form, name, values), None, max_rows)
        for name, values in groups.items()
    }


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
        values = Tensor("values", group, group, place, range(width), _DATATYPES[dtype], rows).coded(values)
    elif dtype is not None:
        raise FieldError(
            "dtype", f"values of group {group!r} are lists and have no dtype; omit dtype, or pack the values"
        )
    check_rows(count_rows(values), max_rows)
    decoded: Values | Array = values
    return decoded
