"""What schemathesis has to know of this service; it is reported where this is, see `test_openapi`."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import schemathesis

__all__ = ["before_call", "filter_case", "messagepack"]

LEAST_BUDGET = 1e-3
LEAST_MS = 100.0
"""A budget or a deadline under these may be over before the body is read."""

UNITS_MS = {"H": 3.6e6, "M": 6e4, "S": 1e3, "m": 1.0, "u": 1e-3, "n": 1e-6, "": 1.0}


@schemathesis.hook
def filter_case(_context: Any, case: Any) -> bool:
    """Leave out headers that nobody knows, empty parameters and blank bodies: they count as not given.

    That no schema can say.
    """
    unknown = any(name.lower().startswith("x-schemathesis") for name in case.headers or {})
    blank = isinstance(case.body, bytes | str) and not case.body.strip()
    return not unknown and not blank and "" not in (case.query or {}).values()


@schemathesis.hook
def before_call(_context: Any, case: Any, _options: Any) -> None:
    """Have something to wait for where there is a body: an answer at once would not look at the mistakes in it."""
    if case.method.upper() == "POST":
        _last(case.query, "budget", LEAST_BUDGET, 1_000)
        _last(case.query, "deadline_ms", LEAST_MS, 250)
        _last(case.headers, "Request-Timeout-Ms", LEAST_MS, "250")
        _last(case.headers, "grpc-timeout", LEAST_MS, "250m")


def _last(given: Any, name: str, least: float, longer: Any) -> None:
    """Make of less than the least, a number with or without a unit of time, something longer."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)([HMSmun]?)", str((given or {}).get(name)))
    if found and float(found[1]) * UNITS_MS[found[2]] < least:
        given[name] = longer


@schemathesis.deserializer("application/msgpack")
def messagepack(_context: Any, response: Any) -> Any:
    """Read what is not JSON."""
    return msgspec.msgpack.decode(response.content)
