"""Extractors under a deadline with the model elsewhere: each group is sent as soon as it is computed.

As in `anytime.inference.runner`, a group may fail: its extractor raises, its process dies, the server refuses its
values. The policy "prefix" cannot use the groups after it. A model that supports the policy "arrived" then answers from
the groups that have arrived; any other model answers at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from anytime.errors import ValuesError
from anytime.inference.answer import Answer
from anytime.inference.runner import Failure
from anytime.inference.workers import Arrival, Extraction
from anytime_service.client.calling import Call, with_note
from anytime_service.client.errors import ConnectionLostError, ProblemError
from anytime_service.client.frames import Encoded, encode_values
from anytime_service.client.kept_workers import Pool
from anytime_service.client.known import KnownModel

__all__ = ["run"]


@dataclass(frozen=True, slots=True)
class _Extracted:
    """A group that is computed: ready to be sent, or failed."""

    group: str
    values: Encoded | None
    took_ms: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Finished:
    """No more groups will be computed."""


async def run(call: Call, pool: Pool, known: KnownModel, x: Any) -> Answer:
    """Have groups computed, send them, and answer; the extractor at work is then abandoned.

    Parameters
    ----------
    call : not begun; closed when this returns.
    pool : computes.
    known : the model.
    x : what the extractors are called with.

    Raises
    ------
    ClientError
        The server cannot be reached, or refuses the prediction.
    ExtractorError
        `x` cannot be sent to a process.
    """
    desk = _Desk(call, asyncio.get_running_loop())
    pool.users += 1
    try:
        extraction = pool.workers.start(known.description.order(call.ask.budget), x)
        try:
            pool.pumps.submit(_pump, extraction, call.ask.rows, call.until, desk)
            answer = await _Run(call, known).follow()
        finally:
            unread = extraction.cancel(desk.late)
    finally:
        pool.users -= 1
        desk.close()
    # What the server had not received when it answered is missing there, whether or not it had been sent.
    computed = (*desk.computed, *unread)
    return replace(answer, unused_groups=tuple(group for group in computed if group in answer.missing))


class _Desk:
    """Where computed groups are handed over: to the call, and when that is over, what they took to the server alone.

    The extractor at work when the answer comes goes on to its end. Without it the server would know what groups take
    only of those times at which they were quick.
    """

    def __init__(self, call: Call, loop: asyncio.AbstractEventLoop) -> None:
        self.computed: list[str] = []
        self._call = call
        self._loop = loop
        self._tell: Callable[[str, Encoded, float], None] | None = None

    def take(self, event: object) -> None:
        """Take what a worker has done; in the event loop."""
        if self._tell is None:
            self._call.events.put(event)
        elif isinstance(event, _Extracted) and event.values is not None:
            self._tell(event.group, event.values, event.took_ms)

    def pass_on(self, event: object) -> None:
        """Have something taken; from any thread."""
        with suppress(RuntimeError):  # the loop was closed over it
            self._loop.call_soon_threadsafe(self.take, event)

    def late(self, arrival: Arrival) -> None:
        """Have a group taken that was computed when nobody waited for it; from any thread."""
        self.pass_on(_encoded(arrival, self._call.ask.rows))

    def close(self) -> None:
        """Close the call; report the groups that it has not looked at as late."""
        self._tell = self._call.afterwards()
        for event in self._call.close():
            self.take(event)


class _Run:
    """What happens in one run, and what is done about it."""

    def __init__(self, call: Call, known: KnownModel) -> None:
        self._call = call
        self._known = known
        self._holes: list[Failure] = []
        self._finished = False

    async def follow(self) -> Answer:
        """Answer by the deadline, from the server or from what it has told so far."""
        await self._call.begin()
        try:
            answer = await self._answer()
        except ConnectionLostError:  # and there is no other to be had: what has come is all there will be
            answer = None
        answer = answer or self._call.fallback(self._known.base_rate(self._call.ask))
        return with_note(answer, "; ".join(map(str, self._holes))) if self._holes else answer

    async def _answer(self) -> Answer | None:
        while (event := await self._call.next()) is not None:
            match event:
                case Answer():
                    return event
                case _Extracted(group, None, _, error):
                    self._fail(group, error)
                case _Extracted(group, Encoded() as values, took_ms):
                    self._call.send(group, values, took_ms)
                case ProblemError():
                    if event.overloaded:
                        return None
                    self._refused(event)
                case _Finished():
                    self._finished = True
                    if self._holes:
                        self._call.end()
        return None

    def _refused(self, problem: ProblemError) -> None:
        """Take a group that the server refused as failed; anything else is refused to the caller too."""
        kind, _, place = (problem.field or "").partition(".")
        if kind != "groups":
            raise problem
        named = (group for group in self._call.sent if place == group or place.startswith(f"{group}["))
        self._fail(next(named, place), problem.detail)

    def _fail(self, group: str, error: str) -> None:
        self._holes.append(Failure(group, error))
        if "arrived" not in self._known.description.policies:
            self._call.end()
        elif len(self._holes) == 1:
            self._call.again("arrived", without=group)
            if self._finished:
                self._call.end()


def _pump(extraction: Extraction, rows: int | None, until: float, desk: _Desk) -> None:
    """Hand groups on to the event loop, from a thread, ready to be sent."""
    for arrival in extraction.arrivals(until):
        event = _encoded(arrival, rows)
        if event.values is not None:
            desk.computed.append(arrival.group)
        desk.pass_on(event)
    if extraction.finished:
        desk.pass_on(_Finished())


def _encoded(arrival: Arrival, rows: int | None) -> _Extracted:
    if arrival.error is not None:
        return _Extracted(arrival.group, None, arrival.took_ms, arrival.error)
    try:
        values = encode_values(arrival.group, arrival.values, rows)
    except ValuesError as error:
        return _Extracted(arrival.group, None, arrival.took_ms, str(error))
    return _Extracted(arrival.group, values, arrival.took_ms)
