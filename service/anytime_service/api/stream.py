"""Error frames of predictions that are not begun: the same for all but the id, and so at hand.

`/stream`: many predictions over one WebSocket, each message with the id of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from starlette.types import Receive, Scope, Send

from anytime.errors import AnytimeError
from anytime.inference.answer import Answer
from anytime_service.api.openapi import STREAM_OPERATION
from anytime_service.clock import now_ms
from anytime_service.core.active_prediction import ActivePrediction, Ask
from anytime_service.core.service import PredictionService
from anytime_service.errors import FieldError, OutOfTurnError, OverloadedError, SubprotocolError, UpgradeRequiredError
from anytime_service.http.exchange import ABORT, CHARGE, Exchange
from anytime_service.http.problems import problem_of
from anytime_service.http.responses import problem_reply, refuse_handshake
from anytime_service.http.send_queue import SendQueue
from anytime_service.keys import KEY, Key
from anytime_service.limits.queues import TTLCache
from anytime_service.schemas.codecs import JSON, MSGPACK, Form, encode_reply
from anytime_service.schemas.stream import (
    BeginFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    GroupFrame,
    LongGroupFrame,
    array_of_long,
    peek,
    read_frame,
)
from anytime_service.schemas.values import AT_ONCE, array_of
from anytime_service.telemetry.group_timings import GroupTimings

__all__ = [
    "AT_A_TIME",
    "MAX_OPEN",
    "REMEMBERED",
    "SUBPROTOCOL",
    "Refusals",
    "Stream",
    "UpgradeRequired",
]

_STAND_IN = "\x00"


class Refusals:
    """Writes error frames.

    Parameters
    ----------
    why : makes the error.
    """

    def __init__(self, why: Callable[[], OverloadedError]) -> None:
        problem = problem_of(why())
        self._parts: dict[str, tuple[bytes, bytes]] = {}
        for form in (JSON, MSGPACK):
            before, _, after = form.encode(ErrorFrame(_STAND_IN, problem)).partition(form.encode(_STAND_IN))
            self._parts[form.name] = before, after

    def frame(self, form: Form, name: str | int) -> bytes:
        """Error frame of the prediction of that name."""
        before, after = self._parts[form.name]
        return b"".join((before, form.encode(name), after))


SUBPROTOCOL = "anytime.v1"

MAX_OPEN = 1024
"""Predictions that may be open on one connection."""

REMEMBERED = 1024
"""Answered ids that a connection remembers, and as many refused ones, so that it knows groups that come too late."""

REMEMBERED_MS = 10_000.0
"""How long it remembers them; groups that come later still are taken for those of a prediction never begun."""

GOING_AWAY = 1001
"""Code with which a connection is closed that asks for nothing."""

AT_A_TIME = 16
"""Messages read before others have their turn."""

_log = logging.getLogger("anytime_service")


class Stream:
    """The WebSocket route, a bare ASGI application."""

    operation: ClassVar[dict[str, Any]] = STREAM_OPERATION

    def __init__(self, handler: PredictionService) -> None:
        self.handler = handler
        self.connections: set[_Connection] = set()
        self.refusals = Refusals(handler.overloaded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection until it closes."""
        await receive()  # websocket.connect
        offered = scope.get("subprotocols", [])
        if offered and SUBPROTOCOL not in offered:
            error = SubprotocolError(f"offered are {offered[:5]}; expected {SUBPROTOCOL!r}")
            await refuse_handshake(send, problem_reply(error))
            return
        if self.handler.draining:
            stopping = OverloadedError("the service is stopping; ask another replica")
            await refuse_handshake(send, problem_reply(stopping))
            return
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if offered else None})
        connection = _Connection(self.handler, send, self.refusals, scope.get(KEY))
        extensions = scope.get("extensions", {})
        if CHARGE in extensions:
            extensions[CHARGE]["charge"](connection.account)
        self.connections.add(connection)
        connection.watch()
        try:
            await connection.serve(receive)
        finally:
            self.connections.discard(connection)
            connection.close()
            if connection.given_up and ABORT in extensions:
                extensions[ABORT]["abort"]()

    def dismiss(self, holds: Callable[[Key], bool]) -> None:
        """Close the connections whose key does not hold any more, when what is open there has been answered."""
        for connection in tuple(self.connections):
            if connection.key is not None and not holds(connection.key):
                connection.dismiss()

    async def flushed(self) -> None:
        """Wait until every answer has been handed over."""
        await asyncio.gather(*(connection.outbox.flushed() for connection in tuple(self.connections)))


