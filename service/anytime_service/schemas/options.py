"""The options of a prediction: one class for query, JSON body, begin message, OIP parameters and client.

A new option is a field of `PredictionOptions`, and of one of the dictionaries below it, which tell type checkers the
arguments of the client. Every message that carries options inherits from it; the query's parameters, their errors, the
OpenAPI document, the log of requests and the calls of the client are made from its fields.

An option may be stated in several parts of a request: in the query, in a header, in the body. `combined` is the only
place that decides what applies then: the shortest deadline, and for every other option the one value that all state.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, TypedDict
from urllib.parse import parse_qsl

import msgspec

from anytime.errors import suggestion
from anytime.types import Overload, Policy
from anytime_service.errors import FieldError
from anytime_service.schemas.codecs import located

# MessagePack can encode infinity; the other forms of the same request cannot, so it is rejected.
Amount = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]


def _described(text: str) -> msgspec.Meta:
    return msgspec.Meta(description=text)


class PredictionOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The options of a prediction, before any group."""

    model: Annotated[str | None, _described("Name of the model, or name@version; optional if there is only one.")] = (
        None
    )
    rows: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        _described("Number of rows; without it, the first values define it. An answer without values then has one."),
    ] = None
    budget: Annotated[
        Amount | None,
        _described("Maximum cost per row of the groups used, in the model's cost unit; default: no limit."),
    ] = None
    deadline_ms: Annotated[
        Amount | None,
        _described("Deadline of the answer, counted from the head of the request, or from the begin message."),
    ] = None
    policy: Annotated[
        Policy,
        _described(
            "prefix: the longest complete prefix; best: that, or a shorter one whose cross-validated error is less by "
            "one standard error; arrived: the optimum for the set of groups received (`approximate` for a likelihood). "
            "`policies` of the model lists those that it has."
        ),
    ] = "prefix"
    ranking: Annotated[bool, _described("Also return the order of the rows, best first.")] = False
    overload: Annotated[
        Overload,
        _described(
            "Response of an overloaded server: 503 (refuse), or at once the base rate (prior), with `reason` overload."
        ),
    ] = "refuse"
    explain: Annotated[bool, _described("Also return what each group and column contributes.")] = False
    updates: Annotated[bool, _described("Also send every better answer before the final one.")] = False
    traceparent: Annotated[
        Annotated[str, msgspec.Meta(max_length=256)] | None,
        _described("The caller's span (W3C Trace Context), used if the service exports spans."),
    ] = None


DEFAULTS = PredictionOptions()
NAMES = PredictionOptions.__struct_fields__
STREAM_ONLY = ("updates", "traceparent")
"""Options of a begin message only: a response has no updates, and a request has its span in a header."""

PARAMETERS = tuple(name for name in NAMES if name not in STREAM_ONLY)
"""Query parameters of `POST /predict`."""

OF_THE_HEAD = ("model", "overload", *STREAM_ONLY)
"""Options that the server needs before it reads a body of groups."""

ADDED = {"ranking": "ranking", "explain": "contributions"}
"""The field of an answer that is None unless this option is true."""

if TYPE_CHECKING:
    StatedOptions = PredictionOptions
else:
    StatedOptions = msgspec.defstruct(
        "StatedOptions",
        [(each.name, each.type, msgspec.UNSET) for each in msgspec.structs.fields(PredictionOptions)],
        frozen=True,
        kw_only=True,
        omit_defaults=True,
        forbid_unknown_fields=True,
    )
    """Base class of a message that may leave options to another part of its request: those are `UNSET`."""


class _Options(TypedDict, total=False):
    """Options of every call of the client, for type checkers; `PredictionOptions` documents them."""

    policy: Policy
    budget: float | None
    ranking: bool
    overload: Overload
    explain: bool


class RunOptions(_Options, total=False):
    """Options of a call of the client that computes its groups."""

    model: str | None
    rows: int | None


class SessionOptions(_Options, total=False):
    """Options of an answer of a client's session."""

    deadline_ms: float | None


class PredictOptions(RunOptions, SessionOptions, total=False):
    """Options of a call of the client with available groups."""


