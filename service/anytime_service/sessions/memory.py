"""Sessions in the memory of this process: bounded and expiring; the ids of ended sessions are remembered."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime_service.clock import now_ms
from anytime_service.core.open_prediction import checked_groups
from anytime_service.errors import OverloadedError
from anytime_service.limits.memory import Account
from anytime_service.limits.queues import TTLCache
from anytime_service.sessions.store import AcceptedGroups, Session, gone, unknown

REMEMBERED = 10_000  # ended sessions whose ids are remembered, at 150 bytes each, so that memory is level after minutes


@dataclass(eq=False)
class MemorySession(Session):
    """A session of this process.

    `account`, of the key that began it, counts the session and the bytes of its values, also when another key posts
    them.
    """

    account: Account = field(kw_only=True)
    used_ms: float = 0.0

    async def add_groups(self, values: Mapping[str, Any]) -> AcceptedGroups:
        arrays = checked_groups(self.prediction, values)
        more = self.prediction.more_bytes(arrays)
        if more:  # none for groups that replace others
            self.account.check(more, "groups")
            for each in self.waiting:
                each.allow(len(next(iter(arrays.values()))), more, "groups")
            self.account.add(more)
        self.put(arrays)
        return AcceptedGroups(self.prediction.prefix, self.prediction.replaced, self.prediction.rows)


class MemorySessions:
    """Session store in memory, see `SessionStore`; no method waits."""

    kind: Literal["memory", "redis"] = "memory"
    trouble = None

    def __init__(self, limit: int, ttl_s: float) -> None:
        self.limit = limit
        self.ttl_s = ttl_s
        self._sessions: OrderedDict[str, MemorySession] = OrderedDict()
        self._ended: TTLCache[None] = TTLCache(REMEMBERED, math.inf)
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    async def start(self) -> None:
        """Do nothing: the first session starts the sweep."""

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def create(self, model: Model, rows: int | None, account: Account) -> str:
        self._expire()
        if account.share_exhausted(account.sessions, self.limit):
            raise account.share_error(account.sessions, self.limit, "sessions")
        if len(self._sessions) >= self.limit:
            raise OverloadedError(f"there are {len(self._sessions)} sessions, the limit; delete unused sessions")
        session = MemorySession(secrets.token_urlsafe(16), Prediction(model, rows), account=account, used_ms=now_ms())
        self._sessions[session.id] = session
        account.sessions += 1
        self._sweep_later()
        return session.id

    async def get(self, session_id: str) -> MemorySession:
        now = now_ms()
        session = self._sessions.get(session_id)
        if session is not None and self._expired(session, now):
            self._end(session)
            session = None
        if session is None:
            raise gone() if session_id in self._ended else unknown(session_id)
        session.used_ms = now
        self._sessions.move_to_end(session_id)
        return session

    @asynccontextmanager
    async def read(self, session_id: str, due_ms: float | None, account: Account) -> AsyncIterator[Session]:  # noqa: ARG002
        """Yield a session, which does not expire while a prediction waits for it."""
        yield await self.get(session_id)

    async def delete(self, session_id: str) -> None:
        self._end(await self.get(session_id))

    def _expired(self, session: MemorySession, now: float) -> bool:
        return not session.waiting and now - session.used_ms > self.ttl_s * 1000.0

    def _expire(self) -> None:
        now = now_ms()
        for session in tuple(self._sessions.values()):  # the least recently used first
            if now - session.used_ms <= self.ttl_s * 1000.0:
                break
            if self._expired(session, now):
                self._end(session)

    def _end(self, session: MemorySession) -> None:
        del self._sessions[session.id]
        session.account.add(-session.prediction.nbytes)
        session.account.sessions -= 1
        self._ended.add(session.id, None, 0.0)
        session.end()

    def _sweep_later(self) -> None:
        """Schedule a sweep while there are sessions, so that idle ones free their memory."""
        if self._timer is None and self._sessions:
            self._timer = asyncio.get_running_loop().call_later(max(self.ttl_s / 4, 0.01), self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        self._expire()
        self._sweep_later()
