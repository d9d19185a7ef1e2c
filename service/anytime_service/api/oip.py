"""Routes of the Open Inference Protocol v2: each group is an input, and a request may send any subset of the inputs.

The body of an inference request is JSON, which tensors as bytes may follow. The options in the JSON, its deadline
included, apply as soon as the JSON is received. Each tensor after the JSON counts as soon as it is received. Before the
JSON is received, the server knows only the head of the request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import msgspec
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from anytime.errors import AnytimeError
from anytime.inference.prediction import Prediction
from anytime.inference.values import Answer
from anytime_service.api.openapi import PREDICT_OPERATION, PROBLEMS
from anytime_service.clock import now_ms
from anytime_service.core.active_prediction import ActivePrediction, PredictionRequest
from anytime_service.core.service import PredictionService
from anytime_service.errors import ContentTypeError, FieldError, MalformedBodyError
from anytime_service.http.exchange import Exchange, Reply, admission_of
from anytime_service.http.options import PREDICTION_PARAMETERS, check_length, headers_of, read_head
from anytime_service.http.responses import oip_problem_reply
from anytime_service.limits.memory import Account
from anytime_service.schemas.codecs import JSON
from anytime_service.schemas.oip import (
    InferModelState,
    InferParameters,
    InferRequest,
    InferServerState,
    Tensor,
    check_outputs,
    encode_inference,
    infer_problem,
    model_metadata,
    overload_of,
    read_infer,
    server_metadata,
    tensors_of,
)
from anytime_service.schemas.problem import MEDIA_TYPE, Problem
from anytime_service.schemas.values import AT_ONCE, Pauses
from anytime_service.settings import Settings

__all__ = [
    "BINARY",
    "JSON_BYTES",
    "OIP_OPERATIONS",
    "Infer",
    "Inference",
    "ModelMetadata",
    "ModelReady",
    "ServerLive",
    "ServerMetadata",
    "ServerReady",
    "oip_routes",
]


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _response(description: str, struct: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ref(struct)}}}


def _problems(*statuses: int) -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": _ref("InferProblem")}}
    return {str(status): {"description": PROBLEMS[status], "content": content} for status in statuses}


def _path(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": description}


_NAME = _path("name", "Name of the model, or name@version.")
_VERSION = _path("version", "Version of the model.")
_PREDICTION_PARAMETERS = [each for each in PREDICT_OPERATION["parameters"] if each["name"] != "model"]
_BINARY: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_JSON_BYTES = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "required": False,
    "schema": {"type": "integer", "minimum": 0},
    "description": "Number of bytes of JSON at the start of the body, if tensors follow as bytes.",
}


def _operation(name: str, summary: str, answer: dict[str, Any], *statuses: int) -> dict[str, Any]:
    return {
        "operationId": f"oip_{name}",
        "tags": ["open inference protocol"],
        "summary": summary,
        "responses": {"200": answer} | _problems(*statuses, 500),
    }


def _model(name: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    response = _response("The model, its inputs and outputs", "InferModel")
    return _operation(name, "Describe a model's inputs and outputs", response, 404) | {"parameters": parameters}


def _model_ready(name: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    response = _response("The model is ready", "InferModelState")
    return _operation(name, "Report whether a model is ready", response, 404) | {"parameters": parameters}


def _infer(name: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    summary = "Predict from a subset of a model's inputs"
    response = _response("The prediction; also after the deadline has expired", "InferReply")
    response["content"] |= _BINARY
    return _operation(name, summary, response, 400, 404, 413, 415, 422, 503) | {
        "description": "The best prediction that the inputs allow within the budget. `budget`, `deadline_ms`, `policy` "
        "and `ranking` are parameters of the request or of the query. A JSON body counts when it is complete. Each "
        "tensor that follows the JSON as bytes (binary tensor extension) counts as soon as it is received. When the "
        "deadline expires, the server at once sends the best answer from the inputs received: 200, with the parameter "
        "`complete` false. A deadline in the JSON applies once the JSON is received; a deadline in the head applies "
        "from the start.",
        "parameters": [*parameters, *_PREDICTION_PARAMETERS, _JSON_BYTES],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref("InferRequest")}} | _BINARY,
        },
    }


OIP_OPERATIONS: Mapping[str, Mapping[str, Any]] = {
    "server": _operation("server", "Describe the server", _response("The server and its extensions", "InferServer")),
    "live": _operation("live", "Report whether the process is alive", _response("It is alive", "InferServerState")),
    "ready": _operation(
        "ready",
        "Report whether any model is loaded",
        _response("At least one model is loaded", "InferServerState"),
        503,
    ),
    "model": _model("model", [_NAME]),
    "model_ready": _model_ready("model_ready", [_NAME]),
    "infer": _infer("infer", [_NAME]),
    "version": _model("version", [_NAME, _VERSION]),
    "version_ready": _model_ready("version_ready", [_NAME, _VERSION]),
    "version_infer": _infer("version_infer", [_NAME, _VERSION]),
}
"""OpenAPI operation of each route, by name."""


BINARY = "application/octet-stream"
"""Media type of JSON followed by tensors as bytes."""

JSON_BYTES = "Inference-Header-Content-Length"
"""Header with the number of bytes of JSON at the start of a body, if tensors follow."""


class Inference:
    """One inference request and its prediction. It receives the head first, then the JSON, then one tensor at a time.

    Parameters
    ----------
    head : the request options in the head of the request.
    begun : when the server read the head.
    lengths : bytes of JSON and bytes of the body, each None if the head does not give it.
    account : the account of the request's API key.
    admitted : whether admission control accepts the request; if not, the JSON may still request the base rate.
    """

    def __init__(
        self,
        handler: PredictionService,
        exchange: Exchange,
        head: PredictionRequest,
        begun: float,
        lengths: tuple[int | None, int | None],
        account: Account,
        *,
        admitted: bool,
    ) -> None:
        self._handler = handler
        self._exchange = exchange
        self._head = head
        self._begun = begun
        self._account = account
        self._json_bytes, self._length = lengths
        self._request: InferRequest | None = None
        self._buffer = bytearray()
        self._arrays: dict[str, Any] = {}
        self._places: dict[str, str] = {}
        self._waiting: deque[Tensor] = deque()
        self._model = handler.registry.get(head.model)
        self._admitted = admitted
        self._active = self._open(head, admitted=admitted or head.overload != "prior")

    def drop(self) -> None:
        """Cancel the prediction and release its resources."""
        self._active.drop()

    async def read(self) -> None:
        """Read the body, and process each part as soon as it is received."""
        async for chunk in self._exchange.body():
            self._buffer += chunk
            self._exchange.retain(len(self._buffer))
            if self._json_bytes is not None:
                await self._advance(self._json_bytes)
        if self._exchange.ended and not self._active.answered:
            await self._end()

    async def _advance(self, json_bytes: int) -> None:
        if self._request is None and len(self._buffer) >= json_bytes:
            await self._begin_in_turn(self._cut(json_bytes))
        if self._request is not None:
            self._forward()

    async def _end(self) -> None:
        if self._json_bytes is None:
            await self._begin_in_turn(self._cut(len(self._buffer)))
            self._forward()
        elif self._request is None:
            raise MalformedBodyError(f"the body has {len(self._buffer)} bytes; {JSON_BYTES} is {self._json_bytes}")
        if not self._active.answered:
            if self._waiting or self._buffer:
                raise MalformedBodyError(
                    "the number of bytes after the JSON differs from the sum of the inputs' binary_data_size"
                )
            self._active.end()

    async def _begin_in_turn(self, content: bytes) -> None:
        """Begin the prediction with the options of the JSON; convert only one long JSON at a time."""
        if len(content) > AT_ONCE:
            async with self._handler.converting:
                await self._begin(content)
        else:
            await self._begin(content)

    async def _begin(self, content: bytes) -> None:
        """Begin the prediction with the options of the JSON; any invalid part of the JSON is an error."""
        pauses = Pauses()
        if not self._admitted and overload_of(content) != "prior":
            self._handler.shed("refused")
            raise self._handler.overloaded()
        await pauses.pause()
        request, settings = read_infer(content), self._handler.settings
        await pauses.pause()
        tensors = tensors_of(self._model, request, settings.max_rows)
        check_outputs(self._model, request)
        self._check_length(sum(tensor.size or 0 for tensor in tensors))
        options = _merged(self._head, request, tensors)
        arrays = {tensor.group: await tensor.from_json(pauses) for tensor in tensors if tensor.size is None}
        if self._active.answered:  # the deadline in the head expired during the conversion of long JSON
            return
        self._arrays = arrays
        self._waiting = deque(tensor for tensor in tensors if tensor.size is not None)
        self._places = {tensor.group: tensor.place for tensor in tensors}
        self._request = request
        self._active.drop()
        self._active = self._open(options, admitted=self._admitted)

    def _forward(self) -> None:
        """Add the tensors received so far to the prediction, in one call."""
        while self._waiting and len(self._buffer) >= (self._waiting[0].size or 0):
            tensor = self._waiting.popleft()
            self._arrays[tensor.group] = tensor.from_bytes(self._cut(tensor.size or 0))
        if self._arrays and not self._active.answered:
            arrays, self._arrays = self._arrays, {}
            try:
                self._active.groups(arrays, self._exchange.ended_ms if self._exchange.ended else None)
            except FieldError as error:
                place = self._places.get(error.field.removeprefix("groups."), "inputs")
                raise FieldError(place, str(error)) from error

    def _check_length(self, binary: int) -> None:
        if self._json_bytes is None:
            if binary:
                raise MalformedBodyError(
                    f"inputs have a binary_data_size, but the header {JSON_BYTES} is missing; "
                    "send it with the number of bytes of JSON"
                )
        elif self._length not in (None, self._json_bytes + binary):
            expected = f"{self._json_bytes} of JSON and {binary} of binary_data_size"
            raise MalformedBodyError(f"the body has {self._length} bytes; expected {expected}")

    def _cut(self, size: int) -> bytes:
        content = bytes(self._buffer[:size])
        del self._buffer[:size]
        return content

    def _open(self, options: PredictionRequest, *, admitted: bool) -> ActivePrediction:
        # Use the model that the tensors were checked against, even if the registry has loaded a new one since.
        shared = Prediction(self._model, options.rows)
        callbacks, account = (self._answer, self._fail), self._account
        return self._handler.open(options, self._begun, *callbacks, shared=shared, admitted=admitted, account=account)

    def _answer(self, answer: Answer) -> None:
        try:
            content, json_bytes = encode_inference(self._model, answer, self._request)
        except AnytimeError as error:
            self._fail(error)
            return
        if json_bytes is None:
            self._exchange.reply(Reply(200, JSON.media_type, content))
        else:
            header = (JSON_BYTES.lower().encode(), b"%d" % json_bytes)
            self._exchange.reply(Reply(200, BINARY, content, (header,)))

    def _fail(self, error: Exception) -> None:
        self._exchange.reply(oip_problem_reply(error))


def _merged(head: PredictionRequest, request: InferRequest, tensors: tuple[Tensor, ...]) -> PredictionRequest:
    """Return the options of the JSON, completed by those of the head; the shortest deadline applies."""
    parameters = request.parameters or InferParameters()
    rows = tensors[0].rows if tensors else parameters.rows or head.rows
    for given in (parameters.rows, head.rows):
        if tensors and given not in (None, rows):
            raise FieldError("rows", f"rows is {given}, and the inputs have {rows}; send {rows}, or omit rows")
    deadlines = [*parameters.deadlines_ms, *([] if head.deadline_ms is None else [head.deadline_ms])]
    ranked = any(output.name == "ranking" for output in request.outputs or ())
    return PredictionRequest(
        model=head.model,
        rows=rows,
        budget=head.budget if parameters.budget is None else parameters.budget,
        deadline_ms=min(deadlines, default=None),
        policy=parameters.policy or head.policy,
        ranking=ranked or (head.ranking if parameters.ranking is None else parameters.ranking),
        overload=parameters.overload or head.overload,
    )


class _Endpoint:
    """Base class of the routes: it reads the request to its end, and sends errors as problem details with `error`."""

    def __init__(self, handler: PredictionService, operation: Mapping[str, Any]) -> None:
        self.handler = handler
        self.operation = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(receive, send, self.handler.settings.max_body_bytes, self.handler.accounts.of(scope))
        with ExitStack() as stack:
            try:
                await self.answer(scope, exchange, stack)
            except Exception as error:
                exchange.reply(oip_problem_reply(error))
            finally:
                await exchange.finish()

    async def answer(self, scope: Scope, exchange: Exchange, stack: ExitStack) -> None:
        """Send the response, or open the prediction that sends it; the stack closes after the request."""
        raise NotImplementedError


class ServerMetadata(_Endpoint):
    """`GET /v2`."""

    async def answer(self, _scope: Scope, exchange: Exchange, _stack: ExitStack) -> None:
        """Send the server metadata."""
        exchange.reply(_json(server_metadata()))


class ServerLive(_Endpoint):
    """`GET /v2/health/live`."""

    async def answer(self, _scope: Scope, exchange: Exchange, _stack: ExitStack) -> None:
        """Report that the server is alive."""
        exchange.reply(_json(InferServerState(live=True, ready=len(self.handler.registry) > 0)))


class ServerReady(_Endpoint):
    """`GET /v2/health/ready`."""

    async def answer(self, _scope: Scope, exchange: Exchange, _stack: ExitStack) -> None:
        """Report whether any model is loaded."""
        if len(self.handler.registry):
            exchange.reply(_json(InferServerState(live=True, ready=True)))
        else:
            problem = infer_problem(Problem("about:blank", "Service Unavailable", 503, "no model is loaded"))
            exchange.reply(Reply(503, MEDIA_TYPE, msgspec.json.encode(problem)))


class ModelMetadata(_Endpoint):
    """`GET /v2/models/{name}`, and the same for a version."""

    async def answer(self, scope: Scope, exchange: Exchange, _stack: ExitStack) -> None:
        """Send the metadata of a model."""
        registry = self.handler.registry
        model = registry.get(_model_name(scope))
        versions = [each.version for each in registry.models[model.name] if each.version]
        exchange.reply(_json(model_metadata(model, versions)))


class ModelReady(_Endpoint):
    """`GET /v2/models/{name}/ready`, and the same for a version."""

    async def answer(self, scope: Scope, exchange: Exchange, _stack: ExitStack) -> None:
        """Report that a model is ready; every loaded model is."""
        model = self.handler.registry.get(_model_name(scope))
        exchange.reply(_json(InferModelState(model.name, ready=True)))


class Infer(_Endpoint):
    """`POST /v2/models/{name}/infer`, and the same for a version."""

    async def answer(self, scope: Scope, exchange: Exchange, stack: ExitStack) -> None:
        """Predict from the inputs received."""
        begun = now_ms()
        lengths = _lengths(headers_of(scope))
        head = _request_of_head(scope, self.handler.settings, lengths[0])
        if lengths[0] is None or lengths[0] > self.handler.settings.max_json_bytes:
            exchange.limit_to(self.handler.settings.max_json_bytes, _ADVICE)
        exchange.may_be_interrupted()
        admitted = admission_of(scope)[0]
        if admitted is None:
            admitted = self.handler.admission.admits(begun)
        account = self.handler.accounts.of(scope)
        inference = Inference(self.handler, exchange, head, begun, lengths, account, admitted=admitted)
        stack.callback(inference.drop)
        await inference.read()


_ADVICE = "send tensors as bytes after the JSON (binary_data_size), or fewer rows or inputs at once"
"""Advice in the error about JSON that is too large."""

_MODEL = "/v2/models/{name}"
_VERSION_PATH = f"{_MODEL}/versions/{{version}}"

_ROUTES: tuple[tuple[str, str, str, type[_Endpoint]], ...] = (
    ("server", "GET", "/v2", ServerMetadata),
    ("live", "GET", "/v2/health/live", ServerLive),
    ("ready", "GET", "/v2/health/ready", ServerReady),
    ("model", "GET", _MODEL, ModelMetadata),
    ("model_ready", "GET", f"{_MODEL}/ready", ModelReady),
    ("infer", "POST", f"{_MODEL}/infer", Infer),
    ("version", "GET", _VERSION_PATH, ModelMetadata),
    ("version_ready", "GET", f"{_VERSION_PATH}/ready", ModelReady),
    ("version_infer", "POST", f"{_VERSION_PATH}/infer", Infer),
)


def oip_routes(handler: PredictionService) -> list[Route]:
    """Return the routes of the protocol; a route without a version uses the newest version of the model."""
    return [
        Route(path, endpoint(handler, OIP_OPERATIONS[name]), methods=[method], name=f"oip_{name}")
        for name, method, path, endpoint in _ROUTES
    ]


def _model_name(scope: Scope) -> str:
    parameters: dict[str, str] = scope["path_params"]
    return f"{parameters['name']}@{parameters['version']}" if "version" in parameters else parameters["name"]


def _request_of_head(scope: Scope, settings: Settings, json_bytes: int | None) -> PredictionRequest:
    headers = headers_of(scope)
    media_type = headers.get("content-type", "")
    if media_type.partition(";")[0].strip().lower() not in ("", JSON.media_type, BINARY):
        raise ContentTypeError(
            f"the content type is {media_type[:100]!r}; expected {JSON.media_type}, or {BINARY} with {JSON_BYTES}"
        )
    # `read_head` accepts no media type for bytes, so it must not see the one checked above.
    others = [each for each in scope["headers"] if each[0] != b"content-type"]
    head = read_head({**scope, "headers": others}, settings, (*PREDICTION_PARAMETERS, "rows"), single_form=False)
    most = settings.max_json_bytes
    if json_bytes is None or json_bytes > most:
        check_length(headers, most, _ADVICE)
    return replace(head.request, model=_model_name(scope))


def _lengths(headers: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the bytes of JSON and the bytes of the body, each None if the head does not give it."""
    length = headers.get("content-length", "")
    json_length = headers.get(JSON_BYTES.lower())
    if json_length is not None and not (json_length.isascii() and json_length.isdigit() and len(json_length) <= 18):
        raise FieldError(JSON_BYTES, f"{JSON_BYTES} is {json_length[:50]!r}; expected the number of bytes of JSON")
    return None if json_length is None else int(json_length), int(length) if length.isdigit() else None


def _json(content: msgspec.Struct) -> Reply:
    return Reply(200, JSON.media_type, msgspec.json.encode(content))
