"""Request options in the head of a request: query parameters, deadline headers, the forms of body and answer.

A client sends a deadline as `deadline_ms`, as `Request-Timeout-Ms` or as `grpc-timeout`. The shortest one applies. The
server's maximum limits every deadline, and is the deadline of a request without one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from starlette.types import Scope

from anytime_service.errors import BodyTooLargeError, ContentTypeError, FieldError
from anytime_service.schemas.codecs import JSON, MSGPACK, PACK, Form
from anytime_service.schemas.options import DEFAULTS, PredictionOptions, combined, query_options, read_query
from anytime_service.settings import Settings

FORMS: Mapping[str, Form] = {
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
        *("accept", "content-encoding", "content-length", "content-type", "grpc-timeout"),
        *("inference-header-content-length", "request-timeout-ms"),
    )
}

_GRPC_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_GRPC_UNIT_MS = {"H": 3_600_000.0, "M": 60_000.0, "S": 1_000.0, "m": 1.0, "u": 1e-3, "n": 1e-6}


class PredictionHead(NamedTuple):
    """The head of a prediction request, parsed.

    `stated` are the `options` that the query or a header states. `lines` is whether each line of the body counts once
    it is received.
    """

    options: PredictionOptions
    stated: Mapping[str, Any]
    form: Form
    lines: bool
    reply_form: Form
    headers: Mapping[str, str]
    session: str | None


def read_head(
    scope: Scope, settings: Settings, parameters: Collection[str], forms: Mapping[str, Form] = FORMS
) -> PredictionHead:
    """Read and check the head of a request for a prediction on a route that accepts these query parameters.

    A route with other `forms` of bodies by media type has a limit of its own for JSON. Raise FieldError, which names an
    unknown, repeated or invalid parameter or header, ContentTypeError, or BodyTooLargeError if the Content-Length is
    larger than the limit.
    """
    query = read_query(scope["query_string"], parameters)
    headers = headers_of(scope)
    form, kind = body_form(headers, forms)
    lines = kind in _LINES
    check_length(headers, *body_limit(form, settings, lines=lines or forms is not FORMS))
    stated = combined({"query": query_options(query), **_deadlines(headers)})
    options = PredictionOptions(**stated) if stated else DEFAULTS
    return PredictionHead(options, stated, form, lines, reply_form(headers, form), headers, query.get("session"))


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers that this service reads, by lower-case name; raise FieldError if one is given twice."""
    headers: dict[str, str] = {}
    for field, value in scope["headers"]:
        name = _READ.get(field)
        if name in headers and name != "accept":
            raise FieldError(name, f"header {name!r} is given more than once; send it once")
        if name is not None:
            text = value.decode("latin-1")
            headers[name] = f"{headers[name]}, {text}" if name in headers else text  # a list, which may be in parts
    return headers


def body_form(headers: Mapping[str, str], forms: Mapping[str, Form] = FORMS) -> tuple[Form, str]:
    """Return the form of the body, and its media type; raise errors as `read_head` does."""
    media_type = headers.get("content-type", "")
    kind = media_type if media_type in forms else media_type.partition(";")[0].strip().lower()
    if kind not in forms:
        expected = ", ".join(filter(None, forms))
        raise ContentTypeError(f"the content type is {media_type[:100]!r}; expected one of {expected}")
    coding = headers.get("content-encoding", "")
    if coding and coding.strip().lower() not in ("", "identity"):
        raise ContentTypeError(f"the content encoding is {coding[:100]!r}; send the body without an encoding")
    return forms[kind], kind


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
    kinds = (part.partition(";")[0].strip().lower() for part in headers.get("accept", "").split(","))
    return next((FORMS[kind] for kind in kinds if kind and kind in FORMS), form)


def _deadlines(headers: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the options that headers state, by the name of the header."""
    found: dict[str, dict[str, Any]] = {}
    if "request-timeout-ms" in headers:
        options = query_options({"deadline_ms": headers["request-timeout-ms"]}, "Request-Timeout-Ms")
        found["Request-Timeout-Ms"] = options
    if "grpc-timeout" in headers:
        match = _GRPC_TIMEOUT.fullmatch(headers["grpc-timeout"])
        if match is None:
            raise FieldError(
                "grpc-timeout",
                f"grpc-timeout is {headers['grpc-timeout']!r}; expected up to 8 digits and one of H M S m u n",
            )
        found["grpc-timeout"] = {"deadline_ms": int(match[1]) * _GRPC_UNIT_MS[match[2]]}
    return found
