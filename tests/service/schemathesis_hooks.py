"""What schemathesis has to know of this service; it is told where this is, see `test_conformance`."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import schemathesis

__all__ = ["before_call", "filter_case", "messagepack"]


@schemathesis.hook
def filter_case(_context: Any, case: Any) -> bool:
    """Leave out headers that nobody knows, and empty parameters: they count as not given, which no schema can say."""
    unknown = any(name.lower().startswith("x-schemathesis") for name in case.headers or {})
    return not unknown and "" not in (case.query or {}).values()


@schemathesis.hook
def before_call(_context: Any, case: Any, _options: Any) -> None:
    """Have something to wait for where there is a body: an answer at once would not look at the mistakes in it."""
    if case.method.upper() == "POST":
        _last(case.query, "budget", 1_000)
        _last(case.query, "deadline_ms", 250)
        _last(case.headers, "Request-Timeout-Ms", "250")
        _last(case.headers, "grpc-timeout", "250m")


def _last(told: Any, name: str, longer: Any) -> None:
    if told and re.fullmatch(r"[0.]+[HMSmun]?", str(told.get(name))):
        told[name] = longer


@schemathesis.deserializer("application/msgpack")
def messagepack(_context: Any, response: Any) -> Any:
    """Read what is not JSON."""
    return msgspec.msgpack.decode(response.content)
