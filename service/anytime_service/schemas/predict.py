"""Bodies of requests: groups by name, whole or line by line."""

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
    "read_line",
    "read_long_line",
    "read_request",
    "read_session",
    "read_took",
]

Arrays = dict[str, np.ndarray[Any, Any]]
RawGroups: TypeAlias = Mapping[str, msgspec.Raw] | Mapping[str, Packed]

# Values are decoded group by group, so that an error names its group.
_RawValues = Annotated[
    msgspec.Raw,
    msgspec.Meta(extra_json_schema=msgspec.json.schema(Values)),
]


class PredictRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a prediction: the values of the groups at hand, by name.

    `rows` is counted from the values where it is not given. In MessagePack values may be packed, see `Packed`.
    """

    groups: dict[str, _RawValues]
    rows: int | None = None


class PackedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A large body of a prediction: all its values are packed."""

    groups: dict[str, Packed]
    rows: int | None = None


class SessionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that begins a session; may be left out."""

    model: str | None = None
    rows: Annotated[int, msgspec.Meta(ge=1)] | None = None


class SessionCreated(msgspec.Struct, frozen=True):
    """A session has begun; it ends `expires_in_s` seconds after it was last used."""

    id: str
    model: str
    version: str
    expires_in_s: float


class SessionTook(msgspec.Struct, frozen=True):
    """Groups were taken: `prefix` of `steps` is complete, and what came again has replaced what was there."""

    prefix: int
    steps: int
    replaced: list[str]


class GroupLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a streamed body: one group, as soon as it is computed; `took_ms` is what computing it took."""

    group: str
    values: Values
    took_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None


class LongLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A long line, its values not decoded yet."""

    group: str
    values: msgspec.Raw
    took_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None


class TookLine(msgspec.Struct, frozen=True):
    """What a line that comes too late still tells; its values are passed over."""

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
_TOOK = msgspec.json.Decoder(TookLine)
_NAME = msgspec.json.Decoder(_NamedLine)


def read_request(form: Form, content: bytes, max_lists: int) -> PredictRequest | PackedRequest:
    """Read the body of a prediction, its values not yet.

    Parameters
    ----------
    max_lists : bytes above which all values have to be packed.

    Raises
    ------
    MalformedBodyError
        The body is not of this form, or not of this shape; the message names the place.
    BodyTooLargeError
        It has values as lists and is larger than such a body may be.
    """
    if len(content) > max_lists:
        large: PackedRequest = _read_packed(form, _PACKED_REQUEST, content, max_lists)
        return large
    request: PredictRequest = read(form, _REQUEST[form.name], content)
    return request


def read_groups(form: Form, content: bytes, max_lists: int) -> RawGroups:
    """Read a body that is groups by name, their values not yet; arguments and errors as of `read_request`."""
    if len(content) > max_lists:
        large: dict[str, Packed] = _read_packed(form, _PACKED_GROUPS, content, max_lists)
        return large
    groups: dict[str, msgspec.Raw] = read(form, _GROUPS[form.name], content)
    return groups


def read_session(form: Form, content: bytes) -> SessionRequest:
    """Read the body that begins a session; raises as `read_request`."""
    request: SessionRequest = read(form, _SESSION[form.name], content)
    return request


def read_line(line: bytes, number: int) -> GroupLine:
    """Read one line of a streamed body, `number` counted from 1; raises MalformedBodyError."""
    read_so_far: GroupLine = _read_line(_LINE, line, number)
    return read_so_far


async def read_long_line(
    line: bytes, number: int, model: Model, max_rows: int
) -> tuple[LongLine, np.ndarray[Any, Any]]:
    """Read a long line and convert its values, with turns for others; raises MalformedBodyError or FieldError."""
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


def read_took(line: bytes) -> TookLine | None:
    """Read of a line which group it has and what that took; None if it is none: its client has its answer already."""
    try:
        return _TOOK.decode(line)
    except msgspec.DecodeError:
        return None


async def arrays(form: Form, model: Model, groups: RawGroups, max_rows: int) -> Arrays:
    """Convert the values of groups to arrays, by name; waits only where there are so many that it takes long.

    Raises
    ------
    FieldError
        Values are not numbers in one of the forms; the error's field names the group and the place.
    """
    pauses = Pauses()
    found: Arrays = {}
    for name, raw in groups.items():
        found[name] = await _array(form, model, name, raw, max_rows, pauses)
        await pauses.pause()
    return found


def _read_packed(form: Form, decoder: Decoder, content: bytes, max_lists: int) -> Any:
    """Read a body whose values are packed, and stop at the first that are not."""
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
            raise  # it begins with what it is about
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
