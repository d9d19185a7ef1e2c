"""Client side of a prediction: its event queue, and the call from begin to answer.

A `Call` begins on the server, possibly more than once, and ends at the caller's deadline, by the clock of this machine.
It sends the server a deadline that is shorter by the learned network margin, so that the answer arrives in time. If it
does not, the call returns the last update, or else the base rate. If the connection breaks, the call begins the
prediction again on a new connection, with all groups sent so far and the remaining time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np

from anytime.errors import ValuesError, suggestion
from anytime.inference.deadline import LateReading, checked_seconds
from anytime.inference.prediction import Answer
from anytime.model.model import checked_budget
from anytime.types import Policy, Reason
from anytime_service.client.errors import OVERLOADED, ClientError, ConnectionLostError, ProblemError
from anytime_service.client.messages import Encoded
from anytime_service.client.transport import KEY_REFUSED, Channel, Connection, Link, Outcome
from anytime_service.schemas.codecs import located
from anytime_service.schemas.options import PARAMETERS, PredictionOptions, parameter_schemas

Event = TypeVar("Event")
Kind = TypeVar("Kind")

MAX_EVENTS = 4096  # largest number of unread events; a further event replaces the oldest one


class EventQueue(Generic[Event]):
    """The events of one call, in order, until the deadline `until`, in seconds of `time.perf_counter`.

    It belongs to the event loop that creates it. A timer wakes the call; the queue cancels no task and uses no timeout
    wrapper, so the call returns on time.
    """

    def __init__(self, until: float) -> None:
        self._until = until
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._changed = asyncio.Event()
        self._set_timer()

    @property
    def expired(self) -> bool:
        return time.perf_counter() >= self._until

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._changed.set()

    def pop(self, kind: type[Kind]) -> Kind | None:
        """Remove and return the oldest event of type `kind`, also after the deadline; return None without one."""
        for place, event in enumerate(self._events):
            if isinstance(event, kind):
                del self._events[place]
                return event
        return None

    async def get(self) -> Event | None:
        """Wait for the next event; return None after the deadline, even if events are available."""
        while not self.expired:
            if self._events:
                return self._events.popleft()
            self._changed.clear()
            await self._changed.wait()
            if not self._events and not self.expired:  # timers of some event loops fire a little early
                self._timer.cancel()
                self._set_timer()
        return None

    def close(self) -> list[Event]:
        self._timer.cancel()
        return list(self._events)

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._until - time.perf_counter(), self._changed.set)


_NO_VALUES = Encoded(msgspec.Raw(msgspec.msgpack.encode([])), None, 0)
"""Values of a group that the client sends after the answer, only to report its computation time."""

MAX_BREAKS = 2  # largest number of restarts after a broken connection: the cause may be a frame of this prediction


class _Received(NamedTuple):
    channel: Channel
    outcome: Outcome


class Call:
    """A running prediction; belongs to the event loop that creates it.

    `options` begins the prediction; the call sets its id, deadline and updates. The caller stops waiting at `until`, in
    seconds of `time.perf_counter`. `server_deadline` returns the deadline to send for some remaining milliseconds; None
    sends none, and `until` is then a timeout.

    `events` is also the queue for the caller's own events, which `next` returns. `sent` has values and computing time
    of the groups sent, except those that a restart excluded. `refused` is the refusal by an overloaded server, after
    which the call sends nothing.
    """

    def __init__(
        self,
        connection: Connection,
        options: PredictionOptions,
        until: float,
        server_deadline: Callable[[float], float] | None = None,
    ) -> None:
        self.events: EventQueue[object] = EventQueue(until)
        self._connection = connection
        self.options = options
        self.until = until
        self._server_deadline = server_deadline
        self._channel: Channel | None = None
        self._closed: Channel | None = None
        self._update: Answer | None = None
        self.sent: dict[str, tuple[Encoded, float | None]] = {}
        self.refused: ProblemError | None = None
        self._ended = False
        self._breaks = 0
        self._broken: ConnectionLostError | None = None

    @property
    def has_begun(self) -> bool:
        """Whether it has begun on the server, also after `close`."""
        return self._channel is not None or self._closed is not None

    async def begin(self, *, throttled: bool = True) -> None:
        """Begin on the server; return without a beginning if the deadline expires first.

        If the server has recently refused many predictions, the client may reject one with a deadline itself, which
        counts as a refusal. Raise ClientError if the server is unreachable or refuses the connection, or too many
        predictions are open.
        """
        if throttled and self._server_deadline is not None and self._connection.throttle.rejects():
            why = "it refused many predictions in the last seconds, so the client did not send this one"
            self.refused = ProblemError(
                503, "Service Unavailable", f"{why}; retry in a second", type=OVERLOADED, retry_after_s=1.0
            )
            return
        self._open(await self._connection.link(self.until))

    def send(self, group: str, values: Encoded, took_ms: float | None = None) -> None:
        if self._ended:
            return
        self.sent[group] = (values, took_ms)
        if self._channel is not None:
            self._channel.send_group(group, values, took_ms)

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            if self._channel is not None:
                self._channel.end()

    def restart(self, policy: Policy, without: str) -> None:
        """Begin again with another policy and all groups so far except one; do nothing after the deadline."""
        if self.events.expired:
            return
        self.options = msgspec.structs.replace(self.options, policy=policy)
        self.sent.pop(without, None)
        if self._channel is not None:
            self._channel.end()
            link = self._channel.link
            self._abandon()
            self._open(link)

    async def next(self) -> object | None:
        """Wait for the answer, a problem, or an event of the caller; return None after the deadline.

        Raise ConnectionLostError if the connection broke and connecting again failed, and ProblemError if the server
        rejected the key of the new connection.
        """
        if self.refused is not None:
            return self.refused
        while (event := await self.events.get()) is not None:
            if not isinstance(event, _Received):
                return event
            outcome = self._record(event)
            if isinstance(outcome, ConnectionLostError):
                await self._reconnect(outcome)
            elif outcome is not None:
                return outcome
        return await self._received()

    async def answer(self) -> Answer | None:
        """Wait for the answer; return None after the deadline, or if the server refuses and the options accept that.

        Raise ProblemError if the server refused the prediction or a group, and, without a deadline,
        ConnectionLostError.
        """
        try:
            while (event := await self.next()) is not None:
                if isinstance(event, ProblemError):
                    if event.overloaded and self.options.overload == "prior" and self._server_deadline is not None:
                        return None  # the client knows the base rate, too
                    raise event
                if isinstance(event, Answer):
                    return event
        except ConnectionLostError:
            if self._server_deadline is None:
                raise
        return None

    def fallback(self, base: Answer) -> Answer:
        """Return the last update, or the base rate without one, instead of the server's answer; the note says why."""
        if self._channel is not None and self._channel.update is not None:
            self._update = self._channel.update
        reason: Reason = "deadline"
        if self.refused is not None:
            why, reason = f"the server refused: {self.refused.detail}", "overload"
        elif self._broken is not None:
            why = f"the connection broke: {self._broken}"
        else:
            why = f"no {'answer arrived' if self.has_begun else 'connection was open'} before the deadline"
        what = "the base rate, since no update arrived" if self._update is None else "the last update received"
        return replace(self._update or base, reason=reason).with_note(f"{why}; this is {what}")

    def send_late(self, group: str, values: Encoded, took_ms: float) -> None:
        """Report the computation time of a group after `close`.

        The server includes these times in its statistics, which would otherwise contain fast groups only.
        """
        if self._closed is not None:  # without an answer, the prediction may still be open on the server
            self._closed.send_group(group, values if self._closed.answer is None else _NO_VALUES, took_ms)

    def close(self) -> list[object]:
        channel = self._channel
        if channel is not None and (
            channel.deadline_ms is None or (channel.answer is None and not self.events.expired)
        ):
            self.end()  # the prediction of a cancelled call would stay open, as that of one without a deadline
        self._closed = self._channel
        self._abandon()
        return [event for event in self.events.close() if not isinstance(event, _Received)]

    def _open(self, link: Link | None) -> None:
        if link is None:
            return
        remaining_ms = (self.until - time.perf_counter()) * 1e3
        begin = msgspec.structs.replace(
            self.options,
            deadline_ms=None if self._server_deadline is None else self._server_deadline(remaining_ms),
            updates=self._server_deadline is not None,
            # An update is better than the base rate.
            overload=self.options.overload if self._update is None else "refuse",
        )
        self._channel = link.begin(begin, lambda channel, outcome: self.events.put(_Received(channel, outcome)))
        for group, (values, took_ms) in self.sent.items():
            self._channel.send_group(group, values, took_ms)
        if self._ended:
            self._channel.end()

    def _abandon(self) -> None:
        if self._channel is not None:
            self._channel.abandon()
            self._update = self._channel.update or self._update
        self._channel = None

    async def _reconnect(self, lost: ConnectionLostError) -> None:
        self._broken = lost
        self._breaks += 1
        self._abandon()
        if self._breaks > MAX_BREAKS:
            raise lost
        try:
            self._open(await self._connection.link(self.until))
        except ClientError as error:
            if isinstance(error, ProblemError) and error.status in KEY_REFUSED:
                raise  # the network is not the cause, so the next call would fail too
            self._broken = ConnectionLostError(f"{lost}; then {error}")
            raise self._broken from error

    def _record(self, received: _Received) -> Outcome | None:
        """Record an outcome, also in the throttle, and return it; return None if it belongs to an earlier beginning."""
        outcome, throttle = received.outcome, self._connection.throttle
        if received.channel is not self._channel:
            return None
        if isinstance(outcome, ProblemError) and outcome.overloaded:
            self.refused = outcome
            throttle.record(accepted=False)
            self._abandon()
        elif isinstance(outcome, Answer):
            throttle.record(accepted=outcome.reason != "overload")
        return outcome

    async def _received(self) -> Answer | ProblemError | None:
        """Return the next outcome that has already reached this machine after the deadline; return None without one.

        After a stall of this process the timer fires before the loop reads the socket.
        """
        now = time.perf_counter()
        reading = LateReading(now - self.until, now)
        while self._channel is not None and self._channel.answer is None:
            if not reading.has_turn(time.perf_counter(), unread=False):
                break
            await asyncio.sleep(0)
        while (received := self.events.pop(_Received)) is not None:
            outcome = self._record(received)
            if isinstance(outcome, ConnectionLostError):
                self._broken = outcome
            elif outcome is not None:
                return outcome
        return None


