"""Routes of the Open Inference Protocol v2: each group is an input, and a request may send any subset of the inputs.

The body of an inference request is JSON, which tensors as bytes may follow. The options in the JSON, its deadline
included, apply as soon as the JSON is received. Each tensor after the JSON counts as soon as it is received. Before the
JSON is received, the server knows only the head of the request.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from starlette.routing import Route
from starlette.types import Scope

from anytime.inference.prediction import Answer
from anytime.model.model import Model
from anytime_service.clock import now_ms
from anytime_service.core.service import ActivePrediction, PredictionService
from anytime_service.errors import ContentTypeError, FieldError, MalformedBodyError
from anytime_service.http.exchange import Exchange, Reply, admission_of
from anytime_service.http.options import check_length, headers_of, read_head
from anytime_service.http.responses import Endpoint, oip_problem_reply
from anytime_service.schemas.codecs import JSON
from anytime_service.schemas.oip import (
    SERVER,
    InferModel,
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


@dataclass(eq=False)
class InferBody:
    """Body of one inference request and its prediction: first the JSON, then one tensor at a time.

    `active` has the options in the head of the request, and its sink gets the JSON. `json_bytes` and `length` are the
    bytes of the JSON and of the body, each None if the head does not give it. `buffer` has the part of the body that
    was read before. If the request is not `admitted`, it requests the base rate.
    """

    service: PredictionService
    exchange: Exchange
    active: ActivePrediction
    sink: _Sink
    json_bytes: int | None
    length: int | None
    buffer: bytearray
    admitted: bool
    _arrays: dict[str, Array] = field(default_factory=dict)
    _parts: dict[str, Array] = field(default_factory=dict)
    _received: Counter[str] = field(default_factory=Counter)  # columns of each group
    _waiting: deque[tuple[Tensor, int]] = field(default_factory=deque)

    async def read(self, chunks: AsyncIterator[bytes]) -> None:
        await self._advance(self.json_bytes)
        async for chunk in chunks:
            self.buffer += chunk
            self.exchange.retain(len(self.buffer))
            await self._advance(self.json_bytes)
        if not self.exchange.ended or self.active.answered:
            return
        await self._advance(len(self.buffer) if self.json_bytes is None else self.json_bytes)
        if self.sink.request is None and not self.active.answered:
            raise MalformedBodyError(f"the body has {len(self.buffer)} bytes; {JSON_BYTES} is {self.json_bytes}")
        if not self.active.answered:
            if self._waiting or self.buffer:
                raise MalformedBodyError(
                    "the number of bytes after the JSON differs from the sum of the inputs' binary_data_size"
                )
            self.active.end()

    async def _advance(self, json_bytes: int | None) -> None:
        """Use what has been received, once the JSON of some bytes is complete; their number may be still unknown."""
        if self.sink.request is None and json_bytes is not None and len(self.buffer) >= json_bytes:
            await self._begin(self._cut(json_bytes))
        while self._waiting and len(self.buffer) >= self._waiting[0][1]:
            tensor, size = self._waiting.popleft()
            self._put(tensor, tensor.array(self._cut(size)))
        if self._arrays and not self.active.answered:
            arrays, self._arrays = self._arrays, {}
            self.active.groups(arrays, self.exchange.ended_ms if self.exchange.ended else None)

    async def _begin(self, content: bytes) -> None:
        """Amend the prediction by the options of the JSON; any invalid part of the JSON is an error."""
        service, active = self.service, self.active
        await service.turn(len(content))
        request = read_infer(content, service.list_limits)
        tensors: list[tuple[Tensor, int | None]] = []
        after_one = service.slices()
        for pair in tensors_of(active.model, request.inputs, service.settings.max_rows):
            tensors.append(pair)
            await after_one()
        check_outputs(active.model, request)
        self._check_length(sum(size or 0 for _, size in tensors))
        options = _merged(active.machine.options, request, tensors[0][0].rows if tensors else None)
        arrays: list[tuple[Tensor, Array]] = []
        for (tensor, size), each in zip(tensors, request.inputs, strict=True):
            if size is None:
                arrays.append((tensor, tensor.array(json_values(each.data, tensor.field))))
                await after_one()
        if active.answered:  # the deadline in the head expired before the turn of long JSON
            return
        for tensor, array in arrays:
            self._put(tensor, array)
        self._waiting = deque((tensor, size) for tensor, size in tensors if size is not None)
        self.sink.request = request
        if not self.admitted:
            service.shed("prior")
        active.amend(options, overloaded=not self.admitted)

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
        if self.json_bytes is None:
            if binary:
                raise MalformedBodyError(
                    f"inputs have a binary_data_size, but the header {JSON_BYTES} is missing; "
                    "send it with the number of bytes of JSON"
                )
        elif self.length not in (None, self.json_bytes + binary):
            expected = f"{self.json_bytes} of JSON and {binary} of binary_data_size"
            raise MalformedBodyError(f"the body has {self.length} bytes; expected {expected}")

    def _cut(self, size: int) -> bytes:
        content = bytes(self.buffer[:size])
        del self.buffer[:size]
        return content


def _merged(head: PredictionOptions, request: InferRequest, rows: int | None) -> PredictionOptions:
    """Return the options of the JSON, completed by those of the head and the rows of the inputs, if there are any."""
    parameters = request.parameters or InferParameters()
    for name in ("model", *STREAM_ONLY):
        if getattr(parameters, name) != getattr(DEFAULTS, name):
            raise FieldError(f"parameters.{name}", f"{name} is no parameter of this protocol; omit it")
    timeout_ms = parameters.timeout / 1000.0 if parameters.timeout else None
    given: dict[str, Any] = {"deadline_ms": shortest(parameters.deadline_ms, timeout_ms)}
    if rows is not None:
        given["rows"] = rows
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
        await InferBody(service, exchange, active, sink, *lengths, bytearray(received), admitted).read(chunks)

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
    """A `GET` route; `describe` returns its response.

    With `if_ready`, the response is a problem while the server begins no predictions. A `page` is made in the worker
    thread.
    """

    def __init__(
        self,
        service: PredictionService,
        describe: Callable[[PredictionService, Scope], msgspec.Struct],
        *,
        if_ready: bool = False,
        page: bool = False,
    ) -> None:
        super().__init__(service)
        self._describe = describe
        self._if_ready = if_ready
        self._page = page

    async def answer(self, scope: Scope, exchange: Exchange, _predictions: list[ActivePrediction]) -> None:
        service = self.service

        def content() -> bytes:
            return msgspec.json.encode(self._describe(service, scope))

        reply = Reply(200, JSON.media_type, await service.worker.page(content) if self._page else content())
        if self._if_ready and service.unready is not None:
            problem = infer_problem(Problem("about:blank", "Service Unavailable", 503, service.unready))
            reply = Reply(503, MEDIA_TYPE, msgspec.json.encode(problem))
        exchange.reply(reply)


def oip_routes(service: PredictionService) -> list[Route]:
    """Return the routes of the protocol; a route without a version uses the newest version of the model."""

    def state(service: PredictionService, _scope: Scope) -> InferServerState:
        return InferServerState(live=True, ready=service.unready is None)

    def ready(service: PredictionService, scope: Scope) -> InferModelState:
        return InferModelState(service.registry.get(_model_name(scope)).name, ready=True)  # every loaded model is ready

    routes = [
        Route("/v2", Metadata(service, lambda *_: SERVER), methods=["GET"], name="oip_server"),
        Route("/v2/health/live", Metadata(service, state), methods=["GET"], name="oip_live"),
        Route("/v2/health/ready", Metadata(service, state, if_ready=True), methods=["GET"], name="oip_ready"),
    ]
    for path, version in (("/v2/models/{name}", "model"), ("/v2/models/{name}/versions/{version}", "version")):
        infer = "oip_infer" if version == "model" else "oip_version_infer"
        routes += [
            Route(path, Metadata(service, _model, page=True), methods=["GET"], name=f"oip_{version}"),
            Route(
                f"{path}/ready", Metadata(service, ready, if_ready=True), methods=["GET"], name=f"oip_{version}_ready"
            ),
            Route(f"{path}/infer", Infer(service), methods=["POST"], name=infer),
        ]
    return routes


def _model(service: PredictionService, scope: Scope) -> InferModel:
    model = service.registry.get(_model_name(scope))
    versions = [each.version for each in service.registry.models[model.name] if each.version]
    return model_metadata(model, versions)


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
