"""Routes of the Open Inference Protocol v2: each group is an input, and a request may send any subset of the inputs.

The body of an inference request is JSON, which tensors as bytes may follow. The options in the JSON, its deadline
included, apply as soon as the JSON is received. Each tensor after the JSON counts as soon as it is received. Before the
JSON is received, the server knows only the head of the request.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
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
from anytime_service.errors import BodyTooLargeError, FieldError, MalformedBodyError
from anytime_service.http.exchange import Exchange, Reply, admission_of
from anytime_service.http.options import check_length, read_head
from anytime_service.http.responses import Endpoint, blank, problem_reply
from anytime_service.schemas.codecs import JSON, read
from anytime_service.schemas.messages import Array, Tensor
from anytime_service.schemas.oip import (
    DATA,
    SERVER,
    InferModel,
    InferModelState,
    InferParameters,
    InferReply,
    InferRequest,
    InferServerState,
    check_names,
    encode_inference,
    infer_problem,
    model_metadata,
    read_infer,
    request_parts,
    tensors_of,
)
from anytime_service.schemas.options import PARAMETERS, combined
from anytime_service.schemas.problem import MEDIA_TYPE

BINARY = "application/octet-stream"  # media type of JSON followed by tensors as bytes
JSON_BYTES = "Inference-Header-Content-Length"  # header: bytes of JSON at the start of a body, if tensors follow


_PARAMETERS = tuple(name for name in PARAMETERS if name != "model")  # the path has it
_FORMS = dict.fromkeys(("", JSON.media_type, BINARY), JSON)


@dataclass(eq=False)
class Inference:
    """One inference: the reader of its body, first the JSON and then one tensor at a time, and the sink of its answer.

    `chunks` are those of the body. `json_bytes` and `length` are the bytes of the JSON and of the body, each None if
    the head does not give it.
    `request` is the JSON, once it is received.
    """

    service: PredictionService
    exchange: Exchange
    chunks: AsyncIterator[bytes]
    model: Model
    json_bytes: int | None
    length: int | None
    request: InferRequest | None = None
    buffer: bytearray = field(default_factory=bytearray)
    _arrays: dict[str, Array] = field(default_factory=dict)
    _parts: dict[str, Array] = field(default_factory=dict)
    _received: Counter[str] = field(default_factory=Counter)  # columns of each group

    def encode(self, answer: Answer) -> tuple[InferReply, list[bytes]]:
        return encode_inference(self.model, answer, self.request)

    def send(self, encoded: tuple[InferReply, list[bytes]], elapsed_ms: float) -> None:
        reply, contents = encoded
        reply.parameters["elapsed_ms"] = elapsed_ms
        head = msgspec.json.encode(reply)
        headers = ((JSON_BYTES.lower().encode(), b"%d" % len(head)),) if contents else ()
        self.exchange.reply(Reply(200, BINARY if contents else JSON.media_type, b"".join((head, *contents)), headers))

    def fail(self, error: Exception) -> None:
        self.exchange.reply(problem_reply(error, "/v2"))

    async def fill(self, size: float) -> bool:
        """Read until the buffer has some bytes; return False if the body ends before, or the response is sent."""
        while len(self.buffer) < size:
            chunk = await anext(self.chunks, None)
            if chunk is None:
                return False
            self.buffer += chunk
            self.exchange.retain(len(self.buffer))
        return True

    async def read(self, active: ActivePrediction, stated: Mapping[str, Any], *, admitted: bool) -> None:
        """Read the body, and pass it to the prediction, for which the head has `stated` options.

        If the request is not `admitted`, it requests the base rate.
        """
        exchange, size = self.exchange, self.json_bytes
        complete = await self.fill(math.inf if size is None else size) or size is None
        if active.answered or exchange.gone:
            return
        if not complete:
            raise MalformedBodyError(f"the body has {len(self.buffer)} bytes; {JSON_BYTES} is {size}")
        for tensor, nbytes in await self._begin(self._cut(size), active, stated, admitted=admitted):
            if len(self.buffer) < nbytes:
                self._add(active)  # what is there counts before the rest is
            complete = await self.fill(nbytes)
            if not complete:
                break
            self._put(tensor, tensor.array(self._cut(nbytes)))
        if complete:
            self._add(active)
            complete = not await self.fill(1)
        if active.answered or exchange.gone:
            return
        if not complete:
            raise MalformedBodyError(
                "the number of bytes after the JSON differs from the sum of the inputs' binary_data_size"
            )
        active.end()

    async def _begin(
        self, content: bytes, active: ActivePrediction, stated: Mapping[str, Any], *, admitted: bool
    ) -> list[tuple[Tensor, int]]:
        """Amend the prediction by the options of the JSON; return the tensors that follow it, with their sizes.

        Any invalid part of the JSON is an error.
        """
        service, model = self.service, self.model
        await service.turns.turn(len(content))
        request = read_infer(content, service.list_limits)
        check_names(model, request, service.registry.models)
        waiting: list[tuple[Tensor, int]] = []
        rows, after_one = None, service.turns.slices()
        tensors = tensors_of(model, request.inputs, service.settings.max_rows)
        for (tensor, nbytes), each in zip(tensors, request.inputs, strict=True):
            rows = tensor.rows
            if nbytes is None:
                self._put(tensor, tensor.array(read(JSON, DATA, bytes(each.data), within=f"{tensor.field}.data")))
            else:
                waiting.append((tensor, nbytes))
            await after_one()
        binary = sum(nbytes for _, nbytes in waiting)
        if self.json_bytes is None and binary:
            raise MalformedBodyError(
                f"inputs have a binary_data_size, but the header {JSON_BYTES} is missing; "
                "send it with the number of bytes of JSON"
            )
        if self.json_bytes is not None and self.length not in (None, self.json_bytes + binary):
            raise MalformedBodyError(
                f"the body has {self.length} bytes; expected {self.json_bytes} of JSON and {binary} of binary_data_size"
            )
        head = active.machine.options
        parts = {"query": stated, **request_parts(request, head, rows)}
        options = msgspec.structs.replace(head, **combined(parts))
        if active.answered:  # the deadline in the head expired before the turn of long JSON
            return []
        self.request = request
        if not admitted:
            service.shed("prior")
        active.amend(options, overloaded=not admitted)
        return waiting

    def _put(self, tensor: Tensor, array: Array) -> None:
        """Store the values of a tensor; the group counts when all of its tensors are there."""
        group, width = tensor.group, len(tensor.position.features)
        if len(tensor.columns) < width:
            part = self._parts.setdefault(group, np.empty((tensor.rows, width), order="F"))
            part[:, tensor.columns] = array
            array = part
        self._received[group] += len(tensor.columns)
        if self._received[group] == width:
            self._arrays[group] = array

    def _add(self, active: ActivePrediction) -> None:
        """Pass on the groups that are complete, together."""
        if self._arrays and not active.answered:
            arrays, self._arrays = self._arrays, {}
            active.groups(arrays, self.exchange.ended_ms if self.exchange.ended else None)

    def _cut(self, size: int | None) -> bytes:
        """Remove some bytes from the buffer, all without a number."""
        content = bytes(self.buffer[:size])
        del self.buffer[:size]
        return content


MAX_UNADMITTED = 256 * 1024  # largest JSON in bytes in which a request that is not admitted may request the base rate

_ADVICE = "send tensors as bytes after the JSON (binary_data_size), or fewer rows or inputs at once"
"""Advice in the error about JSON that is too large."""


class Infer(Endpoint):
    """`POST /v2/models/{name}/infer`, and the same for a version."""

    parameters = _PARAMETERS

    async def answer(self, scope: Scope, exchange: Exchange, predictions: list[ActivePrediction]) -> None:
        begun = now_ms()
        service, settings = self.service, self.service.settings
        head = read_head(scope, settings, self.parameters, _FORMS)
        stated, length = head.headers.get(JSON_BYTES.lower()), head.headers.get("content-length", "")
        if stated is not None and not (stated.isascii() and stated.isdigit() and len(stated) <= 18):
            raise FieldError(JSON_BYTES, f"{JSON_BYTES} is {stated[:50]!r}; expected the number of bytes of JSON")
        json_bytes = None if stated is None else int(stated)
        if json_bytes is None or json_bytes > settings.max_json_bytes:
            check_length(head.headers, settings.max_json_bytes, _ADVICE)
            exchange.limit_to(settings.max_json_bytes, _ADVICE)
        admitted, account = service.admits(begun, admission_of(scope)[0]), service.accounts.of(scope)
        model, body_bytes = _named(service, scope), int(length) if length.isdigit() else None
        options = msgspec.structs.replace(head.options, model=f"{model.name}@{model.version}")
        inference = Inference(service, exchange, exchange.body(), model, json_bytes, body_bytes)
        if not (admitted or options.overload == "prior"):
            await self._check_unadmitted(inference)
        # If the JSON that was read accepts the base rate, it amends the prediction for it.
        opens = admitted or options.overload != "prior"
        active = service.open(options, begun, inference, admitted=opens, account=account)
        predictions.append(active)
        await inference.read(active, head.stated, admitted=admitted)

    async def _check_unadmitted(self, inference: Inference) -> None:
        """Read the JSON of a request that is not admitted; raise OverloadedError unless it requests the base rate.

        Above `MAX_UNADMITTED` bytes or after `Tuning.linger_s`, raise it too.
        """
        size = inference.json_bytes
        with suppress(TimeoutError):
            async with asyncio.timeout(self.service.tuning.linger_s):
                await inference.fill(MAX_UNADMITTED if size is None else min(size, MAX_UNADMITTED))
        content = bytes(inference.buffer[:size])
        complete = inference.exchange.ended if size is None else len(content) == size
        # The search is cheaper than the JSON parser, and most requests are refused by it.
        may_accept = complete and len(content) <= MAX_UNADMITTED and b'"overload"' in content
        request = InferRequest([])
        with suppress(MalformedBodyError, BodyTooLargeError):  # a refused body is not validated
            request = read_infer(content, self.service.list_limits) if may_accept else request
        if (request.parameters or InferParameters()).overload != "prior":
            self.service.shed("refused")
            raise self.service.overloaded()


@dataclass(eq=False)
class Metadata(Endpoint):
    """A `GET` route; `describe` returns its response.

    With `if_ready`, the response is a problem while the server begins no predictions. A `page` is made in the worker
    thread.
    """

    service: PredictionService
    describe: Callable[[PredictionService, Scope], msgspec.Struct]
    if_ready: bool = False
    page: bool = False

    async def answer(self, scope: Scope, exchange: Exchange, _predictions: list[ActivePrediction]) -> None:
        service = self.service

        def content() -> bytes:
            return msgspec.json.encode(self.describe(service, scope))

        reply = Reply(200, JSON.media_type, await service.worker.page(content) if self.page else content())
        if self.if_ready and service.unready is not None:
            problem = infer_problem(blank(503, service.unready))
            reply = Reply(503, MEDIA_TYPE, msgspec.json.encode(problem))
        exchange.reply(reply)


def oip_routes(service: PredictionService) -> list[Route]:
    """Return the routes of the protocol; a route without a version uses the newest version of the model."""

    def state(service: PredictionService, _scope: Scope) -> InferServerState:
        return InferServerState(live=True, ready=service.unready is None)

    def ready(service: PredictionService, scope: Scope) -> InferModelState:
        return InferModelState(_named(service, scope).name, ready=True)  # every loaded model is ready

    def model(service: PredictionService, scope: Scope) -> InferModel:
        return model_metadata(_named(service, scope), service.registry.models)

    routes = [
        Route("/v2", Metadata(service, lambda *_: SERVER), methods=["GET"], name="oip_server"),
        Route("/v2/health/live", Metadata(service, state), methods=["GET"], name="oip_live"),
        Route("/v2/health/ready", Metadata(service, state, if_ready=True), methods=["GET"], name="oip_ready"),
    ]
    for path, version in (("/v2/models/{name}", "model"), ("/v2/models/{name}/versions/{version}", "version")):
        infer = "oip_infer" if version == "model" else "oip_version_infer"
        routes += [
            Route(path, Metadata(service, model, page=True), methods=["GET"], name=f"oip_{version}"),
            Route(
                f"{path}/ready", Metadata(service, ready, if_ready=True), methods=["GET"], name=f"oip_{version}_ready"
            ),
            Route(f"{path}/infer", Infer(service), methods=["POST"], name=infer),
        ]
    return routes


def _named(service: PredictionService, scope: Scope) -> Model:
    """Return the model of the path; raises as `ModelRegistry.get`."""
    return service.registry.get("@".join(scope["path_params"].values()))
