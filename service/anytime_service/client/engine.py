"""Client side of predictions: calls, the WebSocket that they share, and what the client learns of network and server.

A `Call` begins on the server, possibly more than once, and ends at the caller's deadline, by the clock of this machine.
It sends the server a deadline that is shorter by the learned network margin, so that the answer arrives in time. If it
does not, the call returns the last update, or else the base rate. If the connection breaks, the call begins the
prediction again on a new connection, with all groups sent so far and the remaining time.

A `Connection` has one WebSocket at a time, for many calls, each with its own id. Its memory is bounded: a limited
number of calls, of abandoned calls, and of unsent bytes. After a loss it opens a new WebSocket at once, in the
background.

Callers that need the connection during an attempt to connect share the attempt. If it fails, all of them receive the
error. Pauses between attempts double from 50 ms to 1 s and vary randomly by half, so that not all clients reconnect at
the same time when a server restarts. A caller whose deadline ends after the pause waits for the next attempt; any other
caller receives the last error.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import msgspec
import numpy as np
from websockets.exceptions import ConnectionClosed

from anytime.errors import suggestion
from anytime.inference.deadline import LateReading, checked_seconds, early_ms
from anytime.inference.prediction import Answer
from anytime.model.model import checked_budget
from anytime.types import Policy, Reason
from anytime_service.client.errors import (
    OVERLOADED,
    ClientError,
    ConnectionLostError,
    NoAnswerError,
    ProblemError,
    ReplyError,
)
from anytime_service.client.messages import Encoded, decode_reply
from anytime_service.client.transport import Socket, Transport, joined, log
from anytime_service.schemas.codecs import MSGPACK
from anytime_service.schemas.messages import BeginFrame, EndFrame, PackedGroupFrame
from anytime_service.schemas.options import PARAMETERS, PredictionOptions, checked_options

K = 1.2  # ratio of requests sent to requests accepted
FEW = 3.0  # number of refusals below which the client does not throttle
MEMORY_S = 2.0  # time constant of the counts: a request of this age has the weight exp(-1), about one third


class Throttle:
    """Adaptive throttling by decaying counts of recent requests and acceptances, by the clock `now` in seconds.

    A refusal is cheap for the server but not free, so the client rejects the share

        max(0, (requests - K accepts - FEW) / (requests + 1))

    of its requests itself. The server then receives about K times as many as it accepts, enough for the client to
    notice when the overload ends (Beyer, Jones, Petoff and Murphy, *Site Reliability Engineering*, 2016, chapter 21).
    """

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, chance: Callable[[], float] = random.random
    ) -> None:
        self._now, self._chance = now, chance
        self._at = now()
        self._requests = self._accepts = 0.0

    def rejects(self) -> bool:
        self._fade()
        rejected = self._chance() < (self._requests - K * self._accepts - FEW) / (self._requests + 1.0)
        self._requests += rejected
        return rejected

    def record(self, *, accepted: bool) -> None:
        """Count a prediction that was sent; it is not accepted if the server refused it because of overload."""
        self._fade()
        self._requests += 1.0
        self._accepts += accepted

    def _fade(self) -> None:
        now = self._now()
        decay = math.exp((self._at - now) / MEMORY_S)
        self._at = now
        self._requests *= decay
        self._accepts *= decay


TICK_S = 0.001  # interval at which a loop's own delay is measured around the time of an answer
TIMER_MS = 1.2  # a timer may be this late although the loop is free: some loops wait in whole milliseconds
MEASURED_S = 0.064  # time after that of an answer during which it is measured


class NetworkDelay:
    """The delay of an answer that is due `deadline_ms` after now, without the time for which the loop was held up.

    That is the lateness of a timer, in the first turn after the beginning, and again and again from the time at which
    the answer is due.
    """

    def __init__(self, deadline_ms: float) -> None:
        self.deadline_ms = deadline_ms
        self._tick_at = time.perf_counter() - TIMER_MS / 1e3  # the first turn needs no timer
        self._due = time.perf_counter() + deadline_ms / 1e3
        self._held_up_ms = 0.0
        self._handle: asyncio.Handle = asyncio.get_running_loop().call_soon(self._tick)

    def stop(self) -> float:
        """Return the delay until now in milliseconds; the loop may read an answer before the timer that is due."""
        self._handle.cancel()
        delay_ms = (time.perf_counter() - self._due) * 1e3
        return delay_ms - min(max(delay_ms, 0.0), self._held_up_ms + self._late_ms())

    def _late_ms(self) -> float:
        return max((time.perf_counter() - self._tick_at) * 1e3 - TIMER_MS, 0.0)

    def _tick(self) -> None:
        self._held_up_ms += self._late_ms()
        now = time.perf_counter()
        self._tick_at = max(now + TICK_S, self._due)
        if self._tick_at < self._due + MEASURED_S:
            self._handle = asyncio.get_running_loop().call_later(self._tick_at - now, self._tick)
        else:
            self._tick_at = math.inf


MAX_DELAYS = 64  # number of delays in the margin: few enough that two answers suffice to notice a slower network
SHARE_IN_TIME = 0.98
MAX_MARGIN_MS = 1000.0  # longest recorded delay: with a longer one, no deadline of the usual length is feasible


class NetworkMargin:
    """How much earlier than the caller's deadline the server must answer: a quantile of the most recent delays.

    `anytime.inference.deadline` tracks its quantile in small steps; a network may change by much more than one step.
    The delays are those of answers that a deadline interrupted, also of answers that arrived too late.
    """

    def __init__(self) -> None:
        self.ms = 0.0
        self._delays: deque[float] = deque(maxlen=MAX_DELAYS)

    def add(self, deadline_ms: float, delay_ms: float) -> None:
        """Record the delay of an answer: its time of arrival minus the deadline sent to the server.

        That of an immediate answer is the margin until the first other one is recorded.
        """
        bounded_ms = min(max(delay_ms, 0.0), MAX_MARGIN_MS)
        if deadline_ms == 0.0:
            self.ms = self.ms if self._delays else bounded_ms
        elif delay_ms >= -1.0:  # an earlier answer has the server's own maximum, which says nothing about the network
            self._delays.append(bounded_ms)
            ordered = sorted(self._delays)
            self.ms = ordered[min(int(SHARE_IN_TIME * len(ordered)), len(ordered) - 1)]

    def server_deadline_ms(self, remaining_ms: float) -> float:
        """Return the deadline to send to the server: the remaining time minus the margin, at least half of that time.

        With less than half, extractors could compute only few groups.
        """
        return max(remaining_ms - early_ms(self.ms, remaining_ms), 0.0)


MAX_OPEN = 1024  # largest number of open predictions
MAX_ABANDONED = 256  # largest number of abandoned predictions whose answers still update the margin
MAX_UNSENT_BYTES = 64 * 1024 * 1024  # largest number of unsent bytes; a network with more counts as broken

FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 1.0
MAX_IDLE_PAUSE_S = 60.0  # longest pause between attempts in the background, for which no call waits


class Connection:
    """The WebSocket to one server, and the predictions on it; belongs to one event loop."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.margin = NetworkMargin()
        self.throttle = Throttle()
        self._socket: Socket | None = None
        self._opened_at = 0.0
        self._lost = ConnectionLostError("no connection was open")
        self._attempt: asyncio.Task[None] | None = None
        self._refusals = 0
        self._refused: ClientError | None = None  # the error of the last attempt
        self._retry_at = 0.0
        self._ids = count()
        self._open: dict[int, Call] = {}
        self._abandoned: dict[int, Call] = {}
        self._unsent: asyncio.Queue[bytes] = asyncio.Queue()
        self._unsent_bytes = 0

    async def ready(self, until: float) -> bool:
        """Connect if necessary; return False at the time `until` of `time.perf_counter` if that is not finished.

        The attempt then continues in the background. Raise ConnectionLostError if the server is unreachable, and
        ProblemError if it refuses: the key is invalid, or it has too many connections.
        """
        self.transport.lifetime.check()
        if self._socket is not None:
            return True
        if self._refused is not None and until < self._retry_at:
            raise type(self._refused)(*self._refused.args) from self._refused
        if self._attempt is None or self._attempt.done():
            self._attempt = self.transport.lifetime.start(self._connect())
        return await joined(self._attempt, until)

    def begin(self, call: Call, options: PredictionOptions) -> None:
        """Begin a prediction with these options and a new id; raise ClientError if too many are open."""
        self._open.pop(call.id, None)
        if len(self._open) >= MAX_OPEN:
            raise ClientError(f"{MAX_OPEN} predictions are open on this client; wait for some, or use a second client")
        call.id = next(self._ids)
        call.socket = self._socket
        call.delay = None if options.deadline_ms is None else NetworkDelay(options.deadline_ms)
        if self._socket is None:
            call.receive(self._lost)
        else:
            self._open[call.id] = call
            self.send(call, BeginFrame(id=call.id, **msgspec.structs.asdict(options)))

    def send(self, call: Call, frame: BeginFrame | PackedGroupFrame[msgspec.Raw] | EndFrame) -> None:
        """Queue a frame for sending; drop it if the prediction has not begun, or its WebSocket is lost."""
        if call.socket is None or call.socket is not self._socket:
            return
        content = MSGPACK.encode(frame)
        if self._unsent_bytes and self._unsent_bytes + len(content) > MAX_UNSENT_BYTES:
            self._lose(call.socket, f"the network is too slow: {self._unsent_bytes} bytes are unsent")
            return
        self._unsent_bytes += len(content)
        self._unsent.put_nowait(content)

    def abandon(self, call: Call) -> None:
        """Release a prediction for whose answer no call waits; the answer still updates the margin."""
        if self._open.pop(call.id, None) is not None:
            self._abandoned[call.id] = call
            if len(self._abandoned) > MAX_ABANDONED:
                del self._abandoned[next(iter(self._abandoned))]

    def close(self) -> None:
        """Begin to close the WebSocket, in the background; running predictions receive its loss."""
        self._lose(self._socket, "the client was closed")

    async def _connect(self) -> None:
        await asyncio.sleep(self._retry_at - time.perf_counter())
        try:
            socket = await self.transport.open()
        except ClientError as error:
            self._refused = error
            pause_s = min(FIRST_PAUSE_S * 2.0 ** min(self._refusals, 16), MAX_PAUSE_S)
            self._refusals += 1
            self._retry_at = time.perf_counter() + pause_s * random.uniform(0.5, 1.0)  # noqa: S311  (no secret)
            raise
        self._refusals, self._refused = 0, None
        self._socket = socket
        self._opened_at = time.perf_counter()
        self.transport.lifetime.start(self._read(socket))

    async def _read(self, socket: Socket) -> None:
        writing = self.transport.lifetime.start(self._write(socket))
        try:
            while True:
                reply = decode_reply(await socket.recv())
                if reply is not None:
                    self._handle(*reply)
        except ConnectionClosed as error:
            closed = "" if error.rcvd is None else f"{error.rcvd.code} {error.rcvd.reason}".strip()
            self._lose(
                socket,
                f"the server closed the connection ({closed})" if closed else "the connection to the server broke",
            )
        except ReplyError as error:
            self._lose(socket, str(error))
        except Exception as error:
            log.exception("reading from the server failed")
            # Calls must not wait for a reader that has ended.
            self._lose(socket, f"reading from the server failed: {error!r}")
        finally:
            writing.cancel()

    async def _write(self, socket: Socket) -> None:
        with suppress(ConnectionClosed):  # the reader reports it
            while socket is self._socket:
                frame = await self._unsent.get()
                if socket is not self._socket:
                    return  # another queue has begun
                self._unsent_bytes -= len(frame)
                await socket.send(frame)

    def _handle(self, kind: str, name: Any, content: Answer | ProblemError) -> None:
        call = (self._open.get(name) or self._abandoned.get(name)) if isinstance(name, int) else None
        if call is None:
            if kind == "error" and name is None:
                log.warning("the server refused a frame: %s", content)
        elif isinstance(content, ProblemError):
            call.receive(content)
        elif kind == "update":
            call.update = content
        else:
            self._open.pop(call.id, None)
            self._abandoned.pop(call.id, None)
            call.receive(content)
            if call.delay is not None:
                delay_ms = call.delay.stop()
                if content.reason == "deadline":
                    self.margin.add(call.delay.deadline_ms, delay_ms)

    def _lose(self, socket: Socket | None, reason: str) -> None:
        if socket is None or socket is not self._socket:
            return
        self._socket = None
        self._lost = ConnectionLostError(reason)
        for call in (*self._open.values(), *self._abandoned.values()):
            call.receive(self._lost)
        self._open.clear()
        self._abandoned.clear()
        self._unsent = asyncio.Queue()
        self._unsent_bytes = 0
        self.transport.lifetime.start(socket.close(), to_its_end=True)
        if self.transport.reconnects:
            self.transport.lifetime.start(self._keep_open())

    async def _keep_open(self) -> None:
        """Connect again in the background after a loss: a server closes idle connections, and calls must not wait."""
        pause_s = 0.0 if time.perf_counter() > self._opened_at + MAX_PAUSE_S else MAX_PAUSE_S
        while self._socket is None:
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  (no secret)
            try:
                if await self.ready(time.perf_counter() + 3.0 * self.transport.timeout_s):
                    return  # a loss since then has a task of its own
            except ClientError as error:  # the next call reports it
                if isinstance(error, ProblemError) and error.refuses_key:
                    return
            pause_s = min(2.0 * pause_s + MAX_PAUSE_S, MAX_IDLE_PAUSE_S)


