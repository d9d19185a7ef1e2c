"""Mirrors of sessions in Redis: local copies, for as long as predictions of this replica wait for their groups.

A mirror begins before its session is read. Messages that arrive meanwhile are stored. Messages that the snapshot
already contains are skipped by their revision. So every group is applied exactly once, in whichever order the snapshot
and the messages arrive. After a skipped revision, or a time without messages, the session is read again. A snapshot
that was requested after a message was received has at least the revision of that message, so a message with a higher
revision is false and is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from anytime.model.model import Model
from anytime_service.errors import DamagedSessionError, OverloadedError
from anytime_service.limits.memory import MemoryBudget
from anytime_service.sessions.redis_format import (
    Bounds,
    Message,
    Snapshot,
    prediction_of,
    read_address,
    read_message,
    unpack_values,
)
from anytime_service.sessions.store import Session, gone

MAX_PENDING = 64  # messages that a mirror stores while a session is read; with more of them the session is read again

BEHIND = "the session store was unavailable for some time; groups posted meanwhile may be missing in this answer"
FULL = "the memory of this server is exhausted; the latest groups may be missing in this answer"
LOST = "the session store has lost this session; the latest groups may be missing in this answer"

_log = logging.getLogger("anytime_service")


class Mirror:
    """Mirror of one session; `session` is None until it is read.

    `account` counts the bytes of values and pending messages. `readers` counts readers for predictions that will wait.
    `behind` is whether messages may have been lost.
    """

    def __init__(self, session_id: str, mirrors: Mirrors, account: MemoryBudget) -> None:
        self.session_id = session_id
        self.session: Session | None = None
        self.readers = 0
        self.behind = not mirrors.subscribed
        self._mirrors = mirrors
        self._account = account
        self._counted = 0
        self._followed = True
        self._ended = False
        self._revision = 0
        self._pending: dict[int, Message] = {}

    @property
    def idle(self) -> bool:
        return not self.readers and (self.session is None or not self.session.waiting)

    @property
    def newest(self) -> int:
        return max(self._pending, default=0)

    def apply(self, snapshot: Snapshot, model: Model, newest: int = 0) -> Session:
        """Apply a snapshot and return the session.

        Pending messages up to revision `newest`, the latest one when the snapshot was requested, that the snapshot does
        not contain are dropped. Raise DamagedSessionError if the snapshot is invalid, GoneSessionError if the session
        has ended meanwhile, and OverloadedError if the values exceed the memory budget.
        """
        if self._ended:
            raise gone()
        try:
            if self.session is None:
                prediction = prediction_of(self.session_id, snapshot, model, self._mirrors.bounds().rows)
                self._account.check(prediction.nbytes)
                self.session = Session(
                    self.session_id, prediction, on_leave=partial(self._mirrors.drop_idle, self.session_id)
                )
                self._revision = snapshot.revision
                self.mark(behind=self.behind)
            elif snapshot.revision > self._revision:
                newer = {name: group for name, group in snapshot.groups.items() if group.revision > self._revision}
                again = [name for name, group in newer.items() if group.again]
                contents = {name: group.content for name, group in newer.items()}
                self._put(self.session, contents, snapshot.revision, again)
            for revision in [each for each in self._pending if snapshot.revision < each <= newest]:
                del self._pending[revision]
                _log.warning("dropped a false message about session %r: revision %d", self.session_id[:64], revision)
            self._apply_pending(self.session)
            return self.session
        finally:
            self._count_bytes()

    def receive(self, message: Message) -> None:
        """Apply a message, or store it until earlier ones are known; raise DamagedSessionError or OverloadedError."""
        if self.session is None or message.revision > self._revision + 1:  # it waits for a snapshot
            size = sum(map(len, message.groups.values()))
            if len(self._pending) >= MAX_PENDING or not self._account.fits(size):
                self._pending.clear()
                self._count_bytes()
                self._mirrors.reread(self.session_id)
                return
        self._pending[message.revision] = message
        try:
            if self.session is not None:
                self._apply_pending(self.session)
        finally:
            self._count_bytes()

    def mark(self, *, behind: bool) -> None:
        self.behind = behind
        if self.session is not None:
            self.session.note = BEHIND if behind else None

    def end(self, note: str | None = None) -> None:
        self._ended = True
        if self.session is not None:
            self.session.note = note or self.session.note
            self.session.end()

    def fail(self, error: Exception) -> None:
        """Fail the predictions that wait; if only memory is missing, they are answered without the new groups."""
        if self.session is not None and isinstance(error, OverloadedError):
            self.session.note = FULL
        elif self.session is not None:
            self.session.fail(error)

    def release(self) -> None:
        self._followed = False
        self._count_bytes()

    def _apply_pending(self, session: Session) -> None:
        """Apply pending messages in order; request a reading if a revision is missing."""
        for revision in [revision for revision in self._pending if revision <= self._revision]:
            del self._pending[revision]
        while (message := self._pending.pop(self._revision + 1, None)) is not None:
            self.mark(behind=False)  # the revisions are consecutive, so no message was lost
            self._put(session, message.groups, message.revision)
        if self._pending:
            self._mirrors.reread(self.session_id)

    def _put(self, session: Session, contents: Mapping[str, bytes], revision: int, again: Iterable[str] = ()) -> None:
        """Add groups, whose values are packed, to the session; `again` names those that were sent more than once."""
        arrays = unpack_values(self.session_id, session.prediction, contents, self._mirrors.bounds().rows)
        self._count_bytes()
        self._account.check(session.prediction.more_bytes(arrays))
        session.prediction.replaced.update(dict.fromkeys(again))
        self._revision = revision
        session.put(arrays)

    def _count_bytes(self) -> None:
        size = 0
        if self._followed:
            size = sum(len(each) for message in self._pending.values() for each in message.groups.values())
            size += 0 if self.session is None else self.session.prediction.nbytes
        self._account.add(size - self._counted)
        self._counted = size


class Mirrors:
    """All mirrors of this replica.

    `reread` is called, possibly more than once, with the id of a session that must be read again; `report`
    receives damaged data.
    """

    def __init__(
        self, reread: Callable[[str], None], bounds: Callable[[], Bounds], report: Callable[[DamagedSessionError], None]
    ) -> None:
        self.reread = reread
        self.bounds = bounds
        self._report = report
        self._all: dict[str, Mirror] = {}
        self.subscribed = False

    def find(self, session_id: str) -> Mirror | None:
        return self._all.get(session_id)

    @contextmanager
    def followed(self, session_id: str, account: MemoryBudget) -> Iterator[Mirror]:
        """Yield the mirror of a session, which exists during the block and for as long as a prediction waits."""
        mirror = self._all.get(session_id)
        if mirror is None:
            mirror = self._all[session_id] = Mirror(session_id, self, account)
        mirror.readers += 1
        try:
            yield mirror
        finally:
            mirror.readers -= 1
            self.drop_idle(session_id)

    def receive(self, content: bytes) -> None:
        """Pass a message to its mirror; a damaged one fails only the predictions that wait for the session."""
        mirror: Mirror | None = None
        try:
            mirror = self._all.get(read_address(content))
            if mirror is None:
                return  # all waiting predictions have been answered
            message = read_message(content, self.bounds())
            if message.revision:
                mirror.receive(message)
            else:
                mirror.end()
        except (DamagedSessionError, OverloadedError) as error:
            if isinstance(error, DamagedSessionError):
                self._report(error)
            if mirror is not None:
                mirror.fail(error)

    def mark_all(self, *, subscribed: bool) -> None:
        """Set whether the subscription exists: if so, read all sessions again, else mark them as behind."""
        self.subscribed = subscribed
        for mirror in tuple(self._all.values()):
            if subscribed:
                self.reread(mirror.session_id)
            else:
                mirror.mark(behind=True)

    def drop_idle(self, session_id: str) -> None:
        mirror = self._all.get(session_id)
        if mirror is not None and mirror.idle:
            del self._all[session_id]
            mirror.release()
