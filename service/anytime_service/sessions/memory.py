"""Sessions kept in this process: bounded, expiring, and remembered after their end so that they stay ended."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anytime.errors import ValuesError
from anytime.model import AnytimeModel
from anytime.prediction import Prediction
from anytime_service.clock import now_ms
from anytime_service.errors import FieldError, GoneSessionError, OverloadedError, UnknownSessionError
from anytime_service.handler import VALUE_BYTES, Live
from anytime_service.held import Held

__all__ = ["REMEMBERED", "MemorySessions", "Session"]

REMEMBERED = 100_000
"""Ended sessions whose ids are remembered."""


@dataclass(eq=False)
class Session:
    """Groups that came so far, and the predictions that wait for more.

    Attributes
    ----------
    prediction : what has come; every answer of the session is made from it.
    waiting : predictions that are open.
    used_ms : when it was last used.
    held : counts the bytes of its values, for as long as it is there.
    """

    id: str
    prediction: Prediction
    used_ms: float
    held: Held
    waiting: set[Live] = field(default_factory=set)

    @property
    def model(self) -> AnytimeModel:
        """The model that answers; a session keeps the one it began with."""
        return self.prediction.model

    def take(self, values: Mapping[str, Any]) -> None:
        """Take groups, all of them or none if one is refused, and tell those who wait.

        Raises
        ------
        FieldError
            Values that cannot be used; the field names the group.
        OverloadedError
            Too many bytes are held already.
        """
        arrays = {name: self._checked(name, each) for name, each in values.items()}
        if len(arrays) > 1 and len({len(array) for array in arrays.values()}) > 1:
            raise FieldError("groups", "groups have different numbers of rows; every group has all rows")
        before = self.prediction.nbytes
        new = sum(array.size for name, array in arrays.items() if not self.prediction.has(name))
        self.held.check(new * VALUE_BYTES, "groups")
        if self.waiting:
            now = now_ms()
            for live in [live for live in self.waiting if live.overdue(now)]:
                live.strike()  # the loop was late: what comes now came after its deadline
        for name, array in arrays.items():
            self.prediction.take(name, array)
        self.held.bytes += self.prediction.nbytes - before
        for live in tuple(self.waiting):
            live.took(arrays)

    def _checked(self, name: str, values: Any) -> Any:
        try:
            return self.prediction.checked(name, values)
        except ValuesError as error:
            raise FieldError(f"groups.{name}", str(error)) from error


class MemorySessions:
    """Sessions by id.

    Parameters
    ----------
    most : sessions there may be at once.
    ttl_s : how long after its last use a session is kept.
    held : counts the bytes of their values; None for a count of their own, without a limit.
    """

    def __init__(self, most: int, ttl_s: float, held: Held | None = None) -> None:
        self.most = most
        self.held = Held(sys.maxsize) if held is None else held
        self.ttl_s = ttl_s
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def create(self, model: AnytimeModel, rows: int | None) -> Session:
        """Begin a session.

        Raises
        ------
        OverloadedError
            There are too many.
        """
        self._expire()
        if len(self._sessions) >= self.most:
            raise OverloadedError(f"there are {len(self._sessions)} sessions; delete those that are done with")
        session = Session(secrets.token_urlsafe(16), model.open(rows), now_ms(), self.held)
        self._sessions[session.id] = session
        self._wake_later()
        return session

    def get(self, name: str) -> Session:
        """Find a session, which counts as using it.

        Raises
        ------
        GoneSessionError
            It has been deleted, or expired.
        UnknownSessionError
            It never was, or ended long ago.
        """
        now = now_ms()
        session = self._sessions.get(name)
        if session is not None and self._expired(session, now):
            self._end(session)
            session = None
        if session is None:
            if name in self._ended:
                raise GoneSessionError("the session has been deleted, or has expired; begin another by POST /sessions")
            raise UnknownSessionError(f"there is no session {name[:64]!r}; begin one by POST /sessions")
        session.used_ms = now
        self._sessions.move_to_end(name)
        return session

    def delete(self, name: str) -> None:
        """End a session; those who wait are answered from what is there. Raises as `get`."""
        self._end(self.get(name))

    def close(self) -> None:
        """End what runs beside."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def _expired(self, session: Session, now: float) -> bool:
        return not session.waiting and now - session.used_ms > self.ttl_s * 1000.0

    def _expire(self) -> None:
        now = now_ms()
        for session in tuple(self._sessions.values()):  # the least recently used first
            if now - session.used_ms <= self.ttl_s * 1000.0:
                break
            if self._expired(session, now):
                self._end(session)

    def _end(self, session: Session) -> None:
        del self._sessions[session.id]
        self.held.bytes -= session.prediction.nbytes
        self._ended[session.id] = None
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        for live in tuple(session.waiting):
            live.end()

    def _wake_later(self) -> None:
        """Sweep again as long as there are sessions, so that idle ones give their memory back."""
        if self._sweep is None and self._sessions:
            self._sweep = asyncio.get_running_loop().call_later(max(self.ttl_s / 4, 0.01), self._wake)

    def _wake(self) -> None:
        self._sweep = None
        self._expire()
        self._wake_later()
