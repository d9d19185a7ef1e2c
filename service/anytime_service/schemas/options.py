"""The options of a prediction: one class for query, JSON body, begin message, OIP parameters and client.

A new option is a field of `PredictionOptions`, and of one of the dictionaries below it, which tell type checkers the
arguments of the client. Every message that carries options inherits from it; the query's parameters, the OpenAPI
document and the calls of the client are made from its fields.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from types import NoneType
from typing import Annotated, Any, Literal, TypedDict, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec

from anytime.errors import suggestion
from anytime.types import Overload, Policy
from anytime_service.errors import FieldError

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

_values = attrgetter(*NAMES)
_NOTHING = _values(DEFAULTS)

OF_THE_HEAD = ("model", "overload", *STREAM_ONLY)
"""Options that the server needs before it reads a body of groups."""


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


def completed(head: PredictionOptions, body: PredictionOptions, before: Collection[str] = ()) -> PredictionOptions:
    """Return the options of the head and the body of one request; the shortest deadline applies.

    Raise FieldError if another option is in both and differs, or if the body has one that is needed `before` it.
    """
    if _values(body) == _NOTHING:
        return head
    given = {name: value for name in NAMES if (value := getattr(body, name)) != getattr(DEFAULTS, name)}
    for name, value in given.items():
        if name in before:
            raise FieldError(name, f"{name} is an option of the query on this route; send it there")
        first = getattr(head, name)
        if name != "deadline_ms" and first not in (value, getattr(DEFAULTS, name)):
            raise FieldError(name, f"{name} is {value!r} in the body and {first!r} in the query; send it once")
    if head.deadline_ms is not None and "deadline_ms" in given:
        given["deadline_ms"] = min(given["deadline_ms"], head.deadline_ms)
    return msgspec.structs.replace(head, **given)


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


def query_options(query: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the options in a query; raise FieldError, which names the parameter, for an invalid one."""
    return {name: _PARSERS[name](name, text) for name, text in query.items() if name in _PARSERS}


def number(name: str, text: str) -> float:
    """Return a number, 0 or more; raise FieldError for anything else."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and found >= 0) or "_" in text or not text.isascii():
        raise FieldError(name, f"{name} is {text!r}; expected a number, 0 or more")
    return found


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false", "1", "0"):
        raise FieldError(name, f"{name} is {text!r}; expected true or false")
    return text in ("true", "1")


def _whole(name: str, text: str) -> int:
    # Check the length first, so that the server never parses a number with thousands of digits.
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= 1):
        raise FieldError(name, f"{name} is {text!r}; expected a whole number, 1 or more")
    return int(text)


def _parser(hint: Any) -> Callable[[str, str], Any]:
    """Return the parser of an option's type."""
    if get_origin(hint) is Literal:
        choices = get_args(hint)

        def choice(name: str, text: str) -> str:
            if text not in choices:
                raise FieldError(name, f"{name} is {text!r}; expected one of {', '.join(choices)}")
            return text

        return choice
    kinds = [each for each in get_args(hint) or (hint,) if each is not NoneType]
    return {bool: _flag, int: _whole, float: number, str: lambda _, text: text}[kinds[0]]


_PARSERS = {name: _parser(hint) for name, hint in get_type_hints(PredictionOptions).items() if name in PARAMETERS}


def parameter_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON schemas of all options by name, `description` included, without null and its default."""
    properties = msgspec.json.schema(PredictionOptions)["$defs"][PredictionOptions.__name__]["properties"]
    schemas: dict[str, dict[str, Any]] = {}
    for name, schema in properties.items():
        kinds = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
        found = {**schema, **(kinds[0] if kinds else {})}
        found.pop("anyOf", None)
        if found.get("default", 0) is None:
            del found["default"]
        schemas[name] = found
    return schemas
