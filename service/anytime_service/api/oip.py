"""Routes of the Open Inference Protocol v2, as the OpenAPI document tells them.

A request of the Open Inference Protocol v2 as it comes, and its prediction.

The body is JSON, and after it may come tensors as bytes. What the JSON asks for, its deadline too, holds as soon as the
JSON has come; a tensor after it counts when it has come. Until then the head of the request is all that is known.

Open Inference Protocol v2: each group is an input, and any subset of them is answered by its best prediction.
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
from anytime.inference.answer import Answer
from anytime.inference.prediction import Prediction
from anytime_service.api.openapi import PREDICT_OPERATION, PROBLEMS
from anytime_service.clock import now_ms
from anytime_service.core.active_prediction import ActivePrediction, Ask
from anytime_service.core.service import PredictionService
from anytime_service.errors import ContentTypeError, FieldError, MalformedBodyError
from anytime_service.http.exchange import Exchange, Reply, decided
from anytime_service.http.options import ASKING, check_length, headers_of, read_head
from anytime_service.http.responses import refusal
from anytime_service.limits.memory import Account
from anytime_service.schemas.codecs import JSON
from anytime_service.schemas.oip_reply import (
    InferModelState,
    InferServerState,
    check_outputs,
    encode_inference,
    infer_problem,
    model_metadata,
    server_metadata,
)
from anytime_service.schemas.oip_request import (
    InferParameters,
    InferRequest,
    Tensor,
    overload_of,
    read_infer,
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


def _told(description: str, struct: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ref(struct)}}}


def _problems(*statuses: int) -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": _ref("InferProblem")}}
    return {str(status): {"description": PROBLEMS[status], "content": content} for status in statuses}


def _path(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": description}


_NAME = _path("name", "Name of the model, or name@version.")
_VERSION = _path("version", "Version of the model.")
_ASKING = [each for each in PREDICT_OPERATION["parameters"] if each["name"] != "model"]
_BINARY: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_JSON_BYTES = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "required": False,
    "schema": {"type": "integer", "minimum": 0},
    "description": "How many bytes of the body are JSON, where tensors follow as bytes.",
}


def _operation(name: str, summary: str, answer: dict[str, Any], *statuses: int) -> dict[str, Any]:
    return {
        "operationId": f"oip_{name}",
        "tags": ["open inference protocol"],
        "summary": summary,
        "responses": {"200": answer} | _problems(*statuses, 500),
    }


def _model(name: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    told = _told("The model, its inputs and outputs", "InferModel")
    return _operation(name, "Tell a model's inputs and outputs", told, 404) | {"parameters": parameters}


def _model_ready(name: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    told = _told("The model answers", "InferModelState")
    return _operation(name, "Tell whether a model answers", told, 404) | {"parameters": parameters}


def _infer(name: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    summary = "Predict from a subset of a model's inputs"
    told = _told("The prediction; also when the deadline has struck", "InferReply")
    told["content"] |= _BINARY
    return _operation(name, summary, told, 400, 404, 413, 415, 422, 503) | {
        "description": "The best prediction that the inputs allow within the budget. `budget`, `deadline_ms`, `policy` "
        "and `ranking` are parameters of the request, or of the query. A body of JSON counts when it is whole; of "
        "tensors that follow it as bytes (the binary tensor extension), each counts when it has come. When the "
        "deadline strikes, the answer is the best from what counts, at once: 200, with the parameter `complete` false. "
        "The JSON's own deadline holds when the JSON has come, those of the head from the beginning.",
        "parameters": [*parameters, *_ASKING, _JSON_BYTES],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref("InferRequest")}} | _BINARY,
        },
    }


OIP_OPERATIONS: Mapping[str, Mapping[str, Any]] = {
    "server": _operation("server", "Tell of the server", _told("The server and what it adds", "InferServer")),
    "live": _operation("live", "Tell whether the process answers", _told("It does", "InferServerState")),
    "ready": _operation("ready", "Tell whether there are models", _told("There are", "InferServerState"), 503),
    "model": _model("model", [_NAME]),
    "model_ready": _model_ready("model_ready", [_NAME]),
    "infer": _infer("infer", [_NAME]),
    "version": _model("version", [_NAME, _VERSION]),
    "version_ready": _model_ready("version_ready", [_NAME, _VERSION]),
    "version_infer": _infer("version_infer", [_NAME, _VERSION]),
}
"""What each route documents, by its name."""


BINARY = "application/octet-stream"
"""Media type of JSON with tensors after it."""

JSON_BYTES = "Inference-Header-Content-Length"
"""Header that tells how many bytes of a body are JSON, where tensors follow."""


class Inference:
    """One request: at first only its head is known, then its JSON, then one tensor after another.

    Parameters
    ----------
    ask : what the head asks for.
    begun : when it was read.
    lengths : bytes that are JSON, and bytes of the whole body, where the head tells.
    account : of the key that sends it.
    admitted : whether it may be begun; if not, the JSON may still ask for the base rate.
    """

    def __init__(
        self,
        handler: PredictionService,
        exchange: Exchange,
        ask: Ask,
        begun: float,
        lengths: tuple[int | None, int | None],
        account: Account,
        *,
        admitted: bool,
    ) -> None:
        self._handler = handler
        self._exchange = exchange
        self._ask = ask
        self._begun = begun
        self._account = account
        self._json_bytes, self._length = lengths
        self._request: InferRequest | None = None
        self._kept = bytearray()
        self._arrays: dict[str, Any] = {}
        self._places: dict[str, str] = {}
        self._waiting: deque[Tensor] = deque()
        self._model = handler.registry.get(ask.model)
        self._admitted = admitted
        self._live = self._opened(ask, admitted=admitted or ask.overload != "prior")

    def drop(self) -> None:
        """Forget the request."""
        self._live.drop()

    async def read(self) -> None:
        """Take the body as it comes."""
        async for chunk in self._exchange.body():
            self._kept += chunk
            self._exchange.keeps(len(self._kept))
            if self._json_bytes is not None:
                await self._advance(self._json_bytes)
        if self._exchange.ended and not self._live.answered:
            await self._end()

    async def _advance(self, json_bytes: int) -> None:
        if self._request is None and len(self._kept) >= json_bytes:
            await self._begin_in_turn(self._cut(json_bytes))
        if self._request is not None:
            self._take()

    async def _end(self) -> None:
        if self._json_bytes is None:
            await self._begin_in_turn(self._cut(len(self._kept)))
            self._take()
        elif self._request is None:
            raise MalformedBodyError(f"the body has {len(self._kept)} bytes; {JSON_BYTES} tells {self._json_bytes}")
        if not self._live.answered:
            if self._waiting or self._kept:
                raise MalformedBodyError(
                    "the bytes after the JSON are fewer or more than binary_data_size of the inputs"
                )
            self._live.end()

    async def _begin_in_turn(self, content: bytes) -> None:
        """Begin anew, as the JSON says; long JSON waits until no other is converted."""
        if len(content) > AT_ONCE:
            async with self._handler.converting:
                await self._begin(content)
        else:
            await self._begin(content)

    async def _begin(self, content: bytes) -> None:
        """Begin anew, as the JSON says; whatever is wrong with it is an error whatever it asks for."""
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
        ask = _asked(self._ask, request, tensors)
        arrays = {tensor.group: await tensor.from_json(pauses) for tensor in tensors if tensor.size is None}
        if self._live.answered:  # the deadline in the head expired while long JSON was converted
            return
        self._arrays = arrays
        self._waiting = deque(tensor for tensor in tensors if tensor.size is not None)
        self._places = {tensor.group: tensor.place for tensor in tensors}
        self._request = request
        self._live.drop()
        self._live = self._opened(ask, admitted=self._admitted)

    def _take(self) -> None:
        """Hand on what has come, together if it came together."""
        while self._waiting and len(self._kept) >= (self._waiting[0].size or 0):
            tensor = self._waiting.popleft()
            self._arrays[tensor.group] = tensor.from_bytes(self._cut(tensor.size or 0))
        if self._arrays and not self._live.answered:
            arrays, self._arrays = self._arrays, {}
            try:
                self._live.groups(arrays, self._exchange.ended_ms if self._exchange.ended else None)
            except FieldError as error:
                place = self._places.get(error.field.removeprefix("groups."), "inputs")
                raise FieldError(place, str(error)) from error

    def _check_length(self, binary: int) -> None:
        if self._json_bytes is None:
            if binary:
                raise MalformedBodyError(
                    f"inputs have a binary_data_size, but no header {JSON_BYTES} says where JSON ends"
                )
        elif self._length not in (None, self._json_bytes + binary):
            whole = f"{self._json_bytes} of JSON and {binary} of binary_data_size"
            raise MalformedBodyError(f"the body has {self._length} bytes; expected {whole}")

    def _cut(self, size: int) -> bytes:
        content = bytes(self._kept[:size])
        del self._kept[:size]
        return content

    def _opened(self, ask: Ask, *, admitted: bool) -> ActivePrediction:
        # The model stays the one that the tensors were checked against, though another may have been loaded since.
        shared = Prediction(self._model, ask.rows)
        told, account = (self._tell, self._fail), self._account
        return self._handler.open(ask, self._begun, *told, shared=shared, admitted=admitted, account=account)

    def _tell(self, answer: Answer) -> None:
        try:
            told = encode_inference(self._model, answer, self._request)
        except AnytimeError as error:
            self._fail(error)
            return
        if told.json_bytes is None:
            self._exchange.reply(Reply(200, JSON.media_type, told.content))
        else:
            header = (JSON_BYTES.lower().encode(), b"%d" % told.json_bytes)
            self._exchange.reply(Reply(200, BINARY, told.content, (header,)))

    def _fail(self, error: Exception) -> None:
        self._exchange.reply(refusal(error))


def _asked(head: Ask, request: InferRequest, tensors: tuple[Tensor, ...]) -> Ask:
    """What the JSON asks for and, as far as it says nothing, the head."""
    told = request.parameters or InferParameters()
    rows = tensors[0].rows if tensors else told.rows or head.rows
    for said in (told.rows, head.rows):
        if tensors and said not in (None, rows):
            raise FieldError("rows", f"rows is {said}, and the inputs have {rows}; say what they have, or nothing")
    deadlines = [*told.deadlines_ms, *([] if head.deadline_ms is None else [head.deadline_ms])]
    ranked = any(output.name == "ranking" for output in request.outputs or ())
    return Ask(
        model=head.model,
        rows=rows,
        budget=head.budget if told.budget is None else told.budget,
        deadline_ms=min(deadlines, default=None),
        policy=told.policy or head.policy,
        ranking=ranked or (head.ranking if told.ranking is None else told.ranking),
        overload=told.overload or head.overload,
    )


class _Endpoint:
    """What the routes have in common: errors are told in both ways, and the request is read to its end."""

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
                exchange.reply(refusal(error))
            finally:
                await exchange.finish()

    async def answer(self, scope: Scope, exchange: Exchange, stack: ExitStack) -> None:
        """Reply, or open the prediction that will; the stack closes when the request is done with."""
        raise NotImplementedError


class ServerMetadata(_Endpoint):
    """`GET /v2`."""

    async def answer(self, _scope: Scope, exchange: Exchange, _stack: ExitStack) -> None:
        """Tell of the server."""
        exchange.reply(_json(server_metadata()))


class ServerLive(_Endpoint):
    """`GET /v2/health/live`."""

    async def answer(self, _scope: Scope, exchange: Exchange, _stack: ExitStack) -> None:
        """Tell that the server answers."""
        exchange.reply(_json(InferServerState(live=True, ready=len(self.handler.registry) > 0)))


class ServerReady(_Endpoint):
    """`GET /v2/health/ready`."""

    async def answer(self, _scope: Scope, exchange: Exchange, _stack: ExitStack) -> None:
        """Tell whether there are models to answer from."""
        if len(self.handler.registry):
            exchange.reply(_json(InferServerState(live=True, ready=True)))
        else:
            problem = infer_problem(Problem("about:blank", "Service Unavailable", 503, "no model is loaded"))
            exchange.reply(Reply(503, MEDIA_TYPE, msgspec.json.encode(problem)))


class ModelMetadata(_Endpoint):
    """`GET /v2/models/{name}`, and the same of a version."""

    async def answer(self, scope: Scope, exchange: Exchange, _stack: ExitStack) -> None:
        """Tell of a model."""
        registry = self.handler.registry
        model = registry.get(_model_name(scope))
        versions = [each.version for each in registry.models[model.name] if each.version]
        exchange.reply(_json(model_metadata(model, versions)))


class ModelReady(_Endpoint):
    """`GET /v2/models/{name}/ready`, and the same of a version."""

    async def answer(self, scope: Scope, exchange: Exchange, _stack: ExitStack) -> None:
        """Tell whether a model answers: one that is here does."""
        model = self.handler.registry.get(_model_name(scope))
        exchange.reply(_json(InferModelState(model.name, ready=True)))


class Infer(_Endpoint):
    """`POST /v2/models/{name}/infer`, and the same of a version."""

    async def answer(self, scope: Scope, exchange: Exchange, stack: ExitStack) -> None:
        """Predict from the inputs that are there."""
        begun = now_ms()
        lengths = _lengths(headers_of(scope))
        ask = _asked_by_head(scope, self.handler.settings, lengths[0])
        if lengths[0] is None or lengths[0] > self.handler.settings.max_json_bytes:
            exchange.limit_to(self.handler.settings.max_json_bytes, _ADVICE)
        exchange.may_be_interrupted()
        admitted = decided(scope)[0]
        if admitted is None:
            admitted = self.handler.admission.admits(begun)
        account = self.handler.accounts.of(scope)
        inference = Inference(self.handler, exchange, ask, begun, lengths, account, admitted=admitted)
        stack.callback(inference.drop)
        await inference.read()


_ADVICE = "send tensors as bytes after the JSON (binary_data_size), or fewer rows or inputs at once"
"""What to do about JSON that is too large."""

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
    """Routes of the protocol; those of a model have it in its newest version, or in the one that is named."""
    return [
        Route(path, endpoint(handler, OIP_OPERATIONS[name]), methods=[method], name=f"oip_{name}")
        for name, method, path, endpoint in _ROUTES
    ]


def _model_name(scope: Scope) -> str:
    told: dict[str, str] = scope["path_params"]
    return f"{told['name']}@{told['version']}" if "version" in told else told["name"]


def _asked_by_head(scope: Scope, settings: Settings, json_bytes: int | None) -> Ask:
    headers = headers_of(scope)
    told = headers.get("content-type", "")
    if told.partition(";")[0].strip().lower() not in ("", JSON.media_type, BINARY):
        raise ContentTypeError(f"the body is {told[:100]!r}; expected {JSON.media_type}, or {BINARY} with {JSON_BYTES}")
    # The type has been looked at: elsewhere bytes are no form that is read.
    others = [each for each in scope["headers"] if each[0] != b"content-type"]
    head = read_head({**scope, "headers": others}, settings, (*ASKING, "rows"), whole=False)
    most = settings.max_json_bytes
    if json_bytes is None or json_bytes > most:
        check_length(headers, most, _ADVICE)
    return replace(head.ask, model=_model_name(scope))


def _lengths(headers: Mapping[str, str]) -> tuple[int | None, int | None]:
    """How many bytes are JSON, and how many the whole body has, where the head tells."""
    length = headers.get("content-length", "")
    told = headers.get(JSON_BYTES.lower())
    if told is not None and not (told.isascii() and told.isdigit() and len(told) <= 18):
        raise FieldError(JSON_BYTES, f"{JSON_BYTES} is {told[:50]!r}; expected the number of bytes that are JSON")
    return None if told is None else int(told), int(length) if length.isdigit() else None


def _json(told: msgspec.Struct) -> Reply:
    return Reply(200, JSON.media_type, msgspec.json.encode(told))
