"""What the head of a request asks for: query parameters, deadline headers, the forms of body and answer.

A deadline may be told as `deadline_ms`, as `Request-Timeout-Ms` or as `grpc-timeout`. The smallest counts, and none is
longer than the server's maximum, which holds when a request has none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast, get_args
from urllib.parse import parse_qsl

from starlette.types import Scope

from anytime.errors import suggestion
from anytime.types import Overload, Policy
from anytime_service.core.active_prediction import Ask
from anytime_service.errors import BodyTooLargeError, ContentTypeError, FieldError
from anytime_service.schemas.codecs import JSON, MSGPACK, PACK, Form
from anytime_service.settings import Settings

__all__ = [
    "ASKING",
    "PARAMETERS",
    "Head",
    "body_form",
    "body_limit",
    "check_length",
    "headers_of",
    "read_head",
    "reply_form",
]

ASKING = ("budget", "deadline_ms", "overload", "policy", "ranking")
"""Parameters of every request for a prediction."""

PARAMETERS = (*ASKING, "model", "rows")
"""Parameters of `POST /predict`."""

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
_READ = {
    name.encode(): name
    for name in (
        "accept",
        "content-encoding",
        "content-length",
        "content-type",
        "grpc-timeout",
        "inference-header-content-length",
        "request-timeout-ms",
    )
}

_GRPC_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_GRPC_UNIT_MS = {"H": 3_600_000.0, "M": 60_000.0, "S": 1_000.0, "m": 1.0, "u": 1e-3, "n": 1e-6}


@dataclass(frozen=True, slots=True)
class Head:
    """What a request asks for before its body is read.

    Attributes
    ----------
    ask : what is asked for; its deadline counts from when the head was read.
    form, lines : the form of the body, and whether each of its lines counts by itself.
    reply_form : the form of the answer.
    session : the session named by a parameter.
    """

    ask: Ask
    form: Form
    lines: bool
    reply_form: Form
    session: str | None = None


def read_head(
    scope: Scope, settings: Settings, parameters: tuple[str, ...] = PARAMETERS, *, whole: bool = True
) -> Head:
    """Read and check the head of a request for a prediction.

    Parameters
    ----------
    parameters : those that there may be.
    whole : whether all of a body that is not lines has its form; False where only a part of it may be JSON.

    Raises
    ------
    FieldError
        A parameter or header has a value that it cannot have; the error's `field` names it.
    ContentTypeError
        The body is of another kind than those read here.
    BodyTooLargeError
        The body is announced to be larger than the server takes.
    """
    query = _query(scope["query_string"], parameters)
    headers = headers_of(scope)
    form, kind = body_form(headers)
    lines = kind in _LINES
    most, advice = body_limit(form, settings, lines=lines or not whole)
    check_length(headers, most, advice)
    policy = query.get("policy", "prefix")
    if policy not in get_args(Policy):
        raise FieldError("policy", f"policy is {policy!r}; expected one of {', '.join(get_args(Policy))}")
    overload = query.get("overload", "refuse")
    if overload not in get_args(Overload):
        raise FieldError("overload", f"overload is {overload!r}; expected one of {', '.join(get_args(Overload))}")
    ask = Ask(
        model=query.get("model"),
        rows=_rows(query["rows"], settings.max_rows) if "rows" in query else None,
        budget=_number("budget", query["budget"]) if "budget" in query else None,
        deadline_ms=_deadline(query, headers),
        policy=cast(Policy, policy),
        ranking=_flag("ranking", query["ranking"]) if "ranking" in query else False,
        overload=cast(Overload, overload),
    )
    return Head(ask, form, lines, reply_form(headers, form), query.get("session"))


def headers_of(scope: Scope) -> dict[str, str]:
    """Headers that this service reads, by name in small letters."""
    return {_READ[name]: value.decode("latin-1") for name, value in scope["headers"] if name in _READ}


def body_form(headers: Mapping[str, str]) -> tuple[Form, str]:
    """Return the form of the body, and its media type; raises as `read_head` does."""
    told = headers.get("content-type", "")
    kind = told if told in _FORMS else told.partition(";")[0].strip().lower()
    if kind not in _FORMS:
        expected = "application/json, application/x-ndjson or application/msgpack"
        raise ContentTypeError(f"the body is {told[:100]!r}; expected {expected}")
    coding = headers.get("content-encoding", "")
    if coding and coding.strip().lower() not in ("", "identity"):
        raise ContentTypeError(f"the body is encoded as {coding[:100]!r}; send it as it is")
    return _FORMS[kind], kind


def body_limit(form: Form, settings: Settings, *, lines: bool = False) -> tuple[int, str]:
    """Return the most bytes that a body may have, and what to do about more; each of several lines has a limit too."""
    if form is JSON and not lines and settings.max_json_bytes < settings.max_body_bytes:
        return settings.max_json_bytes, PACK
    return settings.max_body_bytes, "send fewer rows or groups at once"


def check_length(headers: Mapping[str, str], most: int, advice: str) -> None:
    """Check the length that the head announces; raises BodyTooLargeError."""
    length = headers.get("content-length", "")
    if length.isdigit() and (len(length) > 18 or int(length) > most):
        raise BodyTooLargeError(f"the body has {length[:100]} bytes; expected at most {most}; {advice}")


def reply_form(headers: Mapping[str, str], form: Form = JSON) -> Form:
    """Form of the answer: that of the first media type in `Accept` that is ours, else that of the body."""
    accepted = headers.get("accept", "*/*")
    if accepted == "*/*":
        return form
    for part in accepted.split(","):
        kind = part.partition(";")[0].strip().lower()
        if kind and kind in _FORMS:
            return _FORMS[kind]
    return form


def _query(content: bytes, parameters: tuple[str, ...]) -> dict[str, str]:
    """Query parameters; one that is empty counts as not given."""
    if not content:
        return {}
    pairs = parse_qsl(content.decode("latin-1"))
    query = dict(pairs)
    if len(query) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise FieldError(twice, f"parameter {twice!r} is given more than once; give it once")
    for name in query:
        if name not in parameters:  # a deadline misspelt must not become the default
            raise FieldError(name, f"there is no parameter {name!r}; {suggestion(name, parameters)}")
    return query


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


def _rows(text: str, most: int) -> int:
    # The length first: reading a number of thousands of digits would be work for nothing.
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise FieldError("rows", f"rows is {text!r}; expected a whole number from 1 to {most}")
    return int(text)


def _deadline(query: Mapping[str, str], headers: Mapping[str, str]) -> float | None:
    told: list[float] = []
    if "deadline_ms" in query:
        told.append(_number("deadline_ms", query["deadline_ms"]))
    if "request-timeout-ms" in headers:
        told.append(_number("Request-Timeout-Ms", headers["request-timeout-ms"]))
    if "grpc-timeout" in headers:
        match = _GRPC_TIMEOUT.fullmatch(headers["grpc-timeout"])
        if match is None:
            got = headers["grpc-timeout"]
            raise FieldError("grpc-timeout", f"grpc-timeout is {got!r}; expected up to 8 digits and one of H M S m u n")
        told.append(int(match[1]) * _GRPC_UNIT_MS[match[2]])
    return min(told, default=None)
