"""Endpoints, and their answers and errors as HTTP responses: problem details (RFC 9457) with the statuses of `KINDS`.

The server sends every error as `application/problem+json` with type, title, status, detail and, if known, the field.
The type of this service's own problems is a URN; the type of plain HTTP errors is `about:blank`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from anytime.errors import AnytimeError, ValuesError
from anytime_service.core.service import ActivePrediction, PredictionService
from anytime_service.errors import (
    BodyTooLargeError,
    MissingVersionError,
    OverloadedError,
    RequestTimeoutError,
    SessionsUnreachableError,
)
from anytime_service.http.exchange import Exchange, Reply
from anytime_service.limits.turns import finished
from anytime_service.routes import ROUTES, find, is_oip, path_of
from anytime_service.schemas.oip import InferProblem, infer_problem
from anytime_service.schemas.options import read_query
from anytime_service.schemas.problem import KINDS, MEDIA_TYPE, Problem, ProblemKind
from anytime_service.telemetry.context import CURRENT

MAX_DETAIL, MAX_FIELD = 1000, 200  # maximum characters of `detail` and `field`, which may quote the request

_TEMPORARY = (OverloadedError, SessionsUnreachableError, MissingVersionError)
"""Temporary errors: a retry after a second, or on another replica, may succeed."""

_METHODS = {route.method for route in ROUTES} | {"HEAD"}

_log = logging.getLogger("anytime_service")


def problem_of(error: Exception) -> Problem:
    """Return an error as a problem, and count it; the problem of an unexpected error discloses no internals."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        return _of_kind(KINDS[ValuesError], f"{place}: {first['msg'].lower()} (got {first.get('input')!r})", place)
    kind = next((KINDS[cls] for cls in type(error).__mro__ if cls in KINDS), None)
    if kind is None:
        _count("fault")
        current = CURRENT.get()
        fault = blank(500, "the server failed on this request; its log has the reason")
        return fault if current is None else msgspec.structs.replace(fault, request_id=current.id)
    return _of_kind(kind, str(error), getattr(error, "field", None))


def blank_response(
    status: int, detail: str, default: Iterable[tuple[bytes, bytes]], *headers: tuple[bytes, bytes]
) -> bytes:
    """Return a plain HTTP error as the last response of a connection."""
    content = msgspec.json.encode(blank(status, detail))
    return response(Reply(status, MEDIA_TYPE, content, headers, close=True), default)


def problem_response(problem: Problem | InferProblem, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(problem), problem.status, headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Make an application send every error as a problem, the framework's errors included."""
    for cls in (*KINDS, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(cls, _on_error)


class PageRoute(APIRoute):
    """A route of the framework that is answered in the worker thread; its functions wait for nothing."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            service: PredictionService = request.app.state.service
            return await service.worker.page(lambda: finished(handle(request)))

        return answer


async def check_query(request: Request) -> None:
    """Raise FieldError for a query parameter that a route of the framework does not have, or an empty one."""
    fields = request.scope["route"].dependant.query_params
    repeated = [field.alias for field in fields if "list" in str(field.field_info.annotation)]
    read_query(request.scope["query_string"], [field.alias for field in fields], repeated)


async def _on_error(request: Request, error: Exception) -> Response:
    path, headers = path_of(request.scope), dict[str, Any]()
    if isinstance(error, HTTPException):
        status, headers = error.status_code, {name.lower(): value for name, value in (error.headers or {}).items()}
        place, query = path.removesuffix("/"), request.url.query
        if status == 404 and place != path and _methods_at(request, place):
            # Relative: the server knows neither the address nor the prefix at which a proxy serves it.
            return Response(None, 307, {"location": f"../{quote(place.rpartition('/')[2])}{query and '?'}{query}"})
        if status == 405:  # the framework lists only the methods of the first route
            headers["allow"] = ", ".join(_methods_at(request, path)) or headers.get("allow", "")
        details = {
            404: f"there is no route {path}; /docs lists the routes",
            405: f"{request.method} is not allowed at {path}; allowed: {headers.get('allow')}",
        }
        _count(f"http-{status}")
        problem = blank(status, details.get(status, str(error.detail)))
    else:
        problem = problem_of(error)
    return problem_response(_at(path, problem), headers)


def _methods_at(request: Request, path: str) -> list[str]:
    """Return the methods of all routes of a path; the metrics port has few of `ROUTES`."""
    own = {getattr(route, "path", "") for route in request.app.routes}
    return sorted(method for method in _METHODS if (route := find(method, path)[0]) and route.path in own)


def _at(path: str, problem: Problem) -> Problem | InferProblem:
    """Return a problem in the form that the requests for a path expect."""
    return infer_problem(problem) if is_oip(path) else problem


def problem_reply(error: Exception, path: str = "") -> Reply:
    """Return the response to an error of a request for `path`. Log an unexpected error."""
    problem = problem_of(error)
    if not isinstance(error, AnytimeError):
        _log.error("a request failed", exc_info=error)
    after_s = getattr(error, "retry_after_s", 1)
    headers = ((b"retry-after", b"%d" % after_s),) if isinstance(error, _TEMPORARY) else ()
    # Close the connection after a body that is too large or too slow: its rest would exceed the limit too.
    return Reply(
        problem.status,
        MEDIA_TYPE,
        msgspec.json.encode(_at(path, problem)),
        headers,
        isinstance(error, BodyTooLargeError | RequestTimeoutError),
    )


class Endpoint(ABC):
    """ASGI application that sends errors as problems, reads every request to its end, and drops its predictions.

    For speed it uses no request objects.
    """

    parameters: Collection[str] = ()
    """Query parameters of the route."""

    def __init__(self, service: PredictionService) -> None:
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self.service
        account = service.accounts.of(scope)
        exchange = Exchange(receive, send, service.settings.max_body_bytes, account)
        predictions: list[ActivePrediction] = []
        try:
            if scope["query_string"] and not self.parameters:
                read_query(scope["query_string"], ())
            await self.answer(scope, exchange, predictions)
        except Exception as error:
            _drop(predictions)  # now: the rest of the body may follow for a while
            exchange.reply(problem_reply(error, path_of(scope)))
        finally:
            try:
                await exchange.finish()
            finally:
                exchange.rest = None  # it refers to the exchange
                _drop(predictions)

    @abstractmethod
    async def answer(self, scope: Scope, exchange: Exchange, predictions: list[ActivePrediction]) -> None:
        """Send the response, or open the prediction that sends it and add it to `predictions`."""


def _drop(predictions: list[ActivePrediction]) -> None:
    for active in predictions:
        active.drop()


def response(reply: Reply, default: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a reply as the bytes of an HTTP/1.1 response."""
    return response_head(reply.status, (*default, *reply.all_headers())) + reply.content


_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


def response_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the head of an HTTP/1.1 response."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"".join((_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, *lines, b"\r\n"))


def _of_kind(kind: ProblemKind, detail: str, field: str | None) -> Problem:
    _count(kind.slug)
    field = None if field is None else _shortened(field, MAX_FIELD)
    return Problem(f"urn:anytime:problem:{kind.slug}", kind.title, kind.status, _shortened(detail, MAX_DETAIL), field)


def _count(kind: str) -> None:
    current = CURRENT.get()
    if current is not None:
        current.errors.labels(kind).inc()


def blank(status: int, detail: str) -> Problem:
    """Return the problem of a plain HTTP error."""
    return Problem("about:blank", HTTPStatus(status).phrase, status, _shortened(detail, MAX_DETAIL))


def _shortened(text: str, limit: int) -> str:
    """Cut the middle out of a long text, so that an error is not longer than the request that caused it."""
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
