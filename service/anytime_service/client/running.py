"""Workers kept between runs, so that not every run starts a thread or a process.

At most four sets of extractors are kept, the least recently used goes first; those that runs are using stay.

What the client knows of the models: sequence and base rate, asked for once per version.

An answer of another version than the one that is known has it asked for again, in the background: no prediction waits.

Extractors under a deadline with the model elsewhere: each group is sent as soon as it is computed.

As in `anytime.inference.runner`, a group may fail: its extractor raises, its process dies, the server refuses its
values. The policy "prefix" cannot use the groups after it. A model that supports the policy "arrived" then answers from
the groups that have arrived; any other model answers at once.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from anytime.errors import ValuesError
from anytime.inference.answer import Answer
from anytime.inference.runner import Failure
from anytime.inference.workers import Arrival, Extraction, Worker, Workers
from anytime_service.client.control import Control, ModelDescription
from anytime_service.client.engine import Ask, Call, with_note
from anytime_service.client.errors import ClientError, ClosedError, ConnectionLostError, NoAnswerError, ProblemError
from anytime_service.client.messages import Encoded, encode_values
from anytime_service.client.transport import Connection

__all__ = [
    "KEPT",
    "KnownModel",
    "KnownModels",
    "Pool",
    "WorkerCache",
    "run",
]

KEPT = 4


@dataclass(eq=False)
class Pool:
    """Workers for some extractors, and threads that hand on what they compute.

    There are as many of the one as of the other. Both take runs in the order in which they came, so a run whose groups
    are being computed never waits to have them handed on.
    """

    extractors: dict[str, Callable[[Any], Any]]
    worker: Worker
    workers: Workers
    pumps: ThreadPoolExecutor
    users: int = 0

    def close(self) -> None:
        """End the threads and processes; takes as long as `Workers.close`."""
        self.workers.close()
        self.pumps.shutdown()


class WorkerCache:
    """The pools of one client; belongs to one event loop.

    Parameters
    ----------
    max_workers : threads or processes that each pool may have.
    """

    def __init__(self, max_workers: int) -> None:
        self._max_workers = max_workers
        self._pools: list[Pool] = []  # the least recently used first
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def at_hand(self, extractors: Mapping[str, Callable[[Any], Any]], worker: Worker) -> Pool | None:
        """Find the pool for these extractors (by equality) and this worker."""
        for place, pool in enumerate(self._pools):
            if pool.worker == worker and pool.extractors == extractors:
                self._pools.append(self._pools.pop(place))
                return pool
        return None

    async def make(self, extractors: Mapping[str, Callable[[Any], Any]], worker: Worker) -> Pool:
        """Make a pool, which for processes takes most of a second, and keep it.

        Raises
        ------
        ExtractorError
            As `anytime.inference.workers.Workers` does.
        ClosedError
            The client was closed meanwhile.
        """
        own = dict(extractors)
        workers = await asyncio.to_thread(Workers, own, worker, max_workers=self._max_workers)
        pool = self.at_hand(own, worker)
        made = Pool(own, worker, workers, ThreadPoolExecutor(self._max_workers, "anytime-client-pump"))
        if pool is not None or self._closed:  # two runs may both have made one; the first stays
            self._close(made)
            if pool is None:
                raise ClosedError("this client was closed meanwhile; make another")
            return pool
        self._pools.append(made)
        # One that is in use is let be; there are then more than four for a while, as many as runs can use.
        for gone in [idle for idle in self._pools[:-1] if not idle.users][: max(0, len(self._pools) - KEPT)]:
            self._pools.remove(gone)
            self._close(gone)
        return made

    async def close(self) -> None:
        """Close every pool."""
        self._closed = True
        for pool in self._pools:
            self._close(pool)
        self._pools.clear()
        await asyncio.gather(*self._closing)

    def _close(self, pool: Pool) -> None:
        closing = asyncio.create_task(asyncio.to_thread(pool.close))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


MAX_KNOWN = 64
"""Models that are remembered; the least recently used goes first."""

REFRESH_S = 1.0
"""Not more often than this: replicas of different versions behind one address would have it asked for all the time."""


@dataclass(frozen=True)
class KnownModel:
    """A model's description, and what it answers for one row before anything is known of it."""

    description: ModelDescription
    base: Answer

    def base_rate(self, ask: Ask) -> Answer:
        """Answer without any group, for as many rows as asked for."""
        base, rows = self.base, ask.rows or 1
        missing = self.description.order(ask.budget)

        def of_rows(told: Any) -> Any:
            return told if rows == 1 or told is None else [told] * rows

        return replace(
            base,
            prediction=of_rows(base.prediction),
            probabilities=of_rows(base.probabilities),
            interval=of_rows(base.interval),
            prediction_set=of_rows(base.prediction_set),
            budget=ask.budget,
            missing=missing,
            complete=not missing,
            ranking=list(range(rows)) if ask.ranking else None,
        )


