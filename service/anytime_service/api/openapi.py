"""The OpenAPI document: the framework's document, and the routes whose endpoints are plain ASGI applications."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec
from fastapi import FastAPI
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp

from anytime.inference.values import Answer
from anytime.types import Overload, Policy
from anytime_service.http.auth import required_scope
from anytime_service.schemas.oip import (
    InferModel,
    InferModelState,
    InferProblem,
    InferReply,
    InferRequest,
    InferServer,
    InferServerState,
)
from anytime_service.schemas.predict import GroupLine, PredictRequest, SessionCreated, SessionRequest, SessionTook
from anytime_service.schemas.problem import MEDIA_TYPE, Problem
from anytime_service.schemas.stream import BeginFrame, EndFrame, ErrorFrame, GroupFrame
from anytime_service.schemas.values import Values

__all__ = [
    "PREDICT_OPERATION",
    "PROBLEMS",
    "SESSION_OPERATIONS",
    "STREAM_OPERATION",
    "AnytimeAPI",
    "problem_responses",
]

_KEY = "key"
_REF = "#/components/schemas/"
_PROBLEM_CONTENT: dict[str, Any] = {MEDIA_TYPE: {"schema": {"$ref": f"{_REF}Problem"}}}

PROBLEMS = {
    400: "Malformed body or message",
    401: "Missing or invalid API key",
    403: "Insufficient scope of the API key, or a page of an origin that is not allowed",
    404: "Unknown model or session",
    408: "Request timeout",
    409: "Conflict with the current state",
    410: "The session has ended",
    413: "The body is too large",
    415: "Unsupported content type or encoding",
    422: "Invalid value; `field` names it",
    426: "WebSocket required",
    431: "The head of the request is too large",
    500: "Server failure",
    503: "The server is overloaded or at a limit, the session store is unreachable, or no model is loaded; Retry-After "
    "gives the seconds to wait before a retry",
}
"""Problems that routes document, by status."""

_STRUCTS = (
    Answer,
    BeginFrame,
    EndFrame,
    ErrorFrame,
    GroupFrame,
    GroupLine,
    InferModel,
    InferModelState,
    InferProblem,
    InferReply,
    InferRequest,
    InferServer,
    InferServerState,
    PredictRequest,
    Problem,
    SessionCreated,
    SessionRequest,
    SessionTook,
)


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of problems, by status."""
    return {status: {"description": PROBLEMS[status], "content": _PROBLEM_CONTENT} for status in statuses}


def _problems(*statuses: int) -> dict[str, Any]:
    return {str(status): response for status, response in problem_responses(*statuses).items()}


def _parameter(
    name: str, schema: dict[str, Any], description: str, place: str = "query", *, required: bool = False
) -> dict[str, Any]:
    return {"name": name, "in": place, "required": required, "schema": schema, "description": description}


def _content(schema: dict[str, Any], *kinds: str) -> dict[str, Any]:
    return {kind: {"schema": schema} for kind in (kinds or ("application/json", "application/msgpack"))}


def _ref(struct: type) -> dict[str, str]:
    return {"$ref": f"{_REF}{struct.__name__}"}


