"""Bodies of requests: groups by name, whole or line by line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from anytime.model import AnytimeModel
from anytime_service.errors import FieldError, MalformedBodyError
from anytime_service.wire.forms import JSON, MSGPACK, Form, located, of_group, read
from anytime_service.wire.values import Packed, Values, array_of

__all__ = [
    "Arrays",
    "GroupLine",
    "PredictRequest",
    "SessionCreated",
    "SessionRequest",
    "SessionTook",
    "TookLine",
    "arrays",
    "read_groups",
    "read_line",
    "read_request",
    "read_session",
    "read_took",
]

Arrays = dict[str, np.ndarray[Any, Any]]

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
_LINE = msgspec.json.Decoder(GroupLine)
_TOOK = msgspec.json.Decoder(TookLine)
_NAME = msgspec.json.Decoder(_NamedLine)


def read_request(form: Form, content: bytes) -> PredictRequest:
    """Read the body of a prediction, its values not yet.

    Raises
    ------
    MalformedBodyError
        The body is not of this form, or not of this shape; the message names the place.
    """
    request: PredictRequest = read(form, _REQUEST[form.name], content)
    return request


def read_groups(form: Form, content: bytes) -> dict[str, msgspec.Raw]:
    """Read a body that is groups by name, their values not yet; raises as `read_request`."""
    groups: dict[str, msgspec.Raw] = read(form, _GROUPS[form.name], content)
    return groups


def read_session(form: Form, content: bytes) -> SessionRequest:
    """Read the body that begins a session; raises as `read_request`."""
    request: SessionRequest = read(form, _SESSION[form.name], content)
    return request


def read_line(line: bytes, number: int) -> GroupLine:
    """Read one line of a streamed body, `number` counted from 1; raises as `read_request`."""
    what = f"line {number}"
    try:
        read_so_far: GroupLine = read(JSON, _LINE, line, what)
    except MalformedBodyError as error:
        if error.field is None:
            raise  # it begins with what it is about
        named = of_group(error, _group_of(line))
        raise MalformedBodyError(f"{what}: {named}", named.field) from error
    return read_so_far


def read_took(line: bytes) -> TookLine | None:
    """Read of a line which group it has and what that took; None if it is none: its client has its answer already."""
    try:
        return _TOOK.decode(line)
    except msgspec.DecodeError:
        return None


def arrays(form: Form, model: AnytimeModel, groups: Mapping[str, msgspec.Raw], max_rows: int) -> Arrays:
    """Values of groups as arrays, by name.

    Raises
    ------
    FieldError
        Values are not numbers in one of the forms; the error's field names the group and the place.
    """
    return {name: _array(form, model, name, raw, max_rows) for name, raw in groups.items()}


def _group_of(line: bytes) -> str | None:
    try:
        named: _NamedLine = _NAME.decode(line)
    except msgspec.DecodeError:
        return None
    return named.group


def _array(form: Form, model: AnytimeModel, name: str, raw: msgspec.Raw, max_rows: int) -> np.ndarray[Any, Any]:
    try:
        values = _VALUES[form.name].decode(raw)
    except msgspec.ValidationError as error:
        message, place = located(error)
        field = f"groups.{name}{'.' if place[:1].isalpha() else ''}{place}"
        raise FieldError(field, f"values of group {name!r}{' at ' if place else ''}{place}: {message}") from error
    if isinstance(values, Packed):
        return array_of(model, name, values.values, values.dtype, max_rows)
    return array_of(model, name, values, None, max_rows)
