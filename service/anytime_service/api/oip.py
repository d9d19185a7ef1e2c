"""Routes of the Open Inference Protocol v2: each group is an input, and a request may send any subset of the inputs.

The body of an inference request is JSON, which tensors as bytes may follow. The options in the JSON, its deadline
included, apply as soon as the JSON is received. Each tensor after the JSON counts as soon as it is received. Before the
JSON is received, the server knows only the head of the request.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from starlette.routing import Route
from starlette.types import Scope

from anytime.inference.prediction import Answer
from anytime.model.model import Model
from anytime_service.clock import now_ms
from anytime_service.core.active_prediction import ActivePrediction
from anytime_service.core.service import PredictionService
from anytime_service.errors import ContentTypeError, FieldError, MalformedBodyError
from anytime_service.http.exchange import Exchange, Reply, admission_of
from anytime_service.http.options import check_length, headers_of, read_head
from anytime_service.http.responses import Endpoint, oip_problem_reply
from anytime_service.schemas.codecs import JSON
from anytime_service.schemas.oip import (
    SERVER,
    InferModelState,
    InferParameters,
    InferReply,
    InferRequest,
    InferServerState,
    Tensor,
    check_outputs,
    encode_inference,
    infer_problem,
    json_values,
    model_metadata,
    overload_of,
    read_infer,
    tensors_of,
)
from anytime_service.schemas.options import DEFAULTS, PARAMETERS, STREAM_ONLY, PredictionOptions, completed, shortest
from anytime_service.schemas.problem import MEDIA_TYPE, Problem
from anytime_service.schemas.values import Array

BINARY = "application/octet-stream"  # media type of JSON followed by tensors as bytes
JSON_BYTES = "Inference-Header-Content-Length"  # header: bytes of JSON at the start of a body, if tensors follow


_PARAMETERS = tuple(name for name in PARAMETERS if name != "model")  # the path has it


@dataclass(slots=True, eq=False)
class _Sink:
    """The sink of an inference; `request` is its JSON, once that is received."""

    exchange: Exchange
    model: Model
    request: InferRequest | None = None

    def encode(self, answer: Answer) -> tuple[InferReply, list[bytes]]:
        return encode_inference(self.model, answer, self.request)

    def send(self, encoded: tuple[InferReply, list[bytes]], elapsed_ms: float) -> None:
        reply, contents = encoded
        reply.parameters["elapsed_ms"] = elapsed_ms
        head = msgspec.json.encode(reply)
        headers = ((JSON_BYTES.lower().encode(), b"%d" % len(head)),) if contents else ()
        self.exchange.reply(Reply(200, BINARY if contents else JSON.media_type, b"".join((head, *contents)), headers))

    def fail(self, error: Exception) -> None:
        self.exchange.reply(oip_problem_reply(error))


class InferBody:
    """Body of one inference request and its prediction: first the JSON, then one tensor at a time.

    Parameters
    ----------
    active : ActivePrediction
        The prediction, with the options in the head of the request.
    sink : _Sink
        Its sink, which gets the JSON.
    lengths : tuple[int | None, int | None]
        Bytes of JSON and bytes of the body, each None if the head does not give it.
    received : bytes
        The part of the body that was read before.
    admitted : bool
        Whether admission control accepts the request; if not, it requests the base rate.
    """

    def __init__(
        self,
        service: PredictionService,
        exchange: Exchange,
        active: ActivePrediction,
        sink: _Sink,
        lengths: tuple[int | None, int | None],
        received: bytes,
        *,
        admitted: bool,
    ) -> None:
        self._service, self._exchange, self._active, self._sink = service, exchange, active, sink
        self._json_bytes, self._length = lengths
        self._buffer = bytearray(received)
        self._arrays: dict[str, Array] = {}
        self._parts: dict[str, Array] = {}
        self._received: Counter[str] = Counter()  # columns of each group
        self._waiting: deque[Tensor] = deque()
        self._admitted = admitted

    async def read(self, chunks: AsyncIterator[bytes]) -> None:
        await self._advance(self._json_bytes)
        async for chunk in chunks:
            self._buffer += chunk
            self._exchange.retain(len(self._buffer))
            await self._advance(self._json_bytes)
        if not self._exchange.ended or self._active.answered:
            return
        await self._advance(len(self._buffer) if self._json_bytes is None else self._json_bytes)
        if self._sink.request is None and not self._active.answered:
            raise MalformedBodyError(f"the body has {len(self._buffer)} bytes; {JSON_BYTES} is {self._json_bytes}")
        if not self._active.answered:
            if self._waiting or self._buffer:
                raise MalformedBodyError(
                    "the number of bytes after the JSON differs from the sum of the inputs' binary_data_size"
                )
            self._active.end()

    async def _advance(self, json_bytes: int | None) -> None:
        """Use what has been received, once the JSON of some bytes is complete; their number may be still unknown."""
        if self._sink.request is None and json_bytes is not None and len(self._buffer) >= json_bytes:
            await self._begin(self._cut(json_bytes))
        while self._waiting and len(self._buffer) >= (self._waiting[0].size or 0):
            tensor = self._waiting.popleft()
            self._put(tensor, tensor.array(self._cut(tensor.size or 0)))
        if self._arrays and not self._active.answered:
            arrays, self._arrays = self._arrays, {}
            self._active.groups(arrays, self._exchange.ended_ms if self._exchange.ended else None)

    async def _begin(self, content: bytes) -> None:
        """Amend the prediction by the options of the JSON; any invalid part of the JSON is an error."""
        service, active = self._service, self._active
        await service.turn(len(content))
        request = read_infer(content, service.list_limits)
        tensors: list[Tensor] = []
        after_one = service.slices()
        for tensor in tensors_of(active.model, request.inputs, service.settings.max_rows):
            tensors.append(tensor)
            await after_one()
        check_outputs(active.model, request)
        self._check_length(sum(tensor.size or 0 for tensor in tensors))
        options = _merged(active.machine.options, request, tensors)
        arrays: list[tuple[Tensor, Array]] = []
        for tensor, each in zip(tensors, request.inputs, strict=True):
            if tensor.size is None:
                arrays.append((tensor, tensor.array(json_values(each.data, tensor.field))))
                await after_one()
        if active.answered:  # the deadline in the head expired before the turn of long JSON
            return
        for tensor, array in arrays:
            self._put(tensor, array)
        self._waiting = deque(tensor for tensor in tensors if tensor.size is not None)
        self._sink.request = request
        if not self._admitted:
            service.shed("prior")
        active.amend(options, overloaded=not self._admitted)

    def _put(self, tensor: Tensor, array: Array) -> None:
        """Store the values of a tensor; the group counts when all of its tensors are there."""
        group, width = tensor.group, len(tensor.position.features)
        if len(tensor.columns) < width:
            part = self._parts.setdefault(group, np.empty((tensor.rows, width)))
            part[:, tensor.columns] = array
            array = part
        self._received[group] += len(tensor.columns)
        if self._received[group] == width:
            self._arrays[group] = array

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


def _merged(head: PredictionOptions, request: InferRequest, tensors: Sequence[Tensor]) -> PredictionOptions:
    """Return the options of the JSON, completed by those of the head; the shortest deadline applies."""
    parameters = request.parameters or InferParameters()
    for name in ("model", *STREAM_ONLY):
        if getattr(parameters, name) != getattr(DEFAULTS, name):
            raise FieldError(f"parameters.{name}", f"{name} is no parameter of this protocol; omit it")
    timeout_ms = parameters.timeout / 1000.0 if parameters.timeout else None
    given: dict[str, Any] = {"deadline_ms": shortest(parameters.deadline_ms, timeout_ms)}
    if tensors:
        given["rows"] = rows = tensors[0].rows
        for stated in (parameters.rows, head.rows):
            if stated not in (None, rows):
                raise FieldError("rows", f"rows is {stated}, and the inputs have {rows}; send {rows}, or omit rows")
    if any(output.name == "ranking" for output in request.outputs or ()):
        given["ranking"] = True
    return completed(head, msgspec.structs.replace(parameters, **given))


MAX_UNADMITTED = 256 * 1024  # largest JSON in bytes in which a request that is not admitted may request the base rate

_ADVICE = "send tensors as bytes after the JSON (binary_data_size), or fewer rows or inputs at once"
"""Advice in the error about JSON that is too large."""


class _InferenceEndpoint(Endpoint):
    problem = staticmethod(oip_problem_reply)


class Infer(_InferenceEndpoint):
    """`POST /v2/models/{name}/infer`, and the same for a version."""

    parameters = _PARAMETERS

    async def answer(self, scope: Scope, exchange: Exchange, predictions: list[ActivePrediction]) -> None:
        begun = now_ms()
        service, settings = self.service, self.service.settings
        headers = headers_of(scope)
        lengths = _lengths(headers)
        media_type = headers.get("content-type", "")
        if media_type.partition(";")[0].strip().lower() not in ("", JSON.media_type, BINARY):
            raise ContentTypeError(
                f"the content type is {media_type[:100]!r}; expected {JSON.media_type}, or {BINARY} with {JSON_BYTES}"
            )
        # `read_head` accepts no media type for bytes, so it must not see the one checked above.
        others = [each for each in scope["headers"] if each[0] != b"content-type"]
        head = read_head({**scope, "headers": others}, settings, self.parameters, single_form=False)
        if lengths[0] is None or lengths[0] > settings.max_json_bytes:
            check_length(headers, settings.max_json_bytes, _ADVICE)
            exchange.limit_to(settings.max_json_bytes, _ADVICE)
        admitted, account = service.admits(begun, admission_of(scope)[0]), service.accounts.of(scope)
        options = msgspec.structs.replace(head.options, model=_model_name(scope))
        chunks, received, accepts_prior = exchange.body(), b"", options.overload == "prior"
        if not (admitted or accepts_prior):
            received = await self._read_unadmitted(exchange, chunks, lengths[0])
        sink = _Sink(exchange, service.registry.get(options.model))
        opens = admitted or not accepts_prior  # the JSON that was read accepts the base rate, for which it amends
        active = service.open(options, begun, sink, admitted=opens, account=account)
        predictions.append(active)
        await InferBody(service, exchange, active, sink, lengths, received, admitted=admitted).read(chunks)

    async def _read_unadmitted(self, exchange: Exchange, chunks: AsyncIterator[bytes], json_bytes: int | None) -> bytes:
        """Read the JSON of a request that is not admitted; return what was received if it requests the base rate.

        Otherwise, above `MAX_UNADMITTED` bytes or after `Tuning.linger_s`, raise OverloadedError.
        """
        received, enough = bytearray(), MAX_UNADMITTED if json_bytes is None else min(json_bytes, MAX_UNADMITTED)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.service.tuning.linger_s):
                async for chunk in chunks:
                    received += chunk
                    exchange.retain(len(received))
                    if len(received) >= enough:
                        break
        complete = exchange.ended if json_bytes is None else len(received) >= json_bytes
        content = bytes(received[:json_bytes])
        # The search is cheaper than the JSON parser, and most requests are refused by it.
        may_accept = complete and len(content) <= MAX_UNADMITTED and b'"overload"' in content
        if may_accept and overload_of(content) == "prior":
            return bytes(received)
        self.service.shed("refused")
        raise self.service.overloaded()


class Metadata(_InferenceEndpoint):
    """A `GET` route; `describe` returns its response, of a `page` in the worker thread."""

    def __init__(
        self, service: PredictionService, describe: Callable[[PredictionService, Scope], Reply], *, page: bool = False
    ) -> None:
        super().__init__(service)
        self._describe = describe
        self._page = page

    async def answer(self, scope: Scope, exchange: Exchange, _predictions: list[ActivePrediction]) -> None:
        describe = partial(self._describe, self.service, scope)
        exchange.reply(await self.service.worker.page(describe) if self._page else describe())


def oip_routes(service: PredictionService) -> list[Route]:
    """Return the routes of the protocol; a route without a version uses the newest version of the model."""
    routes = [
        Route("/v2", Metadata(service, lambda *_: _json(SERVER)), methods=["GET"], name="oip_server"),
        Route("/v2/health/live", Metadata(service, _live), methods=["GET"], name="oip_live"),
        Route("/v2/health/ready", Metadata(service, _ready), methods=["GET"], name="oip_ready"),
    ]
    for path, (model, ready, infer) in {
        "/v2/models/{name}": ("oip_model", "oip_model_ready", "oip_infer"),
        "/v2/models/{name}/versions/{version}": ("oip_version", "oip_version_ready", "oip_version_infer"),
    }.items():
        routes += [
            Route(path, Metadata(service, _model, page=True), methods=["GET"], name=model),
            Route(f"{path}/ready", Metadata(service, _model_ready), methods=["GET"], name=ready),
            Route(f"{path}/infer", Infer(service), methods=["POST"], name=infer),
        ]
    return routes


def _live(service: PredictionService, _scope: Scope) -> Reply:
    return _json(InferServerState(live=True, ready=service.unready is None))


def _ready(service: PredictionService, _scope: Scope) -> Reply:
    return _if_ready(service, InferServerState(live=True, ready=True))


def _model(service: PredictionService, scope: Scope) -> Reply:
    registry = service.registry
    model = registry.get(_model_name(scope))
    return _json(model_metadata(model, [each.version for each in registry.models[model.name] if each.version]))


def _model_ready(service: PredictionService, scope: Scope) -> Reply:
    model = service.registry.get(_model_name(scope))  # every loaded model is ready
    return _if_ready(service, InferModelState(model.name, ready=True))


def _if_ready(service: PredictionService, state: msgspec.Struct) -> Reply:
    if service.unready is None:
        return _json(state)
    problem = infer_problem(Problem("about:blank", "Service Unavailable", 503, service.unready))
    return Reply(503, MEDIA_TYPE, msgspec.json.encode(problem))


def _json(content: msgspec.Struct) -> Reply:
    return Reply(200, JSON.media_type, msgspec.json.encode(content))


def _model_name(scope: Scope) -> str:
    parameters: dict[str, str] = scope["path_params"]
    return f"{parameters['name']}@{parameters['version']}" if "version" in parameters else parameters["name"]


def _lengths(headers: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the bytes of JSON and the bytes of the body, each None if the head does not give it."""
    length = headers.get("content-length", "")
    json_length = headers.get(JSON_BYTES.lower())
    if json_length is not None and not (json_length.isascii() and json_length.isdigit() and len(json_length) <= 18):
        raise FieldError(JSON_BYTES, f"{JSON_BYTES} is {json_length[:50]!r}; expected the number of bytes of JSON")
    return None if json_length is None else int(json_length), int(length) if length.isdigit() else None
