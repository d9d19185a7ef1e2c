"""Runs of extractors under a deadline with a remote model, cached workers, and cached models.

A `Run` computes groups in sequence order and sends each one as soon as it is available. As in
`anytime.inference.runner`, a group that cannot end in time is not started, and a group may fail: its extractor raises,
its process dies, or the server refuses its values. The policy "prefix" cannot use the groups after it. A model that
supports the policy "arrived" then answers from the groups that have arrived; any other model answers at once.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import Any

import msgspec

from anytime.errors import ValuesError, suggestion
from anytime.groups import CallCost, milliseconds
from anytime.inference.deadline import STALL_S, early_ms
from anytime.inference.extraction import Arrival, Extraction
from anytime.inference.planning import check_extractors, tasks_of
from anytime.inference.prediction import Answer
from anytime.inference.schedule import Failure, Schedule
from anytime.inference.workers import Worker, Workers
from anytime_service.client.engine import Call, Connection
from anytime_service.client.errors import ProblemError
from anytime_service.client.messages import encode_values
from anytime_service.client.transport import Lifetime, joined, log
from anytime_service.schemas.catalogue import ModelSummary
from anytime_service.schemas.codecs import BY_ROW
from anytime_service.schemas.options import ADDED, PredictionOptions

MAX_POOLS = 4  # largest number of cached pools; pools in use may exceed it
MAX_SCHEDULES = 64  # largest number of row counts for which a pool knows durations of groups


@dataclass(eq=False)
class Pool:
    """Workers for a set of extractors, and what is known of their durations: a schedule for each number of rows.

    It has `workers` when `started` is done.
    """

    extractors: dict[str, Callable[..., Any]]
    worker: Worker
    workers: Workers = field(init=False, repr=False)
    started: asyncio.Task[None] = field(init=False, repr=False)
    users: int = 0
    schedules: dict[int, Schedule] = field(default_factory=dict)

    async def warm_up(self, description: ModelSummary, x: Any) -> None:
        """Compute every group of one row once in every worker, then once more for their durations, as `Runner` does."""
        schedule = self.schedule(description, 1)
        groups = {group.name: group for group in description.groups}
        tasks = [*chain.from_iterable(tasks_of((step.adds for step in description.steps), groups, self.extractors))]

        def measure(arrival: Arrival) -> bool:
            if arrival.error is None:
                schedule.measured(arrival.group, arrival.took_ms, time.perf_counter())
            else:
                schedule.failed(arrival.group, arrival.error, time.perf_counter())
            return True

        await asyncio.to_thread(self.workers.compute_all, tasks, x, [lambda _: True] * self.workers.count)
        await asyncio.to_thread(self.workers.compute_all, tasks, x, [measure])

    def schedule(self, description: ModelSummary, rows: int) -> Schedule:
        if rows not in self.schedules:
            factor = milliseconds(description.cost_unit)
            costs = {each.name: CallCost.of(each.cost).of_call(rows) * (factor or 0.0) for each in description.groups}
            if len(self.schedules) >= MAX_SCHEDULES:
                del self.schedules[next(iter(self.schedules))]
            self.schedules[rows] = Schedule(
                {name: None if factor is None else costs.get(name) for name in self.extractors}
            )
        return self.schedules[rows]


class WorkerCache:
    """The pools of one client, kept between runs so that most runs start no thread or process; for one event loop.

    It keeps at most `MAX_POOLS` and closes the least recently used first, but not while a run uses it.
    """

    def __init__(self, lifetime: Lifetime, max_workers: int | None) -> None:
        self._lifetime = lifetime
        self._max_workers = max_workers
        self._pools: list[Pool] = []  # the least recently used first

    async def pool(
        self, extractors: Mapping[str, Callable[..., Any]], worker: Worker, until: float = math.inf
    ) -> Pool | None:
        """Return the pool for these extractors (by equality) and this kind of worker, started if necessary.

        Processes take most of a second to start. Return None if they are not ready at the time `until`; they then start
        in the background. Raise ExtractorError as `Workers`, and ClosedError if the client was closed during the call.
        """
        pool = next((each for each in self._pools if (each.worker, each.extractors) == (worker, extractors)), None)
        if pool is None:
            pool = Pool(dict(extractors), worker)
            pool.started = self._lifetime.start(self._start(pool), to_its_end=True)
        else:
            self._pools.remove(pool)
        self._pools.append(pool)
        # Pools in use stay, so the cache may exceed its limit until their runs end.
        idle = [each for each in self._pools[:-1] if each.started.done() and not each.users]
        for old in idle[: max(0, len(self._pools) - MAX_POOLS)]:
            self._pools.remove(old)
            self._close(old)
        return pool if pool.started.done() or await joined(pool.started, until) else None

    def close(self) -> None:
        """Begin to close all pools, in the background."""
        for pool in self._pools:
            if pool.started.done():
                self._close(pool)

    async def _start(self, pool: Pool) -> None:
        try:
            pool.workers = await asyncio.to_thread(Workers, pool.extractors, pool.worker, max_workers=self._max_workers)
        except Exception as error:  # raised by the calls that wait for it, if there are any
            self._pools.remove(pool)
            log.warning("workers did not start: %s", error)
            raise
        if self._lifetime.closed:
            self._close(pool)
            self._lifetime.check()

    def _close(self, pool: Pool) -> None:
        self._lifetime.start(asyncio.to_thread(pool.workers.close), to_its_end=True)


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

    def base_rate(self, options: PredictionOptions) -> Answer:
        rows, missing = options.rows or 1, self.description.order(options.budget, options.policy)
        one_row = {name: value for name, value in vars(self.base).items() if name in BY_ROW and value is not None}
        fields = one_row if rows == 1 else {name: [value] * rows for name, value in one_row.items()}
        fields["ranking"] = list(range(rows))
        fields |= {name: None for option, name in ADDED.items() if not getattr(options, option)}
        return replace(self.base, **fields, budget=options.budget, missing=missing, complete=not missing)


class KnownModels:
    """Models by the name that callers use, None for the only model; belongs to one event loop.

    Each is requested once per version. If an answer has another version than the cached model, it is requested again in
    the background; no prediction waits for that.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.models: dict[str | None, KnownModel] = {}
        self._requests: dict[str | None, asyncio.Task[None]] = {}
        self._refresh_at = 0.0

    async def learn(self, name: str | None) -> KnownModel:
        """Return a model; request it from the server if it is not cached.

        Raise ClientError if the server is unreachable, has no such model, or has several and no name was given.
        """
        self._connection.transport.lifetime.check()
        if name not in self.models:
            await joined(self._request(name))
        return self.models[name]

    def check_version(self, name: str | None, answer: Answer) -> None:
        """Request the model again if the version of an answer differs from that of either cached part.

        The client requests base rate and description separately, so replicas of different versions may serve them.
        """
        known = self.models[name]
        is_current = known.base.version == known.description.version == answer.version
        if not is_current and time.monotonic() >= self._refresh_at:
            self._refresh_at = time.monotonic() + REFRESH_S
            self._request(name)

    def _request(self, name: str | None) -> asyncio.Task[None]:
        if name not in self._requests:
            self._requests[name] = self._connection.transport.lifetime.start(self._learn(name))
            self._requests[name].add_done_callback(lambda _: self._requests.pop(name, None))
        return self._requests[name]

    async def _learn(self, name: str | None) -> None:
        """Request a model, and an answer without groups; its delay is the first value of the network margin.

        The client sends this request to an overloaded server too: with overload "prior" the server answers it.
        """
        transport = self._connection.transport
        options = PredictionOptions(model=name, deadline_ms=0.0, overload="prior", explain=True)
        base = await Call(self._connection, options, time.perf_counter() + transport.timeout_s).predict({})
        self.models[name] = KnownModel(await transport.model(name or base.model), base)


