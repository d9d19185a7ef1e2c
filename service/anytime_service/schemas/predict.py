"""Bodies of prediction and session requests: groups by name, in one message or in lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

import msgspec

from anytime.model.model import Model
from anytime_service.errors import FieldError, MalformedBodyError
from anytime_service.schemas.codecs import (
    JSON,
    MSGPACK,
    Content,
    Decoder,
    Form,
    decoders,
    located,
    map_size,
    of_group,
    read,
    too_large,
)
from anytime_service.schemas.options import Amount, PredictionOptions
from anytime_service.schemas.values import (
    MANY,
    VALUES_SCHEMA,
    Array,
    GroupName,
    ListLimits,
    Packed,
    Values,
    received_values,
)

Received: TypeAlias = Mapping[str, Values | Array]
"""Values of groups as a prediction accepts them, by name."""

Body = TypeVar("Body")
V = TypeVar("V")
"""What the values of a group are decoded to."""


class PredictRequest(PredictionOptions, Generic[V], frozen=True, kw_only=True):
    """The body of a prediction request: the values of the groups computed so far, by name, and options.

    In MessagePack the values may be packed, see `Packed`; in a large body all of them must be. An option is here or in
    the query; `model` and `overload` only in the query.
    """

    groups: Annotated[dict[GroupName, Annotated[V, VALUES_SCHEMA]], MANY]


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

    group: GroupName
    values: Values
    took_ms: Amount | None = None


class TookLine(msgspec.Struct, frozen=True):
    """The fields of a line that arrives after the answer; its values may be invalid, and only their rows count."""

    group: GroupName
    took_ms: Amount | None = None
    values: Any = None


_REQUEST: Mapping[str, Decoder[PredictRequest[Any]]] = decoders(PredictRequest[Values], PredictRequest[msgspec.Raw])
_GROUPS = decoders(Annotated[dict[GroupName, Values], MANY], Annotated[dict[GroupName, msgspec.Raw], MANY])
_RAW_REQUEST: Decoder[PredictRequest[Any]] = msgspec.json.Decoder(PredictRequest[msgspec.Raw])
_RAW_GROUPS: Decoder[Mapping[str, Any]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_VALUES = decoders(Values, Packed | Values)
_LISTS = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))  # first bytes of lists in MessagePack
_SESSION: Mapping[str, Decoder[SessionRequest]] = decoders(SessionRequest)
_LINE = msgspec.json.Decoder(GroupLine)
_LATE_LINE = msgspec.json.Decoder(TookLine)


def read_request(form: Form, content: Content, limits: ListLimits) -> PredictRequest[Any]:
    """Return the decoded body of a prediction request; in MessagePack `received` decodes the values.

    Raise MalformedBodyError or FieldError, which name the place, if the body is invalid, and BodyTooLargeError if it
    has more values in lists than `limits` allow.
    """
    return _read(form, content, limits, _REQUEST, _RAW_REQUEST, lambda body: body.groups)


def read_groups(form: Form, content: Content, limits: ListLimits) -> Mapping[str, Any]:
    """Return a body of groups by name, as `read_request`."""
    return _read(form, content, limits, _GROUPS, _RAW_GROUPS, lambda body: body)


def _read(
    form: Form,
    content: Content,
    limits: ListLimits,
    types: Mapping[str, Decoder[Body]],
    raw: Decoder[Body],
    groups_of: Callable[[Body], Mapping[str, Any]],
) -> Body:
    packed = limits.must_be_packed(form, content, "the body")
    try:
        body = read(form, types[form.name], content)
    except MalformedBodyError as error:
        if error.field is not None and "[...]" in error.field:  # of a group that the decoder of JSON does not name
            for name, values in groups_of(read(form, raw, content)).items():
                _decoded(JSON, name, values)
        raise
    if packed and any(memoryview(values)[0] in _LISTS for values in groups_of(body).values()):
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


def read_session(form: Form, content: Content) -> SessionRequest:
    return read(form, _SESSION[form.name], content)


def read_line(content: bytes, number: int, limits: ListLimits) -> GroupLine:
    """Return line `number` (from 1) of a streamed body; raise MalformedBodyError or BodyTooLargeError."""
    limits.must_be_packed(JSON, content, f"line {number}")
    try:
        return read(JSON, _LINE, content, f"line {number}")
    except MalformedBodyError as error:
        if error.field is None:
            raise  # the message begins with the line number already
        late = read_late_line(content)
        named = of_group(error, None if late is None else late.group)
        raise MalformedBodyError(f"line {number}: {named}", named.field) from error


def read_late_line(line: bytes) -> TookLine | None:
    """Return a late line; None if it is malformed, because the answer is already sent."""
    try:
        return _LATE_LINE.decode(line)
    except msgspec.DecodeError:
        return None


def received(model: Model, groups: Mapping[str, Any], max_rows: int) -> Received:
    """Return the values of groups for a prediction; raises as `received_values`, and FieldError for invalid values."""
    if len(groups) > len(model.places):  # an unknown one suffices for the prediction to refuse all
        unknown = next(name for name in groups if name not in model.places)
        groups = {unknown: groups[unknown]}
    return {
        name: received_values(
            model, name, _decoded(MSGPACK, name, values) if isinstance(values, msgspec.Raw) else values, None, max_rows
        )
        for name, values in groups.items()
    }