_AMOUNT = {"type": "number", "minimum": 0}
_ANSWERED = {"200": {"description": "The answer; also after the deadline", "content": _content(_ref(Answer))}}
_PREDICTION_PARAMETERS = [
    _parameter(
        "budget", _AMOUNT, "Maximum cost per row of the groups used, in the model's cost unit; default: no limit."
    ),
    _parameter("deadline_ms", _AMOUNT, "Deadline of the answer, counted from the head of the request."),
    _parameter(
        "policy",
        {"type": "string", "enum": list(get_args(Policy)), "default": "prefix"},
        "prefix: the longest complete prefix; arrived: the optimum for the set of groups received (`approximate` for a "
        "likelihood), if `policies` of the model lists it.",
    ),
    _parameter("ranking", {"type": "boolean", "default": False}, "Also return the order of the rows, best first."),
    _parameter(
        "overload",
        {"type": "string", "enum": list(get_args(Overload)), "default": "refuse"},
        "Response of an overloaded server: 503 (refuse), or at once the base rate (prior), with `reason` overload.",
    ),
    _parameter("Request-Timeout-Ms", _AMOUNT, "A further deadline; the shortest applies.", "header"),
    _parameter(
        "grpc-timeout",
        {"type": "string", "pattern": "^[0-9]{1,8}[HMSmun]$"},
        "A further deadline; the shortest applies.",
        "header",
    ),
]
_SESSION_ID = _parameter("id", {"type": "string"}, "Id of the session.", "path", required=True)

PREDICT_OPERATION: dict[str, Any] = {
    "operationId": "predict",
    "tags": ["predictions"],
    "summary": "Predict from the groups of one body",
    "description": "The best prediction that the groups in the body allow within the budget. A body of JSON or "
    "MessagePack counts when it is complete. Each line of a body of lines (`application/x-ndjson`) counts as soon as "
    "it is received. When the deadline expires, the server at once sends the best answer from the groups received: "
    "200, with `complete` false. In MessagePack the values of a group may be `{dtype: 'f4' or 'f8', values: bytes}`, "
    "little-endian, row after row.",
    "parameters": [
        *_PREDICTION_PARAMETERS,
        _parameter(
            "model",
            {"type": "string"},
            "Name of the model, or name@version; optional if there is only one.",
        ),
        _parameter(
            "rows",
            {"type": "integer", "minimum": 1},
            "Number of rows in the body. An answer sent before the body is received has this many rows; default 1.",
        ),
    ],
    "requestBody": {
        "required": True,
        "content": _content(_ref(PredictRequest)) | _content(_ref(GroupLine), "application/x-ndjson"),
    },
    "responses": _ANSWERED | _problems(400, 404, 413, 415, 422, 500, 503),
}

SESSION_OPERATIONS: dict[str, dict[str, Any]] = {
    "create": {
        "operationId": "create_session",
        "tags": ["sessions"],
        "summary": "Create a session, to which the client posts groups as it computes them",
        "requestBody": {"required": False, "content": _content(_ref(SessionRequest))},
        "responses": {
            "201": {
                "description": "The session; it ends after it has been idle for `expires_in_s`",
                "content": _content(_ref(SessionCreated)),
                "headers": {"Location": {"schema": {"type": "string"}}},
            }
        }
        | _problems(400, 404, 408, 413, 415, 422, 500, 503),
    },
    "groups": {
        "operationId": "post_groups",
        "tags": ["sessions"],
        "summary": "Store groups in a session: all of them, or none if one is invalid",
        "parameters": [_SESSION_ID],
        "requestBody": {
            "required": True,
            "content": _content({"type": "object", "additionalProperties": msgspec.json.schema(Values)}),
        },
        "responses": {"200": {"description": "The groups are stored", "content": _content(_ref(SessionTook))}}
        | _problems(400, 404, 408, 410, 413, 415, 422, 500, 503),
    },
    "predict": {
        "operationId": "predict_session",
        "tags": ["sessions"],
        "summary": "Predict from the groups of a session",
        "description": "The server answers at once. With a deadline, it answers when the deadline expires or when the "
        "prefix that the budget allows is complete.",
        "parameters": [_SESSION_ID, *_PREDICTION_PARAMETERS],
        "responses": _ANSWERED | _problems(404, 410, 415, 422, 500, 503),
    },
    "predict_query": {
        "operationId": "predict_session_by_query",
        "tags": ["sessions"],
        "summary": "The same as GET /sessions/{id}/predict",
        "parameters": [
            _parameter("session", {"type": "string"}, "Id of the session.", required=True),
            *_PREDICTION_PARAMETERS,
        ],
        "responses": _ANSWERED | _problems(404, 410, 415, 422, 500, 503),
    },
    "delete": {
        "operationId": "delete_session",
        "tags": ["sessions"],
        "summary": "Delete a session; the server answers its open predictions",
        "parameters": [_SESSION_ID],
        "responses": {"204": {"description": "The session is deleted"}} | _problems(404, 410, 500, 503),
    },
}

