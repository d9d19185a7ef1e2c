"""The OpenAPI document: the framework's document, and the routes whose endpoints are plain ASGI applications."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp

from anytime.inference.prediction import LOCAL_FIELDS, Answer
from anytime_service.routes import find, is_oip
from anytime_service.schemas.messages import (
    SUBPROTOCOL,
    BeginFrame,
    EndFrame,
    ErrorFrame,
    GroupFrame,
    GroupLine,
    PredictRequest,
    SessionCreated,
    SessionRequest,
    SessionTook,
    Values,
)
from anytime_service.schemas.oip import (
    InferModel,
    InferModelState,
    InferProblem,
    InferReply,
    InferRequest,
    InferServer,
    InferServerState,
)
from anytime_service.schemas.options import PARAMETERS, SCHEMAS
from anytime_service.schemas.problem import KINDS, MEDIA_TYPE, Problem

_KEY = "key"
_REF = "#/components/schemas/"

PROBLEMS = {
    status: "; ".join(dict.fromkeys(kind.title for kind in KINDS.values() if kind.status == status))
    for status in sorted({kind.status for kind in KINDS.values()})
} | {500: "Server failure"}
"""Problems that routes document, by status."""

_STRUCTS: dict[type, None] = {}  # structs that the operations refer to; `_ref` adds them


def problem_responses(*statuses: int, schema: type = Problem) -> dict[int | str, dict[str, Any]]:
    content = _content(schema, MEDIA_TYPE)
    return {str(status): {"description": PROBLEMS[status], "content": content} for status in statuses}


def _ref(struct: type) -> dict[str, str]:
    _STRUCTS[struct] = None
    return {"$ref": f"{_REF}{struct.__name__}"}


def _content(schema: type | dict[str, Any], *media_types: str) -> dict[str, Any]:
    described = {"schema": _ref(schema) if isinstance(schema, type) else schema}
    return dict.fromkeys(media_types or ("application/json", "application/msgpack"), described)


def _responses(*problems: int, status: int = 200, schema: type = Problem, **fields: Any) -> dict[int | str, Any]:
    """Return the successful response of an operation with these fields, and the problems."""
    return {str(status): fields, **problem_responses(*problems, schema=schema)}


def _parameter(
    name: str, schema: dict[str, Any], description: str, place: str = "query", *, required: bool = False
) -> dict[str, Any]:
    return {"name": name, "in": place, "required": required, "schema": schema, "description": description}


_STRING = {"type": "string"}
_DEADLINES = [
    _parameter(
        "Request-Timeout-Ms", {"type": "number", "minimum": 0}, "A further deadline; the shortest applies.", "header"
    ),
    _parameter(
        "grpc-timeout",
        {"type": "string", "pattern": "^[0-9]{1,8}[HMSmun]$"},
        "A further deadline; the shortest applies.",
        "header",
    ),
]


def _options(*without: str) -> list[dict[str, Any]]:
    """Return the query parameters and headers of a prediction, without those that its route has elsewhere."""
    schemas = {name: {**SCHEMAS[name]} for name in PARAMETERS if name not in without}
    return [_parameter(name, schema, schema.pop("description")) for name, schema in schemas.items()] + _DEADLINES


_SESSION_ID = _parameter("id", _STRING, "Id of the session.", "path", required=True)
_ANSWER: dict[str, Any] = {"description": "The answer; also after the deadline", "content": _content(Answer)}

_PREDICTIONS: dict[str, dict[str, Any]] = {
    "predict": {
        "summary": "Predict from the groups of one body",
        "description": "The best prediction that the groups in the body allow within the budget. A body of JSON or "
        "MessagePack counts when it is complete. Each line of a body of lines (`application/x-ndjson`) counts as soon "
        "as it is received. When the deadline expires, the server at once sends the best answer from the groups "
        "received: 200, with `complete` false. In MessagePack the values of a group may be "
        "`{dtype: 'f4' or 'f8', values: bytes}`, little-endian, row after row.",
        "parameters": _options(),
        "requestBody": {
            "required": True,
            "content": _content(PredictRequest) | _content(GroupLine, "application/x-ndjson"),
        },
        "responses": _responses(400, 404, 413, 415, 422, 500, 503, **_ANSWER),
    },
    "stream": {
        "summary": f"Many predictions over one WebSocket (subprotocol {SUBPROTOCOL})",
        "description": "Open it as a WebSocket. Text frames are JSON, binary frames MessagePack, with the same fields. "
        "The client sends `BeginFrame`, `GroupFrame` (in MessagePack `values` may be bytes, with `dtype` f4 or f8) and "
        "`EndFrame`; the server sends `ErrorFrame`, and the fields of `Answer` with `type` answer or update, and `id`. "
        "Every prediction has a unique id. The server discards groups that arrive after the answer. A page cannot send "
        "the API key as a header; it offers a second subprotocol: `anytime.key.` and the key, percent-encoded.",
        "x-websocket": {
            "subprotocol": SUBPROTOCOL,
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
        "responses": _responses(400, 426, 503, status=101, description="The WebSocket is open"),
    },
}

_SESSIONS: dict[str, dict[str, Any]] = {
    "create_session": {
        "summary": "Create a session, to which the client posts groups as it computes them",
        "requestBody": {"required": False, "content": _content(SessionRequest)},
        "responses": _responses(
            *(400, 404, 408, 413, 415, 422, 500, 503),
            status=201,
            description="The session; it ends after it has been idle for `expires_in_s`",
            content=_content(SessionCreated),
            headers={"Location": {"schema": _STRING}},
        ),
    },
    "post_groups": {
        "summary": "Store groups in a session: all of them, or none if one is invalid",
        "parameters": [_SESSION_ID],
        "requestBody": {
            "required": True,
            "content": _content({"type": "object", "additionalProperties": msgspec.json.schema(Values)}),
        },
        "responses": _responses(
            *(400, 404, 408, 410, 413, 415, 422, 500, 503),
            description="The groups are stored",
            content=_content(SessionTook),
        ),
    },
    "predict_session": {
        "summary": "Predict from the groups of a session",
        "description": "The server answers at once. With a deadline, it answers when the deadline expires or when the "
        "prefix that the budget allows is complete.",
        "parameters": [_SESSION_ID, *_options("model", "rows")],
        "responses": _responses(404, 410, 415, 422, 500, 503, **_ANSWER),
    },
    "predict_session_by_query": {
        "summary": "The same as GET /sessions/{id}/predict",
        "parameters": [_parameter("session", _STRING, "Id of the session.", required=True), *_options("model", "rows")],
        "responses": _responses(404, 410, 415, 422, 500, 503, **_ANSWER),
    },
    "delete_session": {
        "summary": "Delete a session; the server answers its open predictions",
        "parameters": [_SESSION_ID],
        "responses": _responses(404, 410, 500, 503, status=204, description="The session is deleted"),
    },
}


def _oip(description: str, struct: type, *problems: int) -> dict[int | str, Any]:
    content = _content(struct, "application/json")
    return _responses(*problems, 500, schema=InferProblem, description=description, content=content)


_NAME = _parameter("name", _STRING, "Name of the model, or name@version.", "path", required=True)
_BYTES: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

_OIP: dict[str, dict[str, Any]] = {
    "oip_server": {"summary": "Describe the server", "responses": _oip("The server and its extensions", InferServer)},
    "oip_live": {"summary": "Report whether the process is alive", "responses": _oip("It is alive", InferServerState)},
    "oip_ready": {
        "summary": "Report whether the server begins predictions",
        "responses": _oip("At least one model is loaded, and the server is not stopping", InferServerState, 503),
    },
    "oip_model": {
        "summary": "Describe a model's inputs and outputs",
        "parameters": [_NAME],
        "responses": _oip("The model, its inputs and outputs", InferModel, 404),
    },
    "oip_model_ready": {
        "summary": "Report whether a model is ready",
        "parameters": [_NAME],
        "responses": _oip("The model is ready", InferModelState, 404, 503),
    },
    "oip_infer": {
        "summary": "Predict from a subset of a model's inputs",
        "description": "The best prediction that the inputs allow within the budget. The options of a prediction are "
        "parameters of the request or of the query. A JSON body counts when it is complete. Each tensor that follows "
        "the JSON as bytes (binary tensor extension) counts as soon as it is received. When the deadline expires, the "
        "server at once sends the best answer from the inputs "
        "received: 200, with the parameter `complete` false. A deadline in the JSON applies once the JSON is "
        "received; a deadline in the head applies from the start.",
        "parameters": [
            _NAME,
            *_options("model"),
            _parameter(
                "Inference-Header-Content-Length",
                {"type": "integer", "minimum": 0},
                "Number of bytes of JSON at the start of the body, if tensors follow as bytes.",
                "header",
            ),
        ],
        "requestBody": {"required": True, "content": _content(InferRequest, "application/json") | _BYTES},
        "responses": _responses(
            *(400, 404, 413, 415, 422, 500, 503),
            schema=InferProblem,
            description="The prediction; also after the deadline has expired",
            content=_content(InferReply, "application/json") | _BYTES,
        ),
    },
}
_OIP |= {
    of_version: _OIP[name]
    | {
        "parameters": [
            *_OIP[name]["parameters"],
            _parameter("version", _STRING, "Version of the model.", "path", required=True),
        ]
    }
    for name, of_version in (
        ("oip_model", "oip_version"),
        ("oip_model_ready", "oip_version_ready"),
        ("oip_infer", "oip_version_infer"),
    )
}

OPERATIONS: Mapping[str, Mapping[str, Any]] = {
    name: {"operationId": name, "tags": [tag], **operation}
    for tag, operations in (("predictions", _PREDICTIONS), ("sessions", _SESSIONS), ("open inference protocol", _OIP))
    for name, operation in operations.items()
}
"""OpenAPI operation of each route whose endpoint is a plain ASGI application, by the name of the route."""


class AnytimeAPI(FastAPI):
    """FastAPI application whose document also contains the routes of `OPERATIONS`."""

    keyed = False
    """Whether keys are required; if not, the document declares them optional."""
    entrance: Callable[[ASGIApp], ASGIApp] = staticmethod(lambda stack: stack)
    """Wraps the complete stack, the framework's error handling included."""

    def build_middleware_stack(self) -> ASGIApp:
        return self.entrance(super().build_middleware_stack())

    def openapi(self) -> dict[str, Any]:
        """Return the document, which is made once."""
        if self.openapi_schema is not None:
            return self.openapi_schema
        document = super().openapi()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        _, ours = msgspec.json.schema_components(_STRUCTS, ref_template=_REF + "{name}")
        for name in LOCAL_FIELDS:
            del ours[Answer.__name__]["properties"][name]
        schemas.update(ours)
        for route in self.routes:
            if isinstance(route, Route | WebSocketRoute) and route.name in OPERATIONS:
                methods = (route.methods or set()) - {"HEAD"} if isinstance(route, Route) else {"GET"}
                path = document["paths"].setdefault(route.path, {})
                path.update({method.lower(): OPERATIONS[route.name] for method in methods})
        document["components"]["securitySchemes"] = {_KEY: {"type": "http", "scheme": "bearer"}}
        for path, item in document["paths"].items():
            item.update({method: self._guarded(method, path, operation) for method, operation in item.items()})
        return document

    def _guarded(self, method: str, path: str, operation: dict[str, Any]) -> dict[str, Any]:
        """Return an operation with its security requirement and the problems of authentication."""
        route, _ = find(method.upper(), path)
        is_open = route is not None and route.scope == "open"
        security: dict[str, Any] = {} if is_open else {"security": [{_KEY: []}] if self.keyed else [{_KEY: []}, {}]}
        refusals = problem_responses(
            *((403,) if is_open else (401, 403)), schema=InferProblem if is_oip(path) else Problem
        )
        return {**operation, **security, "responses": {**operation["responses"], **refusals}}
