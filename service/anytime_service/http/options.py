"""Request options in the head of a request: query parameters, deadline headers, the forms of body and answer.

A client sends a deadline as `deadline_ms`, as `Request-Timeout-Ms` or as `grpc-timeout`. The shortest one applies. The
server's maximum limits every deadline, and is the deadline of a request without one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple, cast, get_args
from urllib.parse import parse_qsl

from starlette.types import Scope

from anytime.errors import suggestion
from anytime.types import Overload, Policy
from anytime_service.core.active_prediction import PredictionRequest
from anytime_service.errors import BodyTooLargeError, ContentTypeError, FieldError
from anytime_service.schemas.codecs import JSON, MSGPACK, PACK, Form
from anytime_service.settings import Settings

PREDICTION_PARAMETERS = ("budget", "deadline_ms", "explain", "overload", "policy", "ranking")
"""Query parameters of every prediction request."""

PARAMETERS = (*PREDICTION_PARAMETERS, "model", "rows")  # query parameters of `POST /predict`

_FORMS: Mapping[str, Form] = {
    "": JSON,
    "application/json": JSON,
    "application/x-ndjson": JSON,
    "application/jsonl": JSON,
    "application/msgpack": MSGPACK,
    "application/x-msgpack": MSGPACK,
    "application/vnd.msgpack": MSGPACK,
}
_LINES = ("application/x-ndjson", "application/jsonl")
_NAMES = (
    *("accept", "content-encoding", "content-length", "content-type", "grpc-timeout"),
    *("inference-header-content-length", "request-timeout-ms"),
)
_READ = {name.encode(): name for name in _NAMES}

_POLICIES, _OVERLOADS = get_args(Policy), get_args(Overload)
_GRPC_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_GRPC_UNIT_MS = {"H": 3_600_000.0, "M": 60_000.0, "S": 1_000.0, "m": 1.0, "u": 1e-3, "n": 1e-6}


class Head(NamedTuple):
    """The head of a prediction request, parsed; `lines` is whether each line of the body counts once it is received."""

    request: PredictionRequest
    form: Form
    lines: bool
    reply_form: Form
    session: str | None = None


def read_head(
    scope: Scope, settings: Settings, parameters: tuple[str, ...] = PARAMETERS, *, single_form: bool = True
) -> Head:
    """Read and check the head of a request for a prediction on a route that accepts these query parameters.

    `single_form` is False if tensors as bytes may follow JSON. Raise FieldError, which names an unknown, repeated or
    invalid parameter or header, ContentTypeError, or BodyTooLargeError if the Content-Length is larger than the limit.
    """
    query = _query(scope["query_string"], parameters)
    headers = headers_of(scope)
    form, kind = body_form(headers)
    lines = kind in _LINES
    limit, advice = body_limit(form, settings, lines=lines or not single_form)
    check_length(headers, limit, advice)
    request = PredictionRequest(
        model=query.get("model"),
        rows=_rows(query["rows"], settings.max_rows) if "rows" in query else None,
        budget=_number("budget", query["budget"]) if "budget" in query else None,
        deadline_ms=_deadline(query, headers),
        policy=cast(Policy, _choice("policy", query.get("policy", "prefix"), _POLICIES)),
        ranking=_flag("ranking", query["ranking"]) if "ranking" in query else False,
        overload=cast(Overload, _choice("overload", query.get("overload", "refuse"), _OVERLOADS)),
        explain=_flag("explain", query["explain"]) if "explain" in query else False,
    )
    return Head(request, form, lines, reply_form(headers, form), query.get("session"))


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers that this service reads, by lower-case name."""
    return {_READ[name]: value.decode("latin-1") for name, value in scope["headers"] if name in _READ}


def body_form(headers: Mapping[str, str]) -> tuple[Form, str]:
    """Return the form of the body, and its media type; raise errors as `read_head` does."""
    media_type = headers.get("content-type", "")
    kind = media_type if media_type in _FORMS else media_type.partition(";")[0].strip().lower()
    if kind not in _FORMS:
        expected = "application/json, application/x-ndjson or application/msgpack"
        raise ContentTypeError(f"the content type is {media_type[:100]!r}; expected {expected}")
    coding = headers.get("content-encoding", "")
    if coding and coding.strip().lower() not in ("", "identity"):
        raise ContentTypeError(f"the content encoding is {coding[:100]!r}; send the body without an encoding")
    return _FORMS[kind], kind


def body_limit(form: Form, settings: Settings, *, lines: bool = False) -> tuple[int, str]:
    """Return the maximum number of bytes of a body, and the advice in the error about a larger one."""
    if form is JSON and not lines and settings.max_json_bytes < settings.max_body_bytes:
        return settings.max_json_bytes, PACK
    return settings.max_body_bytes, "send fewer rows or groups at once"


def check_length(headers: Mapping[str, str], limit: int, advice: str) -> None:
    length = headers.get("content-length", "")
    if length.isdigit() and (len(length) > 18 or int(length) > limit):
        raise BodyTooLargeError(f"the body has {length[:100]} bytes; expected at most {limit}; {advice}")


def reply_form(headers: Mapping[str, str], form: Form = JSON) -> Form:
    """Return the form of the first supported media type in `Accept`; without one, return the form of the body."""
    accepted = headers.get("accept", "*/*")
    if accepted == "*/*":
        return form
    for part in accepted.split(","):
        kind = part.partition(";")[0].strip().lower()
        if kind and kind in _FORMS:
            return _FORMS[kind]
    return form


def _query(content: bytes, parameters: tuple[str, ...]) -> dict[str, str]:
    """Return the query parameters by name, without those that have an empty value."""
    if not content:
        return {}
    pairs = parse_qsl(content.decode("latin-1"))
    query = dict(pairs)
    if len(query) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise FieldError(twice, f"parameter {twice!r} is given more than once; send it once")
    for name in query:
        if name not in parameters:  # a misspelt deadline must not become the default
            raise FieldError(name, f"there is no parameter {name!r}; {suggestion(name, parameters)}")
    return query


def _choice(name: str, text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise FieldError(name, f"{name} is {text!r}; expected one of {', '.join(choices)}")
    return text


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0) or "_" in text:
        raise FieldError(name, f"{name} is {text!r}; expected a number, 0 or more")
    return number


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false", "1", "0"):
        raise FieldError(name, f"{name} is {text!r}; expected true or false")
    return text in ("true", "1")


def _rows(text: str, limit: int) -> int:
    # Check the length first, so that the server never parses a number with thousands of digits.
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= limit):
        raise FieldError("rows", f"rows is {text!r}; expected a whole number from 1 to {limit}")
    return int(text)


def _deadline(query: Mapping[str, str], headers: Mapping[str, str]) -> float | None:
    deadlines: list[float] = []
    if "deadline_ms" in query:
        deadlines.append(_number("deadline_ms", query["deadline_ms"]))
    if "request-timeout-ms" in headers:
        deadlines.append(_number("Request-Timeout-Ms", headers["request-timeout-ms"]))
    if "grpc-timeout" in headers:
        match = _GRPC_TIMEOUT.fullmatch(headers["grpc-timeout"])
        if match is None:
            text = headers["grpc-timeout"]
            raise FieldError(
                "grpc-timeout", f"grpc-timeout is {text!r}; expected up to 8 digits and one of H M S m u n"
            )
        deadlines.append(int(match[1]) * _GRPC_UNIT_MS[match[2]])
    return min(deadlines, default=None)
