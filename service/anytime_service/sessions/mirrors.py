"""Mirrors of sessions in Redis: local copies, for as long as predictions of this replica wait for their groups.

A message with the next revision is applied. After any other one, and after a time without messages, the replica reads
what is newer than its mirror. So every group is applied exactly once, in whichever order snapshots and messages arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from anytime.model.model import Model
from anytime_service.errors import DamagedSessionError, OverloadedError
from anytime_service.limits.memory import MemoryBudget
from anytime_service.sessions.redis_format import Bounds, Snapshot, prediction_of, read_message, unpack_values
from anytime_service.sessions.store import Session, gone

BEHIND = "the session store was unavailable for some time; groups posted meanwhile may be missing in this answer"
LOST = "the session store has lost this session; the latest groups may be missing in this answer"


class Mirror:
    """Mirror of one session; `session` is None until it is read, and `revision` is that of its latest groups.

    `account` counts the bytes of values. `readers` counts readers for predictions that will wait. `behind` is whether
    messages may have been lost.
    """

    def __init__(self, session_id: str, mirrors: Mirrors, account: MemoryBudget) -> None:
        self.session_id = session_id
        self.session: Session | None = None
        self.revision = 0
        self.readers = 0
        self.behind = not mirrors.subscribed
        self._mirrors = mirrors
        self._account = account
        self._counted = 0
        self._followed = True
        self._ended = False

    @property
    def idle(self) -> bool:
        return not self.readers and (self.session is None or not self.session.waiting)

    def apply(self, snapshot: Snapshot, model: Model) -> Session:
        """Apply a snapshot, which may be older than the last one, and return the session.

        Raise DamagedSessionError if the snapshot is invalid, GoneSessionError if the session has ended meanwhile, and
        OverloadedError if the values exceed the memory budget.
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
                self.revision = snapshot.revision
                self.mark(behind=self.behind)
            elif snapshot.revision > self.revision:
                newer = {name: group for name, group in snapshot.groups.items() if group.revision > self.revision}
                again = [name for name, group in newer.items() if group.again]
                self.put(self.session, {name: group.content for name, group in newer.items()}, snapshot.revision, again)
            if snapshot.ended:
                self.end()
            return self.session
        finally:
            self._count_bytes()

    def put(self, session: Session, contents: Mapping[str, bytes], revision: int, again: Iterable[str] = ()) -> None:
        """Add packed groups up to a revision; `again` names those that were sent more than once. Raises as `apply`."""
        arrays = unpack_values(self.session_id, session.prediction, contents, self._mirrors.bounds().rows)
        self._account.check(session.prediction.more_bytes(arrays))
        session.prediction.replaced.update(dict.fromkeys(again))
        self.revision = revision
        session.put(arrays)
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
        if self.session is not None:
            self.session.fail(error)

    def release(self) -> None:
        self._followed = False
        self._count_bytes()

    def _count_bytes(self) -> None:
        size = self.session.prediction.nbytes if self.session is not None and self._followed else 0
        self._account.add(size - self._counted)
        self._counted = size


class Mirrors:
    """All mirrors of this replica.

    `reread` is called, possibly more than once, with the id of a session that must be read; `report` receives damaged
    messages.
    """

    def __init__(
        self, reread: Callable[[str], None], bounds: Callable[[], Bounds], report: Callable[[DamagedSessionError], None]
    ) -> None:
        self.bounds = bounds
        self._reread = reread
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
        """Apply a message with the next revision; after another one, have the session read if it is newer."""
        mirror: Mirror | None = None
        try:
            message = read_message(content, self.bounds())
            mirror = self._all.get(message.session)
            if mirror is None or 0 < message.revision <= mirror.revision:
                return  # all waiting predictions have been answered, or a snapshot had these groups
            if mirror.session is None or message.revision != mirror.revision + 1:
                self._reread(message.session)
                return
            mirror.mark(behind=False)  # the revisions are consecutive, so no message was lost
            mirror.put(mirror.session, message.groups, message.revision)
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
                self._reread(mirror.session_id)
            else:
                mirror.mark(behind=True)

    def drop_idle(self, session_id: str) -> None:
        mirror = self._all.get(session_id)
        if mirror is not None and mirror.idle:
            del self._all[session_id]
            mirror.release()
