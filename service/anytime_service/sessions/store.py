"""Sessions: groups that several requests share. The interface of their stores, and the store in this process.

Sessions in memory are bounded and expire when nothing has used them for some time; the ids of ended ones are
remembered. `redis_store` has those that replicas share.
"""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

from anytime.inference.prediction import Answer, Prediction
from anytime.model.model import Model
from anytime_service.core.open_prediction import OpenPrediction, checked_groups
from anytime_service.core.service import ActivePrediction
from anytime_service.errors import GoneSessionError, OverloadedError, UnknownSessionError
from anytime_service.limits.memory import Account
from anytime_service.limits.turns import FairQueue, TimeoutQueue, TTLCache

REMEMBERED = 10_000  # ended sessions whose ids are remembered, at 150 bytes each, so that memory is level after minutes


AcceptedGroups: TypeAlias = tuple[int, Container[str], int]
"""Result of adding groups: the longest complete prefix, the groups that were received more than once, and rows."""


class OpenSession(Protocol):
    """A session that accepts groups."""

    @property
    def model(self) -> Model:
        """The model of the answers: the version with which the session began."""

    async def add_groups(self, values: Mapping[str, Any]) -> AcceptedGroups:
        """Add groups, all or none, and pass them to the waiting predictions.

        Raise FieldError, which names the group, if values are invalid; else as `SessionStore.get`.
        """


