"""Bodies of prediction and session requests: groups by name, in one message or in lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

import msgspec

from anytime.inference.prediction import CheckedRow, checked_row
from anytime.model.model import Model
from anytime_service.errors import FieldError, MalformedBodyError
from anytime_service.schemas.codecs import JSON, Decoder, Form, check_keys, decoders, located, read, too_large
from anytime_service.schemas.options import PredictionOptions
from anytime_service.schemas.values import (
    AT_ONCE,
    VALUES_SCHEMA,
    Array,
    Packed,
    Pauses,
    Values,
    array_of,
    count_rows,
    malformed,
    read_values,
)

Arrays: TypeAlias = Mapping[str, Array]
RawGroups: TypeAlias = Mapping[str, msgspec.Raw] | Mapping[str, Packed]

V = TypeVar("V")
"""`Packed` in a large body, else `Raw`: the values of each group are decoded separately, so that an error names it."""

_Took = Annotated[float, msgspec.Meta(ge=0)]


class PredictRequest(PredictionOptions, Generic[V], frozen=True, kw_only=True):
    """The body of a prediction request: the values of the groups computed so far, by name, and options.

    In MessagePack the values may be packed, see `Packed`; in a large body all of them must be. An option is here or in
    the query; `model` and `overload` only in the query.
    """

    groups: dict[str, Annotated[V, VALUES_SCHEMA]]


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
    values: Annotated[msgspec.Raw, VALUES_SCHEMA]
    took_ms: _Took | None = None


class TookLine(msgspec.Struct, frozen=True):
    """The fields of a line that arrives after the answer; only the rows of its values may be counted."""

    group: str
    took_ms: _Took | None = None
    values: msgspec.Raw = msgspec.Raw(b"[]")

    def rows(self) -> int:
        """Return the number of rows of the values, which may be invalid."""
        return count_rows(JSON, bytes(self.values))


_REQUEST = decoders(PredictRequest[msgspec.Raw])
_GROUPS = decoders(dict[str, msgspec.Raw])
_ROW_REQUEST = decoders(PredictRequest[list[float]])
_ROW_GROUPS = decoders(dict[str, list[float]])
_PACKED_REQUEST = msgspec.msgpack.Decoder(PredictRequest[Packed])
_PACKED_GROUPS = msgspec.msgpack.Decoder(dict[str, Packed])
_VALUES = decoders(Values, Packed | Values)
_SESSION = decoders(SessionRequest)
_LINE = msgspec.json.Decoder(GroupLine)
_LATE_LINE = msgspec.json.Decoder(TookLine)


def read_request(form: Form, content: bytes, max_lists: int) -> PredictRequest[Any]:
    """Return the decoded body of a prediction request, without decoding its values.

    Raise MalformedBodyError, which names the place, if the body is invalid, and BodyTooLargeError if it has values as
    lists and more than `max_lists` bytes.
    """
    request: PredictRequest[Any] = _read_body(form, _REQUEST, _PACKED_REQUEST, content, max_lists)
    return request


def read_groups(form: Form, content: bytes, max_lists: int) -> RawGroups:
    """Return a body of groups by name without decoding their values; raise errors as `read_request`."""
    groups: RawGroups = _read_body(form, _GROUPS, _PACKED_GROUPS, content, max_lists)
    return groups


def read_row_request(form: Form, content: bytes, model: Model) -> tuple[PredictRequest[Any], CheckedRow] | None:
    """Return the body of a prediction request and its groups, in a third of the time that `arrays` takes.

    None unless the body is short, and each group is one row of numbers, none missing.
    """
    request: PredictRequest[Any] | None = _read_short(form, _ROW_REQUEST[form.name], content)
    row = request and checked_row(model, request.groups)
    return (request, row) if request and row else None


def read_row(form: Form, content: bytes, model: Model) -> CheckedRow | None:
    """Return a body of groups by name; None as `read_row_request`."""
    groups: dict[str, list[float]] | None = _read_short(form, _ROW_GROUPS[form.name], content)
    return checked_row(model, groups) if groups else None


def _read_short(form: Form, decoder: Decoder, content: bytes) -> Any:
    """Return a decoded body; None if it is long, or invalid."""
    if len(content) > AT_ONCE:
        return None
    try:
        message = decoder.decode(content)
        check_keys(form, content, message)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return message


def read_session(form: Form, content: bytes) -> SessionRequest:
    request: SessionRequest = read(form, _SESSION[form.name], content)
    return request


async def read_line(content: bytes, number: int, model: Model, max_rows: int) -> tuple[GroupLine, Array]:
    """Return line `number` (from 1) of a streamed body, decoded, and its values as an array.

    Yield to the event loop if it is long. Raise MalformedBodyError or FieldError if the line or its values are invalid.
    """
    pauses = Pauses()
    try:
        line: GroupLine = read(JSON, _LINE, content, f"line {number}")
    except MalformedBodyError as error:
        if error.field is None:
            raise  # the message begins with the line number already
        raise MalformedBodyError(f"line {number}: {error}", error.field) from error
    await pauses.pause()
    try:
        array = await read_values(JSON, _VALUES[JSON.name], model, line.group, line.values, max_rows, pauses)
    except msgspec.ValidationError as error:
        wrong = malformed(error, line.group)
        raise MalformedBodyError(f"line {number}: {wrong}", wrong.field) from error
    return line, array


def read_late_line(line: bytes) -> TookLine | None:
    """Return a late line; None if it is malformed, because the answer is already sent."""
    try:
        return _LATE_LINE.decode(line)
    except msgspec.DecodeError:
        return None


async def arrays(form: Form, model: Model, groups: RawGroups, max_rows: int) -> Arrays:
    """Return the values of groups as arrays, by name; yield to the event loop if the conversion is long.

    Raise FieldError, which names the group and the place, if values are invalid.
    """
    pauses, decoder, name = Pauses(), _VALUES[form.name], ""
    converted: dict[str, Array] = {}
    try:
        if sum(map(_size, groups.values())) <= AT_ONCE:
            for name, content in groups.items():
                values = content if isinstance(content, Packed) else decoder.decode(content)
                converted[name] = _array(model, name, values, max_rows)
        else:
            for name, content in groups.items():
                if isinstance(content, Packed):
                    converted[name] = _array(model, name, content, max_rows)
                else:
                    converted[name] = await read_values(form, decoder, model, name, content, max_rows, pauses)
                await pauses.pause()
    except msgspec.ValidationError as error:
        message, place = located(error)
        field = f"groups.{name}{'.' if place[:1].isalpha() else ''}{place}"
        at = f" at {place}" if place else ""
        raise FieldError(field, f"values of group {name!r}{at}: {message}") from error
    return converted


def _size(content: msgspec.Raw | Packed) -> int:
    return len(content.values if isinstance(content, Packed) else content)


def _array(model: Model, name: str, values: Values | Packed, max_rows: int) -> Array:
    if isinstance(values, Packed):
        return array_of(model, name, values.values, values.dtype, max_rows)
    return array_of(model, name, values, None, max_rows)


def _read_body(form: Form, kinds: Mapping[str, Decoder], packed: Decoder, content: bytes, max_lists: int) -> Any:
    """Return a decoded body; if it is large, raise BodyTooLargeError at the first values that are a list."""
    if len(content) <= max_lists:
        return read(form, kinds[form.name], content)
    if form is JSON:
        raise too_large(f"the JSON body has {len(content)} bytes", max_lists)
    try:
        return read(form, packed, content)
    except MalformedBodyError as error:
        if "got `array`" not in str(error):
            raise
        raise too_large(f"the body has values as lists and {len(content)} bytes", max_lists) from error
