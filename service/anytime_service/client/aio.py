"""The client for event loops."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self

from anytime.inference.answer import Answer
from anytime.inference.deadline import Lateness
from anytime.inference.workers import Worker
from anytime.types import Overload, Policy
from anytime_service.client.calling import asked
from anytime_service.client.core import Core, Extractors
from anytime_service.client.descriptions import ModelCard, ModelDescription, Plan
from anytime_service.client.frames import encode_all
from anytime_service.client.sessions import AsyncSession

__all__ = ["AsyncClient"]


class AsyncClient:
    """A client of the service for one event loop; an asynchronous context manager.

    Parameters, methods and errors are those of `Client`, with `await`. Used from a second event loop it raises
    ClosedError. A task that is cancelled while it waits leaves nothing behind.
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
        self._core = Core(url, api_key=api_key, timeout_s=timeout_s, max_workers=max_workers, ssl=ssl)

    def __repr__(self) -> str:
        return f"<AsyncClient {self._core.url}>"

    async def __aenter__(self) -> Self:
        self._core.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def lateness(self) -> Lateness:
        """As `Client.lateness`."""
        return self._core.late.summary()

    @property
    def network_ms(self) -> float:
        """As `Client.network_ms`."""
        return self._core.connection.margin.ms

    async def run(
        self,
        extractors: Extractors,
        x: Any,
        deadline_ms: float,
        *,
        budget: float | None = None,
        model: str | None = None,
        rows: int = 1,
        ranking: bool = False,
        overload: Overload = "refuse",
        worker: Worker = "thread",
    ) -> Answer:
        """Compute groups of `x` in sequence order, send each as it is computed, and answer at the deadline.

        As `Client.run`.
        """
        begun = time.perf_counter()
        ask = asked(model, rows, budget, "prefix", ranking=ranking, overload=overload)
        answer, deadline = await self._core.run(begun, extractors, x, deadline_ms, ask, worker)
        self._core.note_lateness(answer, deadline)
        return answer

    async def predict(
        self,
        groups: Mapping[str, Any],
        *,
        budget: float | None = None,
        deadline_ms: float | None = None,
        policy: Policy = "prefix",
        model: str | None = None,
        rows: int | None = None,
        ranking: bool = False,
        overload: Overload = "refuse",
    ) -> Answer:
        """Answer from groups that are at hand, as `Client.predict`."""
        begun = time.perf_counter()
        encoded = encode_all(groups, rows)
        rows = next((each.rows for each in encoded.values()), rows)
        ask = asked(model, rows, budget, policy, ranking=ranking, overload=overload)
        answer, deadline = await self._core.predict(begun, encoded, deadline_ms, ask)
        self._core.note_lateness(answer, deadline)
        return answer

    def session(self, model: str | None = None, rows: int | None = None) -> AsyncSession:
        """Make a session, an asynchronous context manager; as `Client.session`."""
        self._core.check()
        return self._core.session(model, rows)

    async def models(self) -> list[ModelCard]:
        """List the server's models."""
        return await self._core.models()

    async def model(self, name: str | None = None) -> ModelDescription:
        """Describe a model, as `Client.model`."""
        return await self._core.model(name)

    async def plan(self, model: str | None = None, budget: float | None = None, have: Iterable[str] = ()) -> Plan:
        """Plan what to compute next, and what it buys; as `Client.plan`."""
        return await self._core.plan(model, budget, have)

    async def warm_up(
        self, extractors: Extractors | None = None, *, model: str | None = None, worker: Worker = "thread"
    ) -> None:
        """Connect, learn the model, and start workers for extractors, so that the first call need not."""
        await self._core.warm_up(extractors, model, worker)

    async def close(self) -> None:
        """Close the connections and end the workers; predictions under way end. Safe to call twice."""
        await self._core.close()