class SessionStore(ABC):
    """Store of sessions by id. Every method may raise SessionsUnreachableError."""

    kind: Literal["memory", "redis"]
    ttl_s: float

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of sessions, as last known to this process."""

    @property
    @abstractmethod
    def trouble(self) -> str | None:
        """Return why the store is unavailable; None if it is available."""

    async def start(self) -> None:  # noqa: B027  (a store may have no tasks)
        """Start the background tasks, if any; without this call the first request starts them. Never fails."""

    async def close(self) -> None:  # noqa: B027
        """End the background tasks."""

    @abstractmethod
    async def create(self, model: Model, rows: int | None, account: Account) -> str:
        """Begin a session for the key of an account and return its id.

        Raise OverloadedError if the limit of sessions, or the key's share of it, is reached.
        """

    @abstractmethod
    async def get(self, session_id: str) -> OpenSession:
        """Return a session, which counts as a use of it.

        Raise GoneSessionError if it was deleted or has expired, UnknownSessionError if it never existed or ended long
        ago, and MissingVersionError or DamagedSessionError if its stored content is not usable on this replica.
        """

    @abstractmethod
    def read(self, session_id: str, due_ms: float | None, account: Account) -> AbstractAsyncContextManager[Session]:
        """Yield a session with all its groups, which counts as a use of it; raises as `get`.

        With `due_ms`, a prediction may wait for more groups until then, by this process's clock. After the block the
        session is then kept up to date while predictions wait, and OverloadedError is raised if its values, which count
        for `account`, exceed the memory budget. The session is needed at `due_ms` at the latest.
        """

    @abstractmethod
    async def delete(self, session_id: str) -> None:
        """End a session and answer its open predictions from the groups received so far. Raises as `get`."""


@dataclass(eq=False)
class Session:
    """The groups received so far, in `prediction`, and the open predictions that wait for more.

    `account` counts the bytes of the values. `note` is added to answers; `on_leave` is called when an open prediction
    has ended.
    """

    id: str
    prediction: Prediction
    account: Account = field(default_factory=Account)
    waiting: set[ActivePrediction] = field(default_factory=set)
    note: str | None = None
    on_leave: Callable[[], None] = lambda: None
    _events: FairQueue = field(default_factory=FairQueue)

    @property
    def model(self) -> Model:
        return self.prediction.model

    def join(self, active: ActivePrediction) -> None:
        """Add an open prediction, which receives all further groups until it ends."""
        self.waiting.add(active)
        active.on_end = self._leave

    def _leave(self, active: ActivePrediction) -> None:
        self.waiting.discard(active)
        self.on_leave()

    def put(self, arrays: Mapping[str, Any], again: Iterable[str] = (), field: str | None = None) -> None:
        """Store arrays that `checked_groups` returned, and pass them to the open predictions.

        `again` names those that were sent more than once before. Raise OverloadedError, which names the `field` of the
        request, if they or an answer for their rows exceed the memory budget.
        """
        more = self.prediction.more_bytes(arrays)
        if more:  # none for groups that replace others
            self.account.check(more, field)
            for each in self.waiting:
                each.allow(len(next(iter(arrays.values()))), more, field)
            self.account.add(more)
        self.prediction.replaced.update(dict.fromkeys(again))
        self.prediction.add_all(arrays)
        self._tell(partial(ActivePrediction.took, names=tuple(arrays)))

    def end(self) -> None:
        """Answer every open prediction from the groups received so far; each is answered or fails by itself."""
        self._tell(lambda active: active.apply(OpenPrediction.end))

    def fail(self, error: Exception) -> None:
        self._tell(lambda active: active.fail(error))

    def _tell(self, event: Callable[[ActivePrediction], None]) -> None:
        """Pass an event to all waiting predictions in order, as many in a turn of the loop as fit in its time."""
        for active in tuple(self.waiting):
            self._events.run(partial(self._pass_on, active, event))

    def _pass_on(self, active: ActivePrediction, event: Callable[[ActivePrediction], None]) -> None:
        if active in self.waiting:
            event(active)

    def noted(self, answer: Answer) -> Answer:
        return answer if self.note is None else answer.with_note(self.note)


def gone() -> GoneSessionError:
    return GoneSessionError("the session was deleted or has expired; begin a new one by POST /sessions")


def unknown(session_id: str) -> UnknownSessionError:
    return UnknownSessionError(f"there is no session {session_id[:64]!r}; begin one by POST /sessions")


@dataclass(eq=False)
class MemorySession(Session):
    """A session of this process; `account`, of the key that began it, also counts what another key posts."""

    ended: bool = False

    async def add_groups(self, values: Mapping[str, Any]) -> AcceptedGroups:
        if self.ended:  # while the groups waited for their turn
            raise gone()
        self.put(checked_groups(self.prediction, values), field="groups")
        return self.prediction.prefix, self.prediction.replaced, self.prediction.rows


class MemorySessions(SessionStore):
    """Session store in memory, see `SessionStore`; no method waits."""

    kind: Literal["memory", "redis"] = "memory"
    trouble = None

    def __init__(self, limit: int, ttl_s: float) -> None:
        self.limit = limit
        self.ttl_s = ttl_s
        self._sessions: dict[str, MemorySession] = {}
        self._unused = TimeoutQueue(ttl_s, self._expire)
        self._ended: TTLCache[None] = TTLCache(REMEMBERED, math.inf)

    def __len__(self) -> int:
        return len(self._sessions)

    async def create(self, model: Model, rows: int | None, account: Account) -> str:
        if account.share_exhausted(account.sessions, self.limit):
            raise account.share_error(account.sessions, self.limit, "sessions")
        if len(self._sessions) >= self.limit:
            raise OverloadedError(f"there are {len(self._sessions)} sessions, the limit; delete unused sessions")
        session = MemorySession(secrets.token_urlsafe(16), Prediction(model, rows), account)
        self._sessions[session.id] = session
        self._unused.begin(session)
        account.sessions += 1
        return session.id

    async def get(self, session_id: str) -> MemorySession:
        session = self._sessions.get(session_id)
        if session is None:
            raise gone() if session_id in self._ended else unknown(session_id)
        self._unused.end(session)
        self._unused.begin(session)
        return session

    @asynccontextmanager
    async def read(self, session_id: str, due_ms: float | None, account: Account) -> AsyncIterator[Session]:  # noqa: ARG002
        """Yield a session, which does not expire while a prediction waits for it."""
        yield await self.get(session_id)

    async def delete(self, session_id: str) -> None:
        self._end(await self.get(session_id))

    def _expire(self, session: MemorySession) -> None:
        if session.waiting:
            self._unused.begin(session)
        else:
            self._end(session)

    def _end(self, session: MemorySession) -> None:
        del self._sessions[session.id]
        self._unused.end(session)
        session.ended = True
        session.account.add(-session.prediction.nbytes)
        session.account.sessions -= 1
        self._ended.add(session.id, None, 0.0)
        session.end()
