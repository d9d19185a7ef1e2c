"""Request options in the head of a request: query parameters, deadline headers, the forms of body and answer.

A client sends a deadline as `deadline_ms`, as `Request-Timeout-Ms` or as `grpc-timeout`. The shortest one applies. The
server's maximum limits every deadline, and is the deadline of a request without one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from starlette.types import Scope

from anytime_service.errors import BodyTooLargeError, ContentTypeError, FieldError
from anytime_service.schemas.codecs import JSON, MSGPACK, PACK, Form
from anytime_service.schemas.options import DEFAULTS, PredictionOptions, number, query_options, read_query, shortest
from anytime_service.settings import Settings

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
        *("accept", "content-encoding", "content-length", "content-type", "grpc-timeout"),
        *("inference-header-content-length", "request-timeout-ms"),
    )
}

_GRPC_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_GRPC_UNIT_MS = {"H": 3_600_000.0, "M": 60_000.0, "S": 1_000.0, "m": 1.0, "u": 1e-3, "n": 1e-6}


class Head(NamedTuple):
    """The head of a prediction request, parsed; `lines` is whether each line of the body counts once it is received."""

    options: PredictionOptions
    form: Form
    lines: bool
    reply_form: Form
    session: str | None = None


def read_head(scope: Scope, settings: Settings, parameters: Collection[str], *, single_form: bool = True) -> Head:
    """Read and check the head of a request for a prediction on a route that accepts these query parameters.

    `single_form` is False if tensors as bytes may follow JSON. Raise FieldError, which names an unknown, repeated or
    invalid parameter or header, ContentTypeError, or BodyTooLargeError if the Content-Length is larger than the limit.
    """
    query = read_query(scope["query_string"], parameters)
    headers = headers_of(scope)
    form, kind = body_form(headers)
    lines = kind in _LINES
    check_length(headers, *body_limit(form, settings, lines=lines or not single_form))
    options = query_options(query)
    deadline_ms = _deadline(options.get("deadline_ms"), headers)
    if deadline_ms is not None:
        options["deadline_ms"] = deadline_ms
    requested = PredictionOptions(**options) if options else DEFAULTS
    return Head(requested, form, lines, reply_form(headers, form), query.get("session"))


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers that this service reads, by lower-case name; raise FieldError if one is given twice."""
    found = [(_READ[name], value.decode("latin-1")) for name, value in scope["headers"] if name in _READ]
    headers = dict(found)
    if len(headers) < len(found):
        names = [name for name, _ in found]
        for name in headers:
            if name == "accept":  # a list, whose parts may be in several fields
                headers[name] = ", ".join(value for each, value in found if each == name)
            elif names.count(name) > 1:
                raise FieldError(name, f"header {name!r} is given more than once; send it once")
    return headers


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


def _deadline(requested_ms: float | None, headers: Mapping[str, str]) -> float | None:
    if "request-timeout-ms" not in headers and "grpc-timeout" not in headers:
        return requested_ms
    deadlines = [requested_ms]
    if "request-timeout-ms" in headers:
        deadlines.append(number("Request-Timeout-Ms", headers["request-timeout-ms"]))
    if "grpc-timeout" in headers:
        match = _GRPC_TIMEOUT.fullmatch(headers["grpc-timeout"])
        if match is None:
            text = headers["grpc-timeout"]
            raise FieldError(
                "grpc-timeout", f"grpc-timeout is {text!r}; expected up to 8 digits and one of H M S m u n"
            )
        deadlines.append(int(match[1]) * _GRPC_UNIT_MS[match[2]])
    return shortest(*deadlines)
