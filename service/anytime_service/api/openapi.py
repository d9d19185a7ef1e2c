"""The OpenAPI document: the framework's own, plus the hot routes that the framework does not look into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec
from fastapi import FastAPI
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp

from anytime.inference.answer import Answer
from anytime.types import Overload, Policy
from anytime_service.http.auth import need_of
from anytime_service.schemas.oip_reply import (
    InferModel,
    InferModelState,
    InferProblem,
    InferReply,
    InferServer,
    InferServerState,
)
from anytime_service.schemas.oip_request import InferRequest
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
    400: "The body or the message cannot be read",
    401: "A key is needed that holds",
    403: "The key does not allow this, or the request comes from a page of another site",
    404: "There is no such model or session",
    408: "The request has not come in time",
    409: "That cannot be done now",
    410: "The session has ended",
    413: "The body is too large",
    415: "The body is in a form that is not read here",
    422: "A value cannot be used; `field` names it",
    426: "This route speaks WebSocket",
    431: "The head of the request is too large",
    500: "The server failed",
    503: "Too much is asked for, open or held, sessions cannot be reached, or no model is loaded; Retry-After tells "
    "when to ask again",
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
    """Problem responses as a route documents them."""
    return {status: {"description": PROBLEMS[status], "content": _PROBLEM_CONTENT} for status in statuses}


def _problems(*statuses: int) -> dict[str, Any]:
    return {str(status): told for status, told in problem_responses(*statuses).items()}


def _parameter(
    name: str, schema: dict[str, Any], description: str, place: str = "query", *, required: bool = False
) -> dict[str, Any]:
    return {"name": name, "in": place, "required": required, "schema": schema, "description": description}


def _content(schema: dict[str, Any], *kinds: str) -> dict[str, Any]:
    return {kind: {"schema": schema} for kind in (kinds or ("application/json", "application/msgpack"))}


def _ref(struct: type) -> dict[str, str]:
    return {"$ref": f"{_REF}{struct.__name__}"}


_AMOUNT = {"type": "number", "minimum": 0}
_ANSWERED = {"200": {"description": "The answer; also when the deadline has struck", "content": _content(_ref(Answer))}}
_ASKING = [
    _parameter("budget", _AMOUNT, "What the groups used may cost a row, in the model's cost unit; none: no limit."),
    _parameter("deadline_ms", _AMOUNT, "Time to answer in, from the head of the request."),
    _parameter(
        "policy",
        {"type": "string", "enum": list(get_args(Policy)), "default": "prefix"},
        "prefix: the longest complete prefix; arrived: the optimum for whatever set has arrived (`approximate` for a "
        "likelihood), where `policies` of the model has it.",
    ),
    _parameter("ranking", {"type": "boolean", "default": False}, "Also give the order of the rows."),
    _parameter(
        "overload",
        {"type": "string", "enum": list(get_args(Overload)), "default": "refuse"},
        "Where more is asked for than can be answered in time: be refused with 503, or told the base rate at once "
        "(prior), with `reason` overload.",
    ),
    _parameter("Request-Timeout-Ms", _AMOUNT, "A deadline too; the smallest counts.", "header"),
    _parameter(
        "grpc-timeout",
        {"type": "string", "pattern": "^[0-9]{1,8}[HMSmun]$"},
        "A deadline too; the smallest counts.",
        "header",
    ),
]
_SESSION_ID = _parameter("id", {"type": "string"}, "Id of the session.", "path", required=True)

PREDICT_OPERATION: dict[str, Any] = {
    "operationId": "predict",
    "tags": ["predictions"],
    "summary": "Predict from the groups of one body",
    "description": "The best prediction that the groups in the body allow within the budget. A body of JSON or "
    "MessagePack counts when it is whole; of lines (`application/x-ndjson`), each counts when it comes. When the "
    "deadline strikes, the answer is the best from what counts, at once: 200, with `complete` false. In MessagePack "
    "the values of a group may be `{dtype: 'f4' or 'f8', values: bytes}`, little-endian, row after row.",
    "parameters": [
        *_ASKING,
        _parameter("model", {"type": "string"}, "Name of the model, or name@version; not needed if there is one."),
        _parameter(
            "rows",
            {"type": "integer", "minimum": 1},
            "Rows of the body, so that an answer that leaves before its end has as many; else it has one.",
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
        "summary": "Begin a session, to which groups are posted as they are computed",
        "requestBody": {"required": False, "content": _content(_ref(SessionRequest))},
        "responses": {
            "201": {
                "description": "The session; it ends when it has not been used for a while",
                "content": _content(_ref(SessionCreated)),
                "headers": {"Location": {"schema": {"type": "string"}}},
            }
        }
        | _problems(400, 404, 408, 413, 415, 422, 500, 503),
    },
    "groups": {
        "operationId": "post_groups",
        "tags": ["sessions"],
        "summary": "Hand over groups: all of them, or none if one is refused",
        "parameters": [_SESSION_ID],
        "requestBody": {
            "required": True,
            "content": _content({"type": "object", "additionalProperties": msgspec.json.schema(Values)}),
        },
        "responses": {"200": {"description": "The groups were taken", "content": _content(_ref(SessionTook))}}
        | _problems(400, 404, 408, 410, 413, 415, 422, 500, 503),
    },
    "predict": {
        "operationId": "predict_session",
        "tags": ["sessions"],
        "summary": "Predict from the groups of a session",
        "description": "At once; with a deadline, when it strikes or the budget's prefix is complete.",
        "parameters": [_SESSION_ID, *_ASKING],
        "responses": _ANSWERED | _problems(404, 410, 415, 422, 500, 503),
    },
    "predict_query": {
        "operationId": "predict_session_by_query",
        "tags": ["sessions"],
        "summary": "The same as GET /sessions/{id}/predict",
        "parameters": [_parameter("session", {"type": "string"}, "Id of the session.", required=True), *_ASKING],
        "responses": _ANSWERED | _problems(404, 410, 415, 422, 500, 503),
    },
    "delete": {
        "operationId": "delete_session",
        "tags": ["sessions"],
        "summary": "End a session; those who wait are answered",
        "parameters": [_SESSION_ID],
        "responses": {"204": {"description": "It has ended, and stays so"}} | _problems(404, 410, 500, 503),
    },
}

STREAM_OPERATION: dict[str, Any] = {
    "operationId": "stream",
    "tags": ["predictions"],
    "summary": "Many predictions over one WebSocket (subprotocol anytime.v1)",
    "description": "Open it as a WebSocket. Text frames are JSON, binary frames MessagePack, with the same fields. "
    "The client sends `BeginFrame`, `GroupFrame` (in MessagePack `values` may be bytes, with `dtype` f4 or f8) and "
    "`EndFrame`; the server sends `ErrorFrame`, and the fields of `Answer` with `type` answer or update, and `id`. "
    "Every prediction has an id of its own. A group after its answer is dropped. A page, which cannot send a key as a "
    "header, offers it as a second subprotocol: `anytime.key.` and the key, percent-encoded.",
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
    """FastAPI whose document also has the routes whose endpoints carry an `operation` of their own.

    Attributes
    ----------
    keyed : whether keys are needed; else the document tells that they may be left out.
    entrance : makes what stands before everything, the framework's own error handling too; None for nothing.
    """

    keyed = False
    entrance: Callable[[ASGIApp], ASGIApp] | None = None

    def build_middleware_stack(self) -> ASGIApp:
        """Put together what a request passes through."""
        stack = super().build_middleware_stack()
        return stack if self.entrance is None else self.entrance(stack)

    def openapi(self) -> dict[str, Any]:
        """Build the OpenAPI document."""
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
        """Tell of an operation what it needs of who asks."""
        problem = InferProblem if path.startswith("/v2") else Problem
        content = {MEDIA_TYPE: {"schema": _ref(problem)}}
        if need_of(method.upper(), path) == "open":
            statuses: tuple[int, ...] = (403,)
        else:
            statuses = (401, 403)
            operation = {**operation, "security": [{_KEY: []}] if self.keyed else [{_KEY: []}, {}]}
        told = {str(status): {"description": PROBLEMS[status], "content": content} for status in statuses}
        return {**operation, "responses": {**operation["responses"], **told}}
