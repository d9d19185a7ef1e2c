"""What happens while a call waits, in order, and the moment at which it waits no longer.

A timer wakes the call; nothing is cancelled and no timeout wraps anything, which is what keeps it punctual.

One prediction as its caller sees it: begun on the server, perhaps more than once, over at the deadline.

The caller's deadline is kept here, by this machine's clock. The server is told one that is shorter by the margin
learned, so that its answer is here in time. If it is not, the last update that came is the answer, or else the base
rate.

A prediction whose connection breaks is begun anew on another one, with all that was sent and the time that is left.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar, get_args

import msgspec
import numpy as np

from anytime.errors import ValuesError
from anytime.inference.answer import Answer
from anytime.inference.workers.extraction import MAX_DRAIN_S
from anytime.model.model import checked_budget
from anytime.types import Overload, Policy, Reason
from anytime_service.client.errors import OVERLOADED, ClientError, ConnectionLostError, ProblemError
from anytime_service.client.messages import Begin, Encoded, End, Group
from anytime_service.client.transport import Channel, Connection, Link, Outcome

__all__ = [
    "Ask",
    "Call",
    "Mailbox",
    "asked",
    "with_note",
]

Event = TypeVar("Event")
Kind = TypeVar("Kind")

KEPT = 4096
"""Events that wait to be looked at, at most: a server that sends more loses the oldest."""


class Mailbox(Generic[Event]):
    """Events for one call; belongs to the event loop in which it is made.

    Parameters
    ----------
    until : when to wait no longer, by `time.perf_counter`.
    """

    def __init__(self, until: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = until
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._waiter: asyncio.Future[None] | None = None
        self._set_timer()

    @property
    def struck(self) -> bool:
        """Whether the moment has come."""
        return time.perf_counter() >= self._until

    def put(self, event: Event) -> None:
        """Add an event and wake the call; from the event loop's own thread."""
        self._events.append(event)
        self._wake()

    def pop(self, kind: type[Kind]) -> Kind | None:
        """Remove and return the oldest event of one kind, also after the deadline; None if there is none."""
        for place, event in enumerate(self._events):
            if isinstance(event, kind):
                del self._events[place]
                return event
        return None

    async def get(self) -> Event | None:
        """Wait for the next event; None once the deadline has expired, whatever has happened by then."""
        while not self.struck:
            if self._events:
                return self._events.popleft()
            self._waiter = self._loop.create_future()
            await self._waiter
            if not self._events and not self.struck:  # timers of some event loops fire a little early
                self._timer.cancel()
                self._set_timer()
        return None

    def close(self) -> list[Event]:
        """Stop the timer; return the events that `get` has not returned."""
        self._timer.cancel()
        events = list(self._events)
        self._events.clear()
        return events

    def _set_timer(self) -> None:
        self._timer = self._loop.call_later(self._until - time.perf_counter(), self._wake)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


_REFUSED = (401, 403)
"""Statuses of who may not ask: the key is wrong, or has gone."""

_NO_VALUES = msgspec.Raw(msgspec.msgpack.encode([]))
"""What is sent of a group when the answer is here: what it took still counts."""

MAX_TURNS = 4
"""Turns of the event loop in which the socket is read after the deadline; a frame takes two."""

MAX_BREAKS = 2
"""How often a prediction is begun anew: what the server closes the connection over would be sent again and again."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked for, but for the deadline; None is not said."""

    model: str | None = None
    rows: int | None = None
    budget: float | None = None
    policy: Policy = "prefix"
    ranking: bool = False
    overload: Overload = "refuse"


class _Told(NamedTuple):
    channel: Channel
    outcome: Outcome


class _Sent(NamedTuple):
    values: Encoded
    took_ms: float | None