class UpgradeRequired:
    """What a plain GET of the WebSocket's route is told."""

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(receive, send, 0)
        reply = problem_reply(UpgradeRequiredError("this route speaks WebSocket; open it as ws://, or POST /predict"))
        exchange.reply(reply._replace(headers=((b"upgrade", b"websocket"),)))
        await exchange.finish()


class _Connection:
    """One client: the predictions that it has open, and those it had."""

    def __init__(self, handler: PredictionService, send: Send, refusals: Refusals, key: Key | None = None) -> None:
        self.handler = handler
        self.refusals = refusals
        self.key = key
        self.dismissed = False
        self.account = handler.accounts.of_key(key)
        self.outbox = SendQueue(send, self._give_up, self.account)
        self.open: dict[str | int, ActivePrediction] = {}
        self.answered: TTLCache[GroupTimings] = TTLCache(REMEMBERED, REMEMBERED_MS)
        self.refused: TTLCache[bool] = TTLCache(REMEMBERED, REMEMBERED_MS)
        self.used_ms = now_ms()
        self._idle: asyncio.TimerHandle | None = None
        self.task = asyncio.current_task()
        self.given_up = False

    def watch(self) -> None:
        """Close the connection once it has asked for nothing for long enough."""
        left_s = self.handler.settings.idle_timeout_s - (now_ms() - self.used_ms) / 1000.0
        if self.open:
            left_s = self.handler.settings.idle_timeout_s
        if left_s > 0:
            self._idle = asyncio.get_running_loop().call_later(left_s, self.watch)
        else:
            self.outbox.put({"type": "websocket.close", "code": GOING_AWAY, "reason": "nothing was asked for"}, 0)

    async def serve(self, receive: Receive) -> None:
        """Take messages until the connection closes."""
        count = 0
        try:
            while not self.given_up and (message := await receive())["type"] == "websocket.receive":
                if self.dismissed:  # what was read before the connection closed counts no more
                    continue
                text = message.get("text")
                form, content = (MSGPACK, message["bytes"]) if text is None else (JSON, text)
                if len(content) > AT_ONCE:
                    await self.take_long(form, content)
                else:
                    self.take(form, content)
                count += 1
                if count % AT_A_TIME == 0:  # messages at hand are received without waiting
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            if not self.given_up:
                raise

    def dismiss(self) -> None:
        """Answer what is open, and close."""
        for live in tuple(self.open.values()):
            live.drain()
        self.dismissed = True
        self.outbox.put({"type": "websocket.close", "code": 1008, "reason": "the key holds no more"}, 0)

    def close(self) -> None:
        """Forget what is open: nobody is there to be answered."""
        if self._idle is not None:
            self._idle.cancel()
        for live in self.open.values():
            live.drop()
        self.outbox.close()

    def take(self, form: Form, content: bytes | str) -> None:
        """Handle one message; an invalid one is answered by an error, and changes nothing."""
        begun = self.used_ms = now_ms()
        frame: Frame | None = None
        try:
            frame = read_frame(form, content, self.handler.settings.max_json_bytes)
            self._handle(form, frame, begun)
        except Exception as error:
            self._refuse(form, content, frame, error)

    async def take_long(self, form: Form, content: bytes | str) -> None:
        """Handle one long message as `take` does; its values are converted with turns for others in between."""
        begun = self.used_ms = now_ms()
        frame: Frame | None = None
        try:
            async with self.handler.converting:
                frame = read_frame(form, content, self.handler.settings.max_json_bytes)
                await asyncio.sleep(0)
                live = self.open.get(frame.id) if isinstance(frame, LongGroupFrame) else None
                if isinstance(frame, LongGroupFrame) and live is not None:
                    array = await array_of_long(form, live.model, frame, self.handler.settings.max_rows)
                    if self.open.get(frame.id) is live and not self.dismissed:
                        live.group(frame.group, array, frame.took_ms)
                        return
            if not self.dismissed:
                self._handle(form, frame, begun)  # also groups of what has been answered meanwhile
        except Exception as error:
            self._refuse(form, content, frame, error)

    def _handle(self, form: Form, frame: Frame, begun: float) -> None:
        if isinstance(frame, BeginFrame):
            self._begin(form, frame, begun)
        elif frame.id in self.refused:
            pass  # its client did not know of the refusal when it sent this
        elif isinstance(frame, EndFrame):
            self._end(frame)
        else:
            self._group(frame)

    def _refuse(self, form: Form, content: bytes | str, frame: Frame | None, error: Exception) -> None:
        """Answer a message by an error."""
        if not isinstance(error, AnytimeError):
            _log.error("a message failed", exc_info=error)
            self._tell_error(form, None if frame is None else frame.id, error)
            return
        if isinstance(error, OverloadedError) and isinstance(frame, BeginFrame):
            self._remember_refused(frame.id)
        if frame is None:
            kind, name = peek(form, content)
            if name in self.refused and kind != "begin":
                return
        else:
            name = frame.id
        self._tell_error(form, name, error)

    def _begin(self, form: Form, frame: BeginFrame, begun: float) -> None:
        name = frame.id
        if name in self.open or name in self.answered:
            state = "open" if name in self.open else "answered"
            raise OutOfTurnError(f"prediction {name!r} is {state} already; every prediction takes an id of its own")
        self.refused.forget(name)
        admitted = self.handler.admission.admits(begun)
        if not admitted and frame.overload != "prior":
            self.handler.shed("refused")
            self.handler.signals.overloaded.inc()
            self._remember_refused(name)
            self._put(form, self.refusals.frame(form, name))
            return
        if len(self.open) >= MAX_OPEN:
            raise OverloadedError(f"{len(self.open)} predictions are open on this connection; await some answers")
        ask = Ask(
            frame.model,
            frame.rows,
            frame.budget,
            frame.deadline_ms,
            frame.policy,
            frame.ranking,
            frame.overload,
            frame.traceparent,
        )
        update = partial(self._update, form, name) if frame.updates else None
        tell, fail = partial(self._answer, form, name), partial(self._failed, form, name)
        live = self.handler.open(ask, begun, tell, fail, update=update, admitted=admitted, account=self.account)
        if live.answered:
            self._remember(name, live)
        else:
            self.open[name] = live

    def _group(self, frame: Any) -> None:
        live = self.open.get(frame.id)
        if live is None:
            laps = self._known(frame.id, "group")
            if frame.values or frame.took_ms is None:
                laps.missed(frame.group, now_ms(), frame.took_ms)
            else:  # its client has the answer, and tells only what the group took
                laps.came(frame.group, now_ms(), frame.took_ms)
            return
        dtype = None if isinstance(frame, GroupFrame) else frame.dtype
        array = array_of(live.model, frame.group, frame.values, dtype, self.handler.settings.max_rows)
        live.group(frame.group, array, frame.took_ms)

    def _end(self, frame: EndFrame) -> None:
        live = self.open.get(frame.id)
        if live is None:
            self._known(frame.id, "end")
        else:
            live.end()

    def _known(self, name: str | int, event: str) -> GroupTimings:
        laps = self.answered.get(name)
        if laps is None:
            raise FieldError("id", f"{event} for prediction {name!r}, which was never begun on this connection")
        return laps

    def _answer(self, form: Form, name: str | int, answer: Answer) -> None:
        live = self.open.pop(name, None)
        if live is not None:
            self._remember(name, live)
        self._reply(form, "answer", name, answer)

    def _failed(self, form: Form, name: str | int, error: Exception) -> None:
        live = self.open.pop(name, None)
        if live is not None:
            self._remember(name, live)
        self._tell_error(form, name, error)

    def _remember(self, name: str | int, live: ActivePrediction) -> None:
        self.answered.add(name, live.trail.laps, now_ms())  # no more of it: its values may be large

    def _remember_refused(self, name: str | int) -> None:
        self.refused.add(name, True, now_ms())

    def _update(self, form: Form, name: str | int, answer: Answer) -> None:
        if not self.outbox.slow:
            self._reply(form, "update", name, answer)

    def _reply(self, form: Form, kind: Any, name: str | int, answer: Answer) -> None:
        try:
            self._put(form, encode_reply(form, kind, name, answer))
        except AnytimeError as error:
            self._tell_error(form, name, error)

    def _tell_error(self, form: Form, name: str | int | None, error: Exception) -> None:
        self._put(form, form.encode(ErrorFrame(name, problem_of(error))))

    def _put(self, form: Form, content: bytes) -> None:
        kind: dict[str, Any] = {"text": content.decode()} if form is JSON else {"bytes": content}
        self.outbox.put({"type": "websocket.send"} | kind, len(content))

    def _give_up(self) -> None:
        self.given_up = True
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()
