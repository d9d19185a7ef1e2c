"""Errors as problem details (RFC 9457): the one place that decides an HTTP status.

Everything that goes wrong leaves as `application/problem+json` with type, title, status, detail and, where one is
known, the field. Our own kinds have a URN for a type; what is no more than its HTTP status is `about:blank`.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from anytime.errors import ValuesError
from anytime_service.schemas.problem import KINDS, MEDIA_TYPE, Problem, ProblemKind
from anytime_service.telemetry.context import CURRENT

__all__ = ["FAULT", "install", "not_ready", "problem_of", "problem_response"]


MAX_DETAIL, MAX_FIELD = 1000, 200
"""Characters of what is told of a mistake, which may repeat what was sent."""

FAULT = "fault"
"""What a failure of the server is counted as; other problems are counted by the end of their type, or their status."""


def problem_of(error: Exception) -> Problem:
    """Tell an error as a problem, and count it; one that was not expected says nothing of the server's insides."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        return _of_kind(KINDS[ValuesError], f"{place}: {first['msg'].lower()} (got {first.get('input')!r})", place)
    kind = next((KINDS[cls] for cls in type(error).__mro__ if cls in KINDS), None)
    if kind is None:
        _count(FAULT)
        current = CURRENT.get()
        fault = _blank(500, "the server failed on this request; its log says why")
        return fault if current is None else msgspec.structs.replace(fault, request_id=current.id)
    return _of_kind(kind, str(error), getattr(error, "field", None))


def not_ready(why: str) -> Response:
    """Tell a probe that no prediction is begun here now."""
    return problem_response(_blank(503, why))


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Send a problem as a response."""
    return Response(msgspec.json.encode(problem), problem.status, headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Have an application tell every error as a problem, the framework's own included."""
    for cls in (*KINDS, RequestValidationError, Exception):
        app.add_exception_handler(cls, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)


async def _on_error(_request: Request, error: Exception) -> Response:
    return problem_response(problem_of(error))


async def _on_http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    headers: dict[str, Any] = {name.lower(): value for name, value in (error.headers or {}).items()}
    method, path = request.method, request.url.path
    if error.status_code == 405:
        headers["allow"] = _allowed(request, headers.get("allow", ""))
    details = {
        404: f"there is nothing at {path}; /docs lists what there is",
        405: f"{method} is not allowed at {path}; allowed: {headers.get('allow')}",
    }
    _count(f"http-{error.status_code}")
    return problem_response(_blank(error.status_code, details.get(error.status_code, str(error.detail))), headers)


def _allowed(request: Request, told: str) -> str:
    """Methods of every route of this path; the framework tells those of the first."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    here = [route.methods or set() for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted(set().union(*here, filter(None, told.split(", ")))))


def _of_kind(kind: ProblemKind, detail: str, field: str | None) -> Problem:
    _count(kind.slug)
    field = None if field is None else _shortened(field, MAX_FIELD)
    return Problem(f"urn:anytime:problem:{kind.slug}", kind.title, kind.status, _shortened(detail, MAX_DETAIL), field)


def _count(kind: str) -> None:
    current = CURRENT.get()
    if current is not None:
        current.errors.labels(kind).inc()


def _blank(status: int, detail: str) -> Problem:
    return Problem("about:blank", HTTPStatus(status).phrase, status, _shortened(detail, MAX_DETAIL))


def _shortened(text: str, most: int) -> str:
    """Leave out the middle of what is too long: a mistake must not be answered by more than it was."""
    if len(text) <= most:
        return text
    half = (most - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
