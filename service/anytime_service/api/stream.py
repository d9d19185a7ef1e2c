"""The WebSocket route `/stream`: many predictions over one connection; the id in each message names its prediction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from starlette.types import Receive, Scope, Send

from anytime.errors import AnytimeError
from anytime_service.clock import now_ms
from anytime_service.core.active_prediction import ActivePrediction
from anytime_service.core.service import PredictionService
from anytime_service.errors import (
    FieldError,
    OverloadedError,
    SubprotocolError,
    UnexpectedEventError,
    UpgradeRequiredError,
)
from anytime_service.http.exchange import DirectConnection, Exchange, SendQueue
from anytime_service.http.responses import problem_of, problem_reply, refuse_handshake
from anytime_service.keys import KEY, Key
from anytime_service.limits.queues import TTLCache
from anytime_service.limits.table import IDS, OPEN_OF_CONNECTION
from anytime_service.schemas.codecs import JSON, MSGPACK, Content, Form, encode_answer
from anytime_service.schemas.stream import (
    SUBPROTOCOL,
    BeginFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    GroupFrame,
    PackedGroupFrame,
    peek,
    read_frame,
)
from anytime_service.schemas.values import count_rows, received_values
from anytime_service.telemetry.context import DIRECT
from anytime_service.telemetry.records import GroupTimings

MAX_OPEN = int(OPEN_OF_CONNECTION)
REMEMBERED_MS = 10_000.0  # time for which a connection remembers answered and refused ids, for late groups

_log = logging.getLogger("anytime_service")

_Refusals: TypeAlias = Mapping[str, Sequence[bytes]]
"""Error frame of a prediction that is refused because of overload, by form, split at the id: only the id differs."""


class Stream:
    """ASGI application of the WebSocket route."""

    def __init__(self, service: PredictionService) -> None:
        self.service = service
        self.connections: set[_Connection] = set()
        problem, prediction_id = problem_of(service.overloaded()), "\x00"
        self._refusals: _Refusals = {
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
            await refuse_handshake(send, problem_reply(error))
            return
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if offered else None})
        direct: DirectConnection | None = scope.get("extensions", {}).get(DIRECT)
        connection = _Connection(self.service, send, self._refusals, scope.get(KEY), direct)
        if direct is not None:
            direct.charge(connection.account)
            direct.deliver(connection.receive)
        self.connections.add(connection)
        connection.watch()
        try:
            await connection.serve(receive)
        finally:
            self.connections.discard(connection)
            connection.close()
            if connection.given_up and direct is not None:
                direct.abort()

    def dismiss(self, is_valid: Callable[[Key], bool]) -> None:
        """Answer the open predictions of connections whose key is no longer valid, and close these connections."""
        for connection in tuple(self.connections):
            if connection.key is not None and not is_valid(connection.key):
                connection.dismiss()

    async def flushed(self) -> None:
        await asyncio.gather(*(connection.outbox.flushed() for connection in tuple(self.connections)))


class UpgradeRequired:
    """ASGI application that answers a plain GET of the WebSocket route with 426."""

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(receive, send, 0)
        reply = problem_reply(UpgradeRequiredError("this route speaks WebSocket; open it as ws://, or POST /predict"))
        exchange.reply(reply._replace(headers=((b"upgrade", b"websocket"), (b"sec-websocket-version", b"13"))))
        await exchange.finish()


class _Connection:
    """One connection: its open predictions, and the ids of its recent ones."""

    def __init__(
        self,
        service: PredictionService,
        send: Send,
        refusals: _Refusals,
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
        self.refused: TTLCache[bool] = TTLCache(int(IDS), REMEMBERED_MS)
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
        """Wait until the connection ends; handle the messages that a server without `DirectConnection` passes."""
        try:
            while not self.given_up and (message := await receive())["type"] == "websocket.receive":
                text = message.get("text")
                self.receive(message["bytes"] if text is None else text)
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            if not self.given_up:
                raise

    def receive(self, content: Content | str) -> None:
        """Handle one message. The reply to an invalid message is an error; an invalid message changes nothing."""
        if self.dismissed or self.given_up:  # it was read before the connection closed
            return
        form = JSON if isinstance(content, str) else MSGPACK
        begun = self.used_ms = now_ms()
        frame: Frame | None = None
        try:
            frame = read_frame(form, content, self.service.list_limits)
            if isinstance(frame, GroupFrame):
                self._group(frame)
            elif isinstance(frame, BeginFrame):
                self._begin(form, frame, begun)
            else:
                self._end(frame)
        except Exception as error:
            self._refuse(form, content, frame, error)

    def dismiss(self) -> None:
        for active in tuple(self.active.values()):
            active.drain()
        self.dismissed = True
        self.outbox.put({"type": "websocket.close", "code": 1008, "reason": "the API key is no longer valid"}, 0)

    def close(self) -> None:
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
            self._remember_refused(frame.id)
        self._send_error(form, prediction_id, error)

    def _begin(self, form: Form, frame: BeginFrame, begun: float) -> None:
        prediction_id = frame.id
        if prediction_id in self.active or prediction_id in self.answered:
            state = "open" if prediction_id in self.active else "answered"
            raise UnexpectedEventError(
                f"prediction {prediction_id!r} is already {state}; use a new id for every prediction"
            )
        self.refused.forget(prediction_id)
        admitted = self.service.admits(begun)
        if not admitted and frame.overload != "prior":
            self.service.shed("refused")
            self.service.metrics.overloaded.inc()
            self._remember_refused(prediction_id)
            self._put(form, form.encode(prediction_id).join(self._refusals[form.name]))
            return
        if len(self.active) >= MAX_OPEN:
            raise OverloadedError(f"this connection has {MAX_OPEN} open predictions, the limit; wait for some answers")
        active = self.service.open(
            frame,
            begun,
            partial(self._answer, form, prediction_id),
            partial(self._fail, form, prediction_id),
            update=partial(self._update, form) if frame.updates else None,
            admitted=admitted,
            account=self.account,
            encode=lambda kind, answer: encode_answer(form, answer, type=kind, id=prediction_id),
        )
        self.active[prediction_id] = active
        if active.done:
            self._ended(prediction_id)

    def _group(self, frame: Any) -> None:
        active = self.active.get(frame.id)
        if active is None or active.answered:
            timings = self._known(frame.id, "group") if active is None else active.record.timings
            if timings is None:
                return
            if frame.values or frame.took_ms is None:
                timings.received_late(frame.group, now_ms(), frame.took_ms, partial(count_rows, frame.values))
            else:  # the client has received the answer and reports only how long the group took
                timings.received(frame.group, now_ms(), frame.took_ms)
            return
        dtype = frame.dtype if isinstance(frame, PackedGroupFrame) else None
        values = received_values(active.model, frame.group, frame.values, dtype, self.service.settings.max_rows)
        active.group(frame.group, values, frame.took_ms)

    def _end(self, frame: EndFrame) -> None:
        active = self.active.get(frame.id)
        if active is None:
            self._known(frame.id, "end")
        elif not active.answered:
            active.end()

    def _known(self, prediction_id: str | int, event: str) -> GroupTimings | None:
        """Return the timings of an answered prediction; None if the client had not received its refusal yet."""
        timings = self.answered.get(prediction_id)
        if timings is None and prediction_id not in self.refused:
            raise FieldError(
                "id", f"{event} for prediction {prediction_id!r}, which was never begun on this connection"
            )
        return timings

    def _answer(self, form: Form, prediction_id: str | int, content: bytes) -> None:
        self._ended(prediction_id)
        self._put(form, content)

    def _fail(self, form: Form, prediction_id: str | int, error: Exception) -> None:
        self._ended(prediction_id)
        self._send_error(form, prediction_id, error)

    def _ended(self, prediction_id: str | int) -> None:
        active = self.active.pop(prediction_id, None)
        if active is not None:
            # Not the prediction itself: its values may be large.
            self.answered.add(prediction_id, active.record.timings, now_ms())

    def _remember_refused(self, prediction_id: str | int) -> None:
        self.refused.add(prediction_id, True, now_ms())

    def _update(self, form: Form, content: bytes) -> None:
        if not self.outbox.slow:
            self._put(form, content)

    def _send_error(self, form: Form, prediction_id: str | int | None, error: Exception) -> None:
        self._put(form, form.encode(ErrorFrame(prediction_id, problem_of(error))))

    def _put(self, form: Form, content: bytes) -> None:
        text = form is JSON
        if self._direct is not None and not self.outbox.slow and self._direct.write(content, text=text):
            return
        kind: dict[str, Any] = {"text": content.decode()} if text else {"bytes": content}
        self.outbox.put({"type": "websocket.send"} | kind, len(content))

    def _give_up(self) -> None:
        self.given_up = True
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()
