"""Bodies of prediction and session requests: groups by name, in one message or in lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from anytime.model.model import Model
from anytime_service.errors import FieldError, MalformedBodyError
from anytime_service.schemas.codecs import JSON, MSGPACK, Decoder, Form, located, of_group, read, too_large
from anytime_service.schemas.values import Packed, Pauses, Values, array_of, is_long, long_array_of, malformed

__all__ = [
    "Arrays",
    "GroupLine",
    "LongLine",
    "PackedRequest",
    "PredictRequest",
    "RawGroups",
    "SessionCreated",
    "SessionRequest",
    "SessionTook",
    "TookLine",
    "arrays",
    "read_groups",
    "read_late_line",
    "read_line",
    "read_long_line",
    "read_request",
    "read_session",
]

Arrays = dict[str, np.ndarray[Any, Any]]
RawGroups: TypeAlias = Mapping[str, msgspec.Raw] | Mapping[str, Packed]

# The values of each group are decoded separately, so that an error names its group.
_RawValues = Annotated[
    msgspec.Raw,
    msgspec.Meta(extra_json_schema=msgspec.json.schema(Values)),
]


class PredictRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a prediction request: the values of the groups computed so far, by name.

    Without `rows`, the values define the number of rows. In MessagePack the values may be packed, see `Packed`.
    """

    groups: dict[str, _RawValues]
    rows: int | None = None


class PackedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a large prediction request: all values are packed."""

    groups: dict[str, Packed]
    rows: int | None = None


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


class GroupLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a streamed body: one group, sent as soon as it is computed; `took_ms` is its computing time."""

    group: str
    values: Values
    took_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None


class LongLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A long line; its values are not decoded yet."""

    group: str
    values: msgspec.Raw
    took_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None


class TookLine(msgspec.Struct, frozen=True):
    """The fields of a line that arrives after the answer; its values are ignored."""

    group: str
    took_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None


class _NamedLine(msgspec.Struct, frozen=True):
    group: str | None = None


_REQUEST: dict[str, Any] = {
    JSON.name: msgspec.json.Decoder(PredictRequest),
    MSGPACK.name: msgspec.msgpack.Decoder(PredictRequest),
}
_GROUPS: dict[str, Any] = {
    JSON.name: msgspec.json.Decoder(dict[str, msgspec.Raw]),
    MSGPACK.name: msgspec.msgpack.Decoder(dict[str, msgspec.Raw]),
}
_VALUES: dict[str, Any] = {
    JSON.name: msgspec.json.Decoder(Values),
    MSGPACK.name: msgspec.msgpack.Decoder(Packed | Values),
}
_SESSION: dict[str, Any] = {
    JSON.name: msgspec.json.Decoder(SessionRequest),
    MSGPACK.name: msgspec.msgpack.Decoder(SessionRequest),
}
_PACKED_REQUEST: Any = msgspec.msgpack.Decoder(PackedRequest)
_PACKED_GROUPS: Any = msgspec.msgpack.Decoder(dict[str, Packed])
_LINE = msgspec.json.Decoder(GroupLine)
_LONG_LINE = msgspec.json.Decoder(LongLine)
_LATE_LINE = msgspec.json.Decoder(TookLine)
_NAME = msgspec.json.Decoder(_NamedLine)


def read_request(form: Form, content: bytes, max_lists: int) -> PredictRequest | PackedRequest:
    """Return the decoded body of a prediction request, without decoding its values.

    Parameters
    ----------
    max_lists : number of bytes above which all values must be packed.

    Raises
    ------
    MalformedBodyError
        The body is not of this form, or not a prediction request; the error names the place.
    BodyTooLargeError
        The body has values as lists and is larger than `max_lists`.
    """
    if len(content) > max_lists:
        large: PackedRequest = _read_packed(form, _PACKED_REQUEST, content, max_lists)
        return large
    request: PredictRequest = read(form, _REQUEST[form.name], content)
    return request


def read_groups(form: Form, content: bytes, max_lists: int) -> RawGroups:
    """Return a body of groups by name without decoding their values; parameters and errors as in `read_request`."""
    if len(content) > max_lists:
        large: dict[str, Packed] = _read_packed(form, _PACKED_GROUPS, content, max_lists)
        return large
    groups: dict[str, msgspec.Raw] = read(form, _GROUPS[form.name], content)
    return groups


def read_session(form: Form, content: bytes) -> SessionRequest:
    """Return the decoded body of a request that creates a session; raise errors as `read_request`."""
    request: SessionRequest = read(form, _SESSION[form.name], content)
    return request


def read_line(line: bytes, number: int) -> GroupLine:
    """Return one decoded line of a streamed body; `number` counts from 1. Raise MalformedBodyError if it is invalid."""
    decoded: GroupLine = _read_line(_LINE, line, number)
    return decoded


async def read_long_line(
    line: bytes, number: int, model: Model, max_rows: int
) -> tuple[LongLine, np.ndarray[Any, Any]]:
    """Return a long line and its values as an array; yield to the event loop in between.

    Raises
    ------
    MalformedBodyError, FieldError
        The line or its values are invalid.
    """
    pauses = Pauses()
    long: LongLine = _read_line(_LONG_LINE, line, number)
    await pauses.pause()
    try:
        if is_long(JSON, memoryview(long.values)):
            return long, await long_array_of(JSON, model, long.group, bytes(long.values), max_rows, pauses)
        return long, array_of(model, long.group, _VALUES[JSON.name].decode(long.values), None, max_rows)
    except msgspec.ValidationError as error:
        wrong = malformed(error, long.group)
        raise MalformedBodyError(f"line {number}: {wrong}", wrong.field) from error


def read_late_line(line: bytes) -> TookLine | None:
    """Return group and computing time of a late line; None if it is malformed, because the answer is already sent."""
    try:
        return _LATE_LINE.decode(line)
    except msgspec.DecodeError:
        return None


async def arrays(form: Form, model: Model, groups: RawGroups, max_rows: int) -> Arrays:
    """Return the values of groups as arrays, by name; yield to the event loop if the conversion is long.

    Raises
    ------
    FieldError
        The values of a group are invalid; the error's field names the group and the place.
    """
    pauses = Pauses()
    converted: Arrays = {}
    for name, raw in groups.items():
        converted[name] = await _array(form, model, name, raw, max_rows, pauses)
        await pauses.pause()
    return converted


def _read_packed(form: Form, decoder: Decoder, content: bytes, max_lists: int) -> Any:
    """Return a decoded body whose values are packed; raise BodyTooLargeError at the first values that are a list."""
    if form is JSON:
        raise too_large(f"the JSON body has {len(content)} bytes", max_lists)
    try:
        return read(form, decoder, content)
    except MalformedBodyError as error:
        if "got `array`" not in str(error):
            raise
        raise too_large(f"the body has values as lists and {len(content)} bytes", max_lists) from error


def _read_line(decoder: Decoder, line: bytes, number: int) -> Any:
    what = f"line {number}"
    try:
        return read(JSON, decoder, line, what)
    except MalformedBodyError as error:
        if error.field is None:
            raise  # the message begins with the line number already
        named = of_group(error, _group_of(line))
        raise MalformedBodyError(f"{what}: {named}", named.field) from error


def _group_of(line: bytes) -> str | None:
    try:
        named: _NamedLine = _NAME.decode(line)
    except msgspec.DecodeError:
        return None
    return named.group


async def _array(
    form: Form, model: Model, name: str, raw: msgspec.Raw | Packed, max_rows: int, pauses: Pauses
) -> np.ndarray[Any, Any]:
    try:
        if not isinstance(raw, Packed) and is_long(form, memoryview(raw)):
            return await long_array_of(form, model, name, bytes(raw), max_rows, pauses)
        values = raw if isinstance(raw, Packed) else _VALUES[form.name].decode(raw)
    except msgspec.ValidationError as error:
        message, place = located(error)
        field = f"groups.{name}{'.' if place[:1].isalpha() else ''}{place}"
        raise FieldError(field, f"values of group {name!r}{' at ' if place else ''}{place}: {message}") from error
    if isinstance(values, Packed):
        return array_of(model, name, values.values, values.dtype, max_rows)
    return array_of(model, name, values, None, max_rows)
