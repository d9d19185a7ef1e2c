"""Messages of the WebSocket: JSON in text frames, MessagePack in binary frames, with the same fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

import msgspec

from anytime_service.errors import MalformedBodyError
from anytime_service.limits.turns import AT_ONCE
from anytime_service.schemas.codecs import Content, Decoder, Form, decoders, of_group, read, too_large
from anytime_service.schemas.options import Amount, PredictionOptions
from anytime_service.schemas.problem import Problem
from anytime_service.schemas.values import VALUES_SCHEMA, Dtype, GroupName, ListLimits, Values

SUBPROTOCOL = "anytime.v1"  # subprotocol of the WebSocket

Id: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=128)] | int
"""Id of a prediction on its connection; an id may be used only once."""


class BeginFrame(PredictionOptions, frozen=True, kw_only=True, tag_field="type", tag="begin"):
    """Begin a prediction, with its options."""

    id: Id


V = TypeVar("V")
"""What `values` are decoded to: lists or bytes; `Raw` in a message of the client, which has encoded them."""


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

_FRAMES: Mapping[str, Decoder[Frame]] = decoders(
    BeginFrame | GroupFrame[Values] | EndFrame, BeginFrame | PackedGroupFrame[memoryview | Values] | EndFrame
)
_LARGE_FRAMES: Decoder[Frame] = msgspec.msgpack.Decoder(BeginFrame | PackedGroupFrame[memoryview] | EndFrame)
"""Decoder of messages so large that their values must be packed."""

_PEEKED: Mapping[str, Decoder[Peeked]] = decoders(Peeked)
_START = 4096  # number of bytes at the start of a long message in which the server searches its type and id


def read_frame(form: Form, content: Content | str, limits: ListLimits) -> Frame:
    """Return a decoded message of a client.

    Raise MalformedBodyError, which names the field, if the message is invalid, and BodyTooLargeError if it has more
    values in lists than `limits` allow.
    """
    large = len(content) > limits.short and limits.must_be_packed(form, content)
    try:
        return read(form, _LARGE_FRAMES if large else _FRAMES[form.name], content, "the message")
    except MalformedBodyError as error:
        if large and error.field == "values" and "got `array`" in str(error):
            raise too_large(f"the message has values as a list and {len(content)} bytes", limits.listed) from error
        raise of_group(error, peek(form, content).group) from error.__cause__


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
