"""Messages of the WebSocket: JSON in text frames, MessagePack in binary ones, with the same fields."""

from __future__ import annotations

import sys
from typing import Annotated, Any, TypeAlias

import msgspec

from anytime.answer import Overload, Policy
from anytime_service.errors import MalformedBodyError
from anytime_service.problems import Problem
from anytime_service.wire.forms import JSON, MSGPACK, Form, of_group, read
from anytime_service.wire.values import Dtype, Values

__all__ = [
    "BeginFrame",
    "EndFrame",
    "ErrorFrame",
    "Frame",
    "GroupFrame",
    "Id",
    "PackedGroupFrame",
    "peek",
    "read_frame",
]

Id: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=128)] | int
"""What a prediction is called on its connection; each is used once."""

# MessagePack has infinity too, which no other form of the same request can say.
_Amount = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]


class BeginFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="begin"):
    """Begin a prediction.

    `deadline_ms` counts from when this is read; `rows`, if left out, is counted from the first values; `updates` asks
    for better answers as they come; `ranking` for the order of the rows by descending score; `overload` for the base
    rate instead of an error where more is asked for than can be answered in time. `traceparent` is the caller's span
    (W3C Trace Context), of use where the service sends spans.
    """

    id: Id
    model: str | None = None
    rows: Annotated[int, msgspec.Meta(ge=1)] | None = None
    budget: _Amount | None = None
    deadline_ms: _Amount | None = None
    policy: Policy = "prefix"
    updates: bool = False
    ranking: bool = False
    overload: Overload = "refuse"
    traceparent: Annotated[str, msgspec.Meta(max_length=256)] | None = None


class GroupFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="group"):
    """Hand over the values of a group; `took_ms` is what computing it took, told after the answer without values."""

    id: Id
    group: str
    values: Values
    took_ms: _Amount | None = None


class PackedGroupFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="group"):
    """The same in MessagePack, where values may be bytes with a `dtype`: row after row, little-endian."""

    id: Id
    group: str
    values: bytes | Values
    dtype: Dtype | None = None
    took_ms: _Amount | None = None


class EndFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="end"):
    """Ask for the answer, as nothing more will come."""

    id: Id


class ErrorFrame(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """Something could not be done; the prediction, if there is one, is as it was."""

    id: Id | None
    problem: Problem


class _Peeked(msgspec.Struct, frozen=True):
    type: Any = None
    id: Id | None = None
    group: str | None = None


Frame: TypeAlias = BeginFrame | GroupFrame | PackedGroupFrame | EndFrame

_FRAMES: dict[str, Any] = {
    JSON.name: msgspec.json.Decoder(BeginFrame | GroupFrame | EndFrame),
    MSGPACK.name: msgspec.msgpack.Decoder(BeginFrame | PackedGroupFrame | EndFrame),
}
_PEEKS: dict[str, Any] = {JSON.name: msgspec.json.Decoder(_Peeked), MSGPACK.name: msgspec.msgpack.Decoder(_Peeked)}


def read_frame(form: Form, content: bytes | str) -> Frame:
    """Read a message of a client.

    Raises
    ------
    MalformedBodyError
        It is not of this form, or none of the messages; the error names the field.
    """
    try:
        frame: Frame = read(form, _FRAMES[form.name], content, "the message")
    except MalformedBodyError as error:
        raise of_group(error, _peeked(form, content).group) from error.__cause__
    return frame


def peek(form: Form, content: bytes | str) -> tuple[Any, str | int | None]:
    """Return type and id of a message that `read_frame` refused; None for what cannot be read."""
    peeked = _peeked(form, content)
    return peeked.type, peeked.id


def _peeked(form: Form, content: bytes | str) -> _Peeked:
    try:
        peeked: _Peeked = _PEEKS[form.name].decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Peeked()
    return peeked
