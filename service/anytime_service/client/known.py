"""What the client knows of the models: sequence and base rate, asked for once per version.

An answer of another version than the one that is known has it asked for again, in the background: no prediction waits.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from anytime.inference.answer import Answer
from anytime_service.client.calling import Ask, Call
from anytime_service.client.connection import Connection
from anytime_service.client.control import Control
from anytime_service.client.descriptions import ModelDescription
from anytime_service.client.errors import ClientError, ClosedError, NoAnswerError

__all__ = ["KnownModel", "KnownModels"]

MOST_KNOWN = 64
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
        while len(self._known) > MOST_KNOWN:
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
