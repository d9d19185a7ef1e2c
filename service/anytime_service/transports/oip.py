"""Open Inference Protocol v2: each group is an input, and any subset of them is answered by its best prediction."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import msgspec
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from anytime_service.clock import now_ms
from anytime_service.errors import ContentTypeError, FieldError
from anytime_service.exchange import Exchange, Reply
from anytime_service.handler import Handler
from anytime_service.head import ASKING, check_length, headers_of, read_head
from anytime_service.live import Ask
from anytime_service.problems import MEDIA_TYPE, Problem
from anytime_service.settings import Settings
from anytime_service.shedding import decided
from anytime_service.transports.inference import BINARY, JSON_BYTES, Inference, refusal
from anytime_service.transports.oip_operations import OIP_OPERATIONS
from anytime_service.wire.forms import JSON
from anytime_service.wire.inferences import infer_problem
from anytime_service.wire.metadata import InferModelState, InferServerState, model_metadata, server_metadata

__all__ = ["Infer", "ModelMetadata", "ModelReady", "ServerLive", "ServerMetadata", "ServerReady", "oip_routes"]


class _Endpoint:
    """What the routes have in common: errors are told in both ways, and the request is read to its end."""

    def __init__(self, handler: Handler, operation: Mapping[str, Any]) -> None:
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
_VERSION = f"{_MODEL}/versions/{{version}}"

_ROUTES: tuple[tuple[str, str, str, type[_Endpoint]], ...] = (
    ("server", "GET", "/v2", ServerMetadata),
    ("live", "GET", "/v2/health/live", ServerLive),
    ("ready", "GET", "/v2/health/ready", ServerReady),
    ("model", "GET", _MODEL, ModelMetadata),
    ("model_ready", "GET", f"{_MODEL}/ready", ModelReady),
    ("infer", "POST", f"{_MODEL}/infer", Infer),
    ("version", "GET", _VERSION, ModelMetadata),
    ("version_ready", "GET", f"{_VERSION}/ready", ModelReady),
    ("version_infer", "POST", f"{_VERSION}/infer", Infer),
)


def oip_routes(handler: Handler) -> list[Route]:
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
