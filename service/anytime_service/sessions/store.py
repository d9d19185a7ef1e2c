"""Interface of session stores, and the session with its waiting predictions that all stores share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

from anytime.inference.prediction import Answer, Prediction
from anytime.model.model import Model
from anytime_service.core.active_prediction import ActivePrediction
from anytime_service.errors import GoneSessionError, UnknownSessionError
from anytime_service.limits.memory import Account
from anytime_service.limits.turns import Slice


class AcceptedGroups(NamedTuple):
    """Result of adding groups: the longest complete prefix, the groups that were received more than once, and rows."""

    prefix: int
    replaced: Container[str]
    rows: int


class OpenSession(Protocol):
    """A session that accepts groups."""

    @property
    def model(self) -> Model:
        """The model of the answers: the version with which the session began."""

    async def add_groups(self, values: Mapping[str, Any]) -> AcceptedGroups:
        """Add groups, all or none, and pass them to the waiting predictions.

        Raise FieldError, which names the group, if values are invalid; else as `SessionStore.get`.
        """


class SessionStore(Protocol):
    """Store of sessions by id. Every method may raise SessionsUnreachableError."""

    kind: Literal["memory", "redis"]
    ttl_s: float

    def __len__(self) -> int:
        """Return the number of sessions, as last known to this process."""

    @property
    def trouble(self) -> str | None:
        """Return why the store is unavailable; None if it is available."""

    async def start(self) -> None:
        """Start the background tasks; without this call the first request starts them. Never fails."""

    async def close(self) -> None: ...

    async def create(self, model: Model, rows: int | None, account: Account) -> str:
        """Begin a session for the key of an account and return its id.

        Raise OverloadedError if the limit of sessions, or the key's share of it, is reached.
        """

    async def get(self, session_id: str) -> OpenSession:
        """Return a session, which counts as a use of it.

        Raise GoneSessionError if it was deleted or has expired, UnknownSessionError if it never existed or ended long
        ago, and MissingVersionError or DamagedSessionError if its stored content is not usable on this replica.
        """

    def read(self, session_id: str, due_ms: float | None, account: Account) -> AbstractAsyncContextManager[Session]:
        """Yield a session with all its groups, which counts as a use of it; raises as `get`.

        With `due_ms`, a prediction may wait for more groups until then, by this process's clock. After the block the
        session is then kept up to date while predictions wait, and OverloadedError is raised if its values, which count
        for `account`, exceed the memory budget. The session is needed at `due_ms` at the latest.
        """

    async def delete(self, session_id: str) -> None:
        """End a session and answer its open predictions from the groups received so far. Raises as `get`."""


@dataclass(eq=False)
class Session:
    """The groups received so far, in `prediction`, and the open predictions that wait for more.

    `note` is added to answers; `on_leave` is called when an open prediction has ended.
    """

    id: str
    prediction: Prediction
    waiting: set[ActivePrediction] = field(default_factory=set)
    note: str | None = None
    on_leave: Callable[[], None] = lambda: None
    _events: deque[tuple[ActivePrediction, Callable[[ActivePrediction], None]]] = field(default_factory=deque)

    @property
    def model(self) -> Model:
        return self.prediction.model

    def join(self, active: ActivePrediction) -> None:
        """Add an open prediction, which receives all further groups until it ends."""

        def leave() -> None:
            self.waiting.discard(active)
            self.on_leave()

        self.waiting.add(active)
        active.on_end = leave

    def put(self, arrays: Mapping[str, Any]) -> None:
        """Store arrays that `checked_groups` returned, and pass them to the open predictions."""
        self.prediction.add_all(arrays)
        names = tuple(arrays)
        self._tell(lambda active: active.took(names))

    def end(self) -> None:
        """Answer every open prediction from the groups received so far; each is answered or fails by itself."""
        self._tell(lambda active: active.ended())

    def fail(self, error: Exception) -> None:
        self._tell(lambda active: active.fail(error))

    def _tell(self, event: Callable[[ActivePrediction], None]) -> None:
        """Pass an event to all waiting predictions in order, as many in a turn of the loop as fit in its time."""
        idle = not self._events
        self._events.extend((active, event) for active in self.waiting)
        if idle:
            self._pass_on()

    def _pass_on(self) -> None:
        here = Slice()
        while self._events and not here.is_over():
            active, event = self._events[0]
            if active in self.waiting:
                event(active)
            self._events.popleft()
        if self._events:
            asyncio.get_running_loop().call_soon(self._pass_on)

    def noted(self, answer: Answer) -> Answer:
        if self.note is None:
            return answer
        return replace(answer, note="; ".join(filter(None, (answer.note, self.note))))


def gone() -> GoneSessionError:
    return GoneSessionError("the session was deleted or has expired; begin a new one by POST /sessions")


def unknown(session_id: str) -> UnknownSessionError:
    return UnknownSessionError(f"there is no session {session_id[:64]!r}; begin one by POST /sessions")