STREAM_OPERATION: dict[str, Any] = {
    "operationId": "stream",
    "tags": ["predictions"],
    "summary": "Many predictions over one WebSocket (subprotocol anytime.v1)",
    "description": "Open it as a WebSocket. Text frames are JSON, binary frames MessagePack, with the same fields. "
    "The client sends `BeginFrame`, `GroupFrame` (in MessagePack `values` may be bytes, with `dtype` f4 or f8) and "
    "`EndFrame`; the server sends `ErrorFrame`, and the fields of `Answer` with `type` answer or update, and `id`. "
    "Every prediction has a unique id. The server discards groups that arrive after the answer. A page cannot send the "
    "API key as a header; it offers a second subprotocol: `anytime.key.` and the key, percent-encoded.",
    "x-websocket": {
        "subprotocol": "anytime.v1",
        "client": [_ref(BeginFrame), _ref(GroupFrame), _ref(EndFrame)],
        "server": [
            {
                "allOf": [
                    _ref(Answer),
                    {"properties": {"type": {"enum": ["answer", "update"]}, "id": {"type": ["string", "integer"]}}},
                ]
            },
            _ref(ErrorFrame),
        ],
    },
    "responses": {"101": {"description": "The WebSocket is open"}} | _problems(400, 426, 503),
}


class AnytimeAPI(FastAPI):
    """FastAPI application whose document also contains the routes whose endpoints have an attribute `operation`.

    Attributes
    ----------
    keyed : whether keys are required; if not, the document declares them optional.
    entrance : wraps the complete stack, the framework's error handling included; None for no wrapper.
    """

    keyed = False
    entrance: Callable[[ASGIApp], ASGIApp] | None = None

    def build_middleware_stack(self) -> ASGIApp:
        """Return the middleware stack, wrapped by `entrance`."""
        stack = super().build_middleware_stack()
        return stack if self.entrance is None else self.entrance(stack)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        document = super().openapi()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        _, ours = msgspec.json.schema_components(_STRUCTS, ref_template=_REF + "{name}")
        del ours[Answer.__name__]["properties"]["unused_groups"]  # the server does not send it
        schemas.update(ours)
        for route in self.routes:
            operation = getattr(getattr(route, "endpoint", None), "operation", None)
            if isinstance(route, Route | WebSocketRoute) and operation is not None:
                path = document["paths"].setdefault(route.path, {})
                methods = route.methods if isinstance(route, Route) else {"GET"}
                path.update({method.lower(): operation for method in methods or () if method != "HEAD"})
        document["components"]["securitySchemes"] = {_KEY: {"type": "http", "scheme": "bearer"}}
        for path, item in document["paths"].items():
            item.update({method: self._guarded(method, path, operation) for method, operation in item.items()})
        return document

    def _guarded(self, method: str, path: str, operation: dict[str, Any]) -> dict[str, Any]:
        """Return an operation with its security requirement and the problems of authentication."""
        problem = InferProblem if path.startswith("/v2") else Problem
        content = {MEDIA_TYPE: {"schema": _ref(problem)}}
        if required_scope(method.upper(), path) == "open":
            statuses: tuple[int, ...] = (403,)
        else:
            statuses = (401, 403)
            operation = {**operation, "security": [{_KEY: []}] if self.keyed else [{_KEY: []}, {}]}
        refusals = {str(status): {"description": PROBLEMS[status], "content": content} for status in statuses}
        return {**operation, "responses": {**operation["responses"], **refusals}}