def combined(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the options that the named parts of one request state; the shortest deadline applies.

    Raise FieldError if two parts state different values of another option.
    """
    found: dict[str, Any] = {}
    for part, stated in parts.items():
        for name, value in stated.items():
            first = found.setdefault(name, value)
            if name == "deadline_ms":
                found[name] = min((each for each in (first, value) if each is not None), default=None)
            elif first != value:
                other = next(each for each in parts if name in parts[each])
                this, that = (msgspec.json.encode(each).decode() for each in (value, first))
                raise FieldError(name, f"{name} is {this} in the {part} and {that} in the {other}; send it once")
    return found


def stated_in(
    body: StatedOptions, head: PredictionOptions, before: Collection[str], within: str = ""
) -> dict[str, Any]:
    """Return the options that a body states, or the part `within` it.

    Raise FieldError for one that the server needs `before` it, unless that is the default here and in the head.
    """
    stated = {name: value for name in NAMES if (value := getattr(body, name)) is not msgspec.UNSET}
    for name in before:
        if name in stated and not stated[name] == getattr(head, name) == getattr(DEFAULTS, name):
            place = "a begin message" if name in STREAM_ONLY else "the address"
            words = f"{name} is an option of {place} only; send it there, or omit it from the body"
            raise FieldError(f"{within}{name}", words)
    return stated


def read_query(content: bytes, names: Collection[str], repeated: Collection[str] = ()) -> dict[str, str]:
    """Return the query parameters by name.

    Raise FieldError if one is not in `names`, has no value, or is given more than once and is not in `repeated`.
    """
    if not content:
        return {}
    query: dict[str, str] = {}
    for name, value in parse_qsl(content.decode("latin-1"), keep_blank_values=True):
        if name not in names:  # a misspelt deadline must not become the default
            known = suggestion(name, sorted(names)) if names else "this route has no parameters"
            raise FieldError(name, f"there is no parameter {name!r}; {known}")
        if name in query and name not in repeated:
            raise FieldError(name, f"parameter {name!r} is given more than once; send it once")
        if not value:
            raise FieldError(name, f"parameter {name!r} has no value; send a value, or omit the parameter")
        query[name] = value
    return query


def query_options(query: Mapping[str, str], header: str | None = None) -> dict[str, Any]:
    """Return the values of the options in a query, or in one `header`; raises as `checked_options`."""
    stated = {name: _parsed(SCHEMAS[name].get("type"), text) for name, text in query.items() if name in SCHEMAS}
    checked_options(stated, header)
    return stated


_LONGEST = 400  # characters of a number in a query: Python reads thousands of digits slowly
_KINDS: Mapping[str | None, tuple[Callable[[str], Any], str]] = {
    "boolean": ({"true": True, "1": True, "false": False, "0": False}.__getitem__, "true or false"),
    "integer": (int, "a whole number, 1 or more"),
    "number": (float, "a number, 0 or more"),
    "string": (str, "text"),
}
"""How a value of each kind is parsed in a query, and what an error says that is expected."""


def _parsed(kind: str | None, text: str) -> Any:
    """Return the value that a text has in JSON; the text itself if it has none of this kind."""
    if kind in _KINDS and text.isascii() and "_" not in text and len(text) < _LONGEST:
        with suppress(ValueError, KeyError):
            return _KINDS[kind][0](text)
    return text


def checked_options(given: Mapping[str, Any], header: str | None = None) -> PredictionOptions:
    """Return options with these values; raise FieldError for an invalid one, which names it, or its `header`."""
    try:
        return msgspec.convert(given, PredictionOptions) if given else DEFAULTS
    except msgspec.ValidationError as error:
        name = located(error)[1]
        shown, schema = header or name, SCHEMAS[name]
        expected = _KINDS[schema["type"]][1] if "type" in schema else f"one of {', '.join(schema['enum'])}"
        raise FieldError(shown, f"{shown} is {given[name]!r}; expected {expected}") from error


def _without_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an option without null, also where that is the default."""
    kinds = [each for each in schema.get("anyOf", ()) if each["type"] != "null"]
    merged = {**schema, **(kinds[0] if kinds else {})}
    return {key: value for key, value in merged.items() if key != "anyOf" and value is not None}


SCHEMAS = {
    name: _without_null(schema)
    for name, schema in msgspec.json.schema(PredictionOptions)["$defs"][PredictionOptions.__name__][
        "properties"
    ].items()
}
"""JSON schema of each option by name, with its `description`."""
