"""Runs of extractors under a deadline with a remote model, cached workers, and cached models.

`run` computes groups in sequence order and sends each one as soon as it is available. As in `anytime.inference.runner`,
a group that cannot end in time is not started, and a group may fail: its extractor raises, its process dies, or the
server refuses its values. The policy "prefix" cannot use the groups after it. A model that supports the policy
"arrived" then answers from the groups that have arrived; any other model answers at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import Any

import msgspec

from anytime.errors import ValuesError, suggestion
from anytime.groups import CallCost, milliseconds
from anytime.inference.deadline import STALL_S
from anytime.inference.extraction import Arrival, Extraction
from anytime.inference.planning import check_extractors, tasks_of
from anytime.inference.prediction import Answer
from anytime.inference.schedule import Failure, Schedule
from anytime.inference.workers import Worker, Workers
from anytime_service.client.engine import Call
from anytime_service.client.errors import ClientError, ClosedError, ConnectionLostError, ProblemError
from anytime_service.client.messages import encode_values
from anytime_service.client.transport import Connection, Control, result_of
from anytime_service.schemas.catalogue import ModelSummary
from anytime_service.schemas.options import PredictionOptions

_log = logging.getLogger("anytime.client")

MAX_POOLS = 4  # largest number of cached pools; pools in use may exceed it
MAX_SCHEDULES = 64  # largest number of row counts for which a pool knows durations of groups


@dataclass(eq=False)
class Pool:
    """Workers for a set of extractors, and what is known of their durations: a schedule for each number of rows."""

    extractors: dict[str, Callable[..., Any]]
    worker: Worker
    workers: Workers
    users: int = 0
    schedules: dict[int, Schedule] = field(default_factory=dict)

    async def warm_up(self, description: ModelSummary, x: Any) -> None:
        """Compute every group of one row once in every worker, then once more for their durations, as `Runner` does."""
        schedule = self.schedule(description, 1)
        groups = {group.name: group for group in description.groups}
        steps = tasks_of([step.adds for step in description.steps], groups, self.extractors)

        def measure(arrival: Arrival) -> bool:
            if arrival.error is None:
                schedule.measured(arrival.group, arrival.took_ms, time.perf_counter())
            else:
                schedule.failed(arrival.group, arrival.error, time.perf_counter())
            return True

        for count, receive in ((self.workers.count, lambda _: True), (1, measure)):
            extractions = [Extraction(list(chain.from_iterable(steps)), x, receive) for _ in range(count)]
            for extraction in extractions:
                self.workers.start(extraction)
            for extraction in extractions:
                await asyncio.to_thread(extraction.wait, math.inf)

    def schedule(self, description: ModelSummary, rows: int) -> Schedule:
        found = self.schedules.get(rows)
        if found is None:
            factor = milliseconds(description.cost_unit)
            costs = {each.name: CallCost.of(each.cost).of_call(rows) * (factor or 0.0) for each in description.groups}
            if len(self.schedules) >= MAX_SCHEDULES:
                del self.schedules[next(iter(self.schedules))]
            found = self.schedules[rows] = Schedule(
                {name: None if factor is None else costs.get(name) for name in self.extractors}
            )
        return found


class WorkerCache:
    """The pools of one client, kept between runs so that most runs start no thread or process; for one event loop.

    It keeps at most `MAX_POOLS` and closes the least recently used first, but not while a run uses it.
    """

    def __init__(self, max_workers: int | None) -> None:
        self._max_workers = max_workers
        self._pools: list[Pool] = []  # the least recently used first
        self._starting: list[tuple[dict[str, Callable[..., Any]], Worker, asyncio.Task[Pool]]] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def cached(self, extractors: Mapping[str, Callable[[Any], Any]], worker: Worker) -> Pool | None:
        """Return the cached pool for these extractors (by equality) and this kind of worker, or None."""
        for place, pool in enumerate(self._pools):
            if pool.worker == worker and pool.extractors == extractors:
                self._pools.append(self._pools.pop(place))
                return pool
        return None

    async def made_by(self, until: float, extractors: Mapping[str, Callable[..., Any]], worker: Worker) -> Pool | None:
        """Return the pool as `make` does, or None if it is not ready until a time; it then starts in the background."""
        task = next((task for own, kind, task in self._starting if kind == worker and own == extractors), None)
        if task is None:
            task = asyncio.create_task(self.make(extractors, worker))
            self._starting.append((dict(extractors), worker, task))
            task.add_done_callback(self._started)
        done, _ = await asyncio.wait({task}, timeout=max(until - time.perf_counter(), 0.0))
        return task.result() if done else None

    async def make(self, extractors: Mapping[str, Callable[[Any], Any]], worker: Worker) -> Pool:
        """Create and cache a pool; with processes this takes most of a second.

        Raise ExtractorError as `Workers`, and ClosedError if the client was closed during the call.
        """
        own = dict(extractors)
        made = Pool(own, worker, await asyncio.to_thread(Workers, own, worker, max_workers=self._max_workers))
        pool = self.cached(own, worker)
        if pool is not None or self._closed:  # two runs may both have created one; the cache keeps the first
            self._close(made)
            if pool is None:
                raise ClosedError("this client was closed during the call; create a new one")
            return pool
        self._pools.append(made)
        # Pools in use stay, so the cache may exceed its limit until their runs end.
        for removed in [idle for idle in self._pools[:-1] if not idle.users][: max(0, len(self._pools) - MAX_POOLS)]:
            self._pools.remove(removed)
            self._close(removed)
        return made

    async def close(self) -> None:
        self._closed = True
        for pool in self._pools:
            self._close(pool)
        self._pools.clear()
        await asyncio.gather(*(task for _, _, task in self._starting), return_exceptions=True)
        await asyncio.gather(*self._closing)

    def _started(self, task: asyncio.Task[Pool]) -> None:
        self._starting = [each for each in self._starting if each[2] is not task]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("workers did not start: %s", error)

    def _close(self, pool: Pool) -> None:
        closing = asyncio.create_task(asyncio.to_thread(pool.workers.close))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


REFRESH_S = 1.0  # least time between refreshes: replicas with different versions behind one address would cause many


@dataclass(frozen=True)
class KnownModel:
    """A model's description, and its base rate: the answer for one row without any group."""

    description: ModelSummary
    base: Answer

    def check(self, extractors: Mapping[str, object]) -> None:
        """Raise ExtractorError if no group with features has an extractor, or one is no function.

        A program and a model that it is not made for know some groups in common: no order of deployments is an error.
        """
        groups = {group.name: group.features for group in self.description.groups}
        shared = {name: extractor for name, extractor in extractors.items() if name in groups}
        if any(groups[name] for name in shared):
            groups = {name: groups[name] for name in shared}
        check_extractors(groups, shared or extractors)

    def unknown(self, extractors: Iterable[str]) -> str | None:
        """Return a note about the first extractor whose group the model does not have; None without one."""
        known = [group.name for group in self.description.groups]
        unknown = next((name for name in extractors if name not in known), None)
        return None if unknown is None else f"there is no group {unknown!r} to extract; {suggestion(unknown, known)}"

    def base_rate(self, options: PredictionOptions) -> Answer:
        base, rows = self.base, options.rows or 1
        missing = self.description.order(options.budget, options.policy)

        def of_rows(value: Any) -> Any:
            return value if rows == 1 or value is None else [value] * rows

        return replace(
            base,
            prediction=of_rows(base.prediction),
            probabilities=of_rows(base.probabilities),
            interval=of_rows(base.interval),
            prediction_set=of_rows(base.prediction_set),
            budget=options.budget,
            missing=missing,
            complete=not missing,
            ranking=list(range(rows)) if options.ranking else None,
            contributions=base.contributions if options.explain else None,
        )


