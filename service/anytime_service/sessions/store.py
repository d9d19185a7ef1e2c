"""What every store of sessions shares: what it can be asked, and a session as those who wait for it see it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

from anytime.errors import ValuesError
from anytime.inference.answer import Answer
from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime_service.core.active_prediction import VALUE_BYTES, ActivePrediction
from anytime_service.errors import FieldError, GoneSessionError, UnknownSessionError
from anytime_service.limits.memory import Account

__all__ = ["OpenSession", "Session", "SessionStore", "Took", "checked_groups", "gone", "unknown"]


class Took(NamedTuple):
    """What taking groups led to: the longest complete prefix, and groups that came more than once."""

    prefix: int
    replaced: Container[str]


class OpenSession(Protocol):
    """A session that groups can be handed to."""

    @property
    def model(self) -> Model:
        """The model that answers; a session keeps the one it began with."""

    async def take(self, values: Mapping[str, Any]) -> Took:
        """Take groups, all of them or none if one is refused, and tell those who wait.

        Raises
        ------
        FieldError
            Values that cannot be used; the field names the group.
        GoneSessionError, SessionsUnreachableError
            As `SessionStore.get`.
        """


class SessionStore(Protocol):
    """Sessions by id; where they live is the store's business. Every method may raise SessionsUnreachableError.

    Attributes
    ----------
    kind : where they live.
    ttl_s : how long after its last use a session is kept.
    """

    kind: Literal["memory", "redis"]
    ttl_s: float

    def __len__(self) -> int:
        """Tell how many sessions there are, as far as is known without asking anybody."""

    @property
    def trouble(self) -> str | None:
        """Why sessions cannot be reached now, None where they can."""

    async def start(self) -> None:
        """Begin what runs beside the requests; done by the first request where nobody calls it. Never fails."""

    async def close(self) -> None:
        """End what runs beside the requests."""

    async def create(self, model: Model, rows: int | None, account: Account | None = None) -> str:
        """Begin a session for the key of an account; return its id.

        Raises
        ------
        OverloadedError
            There are too many, or too many of this key.
        """

    async def get(self, name: str) -> OpenSession:
        """Find a session, which counts as using it.

        Raises
        ------
        GoneSessionError
            It has been deleted, or expired.
        UnknownSessionError
            It never was, or ended long ago.
        MissingVersionError, DamagedSessionError
            What is kept of it cannot be used here.
        """

    def read(
        self, name: str, due_ms: float | None = None, account: Account | None = None
    ) -> AbstractAsyncContextManager[Session]:
        """Find a session with all its groups, which counts as using it; raises as `get`.

        After the block it is kept up to date for as long as somebody has joined it. Where somebody may, there has to be
        room for its values, or OverloadedError is raised.

        Parameters
        ----------
        due_ms : until when somebody may wait for more groups, by our clock, and so when to have it at the latest; None
            where nobody will.
        account : of the key that reads it.
        """

    async def delete(self, name: str) -> None:
        """End a session; those who wait are answered from what is there. Raises as `get`."""


@dataclass(eq=False)
class Session:
    """Groups that came so far, and the predictions that wait for more.

    Attributes
    ----------
    prediction : what has come; every answer of the session is made from it.
    waiting : predictions that are open.
    note : what those who are answered now should know.
    """

    id: str
    prediction: Prediction
    waiting: set[ActivePrediction] = field(default_factory=set)
    note: str | None = None

    @property
    def model(self) -> Model:
        """The model that answers; a session keeps the one it began with."""
        return self.prediction.model

    def join(self, live: ActivePrediction) -> None:
        """Have a prediction told of groups that come, for as long as it is open."""
        self.waiting.add(live)
        live.on_end = lambda: self.leave(live)

    def leave(self, live: ActivePrediction) -> None:
        """Forget a prediction."""
        self.waiting.discard(live)

    def more_bytes(self, arrays: Mapping[str, Any]) -> int:
        """Bytes that taking groups would add to what is held."""
        size: int = sum(array.size for name, array in arrays.items() if not self.prediction.has(name))
        return size * VALUE_BYTES

    def put(self, arrays: Mapping[str, Any]) -> None:
        """Store groups that `checked_groups` accepted, and pass them to the open predictions."""
        for name, array in arrays.items():
            self.prediction.take(name, array)
        for live in tuple(self.waiting):
            live.took(arrays)

    def end(self) -> None:
        """Answer every open prediction from the groups received so far; each is answered or fails by itself."""
        for live in tuple(self.waiting):
            live.ended()

    def fail(self, error: Exception) -> None:
        """Send the error to every open prediction."""
        for live in tuple(self.waiting):
            live.fail(error)

    def noted(self, answer: Answer) -> Answer:
        """Add the note to an answer."""
        if self.note is None:
            return answer
        return replace(answer, note=self.note if answer.note is None else f"{answer.note}; {self.note}")


def checked_groups(prediction: Prediction, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of groups as `Prediction.take` has them.

    Raises
    ------
    FieldError
        Values that cannot be used; the field names the group.
    """
    arrays = {name: _checked(prediction, name, each) for name, each in values.items()}
    if len(arrays) > 1 and len({len(array) for array in arrays.values()}) > 1:
        raise FieldError("groups", "groups have different numbers of rows; every group has all rows")
    return arrays


def gone() -> GoneSessionError:
    """Say that a session has ended."""
    return GoneSessionError("the session has been deleted, or has expired; begin another by POST /sessions")


def unknown(name: str) -> UnknownSessionError:
    """Say that a session never was."""
    return UnknownSessionError(f"there is no session {name[:64]!r}; begin one by POST /sessions")


def _checked(prediction: Prediction, name: str, values: Any) -> Any:
    try:
        return prediction.checked(name, values)
    except ValuesError as error:
        raise FieldError(f"groups.{name}", str(error)) from error
