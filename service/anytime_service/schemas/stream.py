"""Messages of the WebSocket: JSON in text frames, MessagePack in binary frames, with the same fields."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

import msgspec

from anytime.model.model import Model
from anytime_service.errors import MalformedBodyError
from anytime_service.schemas.codecs import MSGPACK, Decoder, Form, decoders, of_group, read, too_large
from anytime_service.schemas.options import Amount, PredictionOptions
from anytime_service.schemas.problem import Problem
from anytime_service.schemas.values import AT_ONCE, VALUES_SCHEMA, Array, Dtype, Pauses, Values, malformed, read_values

SUBPROTOCOL = "anytime.v1"  # subprotocol of the WebSocket

Id: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=128)] | int
"""Id of a prediction on its connection; an id may be used only once."""


class BeginFrame(PredictionOptions, frozen=True, kw_only=True, tag_field="type", tag="begin"):
    """Begin a prediction, with its options."""

    id: Id


V = TypeVar("V")
"""What `values` are decoded to: lists, bytes, or `Raw` in a long message, whose values are decoded later."""


class GroupFrame(msgspec.Struct, Generic[V], frozen=True, forbid_unknown_fields=True, tag_field="type", tag="group"):
    """Send the values of a group.

    `took_ms` is the computing time of the group; after the answer, the client may send it with empty values.
    """

    id: Id
    group: str
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

_FRAMES = decoders(BeginFrame | GroupFrame[Values] | EndFrame, BeginFrame | PackedGroupFrame[bytes | Values] | EndFrame)
_LONG_FRAMES = decoders(
    BeginFrame | GroupFrame[msgspec.Raw] | EndFrame, BeginFrame | PackedGroupFrame[msgspec.Raw] | EndFrame
)
_LARGE_FRAMES: dict[str, Decoder] = {
    MSGPACK.name: msgspec.msgpack.Decoder(BeginFrame | PackedGroupFrame[bytes] | EndFrame)
}
"""Decoders of messages so large that their values must be packed."""

_VALUES = decoders(Values, bytes | Values)
_PEEKED = decoders(Peeked)
_START = 4096  # number of bytes at the start of a long message in which the server searches its type and id


def read_frame(form: Form, content: bytes | str, max_lists: int) -> Frame:
    """Return a decoded message of a client; do not decode the values of a long message.

    Raise MalformedBodyError, which names the field, if the message is invalid, and BodyTooLargeError if it has values
    as lists and more than `max_lists` bytes.
    """
    size = len(content)
    decoders = _FRAMES if size <= AT_ONCE else _LONG_FRAMES if size <= max_lists else _LARGE_FRAMES
    if form.name not in decoders:
        raise too_large(f"the message has {size} bytes of JSON", max_lists)
    try:
        frame: Frame = read(form, decoders[form.name], content, "the message")
    except MalformedBodyError as error:
        if size > max_lists and error.field == "values" and "got `array`" in str(error):
            raise too_large(f"the message has values as a list and {size} bytes", max_lists) from error
        raise of_group(error, peek(form, content).group) from error.__cause__
    return frame


async def array_of_long(
    form: Form, model: Model, frame: GroupFrame[msgspec.Raw], max_rows: int, pauses: Pauses
) -> Array:
    """Return the values of a long message as an array, with pauses.

    Raise MalformedBodyError or FieldError if a value is not a number, rows differ in length, or there are too many.
    """
    dtype = frame.dtype if isinstance(frame, PackedGroupFrame) else None
    decoder = _VALUES[form.name]
    try:
        return await read_values(form, decoder, model, frame.group, frame.values, max_rows, pauses, dtype)
    except msgspec.ValidationError as error:
        raise malformed(error, frame.group) from error


def peek(form: Form, content: bytes | str) -> Peeked:
    """Return type, id and group of a message that `read_frame` rejected; each is None if unreadable."""
    for each in (content,) if len(content) <= AT_ONCE else _before_values(content):
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            peeked: Peeked = _PEEKED[form.name].decode(each)
            return peeked
    return Peeked()


def _before_values(content: bytes | str) -> Iterator[bytes | str]:
    """Yield candidate messages made of the fields before the values of a long message, without reading the values."""
    start = content[:_START]
    if isinstance(start, str):
        yield start.partition('"values"')[0].rstrip(" \t\r\n,") + "}"
        return
    fields = start.partition(b"\xa6values")[0][1:]
    for count in range(4, 0, -1):  # the original head counts all fields of the message
        yield bytes((0x80 | count,)) + fields
