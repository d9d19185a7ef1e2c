"""Sessions kept in this process: bounded, expiring, and remembered after their end so that they stay ended."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime_service.clock import now_ms
from anytime_service.errors import OverloadedError
from anytime_service.limits.memory import Account, Held
from anytime_service.sessions.store import Session, Took, checked_groups, gone, unknown

__all__ = ["REMEMBERED", "MemorySession", "MemorySessions"]

REMEMBERED = 10_000
"""Ended sessions whose ids are remembered: 150 bytes each, so that what is held has its level after minutes."""


@dataclass(eq=False)
class MemorySession(Session):
    """A session of this process.

    Attributes
    ----------
    used_ms : when it was last used.
    account : counts the session and the bytes of its values: that of the key that began it, whichever key posts them.
    """

    account: Account = field(kw_only=True)
    used_ms: float = 0.0

    async def take(self, values: Mapping[str, Any]) -> Took:
        """Take groups, see `OpenSession.take`; never waits."""
        arrays, before = checked_groups(self.prediction, values), self.prediction.nbytes
        self.account.check(self.more_bytes(arrays), "groups")
        self.put(arrays)
        self.account.bytes += self.prediction.nbytes - before
        return Took(self.prediction.prefix, self.prediction.replaced)


class MemorySessions:
    """Sessions by id, see `SessionStore`; nothing here waits.

    Parameters
    ----------
    most : sessions there may be at once.
    ttl_s : how long after its last use a session is kept.
    held : counts the bytes of their values; None for a count of their own, without a limit.
    """

    kind: Literal["memory", "redis"] = "memory"
    trouble = None

    def __init__(self, most: int, ttl_s: float, held: Held | None = None) -> None:
        self.most = most
        self._nobody = Account(Held(sys.maxsize) if held is None else held)
        self.ttl_s = ttl_s
        self._sessions: OrderedDict[str, MemorySession] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    async def start(self) -> None:
        """Do nothing: the sweep begins with the first session."""

    async def close(self) -> None:
        """End what runs beside."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    async def create(self, model: Model, rows: int | None, account: Account | None = None) -> str:
        """Begin a session, see `SessionStore.create`."""
        self._expire()
        account = account or self._nobody
        if account.has_share(account.sessions, self.most):
            raise account.over_share(account.sessions, self.most, "sessions")
        if len(self._sessions) >= self.most:
            raise OverloadedError(f"there are {len(self._sessions)} sessions; delete those that are done with")
        session = MemorySession(secrets.token_urlsafe(16), Prediction(model, rows), account=account, used_ms=now_ms())
        self._sessions[session.id] = session
        account.sessions += 1
        self._wake_later()
        return session.id

    async def get(self, name: str) -> MemorySession:
        """Find a session, which counts as using it; raises GoneSessionError or UnknownSessionError."""
        return self._get(name)

    @asynccontextmanager
    async def read(
        self,
        name: str,
        due_ms: float | None = None,  # noqa: ARG002
        account: Account | None = None,  # noqa: ARG002
    ) -> AsyncIterator[Session]:
        """Find a session; raises as `get`. It is at hand, and stays for as long as somebody waits."""
        yield self._get(name)

    async def delete(self, name: str) -> None:
        """End a session; those who wait are answered from what is there. Raises as `get`."""
        self._end(self._get(name))

    def _get(self, name: str) -> MemorySession:
        now = now_ms()
        session = self._sessions.get(name)
        if session is not None and self._expired(session, now):
            self._end(session)
            session = None
        if session is None:
            raise gone() if name in self._ended else unknown(name)
        session.used_ms = now
        self._sessions.move_to_end(name)
        return session

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
        session.account.bytes -= session.prediction.nbytes
        session.account.sessions -= 1
        self._ended[session.id] = None
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        session.end()

    def _wake_later(self) -> None:
        """Sweep again as long as there are sessions, so that idle ones give their memory back."""
        if self._sweep is None and self._sessions:
            self._sweep = asyncio.get_running_loop().call_later(max(self.ttl_s / 4, 0.01), self._wake)

    def _wake(self) -> None:
        self._sweep = None
        self._expire()
        self._wake_later()