class Run(Call):
    """A call that computes its groups: workers pass each to the event loop, which sends it.

    The extractor that runs when the answer arrives continues to its end, and the run reports its computation time.
    Without it, the server's statistics would contain fast groups only.
    """

    def __init__(
        self, connection: Connection, options: PredictionOptions, until: float, known: KnownModel, pool: Pool
    ) -> None:
        super().__init__(connection, options, until, known.base_rate)
        self._known = known
        self._pool = pool
        self._schedule = pool.schedule(known.description, options.rows or 1)
        self._loop = asyncio.get_running_loop()
        self._continues = "arrived" in known.description.policies
        self._computed: list[str] = []
        self._left_out: dict[str, str] = {}
        self._failures: list[Failure] = []
        self._finished = False
        self._closed = False

    async def compute(self, x: Any) -> Answer:
        """Compute groups of `x`, send them, and return the answer; then abandon the running extractor.

        Raise ClientError if the server is unreachable or refuses, and ExtractorError if `x` is not picklable for a
        process.
        """
        self._start(x)
        self._pool.users += 1
        answer = await self.answer(accepts_overload=True)
        now = time.perf_counter()
        extraction = self._extraction
        if now > self.until + STALL_S and self._pool.worker == "thread":
            self._schedule.held_up(list(extraction.running), now)
        answer = answer or self.fallback()
        notes = [*map(str, self._failures), *self._left_out.values(), self._schedule.skipped(extraction.skipped, now)]
        if extraction.tasks and not extraction.began:
            notes.append(self._pool.workers.shortage)
        if answer.complete:
            notes.clear()
        elif answer.reason == "end" and (extraction.skipped or self._left_out):
            answer = replace(answer, reason="deadline")
        known = [group.name for group in self._known.description.groups]
        unknown = [
            f"there is no group {name!r} to extract; {suggestion(name, known)}"
            for name in self._pool.extractors
            if name not in known
        ]
        for note in (*unknown[:1], "; ".join(filter(None, notes))):
            answer = answer.with_note(note) if note else answer
        # The answer lists as missing what the server had not received, even if the client had sent it.
        unused = {*answer.missing} - {each.group for each in self._failures}
        return replace(answer, unused_groups=tuple(group for group in self._computed if group in unused))

    def close(self) -> None:
        self._closed = True
        self._pool.users -= 1
        self._extraction.cancel()
        super().close()

    def _start(self, x: Any) -> None:
        """Start the groups that can end before the deadline and the network margin."""
        now = time.perf_counter()
        length_ms = self.options.deadline_ms or 0.0
        until = self.until - early_ms(self.connection.margin.ms, length_ms) / 1e3
        self._left_out = self._schedule.left_out(self._pool.workers.abandoned(), now, length_ms / 1e3)
        description = self._known.description
        prefix = description.prefix(self.options.budget, self.options.policy)
        names = [step.adds for step in description.steps[:prefix]]
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
            self.options = msgspec.structs.replace(self.options, policy="arrived")
        self._extraction = Extraction(
            tasks, x, self._receive, in_order=in_order, ended=lambda: self._submit(self._finish)
        )
        if tasks:
            self._pool.workers.start(self._extraction)
        else:
            self._finish()

    def _receive(self, arrival: Arrival) -> bool:
        """Pass a group to the event loop, also after the answer; return whether to compute more. Called by workers."""
        group, description = arrival.group, self._known.description
        if arrival.error is None:
            self._schedule.measured(group, arrival.took_ms, time.perf_counter())
            self._schedule.arrived(group)
            if group not in description.featured:
                return True
            try:
                values = encode_values(
                    group, arrival.values, self.options.rows, description.columns_by_group, coded=False
                )
                arrival = arrival._replace(values=values)
            except ValuesError as error:
                arrival = arrival._replace(values=None, error=str(error))
        elif self._closed:
            self._schedule.failed(group, arrival.error, time.perf_counter(), hung=arrival.killed)
        if arrival.error is None and not self._closed:
            self._computed.append(group)
        self._submit(self._arrived, arrival)
        return not self._closed and (arrival.error is None or self._continues)

    def _submit(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the event loop, from any thread."""
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(function, *arguments)

    def _arrived(self, arrival: Arrival) -> None:
        if arrival.error is not None:
            self._lack(arrival.group, arrival.error)
        elif self._closed:
            self.send_late(arrival.group, arrival.values, arrival.took_ms)
        else:
            self.send(arrival.group, arrival.values, arrival.took_ms)

    def _finish(self) -> None:
        """Request the answer if no more groups will be computed, and the server may wait for some."""
        self._finished = True
        if self._failures or self._extraction.skipped or self._left_out:
            self.end()

    def _refuse(self, problem: ProblemError) -> None:
        """Treat a group that the server refused as failed; any other refusal is that of the prediction."""
        kind, _, path = (problem.field or "").partition(".")
        named = [group for group in self._pool.extractors if path == group or path.startswith(f"{group}[")]
        if kind == "groups" and named:
            self._lack(named[0], problem.detail)
        else:
            super()._refuse(problem)

    def _lack(self, group: str, error: str) -> None:
        """Continue without a group, if the model can; otherwise request the answer."""
        if self._closed:
            return
        self._failures.append(self._schedule.failed(group, error, time.perf_counter()))
        if not self._continues:
            self.end()
        elif len(self._failures) == 1:
            self.restart("arrived", without=group)
            if self._finished:
                self.end()
