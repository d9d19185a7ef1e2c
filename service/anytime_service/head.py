"""What the head of a request asks for: query parameters, deadline headers, the form of its body.

A deadline may be told as `deadline_ms`, as `Request-Timeout-Ms` or as `grpc-timeout`. The smallest counts, and none is
longer than the server's maximum, which holds when a request has none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import cast, get_args
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Scope

from anytime.answer import Policy
from anytime.errors import suggestion
from anytime_service.errors import BodyTooLargeError, ContentTypeError, FieldError
from anytime_service.settings import Settings

__all__ = ["PARAMETERS", "Head", "read_head"]

PARAMETERS = ("budget", "deadline_ms", "model", "policy", "rows")

_GRPC_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_GRPC_UNIT_MS = {"H": 3_600_000.0, "M": 60_000.0, "S": 1_000.0, "m": 1.0, "u": 1e-3, "n": 1e-6}


class Head(msgspec.Struct, frozen=True):
    """What a request asks for before its body is read; `deadline_ms` counts from when its head was read.

    `rows` is None where the head does not say.
    """

    model: str | None
    budget: float | None
    deadline_ms: float
    policy: Policy
    rows: int | None


def read_head(scope: Scope, settings: Settings) -> Head:
    """Read and check the head of a request for a prediction.

    Raises
    ------
    FieldError
        A parameter or header has a value that it cannot have; the error's `field` names it.
    ContentTypeError
        The body is not JSON in UTF-8.
    BodyTooLargeError
        The body is announced to be larger than the server takes.
    """
    query = _query(scope["query_string"])
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    _check_content(headers, settings.max_body_bytes)
    policy = query.get("policy", "prefix")
    if policy not in get_args(Policy):
        raise FieldError("policy", f"policy is {policy!r}; expected one of {', '.join(get_args(Policy))}")
    return Head(
        model=query.get("model"),
        budget=_number("budget", query["budget"]) if "budget" in query else None,
        deadline_ms=_deadline(query, headers, settings.max_deadline_ms),
        policy=cast(Policy, policy),
        rows=_rows(query["rows"], settings.max_rows) if "rows" in query else None,
    )


def _query(content: bytes) -> dict[str, str]:
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
        if name not in PARAMETERS:  # a deadline misspelt must not become the default
            raise FieldError(name, f"there is no parameter {name!r}; {suggestion(name, PARAMETERS)}")
    return query


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0) or "_" in text:
        raise FieldError(name, f"{name} is {text!r}; expected a number, 0 or more")
    return number


def _rows(text: str, most: int) -> int:
    # The length first: reading a number of thousands of digits would be work for nothing.
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise FieldError("rows", f"rows is {text!r}; expected a whole number from 1 to {most}")
    return int(text)


def _deadline(query: Mapping[str, str], headers: Mapping[str, str], longest: float) -> float:
    told = [longest]
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
    return min(told)


def _check_content(headers: Mapping[str, str], max_bytes: int) -> None:
    kind = headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() not in ("", "application/json"):
        raise ContentTypeError(f"the body is {kind!r}; expected application/json")
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise ContentTypeError(f"the body is encoded as {coding!r}; send it as it is")
    length = headers.get("content-length", "")
    if length.isdigit() and (len(length) > 18 or int(length) > max_bytes):
        raise BodyTooLargeError(f"the body has {length} bytes; expected at most {max_bytes}")