class KnownModels:
    """Models by the name that callers use, None for the only model; belongs to one event loop.

    Each is requested once per version. If an answer has another version than the cached model, it is requested again in
    the background; no prediction waits for that.
    """

    def __init__(self, connection: Connection, control: Control, timeout_s: float) -> None:
        self._connection = connection
        self._control = control
        self._timeout_s = timeout_s
        self._known: dict[str | None, KnownModel] = {}
        self._requests: dict[str | None, asyncio.Task[KnownModel | ClientError]] = {}
        self._refreshed_at = -REFRESH_S
        self._closed = False

    def cached(self, name: str | None) -> KnownModel | None:
        return self._known.get(name)

    async def learn(self, name: str | None) -> KnownModel:
        """Return a model; request it from the server if it is not cached.

        Raise ClientError if the server is unreachable, has no such model, or has several and no name was given.
        """
        if name in self._known:
            return self._known[name]
        task = self._request(name)
        await asyncio.wait({task})  # unlike awaiting the task itself, this does not cancel it for other callers
        return result_of(task)

    def check_version(self, name: str | None, answer: Answer) -> None:
        """Request the model again if the version of an answer differs from that of either cached part.

        The client requests base rate and description separately, so replicas of different versions may serve them.
        """
        known, now = self._known.get(name), time.monotonic()
        if known is None or self._closed or known.base.version == known.description.version == answer.version:
            return
        if now - self._refreshed_at >= REFRESH_S:
            self._refreshed_at = now
            self._request(name)

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._requests.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _request(self, name: str | None) -> asyncio.Task[KnownModel | ClientError]:
        if name not in self._requests:
            self._requests[name] = asyncio.create_task(self._learned(name))
            self._requests[name].add_done_callback(lambda _: self._requests.pop(name, None))
        return self._requests[name]

    async def _learned(self, name: str | None) -> KnownModel | ClientError:
        try:
            base = await self._base_rate(name)
            known = KnownModel(await self._control.model(name or base.model), base)
        except ClientError as error:
            return error
        self._known[name] = known
        return known

    async def _base_rate(self, name: str | None) -> Answer:
        """Request an immediate answer without groups; its delay is the first value of the network margin.

        The client sends this request to an overloaded server too: with overload "prior" the server answers it.
        """
        call = Call(
            self._connection,
            PredictionOptions(model=name, overload="prior", explain=True),
            time.perf_counter() + self._timeout_s,
            lambda _: 0.0,
        )
        try:
            await call.begin(throttled=False)
            answer = await call.answer()
        finally:
            call.close()
        if call.refused is not None:
            raise call.refused
        if answer is None:
            raise self._connection.overdue(begun=call.has_begun)
        return answer


