"""What both clients are made of: the parts of one client, put together, in one event loop.

Predictions go over one WebSocket that all of them share: a round trip takes less than one by HTTP, each group leaves
when it is computed, and an answer may come before everything is sent. Everything else goes by HTTP.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from ssl import SSLContext
from typing import Any

from anytime.inference.answer import Answer
from anytime.inference.deadline import LatenessRecord
from anytime.inference.extractors import check_extractors
from anytime.inference.workers import Worker
from anytime_service.client.address import Address, authorization
from anytime_service.client.calling import Ask, Call
from anytime_service.client.connection import Connection
from anytime_service.client.control import Control
from anytime_service.client.deadlines import Deadline, checked_ms
from anytime_service.client.descriptions import ModelCard, ModelDescription, Plan
from anytime_service.client.errors import ClientError, ClosedError, NoAnswerError
from anytime_service.client.frames import Encoded
from anytime_service.client.kept_workers import KeptWorkers, Pool
from anytime_service.client.known import KnownModel, KnownModels
from anytime_service.client.running import run
from anytime_service.client.sessions import AsyncSession

__all__ = ["Core", "Extractors"]

Extractors = Mapping[str, Callable[[Any], Any]]


class Core:
    """A client's connections, knowledge and workers; see `Client` for the parameters and for what the methods do.

    Made in any thread; everything else happens in one event loop, but for `note_lateness`.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        max_workers: int = 4,
        ssl: SSLContext | None = None,
    ) -> None:
        address, headers = Address.of(url), authorization(api_key)
        if not timeout_s > 0:
            raise ClientError(f"timeout_s is {timeout_s!r}; expected a number of seconds, above 0")
        if ssl is not None and not address.http.startswith("https"):
            raise ClientError(f"{url} is not encrypted, so it has no use for ssl; expected https://")
        self.url = url
        self.late = LatenessRecord()
        self.connection = Connection(address, headers, timeout_s=timeout_s, ssl=ssl)
        self._timeout_s = timeout_s
        self._control = Control(address, headers, timeout_s=timeout_s, ssl=ssl)
        self._known = KnownModels(self.connection, self._control, timeout_s)
        self._workers = KeptWorkers(max_workers)
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def run(
        self, begun: float, extractors: Extractors, x: Any, deadline_ms: float, ask: Ask, worker: Worker
    ) -> tuple[Answer, Deadline]:
        """Run extractors under a deadline that counts from `begun`, by `time.perf_counter`."""
        self.check()
        length_ms = checked_ms(deadline_ms)
        known, pool = self._known.at_hand(ask.model), self._workers.at_hand(extractors, worker)
        if known is None or pool is None:
            known, pool = await self._prepared(extractors, ask.model, worker)
            begun = time.perf_counter()
        else:
            _check(known, extractors)
        deadline = Deadline(begun, length_ms, self.late)
        base = known.base_rate(ask)
        if base.complete or length_ms == 0:
            return deadline.told(replace(base, reason="budget" if base.complete else "deadline")), deadline
        call = Call(self.connection, ask, deadline.until, self.connection.margin.told_ms)
        answer = await run(call, pool, known, x)
        self._known.saw(ask.model, answer)
        return deadline.told(answer), deadline

    async def predict(
        self, begun: float, groups: Mapping[str, Encoded], deadline_ms: float | None, ask: Ask
    ) -> tuple[Answer, Deadline | None]:
        """Answer from groups at hand; a deadline counts from `begun`, by `time.perf_counter`."""
        self.check()
        if deadline_ms is None:
            answer = await self._answered(Call(self.connection, ask, time.perf_counter() + self._timeout_s), groups)
            if answer is None:
                raise NoAnswerError(f"{self.url} did not answer within {self._timeout_s:g} s; is it overloaded?")
            return answer, None
        length_ms, known = checked_ms(deadline_ms), self._known.at_hand(ask.model)
        if known is None:
            known, begun = await self._known.learn(ask.model), time.perf_counter()
        deadline = Deadline(begun, length_ms, self.late)
        if length_ms == 0:
            return deadline.told(replace(known.base_rate(ask), reason="deadline")), deadline
        call = Call(self.connection, ask, deadline.until, self.connection.margin.told_ms)
        answer = await self._answered(call, groups) or call.fallback(known.base_rate(ask))
        self._known.saw(ask.model, answer)
        return deadline.told(answer), deadline

    def note_lateness(self, answer: Answer, deadline: Deadline | None) -> None:
        """Learn from when an answer that a deadline interrupted was in its caller's hands: now; from any thread."""
        if deadline is not None and answer.reason == "deadline" and deadline.at > deadline.begun:
            self.late.add((time.perf_counter() - deadline.at) * 1e3)

    def session(self, model: str | None, rows: int | None) -> AsyncSession:
        """Make a session, not begun."""
        return AsyncSession(self._control, model, rows)

    async def models(self) -> list[ModelCard]:
        """List the models."""
        self.check()
        return await self._control.models()

    async def model(self, name: str | None) -> ModelDescription:
        """Describe a model, or the only one."""
        self.check()
        return await self._control.model(name or await self._only())

    async def plan(self, name: str | None, budget: float | None, have: Iterable[str]) -> Plan:
        """Plan what to compute next of a model, or the only one."""
        self.check()
        return await self._control.plan(name or await self._only(), budget, have)

    async def warm_up(self, extractors: Extractors | None, model: str | None, worker: Worker) -> None:
        """Do ahead what a first call with a deadline does before its clock starts."""
        self.check()
        if extractors is None:
            await self._known.learn(model)
        else:
            await self._prepared(extractors, model, worker)

    async def close(self) -> None:
        """Close the connections and end the workers."""
        self._closed = True
        if self._process == os.getpid():
            await self._known.close()
            await self.connection.close()
            await self._control.close()
            await self._workers.close()

    def check(self) -> None:
        """Check that the client can be used, in this event loop."""
        if self._closed:
            raise ClosedError("this client is closed; make another")
        if self._process != os.getpid():
            raise ClosedError("this client was made before a fork; make another in this process")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise ClosedError("this client belongs to another event loop; make one in each loop, or use Client")

    async def _prepared(self, extractors: Extractors, model: str | None, worker: Worker) -> tuple[KnownModel, Pool]:
        known = await self._known.learn(model)
        _check(known, extractors)
        return known, self._workers.at_hand(extractors, worker) or await self._workers.make(extractors, worker)

    async def _answered(self, call: Call, groups: Mapping[str, Encoded]) -> Answer | None:
        """Send groups that are at hand and wait for the answer; None when it does not come."""
        try:
            for name, values in groups.items():
                call.send(name, values)
            call.end()
            await call.begin()
            return await call.answer()
        finally:
            call.close()

    async def _only(self) -> str:
        """Name of the only model; the server says what to do where there are several."""
        return (await self._known.learn(None)).description.name


def _check(known: KnownModel, extractors: Extractors) -> None:
    """Refuse extractors that are not those of a model's groups."""
    described = known.description
    check_extractors([group.name for group in described.groups], described.featured, extractors)