class Call:
    """A prediction under way; belongs to the event loop in which it is made.

    Parameters
    ----------
    connection : where to.
    ask : what is asked for.
    until : when the caller waits no longer, by `time.perf_counter`.
    tell : the deadline to tell the server when some milliseconds are left; None for none, `until` being a time-out.

    Attributes
    ----------
    events : of the caller's own, put there by whoever knows; `next` hands them on.
    sent : the groups sent, those being left out that a later beginning was without.
    refused : why the server did not begin it, if it has too much to do; nothing more is sent then.
    """

    def __init__(
        self, connection: Connection, ask: Ask, until: float, tell: Callable[[float], float] | None = None
    ) -> None:
        self.events: Mailbox[object] = Mailbox(until)
        self._connection = connection
        self.ask = ask
        self.until = until
        self._tell = tell
        self._link: Link | None = None
        self._channel: Channel | None = None
        self._update: Answer | None = None
        self.sent: dict[str, _Sent] = {}
        self.refused: ProblemError | None = None
        self._ended = False
        self._breaks = 0
        self._broken: ConnectionLostError | None = None

    async def begin(self, *, sparing: bool = True) -> None:
        """Begin on the server; comes back without having done so when the time is over.

        One with a deadline is not begun, but counts as refused, where the server has just refused many and is to be
        spared.

        Raises
        ------
        ClientError
            The server cannot be reached or refuses the connection; too many predictions are open.
        """
        if sparing and self._tell is not None and self._connection.throttle.spares():
            self.refused = _spared()
            return
        self._link = await self._connection.link(self.until)
        self._open()

    def send(self, group: str, values: Encoded, took_ms: float | None = None) -> None:
        """Send a group; after `end` it is left out."""
        if self._ended:
            return
        self.sent[group] = _Sent(values, took_ms)
        self._send(group)

    def end(self) -> None:
        """Ask for the answer, since nothing more will be sent."""
        if not self._ended:
            self._ended = True
            if self._link is not None and self._channel is not None:
                self._link.send(End(self._channel.id))

    def again(self, policy: Policy, without: str) -> None:
        """Begin anew under another policy, with all groups so far but one; after the deadline, do nothing."""
        if self.events.struck:
            return
        self.ask = replace(self.ask, policy=policy)
        self.sent.pop(without, None)
        if self._link is not None and self._channel is not None:
            self._link.send(End(self._channel.id))
        self._leave()
        self._open()

    async def next(self) -> object | None:
        """Wait for the answer, a problem, or an event of the caller's own; None when the deadline has expired.

        Raises
        ------
        ConnectionLostError
            The connection broke and a new one cannot be made.
        ProblemError
            A new one cannot be made because the key is no longer valid.
        """
        if self.refused is not None:
            return self.refused
        while (event := await self.events.get()) is not None:
            if not isinstance(event, _Told):
                return event
            outcome = self._note(event)
            if isinstance(outcome, ConnectionLostError):
                await self._begin_anew(outcome)
            elif outcome is not None:
                return outcome
        return await self._received()

    async def answer(self) -> Answer | None:
        """Wait for the answer; None when the time is over, or where a base rate is wanted of a server that refuses.

        Raises
        ------
        ProblemError
            The server refused something of it.
        ConnectionLostError
            The connection broke, there is no other to be had, and no deadline for the sake of which to fall back.
        """
        try:
            while (event := await self.next()) is not None:
                if isinstance(event, ProblemError):
                    if event.overloaded and self.ask.overload == "prior" and self._tell is not None:
                        return None  # the base rate is known here, too
                    raise event
                if isinstance(event, Answer):
                    return event
        except ConnectionLostError:
            if self._tell is None:
                raise
        return None

    def fallback(self, base: Answer) -> Answer:
        """Answer without the server: the last update, or else the base rate; the note says why."""
        if self._channel is not None and self._channel.update is not None:
            self._update = self._channel.update
        reason: Reason = "deadline"
        if self.refused is not None:
            why, reason = f"the server refused: {self.refused.detail}", "overload"
        elif self._broken is None:
            why = "the network was later than the deadline"
        else:
            why = f"the connection broke: {self._broken}"
        what = "the base rate, since no update had come" if self._update is None else "the last update that had come"
        return with_note(replace(self._update or base, reason=reason), f"{why}; this is {what}")

    def afterwards(self) -> Callable[[str, Encoded, float], None]:
        """How to tell, once this is closed, what a group took that came too late; from the event loop.

        The server measures it, or it would know only what groups take when they are quick.
        """
        link, channel = self._link, self._channel

        def tell(group: str, values: Encoded, took_ms: float) -> None:
            if link is None or channel is None:
                return
            if channel.answer is None:  # it may be open there
                link.send(Group(channel.id, group, values.values, values.dtype, took_ms))
            else:
                link.send(Group(channel.id, group, _NO_VALUES, None, took_ms))

        return tell

    def close(self) -> list[object]:
        """Wait no longer, and hand over the caller's own events that were not looked at."""
        if self._link is not None and self._channel is not None and self._channel.told_ms is None:
            self.end()  # without a deadline the server would keep it open
        self._leave()
        return [event for event in self.events.close() if not isinstance(event, _Told)]

    def _open(self) -> None:
        if self._link is None:
            return
        ask, tell = self.ask, self._tell
        told_ms = None if tell is None else tell((self.until - time.perf_counter()) * 1e3)
        updates = tell is not None
        # An update is better than the base rate.
        overload: Overload = ask.overload if self._update is None else "refuse"
        begin = Begin(
            0,
            ask.model,
            ask.rows,
            ask.budget,
            told_ms,
            ask.policy,
            updates=updates,
            ranking=ask.ranking,
            overload=None if overload == "refuse" else overload,  # a server of before knows no such field
        )
        self._channel = self._link.begin(begin, self._wake)
        for group in self.sent:
            self._send(group)
        if self._ended:
            self._link.send(End(self._channel.id))

    def _send(self, group: str) -> None:
        if self._link is not None and self._channel is not None:
            values, took_ms = self.sent[group]
            self._link.send(Group(self._channel.id, group, values.values, values.dtype, took_ms))

    def _leave(self) -> None:
        if self._link is not None and self._channel is not None:
            self._link.leave(self._channel)
            self._update = self._channel.update or self._update
        self._channel = None

    async def _begin_anew(self, lost: ConnectionLostError) -> None:
        self._broken = lost
        self._breaks += 1
        self._leave()
        if self._breaks > MAX_BREAKS:
            raise lost
        try:
            self._link = await self._connection.link(self.until)
            self._open()
        except ClientError as error:
            if isinstance(error, ProblemError) and error.status in _REFUSED:
                raise  # no network is to blame for it, and the next call would meet it too
            self._broken = ConnectionLostError(f"{lost}; then {error}")
            raise self._broken from error

    def _note(self, told: _Told) -> Outcome | None:
        """Take note of what the server sent, the throttle too; None if it is about a prediction begun before."""
        outcome, throttle = told.outcome, self._connection.throttle
        if told.channel is not self._channel:
            return None
        if isinstance(outcome, ProblemError) and outcome.overloaded:
            self.refused = outcome
            throttle.refused()
            self._leave()
        elif isinstance(outcome, Answer):
            (throttle.refused if outcome.reason == "overload" else throttle.accepted)()
        return outcome

    async def _received(self) -> Answer | ProblemError | None:
        """Return the next outcome that has reached this machine by now, after the deadline; None if there is none.

        After a stall of this process the timer fires before the socket is read.
        """
        give_up = time.perf_counter() + MAX_DRAIN_S
        for _ in range(MAX_TURNS):
            if self._channel is None or self._channel.answer is not None or time.perf_counter() > give_up:
                break
            await asyncio.sleep(0)
        while (told := self.events.pop(_Told)) is not None:
            outcome = self._note(told)
            if isinstance(outcome, ConnectionLostError):
                self._broken = outcome
            elif outcome is not None:
                return outcome
        return None

    def _wake(self, channel: Channel, outcome: Outcome) -> None:
        self.events.put(_Told(channel, outcome))


def _spared() -> ProblemError:
    """What is refused in the server's name, so that it has time for others."""
    detail = "it has refused many predictions in the last seconds and was not asked for this one; ask again in a second"
    return ProblemError(503, "Service Unavailable", detail, type=OVERLOADED, retry_after_s=1.0)


def asked(
    model: str | None, rows: Any, budget: Any, policy: Policy, *, ranking: bool, overload: Overload = "refuse"
) -> Ask:
    """Put together what a caller asks for.

    Raises
    ------
    ValuesError
        The budget is negative or not a number, `rows` not a whole number from 1 on, or `overload` not known.
    """
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 1):
        raise ValuesError(f"rows is {rows!r}; expected a whole number, 1 or more")
    if overload not in get_args(Overload):
        raise ValuesError(f"overload is {overload!r}; expected one of {', '.join(get_args(Overload))}")
    rows = None if rows is None else int(rows)
    return Ask(model, rows, checked_budget(budget, "the model's cost unit"), policy, bool(ranking), overload)


def with_note(answer: Answer, note: str) -> Answer:
    """Put a note before what an answer says already."""
    return replace(answer, note=note if answer.note is None else f"{note}; {answer.note}")