class _Finished:
    """The event that no more groups will be computed."""


async def run(call: Call, pool: Pool, known: KnownModel, x: Any, seconds: float, margin_ms: float) -> Answer:
    """Compute groups of `x`, send them, and return the answer; the call then abandons the running extractor.

    Raise ClientError if the server is unreachable or refuses, and ExtractorError if `x` is not picklable for a process.
    `seconds` is the length of the deadline; a group must end `margin_ms` before the call does, to be used.
    """
    current = _Run(call, known, pool)
    pool.users += 1
    try:
        current.start(x, seconds, margin_ms)
        answer = await current.follow()
    finally:
        pool.users -= 1
        current.close()
    # The answer lists as missing what the server had not received, even if the client had sent it.
    return replace(answer, unused_groups=tuple(group for group in current.computed if group in answer.missing))


class _Run:
    """One run: workers pass the computed groups to the event loop, which sends them and waits for the answer.

    The extractor that runs when the answer arrives continues to its end, and the run reports its computation time.
    Without it, the server's statistics would contain fast groups only.
    """

    def __init__(self, call: Call, known: KnownModel, pool: Pool) -> None:
        self.computed: list[str] = []
        self._call = call
        self._known = known
        self._pool = pool
        self._schedule = pool.schedule(known.description, call.options.rows or 1)
        self._loop = asyncio.get_running_loop()
        self._continues = "arrived" in known.description.policies
        self._left_out: dict[str, str] = {}
        self._failures: list[Failure] = []
        self._finished = False
        self._closed = False

    def start(self, x: Any, seconds: float, margin_ms: float) -> None:
        now, until = time.perf_counter(), self._call.until - margin_ms / 1e3
        self._left_out = self._schedule.left_out(self._pool.workers.abandoned(), now, seconds)
        description = self._known.description
        names = [
            step.adds
            for step in description.steps[: description.prefix(self._call.options.budget, self._call.options.policy)]
        ]
        without = {*chain.from_iterable(names)}.intersection(description.featured) - self._pool.extractors.keys()
        self._left_out |= {name: f"group {name!r} is left out: it has no extractor" for name in sorted(without)}
        if not self._continues:
            names = [*takewhile(without.isdisjoint, names)]
        steps = tasks_of(names, {group.name: group for group in description.groups}, self._pool.extractors)
        in_order = not self._left_out
        tasks = self._schedule.tasks(
            steps, self._left_out.keys(), now=now, until=until, whole_steps=in_order, continues=self._continues
        )
        if self._left_out and self._continues:
            self._call.options = msgspec.structs.replace(self._call.options, policy="arrived")
        self._extraction = Extraction(tasks, x, self._receive, in_order=in_order, ended=self._end)
        if tasks:
            self._pool.workers.start(self._extraction)
        else:
            self._end()

    def _receive(self, arrival: Arrival) -> bool:
        """Pass a group to the event loop, also after the answer; return whether to compute more. Called by workers."""
        if arrival.error is None:
            self._schedule.measured(arrival.group, arrival.took_ms, time.perf_counter())
            self._schedule.arrived(arrival.group)
            if arrival.group not in self._known.description.featured:
                return True
            arrival = self._encoded(arrival)
        elif self._closed:
            self._schedule.failed(arrival.group, arrival.error, time.perf_counter(), hung=arrival.killed)
        if arrival.error is None and not self._closed:
            self.computed.append(arrival.group)
        self._submit(arrival)
        return not self._closed and (arrival.error is None or self._continues)

    def _end(self) -> None:
        self._submit(_Finished())

    def _encoded(self, arrival: Arrival) -> Arrival:
        try:
            columns = self._known.description.columns_by_group
            encoded = encode_values(arrival.group, arrival.values, self._call.options.rows, columns)
            return arrival._replace(values=encoded)
        except ValuesError as error:
            return arrival._replace(values=None, error=str(error))

    def _submit(self, event: Arrival | _Finished) -> None:
        """Pass an event to the event loop, from any thread."""
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._deliver, event)

    def close(self) -> None:
        self._closed = True
        self._extraction.cancel()
        for event in self._call.close():
            self._deliver(event)

    def _deliver(self, event: object) -> None:
        if not self._closed:
            self._call.events.put(event)
        elif isinstance(event, Arrival) and event.error is None:
            self._call.send_late(event.group, event.values, event.took_ms)

    async def follow(self) -> Answer:
        """Return the answer by the deadline: from the server, or the last update or base rate."""
        await self._call.begin()
        try:
            answer = await self._answer()
        except ConnectionLostError:  # connecting again failed, so no more replies will arrive
            answer = None
        now = time.perf_counter()
        if now > self._call.until + STALL_S and self._pool.worker == "thread":
            self._schedule.held_up(list(self._extraction.running), now)
        answer = answer or self._call.fallback(self._known.base_rate(self._call.options))
        if (unknown := self._known.unknown(self._pool.extractors)) is not None:
            answer = answer.with_note(unknown)
        notes = [*map(str, self._failures), *self._left_out.values()]
        if (note := self._schedule.skipped(self._extraction.skipped, now)) is not None:
            notes.append(note)
        if not self._extraction.began and self._extraction.tasks:
            notes.append(self._pool.workers.shortage)
        if not notes or answer.complete:
            return answer
        out_of_time = answer.reason == "end" and (self._extraction.skipped or self._left_out)
        return replace(answer, reason="deadline" if out_of_time else answer.reason).with_note("; ".join(notes))

    async def _answer(self) -> Answer | None:
        while (event := await self._call.next()) is not None:
            match event:
                case Answer():
                    return event
                case Arrival(error=None):
                    self._call.send(event.group, event.values, event.took_ms)
                case Arrival(error=str(error)):
                    self._fail(event.group, error)
                case ProblemError():
                    if event.overloaded:
                        return None
                    self._refused(event)
                case _Finished():
                    self._finished = True
                    if self._failures or self._extraction.skipped or self._left_out:
                        self._call.end()
        return None

    def _refused(self, problem: ProblemError) -> None:
        """Treat a group that the server refused as failed; raise any other refusal."""
        kind, _, path = (problem.field or "").partition(".")
        if kind != "groups":
            raise problem
        named = (group for group in self._call.sent if path == group or path.startswith(f"{group}["))
        self._fail(next(named, path), problem.detail)

    def _fail(self, group: str, error: str) -> None:
        self._failures.append(self._schedule.failed(group, error, time.perf_counter()))
        if not self._continues:
            self._call.end()
        elif len(self._failures) == 1:
            self._call.restart("arrived", without=group)
            if self._finished:
                self._call.end()
