"""The WebSocket route `/stream`: many predictions over one connection; the id in each message names its prediction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.types import Receive, Scope, Send

from anytime.errors import AnytimeError
from anytime.inference.prediction import Answer
from anytime_service.clock import now_ms
from anytime_service.core.service import ActivePrediction, PredictionService
from anytime_service.errors import (
    FieldError,
    OverloadedError,
    SubprotocolError,
    UnexpectedEventError,
    UpgradeRequiredError,
)
from anytime_service.http.exchange import DirectConnection, SendQueue, send_reply
from anytime_service.http.responses import problem_of, problem_reply
from anytime_service.keys import KEY, Key
from anytime_service.limits.table import IDS, OPEN_OF_CONNECTION
from anytime_service.limits.turns import TTLCache
from anytime_service.schemas.codecs import JSON, MSGPACK, Content, Form, answer_fields
from anytime_service.schemas.messages import (
    SUBPROTOCOL,
    BeginFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    GroupFrame,
    count_rows,
    peek,
    read_frame,
    received_values,
)
from anytime_service.telemetry.context import DIRECT
from anytime_service.telemetry.metrics import GroupTimings

MAX_OPEN = int(OPEN_OF_CONNECTION)
REMEMBERED_MS = 10_000.0  # time for which a connection remembers answered and refused ids, for late groups

_log = logging.getLogger("anytime_service")


class Stream:
    """ASGI application of the WebSocket route."""

    def __init__(self, service: PredictionService) -> None:
        self.service = service
        self.connections: set[_Connection] = set()
        problem, prediction_id = problem_of(service.overloaded()), "\x00"
        # By form, the error frame of a prediction that is refused because of overload, split at its id.
        self._refusals: Mapping[str, Sequence[bytes]] = {
            form.name: form.encode(ErrorFrame(prediction_id, problem)).split(form.encode(prediction_id))
            for form in (JSON, MSGPACK)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        offered = scope.get("subprotocols", [])
        error: AnytimeError | None = None
        if offered and SUBPROTOCOL not in offered:
            error = SubprotocolError(f"the client offers the subprotocols {offered[:5]}; expected {SUBPROTOCOL!r}")
        elif scope["query_string"]:
            error = FieldError("query", "the stream has no query parameters; send the options in each begin message")
        elif self.service.draining:
            error = OverloadedError("the service is stopping; send the request to another replica")
        if error is not None:
            await send_reply(send, problem_reply(error), "websocket.http.response")
            return
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if offered else None})
        direct: DirectConnection | None = scope.get("extensions", {}).get(DIRECT)
        connection = _Connection(self.service, send, self._refusals, scope.get(KEY), direct)
        self.connections.add(connection)
        try:
            await connection.serve(receive)
        finally:
            self.connections.discard(connection)

    def dismiss(self, is_valid: Callable[[Key], bool]) -> None:
        """Answer the open predictions of connections whose key is no longer valid, and close these connections."""
        for connection in tuple(self.connections):
            if not (connection.dismissed or connection.key is None or is_valid(connection.key)):
                connection.dismiss()

    async def flushed(self) -> None:
        await asyncio.gather(*(connection.outbox.flushed() for connection in tuple(self.connections)))


class UpgradeRequired:
    """ASGI application that answers a plain GET of the WebSocket route with 426."""

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        reply = problem_reply(UpgradeRequiredError("this route speaks WebSocket; open it as ws://, or POST /predict"))
        headers = ((b"upgrade", b"websocket"), (b"sec-websocket-version", b"13"))
        await send_reply(send, reply._replace(headers=headers))


@dataclass(slots=True, eq=False)
class _Sink:
    """The sink of one prediction of a connection, which answers in the form of its begin message."""

    connection: _Connection
    form: Form
    id: str | int

    def encode(self, answer: Answer) -> dict[str, Any]:
        """Return the fields of an answer or update; raise FieldError if it is not finite."""
        kind = "update" if answer.reason is None else "answer"
        return {"type": kind, "id": self.id} | answer_fields(self.form, answer)

    def send(self, fields: dict[str, Any], elapsed_ms: float) -> None:
        is_update = fields["type"] == "update"
        if is_update and self.connection.outbox.slow:
            return
        self.connection.put(self.form, self.form.encode(fields | {"elapsed_ms": elapsed_ms}))
        if not is_update:
            self.connection.forget(self.id)

    def fail(self, error: Exception) -> None:
        self.connection.send_error(self.form, self.id, error)
        self.connection.forget(self.id)


class _Connection:
    """One connection: its open predictions, and the ids of its recent ones."""

    def __init__(
        self,
        service: PredictionService,
        send: Send,
        refusals: Mapping[str, Sequence[bytes]],
        key: Key | None,
        direct: DirectConnection | None,
    ) -> None:
        self.service = service
        self._direct = direct
        self._refusals = refusals
        self.key = key
        self.dismissed = False
        self.account = service.accounts.of_key(key)
        self.outbox = SendQueue(send, self._give_up, self.account)
        self.active: dict[str | int, ActivePrediction] = {}
        self.answered: TTLCache[GroupTimings] = TTLCache(int(IDS), REMEMBERED_MS)
        """Timings of recently answered predictions, by id."""
        self.refused: TTLCache[None] = TTLCache(int(IDS), REMEMBERED_MS)
        """Ids of predictions that were refused because of overload."""
        self.used_ms = now_ms()
        self._idle: asyncio.TimerHandle | None = None
        self.task = asyncio.current_task()
        self.given_up = False

    def watch(self) -> None:
        """Close the connection when it has been idle for the idle timeout."""
        idle_s = 0.0 if self.active else (now_ms() - self.used_ms) / 1000.0
        remaining_s = self.service.settings.idle_timeout_s - idle_s
        if remaining_s > 0:
            self._idle = asyncio.get_running_loop().call_later(remaining_s, self.watch)
        else:
            self.outbox.put({"type": "websocket.close", "code": 1001, "reason": "the connection was idle"}, 0)

    async def serve(self, receive: Receive) -> None:
        """Wait until the connection ends, and release it; a server without `DirectConnection` passes messages here."""
        direct = self._direct
        if direct is not None:
            direct.charge(self.account)
            direct.deliver(self.receive)
        self.watch()
        try:
            while not self.given_up and (message := await receive())["type"] == "websocket.receive":
                text = message.get("text")
                self.receive(message["bytes"] if text is None else text)
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            if not self.given_up:
                raise
        finally:
            if self._idle is not None:
                self._idle.cancel()
            for active in self.active.values():
                active.drop()
            self.outbox.close()
            self._direct = None
            # The protocol of a closed connection is cyclic garbage. What it still refers to would add to a collection:
            # after a thousand predictions 18,000 objects, for which the event loop stands still for 12 ms.
            self.active.clear()
            self.answered.clear()
            self.refused.clear()
            if self.given_up and direct is not None:
                direct.abort()

    def receive(self, content: Content | str) -> None:
        """Handle one message. The reply to an invalid message is an error; an invalid message changes nothing."""
        if self.dismissed or self.given_up:  # it was read before the connection closed
            return
        form = JSON if isinstance(content, str) else MSGPACK
        begun = self.used_ms = now_ms()
        frame: Frame | None = None
        try:
            frame = read_frame(form, content, self.service.list_limits)
            active = self.active.get(frame.id)
            if isinstance(frame, BeginFrame):
                self._begin(form, frame, begun)
            elif active is None or active.answered:
                self._late(frame, None if active is None else active.timings)
            elif isinstance(frame, GroupFrame):
                values = received_values(
                    active.model,
                    frame.group,
                    frame.values,
                    getattr(frame, "dtype", None),  # only in MessagePack
                    self.service.settings.max_rows,
                )
                active.groups({frame.group: values}, alone=True, took_ms=frame.took_ms)
            else:
                active.end()
        except Exception as error:
            self._refuse(form, content, frame, error)

    def dismiss(self) -> None:
        """Answer the open predictions, and close the connection after the last answer."""
        self.dismissed = True
        if not self.active:
            self._end()
        for active in tuple(self.active.values()):
            if not active.answered:  # else the worker makes its answer
                active.drain()

    def _end(self) -> None:
        """Close the connection of a key that was removed."""
        self.outbox.put({"type": "websocket.close", "code": 1008, "reason": "the API key is no longer valid"}, 0)

    def _refuse(self, form: Form, content: Content | str, frame: Frame | None, error: Exception) -> None:
        """Send the error that a message caused."""
        prediction_id = None if frame is None else frame.id
        if not isinstance(error, AnytimeError):
            _log.error("handling a message failed", exc_info=error)
        elif frame is None:
            peeked = peek(form, content)
            prediction_id = peeked.id
            if prediction_id in self.refused and peeked.type != "begin":
                return
        elif isinstance(error, OverloadedError) and isinstance(frame, BeginFrame):
            self.refused.add(frame.id, None, now_ms())
        self.send_error(form, prediction_id, error)

    def _begin(self, form: Form, frame: BeginFrame, begun: float) -> None:
        prediction_id, service = frame.id, self.service
        if prediction_id in self.active or self.answered.find(prediction_id) is not None:
            state = "open" if prediction_id in self.active else "answered"
            raise UnexpectedEventError(
                f"prediction {prediction_id!r} is already {state}; use a new id for every prediction"
            )
        self.refused.pop(prediction_id, None)
        admitted = service.admission.admits(begun)
        if not admitted and frame.overload != "prior":
            service.shed("refused")
            service.metrics.overloaded.inc()
            self.refused.add(prediction_id, None, begun)
            self.put(form, form.encode(prediction_id).join(self._refusals[form.name]))
            return
        if len(self.active) >= MAX_OPEN:
            raise OverloadedError(f"this connection has {MAX_OPEN} open predictions, the limit; wait for some answers")
        sink = _Sink(self, form, prediction_id)
        self.active[prediction_id] = active = service.open(frame, begun, sink, admitted=admitted, account=self.account)
        if active.done:
            self.forget(prediction_id)

    def _late(self, frame: GroupFrame[Any] | EndFrame, timings: GroupTimings | None) -> None:
        """Record a group that arrived after the answer, or drop it if the client had not received the refusal yet."""
        if timings is None:
            timings = self.answered.find(frame.id)
        if timings is None and frame.id not in self.refused:
            event = "end" if isinstance(frame, EndFrame) else "group"
            raise FieldError("id", f"{event} for prediction {frame.id!r}, which was never begun on this connection")
        if timings is None or isinstance(frame, EndFrame):
            return
        if frame.values or frame.took_ms is None:
            timings.received_late(frame.group, now_ms(), frame.took_ms, partial(count_rows, frame.values))
        else:  # the client has received the answer and reports only how long the group took
            timings.received(frame.group, now_ms(), frame.took_ms)

    def forget(self, prediction_id: str | int) -> None:
        """Remember only the timings of a prediction that has ended: its values may be large."""
        active = self.active.pop(prediction_id, None)
        if active is not None:
            self.answered.add(prediction_id, active.timings, now_ms())
            if self.dismissed and not self.active:
                self._end()

    def send_error(self, form: Form, prediction_id: str | int | None, error: Exception) -> None:
        self.put(form, form.encode(ErrorFrame(prediction_id, problem_of(error))))

    def put(self, form: Form, content: bytes) -> None:
        text = form is JSON
        if self._direct is not None and not self.outbox.slow and self._direct.write(content, text=text):
            return
        kind: dict[str, Any] = {"text": content.decode()} if text else {"bytes": content}
        self.outbox.put({"type": "websocket.send"} | kind, len(content))

    def _give_up(self) -> None:
        self.given_up = True
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()