def checked_options(given: Mapping[str, Any], *without: str) -> PredictionOptions:
    """Return the options of a call that does not have those of `without`.

    Raise TypeError if there is no such option, as Python does for an argument, and ValuesError if one is invalid.
    """
    known = [name for name in PARAMETERS if name not in without]
    for name in given:
        if name not in known:
            raise TypeError(f"there is no option {name!r}; {suggestion(name, known)}")
    options: dict[str, Any] = {**given}
    if options.get("deadline_ms") is not None:
        checked_seconds(options["deadline_ms"])
    rows = options.get("rows")
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 1):
        raise ValuesError(f"rows is {rows!r}; expected a whole number, 1 or more")
    options["budget"] = checked_budget(options.get("budget"), "the model's cost unit")
    options = {name: each.item() if isinstance(each, np.generic) else each for name, each in options.items()}
    try:
        return msgspec.convert(options, PredictionOptions)
    except msgspec.ValidationError as error:
        message, name = located(error)
        choices = parameter_schemas()[name].get("enum")
        expected = message if choices is None else f"expected one of {', '.join(choices)}"
        raise ValuesError(f"{name} is {options[name]!r}; {expected}") from error


def checked_run_options(given: Mapping[str, Any]) -> PredictionOptions:
    """Return the options of a call that computes its groups in order; raises as `checked_options`."""
    checked = checked_options({"rows": 1, **given}, "deadline_ms")
    if checked.policy == "arrived":
        raise ValuesError("policy is 'arrived'; expected 'prefix' or 'best': groups after one that fails count anyway")
    return checked
