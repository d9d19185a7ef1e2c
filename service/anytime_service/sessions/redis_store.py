"""Sessions in Redis: every replica accepts groups and answers; `redis_format` describes the stored data.

A mirror is a local copy of a session, for as long as predictions of this replica wait for its groups. It is made of a
snapshot, and then receives messages with consecutive revisions. A message that the snapshot contains already is skipped
by its revision. After a missing revision, a message that arrived before the first snapshot, or a time without messages,
the session is read again. So every group is applied exactly once, in whichever order snapshots and messages arrive.

`ModelVersions` finds the version of a model that a session began with, also after this replica has reloaded the model.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime_service.clock import now_ms
from anytime_service.core.open_prediction import checked_groups
from anytime_service.errors import (
    BodyTooLargeError,
    DamagedSessionError,
    FieldError,
    GoneSessionError,
    MissingVersionError,
    OverloadedError,
    UnknownSessionError,
)
from anytime_service.limits.memory import Account
from anytime_service.limits.tuning import TUNING, Tuning
from anytime_service.limits.turns import TTLCache
from anytime_service.models.registry import ModelRegistry
from anytime_service.sessions import redis_format
from anytime_service.sessions.redis_connection import RedisConnection
from anytime_service.sessions.redis_format import Bounds, SessionInfo, Snapshot, damaged
from anytime_service.sessions.store import AcceptedGroups, OpenSession, Session, SessionStore, gone, unknown

MAX_RETAINED = 8  # number of retained versions that are no longer served; the least recently used one is removed first
_READING = 4  # number of sessions that are read again concurrently
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

BEHIND = "the session store was unavailable for some time; groups posted meanwhile may be missing in this answer"
FULL = "the memory of this server is exhausted; the latest groups may be missing in this answer"
LOST = "the session store has lost this session; the latest groups may be missing in this answer"


class ModelVersions:
    """The served models, and versions from before a reload for as long as this replica uses their sessions.

    `registry` returns the models served now. A version is retained for `retain_s` after the last use of its sessions.
    `bounds` are the largest possible sizes of sessions of the models.
    """

    def __init__(
        self, registry: Callable[[], ModelRegistry], retain_s: float, max_rows: int, readable: float = math.inf
    ) -> None:
        self._registry = registry
        self._readable = readable
        self._max_rows = max_rows
        self._seen: ModelRegistry | None = None
        self._served: dict[tuple[str, str], Model] = {}
        self._retain_ms = retain_s * 1000.0
        self._retained: TTLCache[Model] = TTLCache(MAX_RETAINED, self._retain_ms)
        self.notice()

    def find(self, name: str, version: str) -> Model:
        """Return a model in one version; raise MissingVersionError if this replica does not have it."""
        self.notice()
        key = name, version
        if key in self._served:
            return self._served[key]
        model = self._retained.find(key)
        if model is None:
            raise MissingVersionError(
                f"the session began with model {name[:200]!r} in version {version[:40]!r}, which this replica does not "
                "have; use another replica, load that version here too, or begin a new session"
            )
        self._retained.add(key, model, now_ms())
        return model

    def notice(self) -> None:
        """Update the versions after a reload, and remove those that no session has used for `retain_s`."""
        registry, now = self._registry(), now_ms()
        if registry is not self._seen:
            self._seen = registry
            before, self._served = self._served, {(model.name, model.version): model for model in registry.every()}
            for key in before.keys() - self._served.keys():
                self._retained.add(key, before[key], now)
            models = (*self._served.values(), *(model for _, model in self._retained.values()))
            self.bounds = Bounds.of(models, self._max_rows, self._readable)
        while self._retained and now - next(iter(self._retained.values()))[0] > self._retain_ms:
            self._retained.popitem(last=False)


@dataclass(eq=False)
class Mirror(Session):
    """A local copy of a session, at some revision, -1 before the first; `is_unread`: it is to be read again."""

    revision: int = -1
    is_unread: bool = False

    def apply(self, snapshot: Snapshot, max_rows: int) -> None:
        """Add the groups of a snapshot that are newer; raises as `add`."""
        if snapshot.revision > self.revision:
            newer = {name: group for name, group in snapshot.groups.items() if group.revision > self.revision}
            again = (name for name, group in newer.items() if group.again)
            self.add({name: group.content for name, group in newer.items()}, snapshot.revision, max_rows, again)

    def add(self, contents: Mapping[str, bytes], revision: int, max_rows: int, again: Iterable[str] = ()) -> None:
        """Add packed groups up to a revision; `again` names those that were sent more than once.

        Raise DamagedSessionError, or OverloadedError if the values exceed the memory budget.
        """
        self.put(redis_format.unpack_values(self.id, self.prediction, contents, max_rows), again)
        self.revision = revision


@dataclass(frozen=True)
class RedisSession:
    """A session that accepts groups, see `OpenSession`; `rows` is None until its number of rows is known."""

    store: RedisSessions
    id: str
    model: Model
    rows: int | None

    async def add_groups(self, values: Mapping[str, Any]) -> AcceptedGroups:
        """Add groups; all are validated before they are sent to Redis, and none is sent if one is invalid."""
        arrays = checked_groups(Prediction(self.model, self.rows), values)
        rows = len(next(iter(arrays.values()))) if arrays else 0
        pairs = [
            each for name, array in arrays.items() for each in (name, redis_format.pack_values(self.id, name, array))
        ]
        store, bounds = self.store, self.store.models.bounds
        status, *reply = await store.run(redis_format.ADD_GROUPS, self.id, rows, bounds.fields, bounds.size, *pairs)
        if status == b"large":
            raise BodyTooLargeError(
                f"the session would have {int(reply[0])} bytes in Redis; expected at most {bounds.size}, so that "
                "it is read in time; use fewer rows, or POST /predict"
            )
        if status == b"rows":
            known = redis_format.read_rows(self.id, reply[0], bounds.rows)
            checked_groups(Prediction(self.model, known), values)  # names other errors than the number of rows
            raise FieldError("groups", f"groups have {rows} rows; expected {known}, as before")
        if arrays and self.rows is None:
            store.known.add(self.id, SessionInfo(self.model.name, self.model.version, rows), 0.0)
        replaced, fields = (redis_format.pieces(each, 2 * bounds.fields) for each in reply)
        names = {field[2:].decode(errors="replace") for field in fields if field.startswith(b"g:")}
        complete = bisect_left(self.model.needed, True, key=lambda needed: not needed <= names) - 1
        return complete, {name.decode() for name in replaced}, rows or 1


class RedisSessions(SessionStore):
    """Session store in Redis, see `SessionStore`; `limit` applies to all replicas together."""

    kind: Literal["memory", "redis"] = "redis"

    def __init__(
        self, url: str, timeout_ms: float, limit: int, ttl_s: float, models: ModelVersions, tuning: Tuning = TUNING
    ) -> None:
        self.limit = limit
        self._tuning = tuning
        self.ttl_s = ttl_s
        self.models = models
        self._replica = secrets.token_urlsafe(9)
        self._count = 0
        self.known: TTLCache[SessionInfo] = TTLCache(tuning.max_known, math.inf)
        self._mirrors: dict[str, Mirror] = {}
        self._reading: Counter[str] = Counter()  # sessions that are read for predictions that will wait
        self._missed: set[str] = set()  # those whose messages may have arrived before their first snapshot
        self._unread: asyncio.Queue[Mirror] = asyncio.Queue()
        self._subscribed = False
        self._connection = RedisConnection(
            url,
            timeout_ms,
            f"anytime:replica:{self._replica}",
            tuning.store_check_s,
            on_message=self.receive,
            check=self._check,
            background=lambda: [self._read_unread() for _ in range(_READING)],
            on_subscription=self.subscribed,
        )

    def __len__(self) -> int:
        return self._count

    @property
    def trouble(self) -> str | None:
        return self._connection.trouble

    async def start(self) -> None:
        await self._connection.start()

    async def close(self) -> None:
        await self._connection.close()

    async def create(self, model: Model, rows: int | None, account: Account) -> str:
        session_id = secrets.token_urlsafe(16)
        named = (redis_format.FORMAT, model.name, model.version, rows or 0)
        status, count, *owned = await self.run(
            redis_format.CREATE, session_id, self.limit, *named, account.owner, account.share(self.limit)
        )
        self._count = int(count)
        if status == b"share":
            raise account.share_error(int(owned[0]), self.limit, "sessions")
        if status == b"full":
            raise OverloadedError(f"there are {self._count} sessions, the limit; delete unused sessions")
        self.known.add(session_id, SessionInfo(model.name, model.version, rows), 0.0)
        return session_id

    async def get(self, session_id: str) -> OpenSession:
        """Return a session; this replica reads its model from Redis at the first request and caches it."""
        info = self.known.find(session_id)
        if info is None:
            _, *fields = await self.run(redis_format.DESCRIBE, session_id, self.models.bounds.size)
            info = redis_format.read_info(session_id, fields, self.models.bounds.rows)
            self.known.add(session_id, info, 0.0)
        return RedisSession(self, session_id, self.models.find(info.name, info.version), info.rows)

    @asynccontextmanager
    async def read(self, session_id: str, due_ms: float | None, account: Account) -> AsyncIterator[Session]:
        remaining_ms = None if due_ms is None else due_ms - now_ms()
        if remaining_ms is None or remaining_ms <= 0:
            snapshot, model = await self._snapshot(session_id, 0.0)
            mirror = Mirror(session_id, Prediction(model, snapshot.info.rows))
            mirror.apply(snapshot, self.models.bounds.rows)
            yield mirror
            return
        self._reading[session_id] += 1
        try:
            yield self.apply(session_id, *await self._snapshot(session_id, remaining_ms), account)
        finally:
            self._reading[session_id] -= 1
            if not self._reading[session_id]:
                del self._reading[session_id]
                self._missed.discard(session_id)
            self._drop_idle(session_id)

    async def delete(self, session_id: str) -> None:
        await self.run(redis_format.DELETE, session_id)
        self.known.pop(session_id, None)

    async def run(self, script: str, session_id: str, *arguments: Any, limit_ms: float | None = None) -> Sequence[Any]:
        """Run a script for one session and return its reply, whose first item is the status; raises as `get`."""
        if _ID.fullmatch(session_id) is None:
            raise unknown(session_id)
        reply: Sequence[Any] = await self._connection.call(
            script, redis_format.keys_of(session_id), (session_id, max(int(self.ttl_s * 1000), 1), *arguments), limit_ms
        )
        if reply[0] in (b"gone", b"unknown"):
            self.known.pop(session_id, None)
            raise gone() if reply[0] == b"gone" else unknown(session_id)
        if reply[0] == b"damaged":
            raise damaged(session_id, "its fields are not those of a session")
        return reply

    async def _snapshot(self, session_id: str, wait_ms: float) -> tuple[Snapshot, Model]:
        """Read a session and its model, for a prediction that waits `wait_ms`; with 0 no prediction waits."""
        limit_ms = max(wait_ms, self._tuning.min_read_ms) if wait_ms else None
        bounds = self.models.bounds
        waiting = (math.ceil(wait_ms), self._replica)
        status, *content = await self.run(
            redis_format.READ, session_id, *waiting, bounds.fields, bounds.size, limit_ms=limit_ms
        )
        if status == b"large":
            await self.get(session_id)  # raises MissingVersionError if its model is larger and not loaded here
            raise damaged(session_id, f"it has more than {bounds.fields} fields or more than {bounds.size} bytes")
        if status == b"apart":
            content = [await self._connection.fetch(redis_format.keys_of(session_id)[0], limit_ms)]
            if not content[0]:
                raise gone()
        snapshot = redis_format.read_snapshot(session_id, content[0], bounds)
        self.known.add(session_id, snapshot.info, 0.0)
        return snapshot, self.models.find(snapshot.info.name, snapshot.info.version)

    async def _check(self) -> None:
        self.models.notice()
        reply = await self._connection.run(redis_format.CHECK, (redis_format.SESSIONS_KEY, redis_format.ENDED_KEY), ())
        self._count = int(reply)

    def apply(self, session_id: str, snapshot: Snapshot, model: Model, account: Account) -> Mirror:
        """Apply a snapshot to the mirror of a session and return it; its bytes count for the account of the first one.

        Raise DamagedSessionError if the snapshot is invalid, and OverloadedError if the values do not fit into memory.
        """
        known = self._mirrors.get(session_id)
        mirror = known or Mirror(
            session_id,
            Prediction(model, snapshot.info.rows),
            account,
            note=None if self._subscribed else BEHIND,
            on_leave=partial(self._drop_idle, session_id),
        )
        mirror.apply(snapshot, self.models.bounds.rows)
        if known is None:  # else it may have ended: its predictions are answered
            self._mirrors[session_id] = mirror
        if session_id in self._missed:
            self._reread(mirror)
        return mirror

    def receive(self, content: bytes) -> None:
        """Pass a message to its mirror; invalid values fail only the predictions that wait for the session."""
        mirror: Mirror | None = None
        try:
            session_id, revision, groups = redis_format.read_message(content, self.models.bounds)
            mirror = self._mirrors.get(session_id)
            if session_id in self._reading and (mirror is None or not revision):
                self._missed.add(session_id)  # a snapshot from before the message may still arrive
            if mirror is None:
                return
            if not revision:
                mirror.end()
            elif revision == mirror.revision + 1:
                mirror.note = None  # no message was lost
                mirror.add(groups, revision, self.models.bounds.rows)
            elif revision > mirror.revision:
                self._reread(mirror)
        except (DamagedSessionError, OverloadedError) as error:
            self._failed(mirror, error)

    def subscribed(self, subscribed: bool) -> None:
        """Set whether the subscription exists: if so, read all sessions again, else say that they may be behind."""
        self._subscribed = subscribed
        self._missed.update(self._reading)
        for mirror in self._mirrors.values():
            if subscribed:
                self._reread(mirror)
            else:
                mirror.note = BEHIND

    def _drop_idle(self, session_id: str) -> None:
        mirror = self._mirrors.get(session_id)
        if mirror is not None and not (self._reading[session_id] or mirror.waiting):
            del self._mirrors[session_id]
            mirror.account.add(-mirror.prediction.nbytes)

    def _failed(self, mirror: Mirror | None, error: Exception) -> None:
        """Fail the predictions that wait; if only memory is missing, they are answered without the new groups."""
        if mirror is not None and isinstance(error, OverloadedError):
            mirror.note = FULL
        elif mirror is not None:
            mirror.fail(error)

    def _reread(self, mirror: Mirror) -> None:
        if not mirror.is_unread:
            mirror.is_unread = True
            self._unread.put_nowait(mirror)

    async def _read_unread(self) -> None:
        """Read sessions again, one after the other, for the predictions that wait for them."""
        while True:
            mirror = await self._unread.get()
            mirror.is_unread = False
            if self._mirrors.get(mirror.id) is not mirror:  # no prediction waits
                continue
            due_ms = max((active.machine.deadline_at for active in mirror.waiting), default=0.0)
            try:
                content = await self._snapshot(mirror.id, max(due_ms - now_ms(), self._tuning.min_read_ms))
                if self._mirrors.get(mirror.id) is mirror:  # a prediction still waits
                    mirror.note = None
                    self.apply(mirror.id, *content, mirror.account)
            except (GoneSessionError, UnknownSessionError) as error:
                mirror.note = LOST if isinstance(error, UnknownSessionError) else mirror.note
                mirror.end()
            except (DamagedSessionError, MissingVersionError, OverloadedError) as error:
                self._failed(mirror, error)
