"""A request of the Open Inference Protocol v2 as it comes, and its prediction.

The body is JSON, and after it may come tensors as bytes. What the JSON asks for, its deadline too, holds as soon as the
JSON has come; a tensor after it counts when it has come. Until then the head of the request is all that is known.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from anytime.errors import AnytimeError
from anytime.inference.answer import Answer
from anytime.inference.prediction import Prediction
from anytime_service.accounts import Account
from anytime_service.errors import FieldError, MalformedBodyError
from anytime_service.exchange import Exchange, Reply
from anytime_service.handler import Handler
from anytime_service.live import Ask, Live
from anytime_service.transports.replies import problem_reply
from anytime_service.wire.forms import JSON
from anytime_service.wire.inferences import check_outputs, encode_inference, infer_problem
from anytime_service.wire.long_values import AT_ONCE, Pauses
from anytime_service.wire.tensors import InferParameters, InferRequest, Tensor, overload_of, read_infer, tensors_of

__all__ = ["BINARY", "JSON_BYTES", "Inference", "refusal"]

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
        handler: Handler,
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

    def _opened(self, ask: Ask, *, admitted: bool) -> Live:
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


def refusal(error: Exception) -> Reply:
    """Tell an error as a problem that has the `error` of this protocol too."""
    return problem_reply(error, infer_problem)


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