_NO_VALUES = Encoded(msgspec.Raw(msgspec.msgpack.encode([])), None, 0)
"""Values of a group that the client sends after the answer, only to report its computation time."""

MAX_BREAKS = 2  # largest number of restarts after a broken connection: the cause may be a frame of this prediction


class Call:
    """A running prediction; belongs to the event loop that creates it.

    `options` begins the prediction; the call sets its id, deadline and updates. The caller stops waiting at `until`, in
    seconds of `time.perf_counter`. `base_rate` returns the base rate for some options; None for a call without a
    deadline, whose `until` is a timeout.

    `sent` has values and computing time of the groups sent, except those that a restart excluded. `result` is the
    server's answer, and `refused` its refusal; after that of an overloaded server the call sends nothing.
    """

    def __init__(
        self,
        connection: Connection,
        options: PredictionOptions,
        until: float,
        base_rate: Callable[[PredictionOptions], Answer] | None = None,
    ) -> None:
        self.connection = connection
        self.options = options
        self.until = until
        self.id = -1
        self.socket: Socket | None = None
        self.delay: NetworkDelay | None = None
        self.sent: dict[str, tuple[Encoded, float | None]] = {}
        self.update: Answer | None = None
        self.result: Answer | None = None
        self.refused: ProblemError | None = None
        self._base_rate = base_rate
        self._changed = asyncio.Event()
        self._ended = False
        self._breaks = 0
        self._broken: ConnectionLostError | None = None

    @property
    def expired(self) -> bool:
        return time.perf_counter() >= self.until

    @property
    def is_open(self) -> bool:
        """Whether neither an answer nor a refusal was received."""
        return self.result is None and self.refused is None

    async def predict(self, groups: Mapping[str, Encoded]) -> Answer:
        """Send available groups, and return the answer by the deadline: the server's, else that of `fallback`.

        Raise ClientError if the server is unreachable or refuses, and without a deadline also if no answer arrives.
        """
        for name, values in groups.items():
            self.send(name, values)
        self.end()
        return await self.answer(accepts_overload=self.options.overload == "prior") or self.fallback()

    def send(self, group: str, values: Encoded, took_ms: float | None = None) -> None:
        if not self._ended:
            self.sent[group] = (values, took_ms)
            self._send(group, values, took_ms)

    def send_late(self, group: str, values: Encoded, took_ms: float) -> None:
        """Report the computation time of a group after `close`.

        The server includes these times in its statistics, which would otherwise contain fast groups only. Without an
        answer, the prediction may still be open on the server, and needs the values too.
        """
        self._send(group, values if self.result is None else _NO_VALUES, took_ms)

    def receive(self, outcome: Answer | ProblemError | ConnectionLostError) -> None:
        """Record the answer, the refusal of a message, or the loss of the WebSocket, and wake the call."""
        if isinstance(outcome, ConnectionLostError):
            self._broken = outcome
            self.socket = None
        elif isinstance(outcome, Answer):
            self.connection.throttle.record(accepted=outcome.reason != "overload")
            self.result = outcome
        elif self.is_open:
            if outcome.overloaded:
                self.connection.throttle.record(accepted=False)
                self.socket = None
            self._refuse(outcome)
        self._changed.set()

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self.connection.send(self, EndFrame(self.id))

    def restart(self, policy: Policy, without: str) -> None:
        """Begin again with another policy and all groups so far except one; do nothing after the deadline."""
        if self.expired:
            return
        self.options = msgspec.structs.replace(self.options, policy=policy)
        self.sent.pop(without, None)
        if self.socket is not None and self.result is None:
            self.connection.send(self, EndFrame(self.id))
            self._open()

    async def answer(self, *, accepts_overload: bool) -> Answer | None:
        """Begin, wait for the server's answer, and close; None after the deadline, a loss, or an accepted overload.

        A timer wakes the call; it cancels no task and uses no timeout wrapper, so the call returns on time.

        If the server has recently refused many predictions, the client may reject one with a deadline itself, which
        counts as a refusal. Raise ClientError for any other refusal, and if the server is unreachable; without a
        deadline also after a loss.
        """
        has_deadline = self._base_rate is not None
        try:
            if has_deadline and self.connection.throttle.rejects():
                self.refused = ProblemError(
                    503,
                    "Service Unavailable",
                    "it refused many predictions in the last seconds, so the client did not send this one; retry in a "
                    "second",
                    type=OVERLOADED,
                    retry_after_s=1.0,
                )
            elif await self.connection.ready(self.until):
                self._open()
            while self.is_open and not self.expired:
                if self.socket is None and self._broken is not None:
                    await self._reconnect(self._broken)
                else:
                    self._changed.clear()
                    timer = asyncio.get_running_loop().call_later(
                        max(self.until - time.perf_counter(), 0.0), self._changed.set
                    )
                    await self._changed.wait()
                    timer.cancel()
            # After a stall of this process the timer fires before the loop reads the socket.
            now = time.perf_counter()
            reading = LateReading(now - self.until, now)
            while self.is_open and self.socket is not None and reading.has_turn(time.perf_counter(), unread=False):
                await asyncio.sleep(0)
        except ConnectionLostError:
            if not (has_deadline and self._breaks):
                raise
        finally:
            self.close()
        if self.refused is not None and not (self.refused.overloaded and has_deadline and accepts_overload):
            raise self.refused
        return self.result

    def fallback(self) -> Answer:
        """Return the last update, or the base rate without one, instead of the server's answer; the note says why.

        Without a deadline, raise ConnectionLostError or NoAnswerError.
        """
        begun = self.socket is not None
        if self._base_rate is None:
            server = self.connection.transport
            late = f"within {server.timeout_s:g} s"
            silent = NoAnswerError(f"{server.url} did not answer {late}; is it overloaded?")
            raise silent if begun else server.unreachable(TimeoutError(f"no connection {late}"))
        reason: Reason = "deadline"
        if self.refused is not None:
            why, reason = f"the server refused: {self.refused.detail}", "overload"
        elif self._broken is not None:
            why = f"the connection broke: {self._broken}"
        else:
            why = f"no {'answer arrived' if begun else 'connection was open'} before the deadline"
        what = "the base rate, since no update arrived" if self.update is None else "the last update received"
        return replace(self.update or self._base_rate(self.options), reason=reason).with_note(f"{why}; this is {what}")

    def close(self) -> None:
        """Release the prediction. Idempotent; `send_late` is possible afterwards."""
        if self.result is None and not self.expired:
            self.end()  # that of a cancelled call would stay open on the server
        self._ended = True
        self.sent.clear()
        self.connection.abandon(self)

    def _refuse(self, problem: ProblemError) -> None:
        """Handle a refusal of the prediction or of a group."""
        self.refused = problem

    def _send(self, group: str, values: Encoded, took_ms: float | None) -> None:
        self.connection.send(self, PackedGroupFrame(self.id, group, values.values, took_ms, values.dtype))

    def _open(self) -> None:
        has_deadline = self._base_rate is not None
        deadline_ms = self.options.deadline_ms
        if has_deadline:
            deadline_ms = self.connection.margin.server_deadline_ms((self.until - time.perf_counter()) * 1e3)
        begin = msgspec.structs.replace(
            self.options,
            deadline_ms=deadline_ms,
            updates=has_deadline,
            overload=self.options.overload if self.update is None else "refuse",  # it is better than the base rate
        )
        self.connection.begin(self, begin)
        for group, (values, took_ms) in self.sent.items():
            self._send(group, values, took_ms)
        if self._ended:
            self.connection.send(self, EndFrame(self.id))

    async def _reconnect(self, lost: ConnectionLostError) -> None:
        """Begin again on a new connection, if there is one before the deadline.

        Raise ConnectionLostError if connecting failed, and ProblemError if the server rejected the key.
        """
        self._breaks += 1
        if self._breaks > MAX_BREAKS:
            raise lost
        try:
            if await self.connection.ready(self.until):
                self._open()
        except ClientError as error:
            if isinstance(error, ProblemError) and error.refuses_key:
                raise
            self._broken = ConnectionLostError(f"{lost}; then {error}")
            raise self._broken from error


def call_options(given: Mapping[str, Any], *without: str) -> PredictionOptions:
    """Return the options of a call that does not have those of `without`.

    Raise TypeError if there is no such option, as Python does for an argument, and ValuesError if one is invalid.
    """
    known = [name for name in PARAMETERS if name not in without]
    for name in given:
        if name not in known:
            raise TypeError(f"there is no option {name!r}; {suggestion(name, known)}")
    options = {name: each.item() if isinstance(each, np.generic) else each for name, each in given.items()}
    options["budget"] = checked_budget(options.get("budget"), "the model's cost unit")
    if options.get("deadline_ms") is not None:
        checked_seconds(options["deadline_ms"])
    return checked_options(options)
