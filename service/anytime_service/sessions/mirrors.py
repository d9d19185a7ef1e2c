"""Sessions of a shared store as they are followed here, for as long as somebody here waits for one.

A mirror begins before its session is read. Messages that come meanwhile are held, and what the reading has already is
passed over by its revision: nothing is missed, nothing taken twice, in whichever order reading and messages come. A
revision that is skipped, and a time without messages, have the session read again. A reading that began after a message
was received has the revision of that message or a later one, so a message beyond it is false and is dropped.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime.types import Float
from anytime_service.core.active_prediction import ActivePrediction
from anytime_service.errors import DamagedSessionError, OverloadedError
from anytime_service.limits.memory import Held
from anytime_service.sessions.packing import Bounds, Message, Snapshot, read_address, read_message, unpacked
from anytime_service.sessions.store import Session, gone

__all__ = ["BEHIND", "LOST", "MAX_HELD", "Mirror", "Mirrors", "prediction_of"]

MAX_HELD = 64
"""Messages about one session that are held while it is read; with more it is read again."""

BEHIND = "the session store could not be reached for a while; groups posted meanwhile may not be in this answer"
LOST = "the session store has lost this session; groups posted last may not be in this answer"

_log = logging.getLogger("anytime_service")


@dataclass(eq=False, kw_only=True)
class _Mirrored(Session):
    """A session that says when somebody has left it."""

    left: Callable[[str], None]

    def leave(self, live: ActivePrediction) -> None:
        """Forget a prediction."""
        super().leave(live)
        self.left(self.id)


class Mirror:
    """One session as it is followed here.

    Parameters
    ----------
    again : called with its name when it has to be read again.
    left : called with its name when somebody has left it.
    account : counts the bytes of its values, and of messages that are held, for as long as it is followed.
    bounds : returns what a session can have at most.

    Attributes
    ----------
    session : None until it has been read.
    readers : how many are reading it, for somebody who will wait.
    behind : whether messages may have been missed.
    """

    def __init__(
        self,
        name: str,
        again: Callable[[str], None],
        left: Callable[[str], None],
        account: Held,
        bounds: Callable[[], Bounds],
        *,
        behind: bool,
    ) -> None:
        self.name = name
        self.session: Session | None = None
        self.readers = 0
        self.behind = behind
        self._again = again
        self._left = left
        self._account = account
        self._bounds = bounds
        self._counted = 0
        self._followed = True
        self._ended = False
        self._revision = 0
        self._held: dict[int, Message] = {}

    @property
    def idle(self) -> bool:
        """Whether nobody waits, or is about to."""
        return not self.readers and (self.session is None or not self.session.waiting)

    @property
    def newest(self) -> int:
        """The latest revision among the messages that are held, 0 without any."""
        return max(self._held, default=0)

    def show(self, snapshot: Snapshot, model: Model, newest: int = 0) -> Session:
        """Take what has been read.

        Parameters
        ----------
        newest : `newest` when the reading began; messages up to it that the reading does not confirm are dropped.

        Raises
        ------
        DamagedSessionError
            It cannot be used; the mirror stays as it was.
        GoneSessionError
            The session has ended since.
        OverloadedError
            There is no room for its values.
        """
        if self._ended:
            raise gone()
        try:
            if self.session is None:
                prediction = prediction_of(self.name, snapshot, model, self._bounds().rows)
                self._account.check(prediction.nbytes)
                self.session = _Mirrored(self.name, prediction, left=self._left)
                self._revision = snapshot.revision
                self.mark(behind=self.behind)
            elif snapshot.revision > self._revision:
                self._move_on(self.session, snapshot)
            for revision in [each for each in self._held if snapshot.revision < each <= newest]:
                del self._held[revision]
                _log.warning("dropped a false message about session %r: revision %d", self.name[:64], revision)
            self._catch_up(self.session)
            return self.session
        finally:
            self._count()

    def hear(self, message: Message) -> None:
        """Take groups, or hold them until what came before is here; raises DamagedSessionError or OverloadedError."""
        if self.session is None or message.revision > self._revision + 1:  # it has to wait for a reading
            size = sum(map(len, message.groups.values()))
            if len(self._held) >= MAX_HELD or not self._account.fits(size):
                self._held.clear()
                self._count()
                self._again(self.name)
                return
        self._held[message.revision] = message
        try:
            if self.session is not None:
                self._catch_up(self.session)
        finally:
            self._count()

    def mark(self, *, behind: bool) -> None:
        """Say whether messages may have been missed."""
        self.behind = behind
        if self.session is not None:
            self.session.note = BEHIND if behind else None

    def end(self, note: str | None = None) -> None:
        """Answer those who wait: nothing more will come."""
        self._ended = True
        if self.session is not None:
            self.session.note = note or self.session.note
            self.session.end()

    def fail(self, error: Exception) -> None:
        """Tell those who wait why there is no answer."""
        if self.session is not None:
            self.session.fail(error)

    def let_go(self) -> None:
        """Count nothing more: nobody waits."""
        self._followed = False
        self._count()

    def _move_on(self, session: Session, snapshot: Snapshot) -> None:
        """Take what has come since."""
        newer = {name: kept for name, kept in snapshot.groups.items() if kept.revision > self._revision}
        contents = {name: kept.content for name, kept in newer.items()}
        arrays = unpacked(self.name, session.prediction, contents, self._bounds().rows)
        self._check_room(session, arrays)
        session.prediction.replaced.update((name, None) for name, kept in newer.items() if kept.again)
        self._revision = snapshot.revision
        session.put(arrays)

    def _catch_up(self, session: Session) -> None:
        """Take what is held and follows; what has been skipped has to be read."""
        for revision in [revision for revision in self._held if revision <= self._revision]:
            del self._held[revision]
        while (message := self._held.pop(self._revision + 1, None)) is not None:
            arrays = unpacked(self.name, session.prediction, message.groups, self._bounds().rows)
            self._check_room(session, arrays)
            self._revision = message.revision
            self.mark(behind=False)  # it follows what is here, so nothing was missed
            session.put(arrays)
        if self._held:
            self._again(self.name)

    def _check_room(self, session: Session, arrays: Mapping[str, Float]) -> None:
        """Raise OverloadedError where there is no room for groups."""
        self._count()
        self._account.check(session.more_bytes(arrays))

    def _count(self) -> None:
        """Account for what is here."""
        held = 0
        if self._followed:
            held = sum(len(each) for message in self._held.values() for each in message.groups.values())
            held += 0 if self.session is None else self.session.prediction.nbytes
        self._account.bytes += held - self._counted
        self._counted = held


class Mirrors:
    """Every session that is followed here.

    Parameters
    ----------
    again : called with the name of a session that has to be read again; it may be told more than once.
    bounds : returns what a session can have at most.
    account : counts the bytes of their values; None for a count of their own, without a limit.
    report : logs damage.
    """

    def __init__(
        self,
        again: Callable[[str], None],
        bounds: Callable[[], Bounds],
        account: Held | None = None,
        report: Callable[[DamagedSessionError], None] = lambda error: _log.warning("%s", error),
    ) -> None:
        self._again = again
        self._bounds = bounds
        self._report = report
        self._account = Held(sys.maxsize) if account is None else account
        self._all: dict[str, Mirror] = {}
        self._hearing = False

    def __len__(self) -> int:
        return len(self._all)

    def find(self, name: str) -> Mirror | None:
        """Find the mirror of a session that is followed."""
        return self._all.get(name)

    @contextmanager
    def followed(self, name: str, account: Held | None = None) -> Iterator[Mirror]:
        """Follow a session: during the block, and after it for as long as somebody waits.

        `account` counts its bytes, if nobody follows it yet.
        """
        mirror = self._all.get(name)
        if mirror is None:
            mirror = self._all[name] = Mirror(
                name, self._again, self._drop_idle, account or self._account, self._bounds, behind=not self._hearing
            )
        mirror.readers += 1
        try:
            yield mirror
        finally:
            mirror.readers -= 1
            self._drop_idle(name)

    def hear(self, content: bytes) -> None:
        """Pass a message on; if it is damaged, only the predictions that wait for its session fail."""
        mirror: Mirror | None = None
        try:
            mirror = self._all.get(read_address(content))
            if mirror is None:
                return  # all predictions that waited have been answered
            message = read_message(content, self._bounds())
            if message.revision:
                mirror.hear(message)
            else:
                mirror.end()
        except (DamagedSessionError, OverloadedError) as error:
            if isinstance(error, DamagedSessionError):
                self._report(error)
            if mirror is not None:
                mirror.fail(error)

    def mark_all(self, *, hearing: bool) -> None:
        """Say that messages come, upon which every session has to be read again, or that they do not."""
        self._hearing = hearing
        for mirror in tuple(self._all.values()):
            if hearing:
                self._again(mirror.name)
            else:
                mirror.mark(behind=True)

    def _drop_idle(self, name: str) -> None:
        mirror = self._all.get(name)
        if mirror is not None and mirror.idle:
            del self._all[name]
            mirror.let_go()


def prediction_of(name: str, snapshot: Snapshot, model: Model, max_rows: int) -> Prediction:
    """Make a prediction of what has been read of a session; raises DamagedSessionError."""
    prediction = Prediction(model, snapshot.rows)
    arrays = unpacked(name, prediction, {group: kept.content for group, kept in snapshot.groups.items()}, max_rows)
    for group, array in arrays.items():
        prediction.take(group, array)
    prediction.replaced.update((group, None) for group, kept in snapshot.groups.items() if kept.again)
    return prediction