class KnownModels:
    """Models known by the name that callers use, None being the only one; belongs to one event loop."""

    def __init__(self, connection: Connection, control: Control, timeout_s: float) -> None:
        self._connection = connection
        self._control = control
        self._timeout_s = timeout_s
        self._known: OrderedDict[str | None, KnownModel] = OrderedDict()
        self._asking: dict[str | None, asyncio.Task[KnownModel | ClientError]] = {}
        self._refreshed_at = -REFRESH_S
        self._closed = False

    def at_hand(self, name: str | None) -> KnownModel | None:
        """Find a model that is known."""
        known = self._known.get(name)
        if known is not None:
            self._known.move_to_end(name)
        return known

    async def learn(self, name: str | None) -> KnownModel:
        """Ask the server for a model, if it is not known.

        Raises
        ------
        ClientError
            The server cannot be reached, has no such model, or several to choose from where no name is given.
        """
        known = self.at_hand(name)
        if known is not None:
            return known
        task = self._ask(name)
        await asyncio.wait({task})  # which, unlike waiting for the task itself, does not cancel it for others
        if task.cancelled():
            raise ClosedError("this client was closed meanwhile; make another")
        found = task.result()
        if isinstance(found, ClientError):
            raise copy.copy(found) from found
        return found

    def saw(self, name: str | None, answer: Answer) -> None:
        """Look at the version that answered, and learn the model anew if either part is of another.

        Base rate and description come by ways of their own, which may lead to replicas of different versions.
        """
        known = self._known.get(name)
        if known is None or self._closed:
            return
        if known.base.version == known.description.version == answer.version:
            return
        now = time.monotonic()
        if now - self._refreshed_at >= REFRESH_S:
            self._refreshed_at = now
            self._ask(name)

    async def close(self) -> None:
        """Give up what is being asked for."""
        self._closed = True
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ask(self, name: str | None) -> asyncio.Task[KnownModel | ClientError]:
        if name not in self._asking:
            self._asking[name] = asyncio.create_task(self._learned(name))
            self._asking[name].add_done_callback(lambda _: self._asking.pop(name, None))
        return self._asking[name]

    async def _learned(self, name: str | None) -> KnownModel | ClientError:
        """Learn a model; what goes wrong is returned, since perhaps nobody waits for it."""
        try:
            base = await self._base_rate(name)
            known = KnownModel(await self._control.model(name or base.model), base)
        except ClientError as error:
            return error
        self._known[name] = known
        self._known.move_to_end(name)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return known

    async def _base_rate(self, name: str | None) -> Answer:
        """Ask for an answer at once, from nothing; how long it takes is what the margin learns first.

        A server with too much to do is asked, too: it tells this all the same, and what it refuses is answered by it.
        """
        call = Call(self._connection, Ask(name, overload="prior"), time.perf_counter() + self._timeout_s, lambda _: 0.0)
        try:
            await call.begin(sparing=False)
            answer = await call.answer()
        finally:
            call.close()
        if call.refused is not None:
            raise call.refused
        if answer is None:
            raise NoAnswerError(f"the server did not answer within {self._timeout_s:g} s")
        return answer


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
