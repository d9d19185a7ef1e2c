"""Sessions in Redis: every replica accepts groups and answers; `redis_format` describes the stored data.

`ModelVersions` finds the version of a model that a session began with, also after this replica has reloaded the model.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
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
from anytime_service.limits.queues import TTLCache
from anytime_service.limits.tuning import TUNING, Tuning
from anytime_service.models.registry import ModelRegistry
from anytime_service.sessions import redis_format
from anytime_service.sessions.mirrors import LOST, Mirrors
from anytime_service.sessions.redis_connection import LogLimit, RedisConnection
from anytime_service.sessions.redis_format import Bounds, SessionInfo, Snapshot, damaged
from anytime_service.sessions.store import AcceptedGroups, OpenSession, Session, gone, unknown

MAX_RETAINED = 8  # number of retained versions that are no longer served; the least recently used one is removed first
_READING = 4  # number of sessions that are read again concurrently
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_log = logging.getLogger("anytime_service")


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
        self._retain_ms = retain_s * 1000.0
        self._seen: ModelRegistry | None = None
        self._served: dict[tuple[str, str], Model] = {}
        self._retained: OrderedDict[tuple[str, str], tuple[Model, float]] = OrderedDict()
        self.notice()

    def find(self, name: str, version: str) -> Model:
        """Return a model in one version; raise MissingVersionError if this replica does not have it."""
        self.notice()
        model = self._served.get((name, version))
        if model is not None:
            return model
        if (name, version) not in self._retained:
            raise MissingVersionError(
                f"the session began with model {name[:200]!r} in version {version[:40]!r}, which this replica does not "
                "have; use another replica, load that version here too, or begin a new session"
            )
        model, _ = self._retained.pop((name, version))
        self._retained[name, version] = model, now_ms()
        return model

    def notice(self) -> None:
        """Update the versions after a reload, and remove those that no session has used for `retain_s`."""
        registry, now = self._registry(), now_ms()
        if registry is not self._seen:
            self._seen = registry
            before, self._served = self._served, {(model.name, model.version): model for model in registry.every()}
            self._retained.update((key, (model, now)) for key, model in before.items() if key not in self._served)
            models = (*self._served.values(), *(model for model, _ in self._retained.values()))
            self.bounds = Bounds.of(models, self._max_rows, self._readable)
        while self._retained:
            key, (_, used_ms) = next(iter(self._retained.items()))  # the least recently used first
            if len(self._retained) <= MAX_RETAINED and now - used_ms <= self._retain_ms:
                break
            del self._retained[key]


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
        store, bounds = self.store, self.store.bounds
        with store.reporting():
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
            store.remember(self.id, SessionInfo(self.model.name, self.model.version, rows))
        replaced, fields = (redis_format.pieces(each, 2 * bounds.fields) for each in reply)
        names = {field[2:].decode(errors="replace") for field in fields if field.startswith(b"g:")}
        complete = bisect_left(self.model.needed, True, key=lambda needed: not needed <= names) - 1
        return AcceptedGroups(complete, {name.decode() for name in replaced}, rows or 1)


class RedisSessions:
    """Session store in Redis, see `SessionStore`; `limit` applies to all replicas together."""

    kind: Literal["memory", "redis"] = "redis"

    def __init__(
        self, url: str, timeout_ms: float, limit: int, ttl_s: float, models: ModelVersions, tuning: Tuning = TUNING
    ) -> None:
        self.limit = limit
        self._tuning = tuning
        self.ttl_s = ttl_s
        self._ttl_ms = max(int(ttl_s * 1000), 1)
        self._models = models
        self._replica = secrets.token_urlsafe(9)
        self._count = 0
        self._known: TTLCache[SessionInfo] = TTLCache(tuning.max_known, math.inf)
        self._unread: dict[str, None] = {}
        self._has_unread = asyncio.Event()
        self._log_limit = LogLimit()
        self._mirrors = Mirrors(self._reread, lambda: self.bounds, self._report)
        self._connection = RedisConnection(
            url,
            timeout_ms,
            f"anytime:replica:{self._replica}",
            tuning.store_check_s,
            on_message=self._mirrors.receive,
            check=self._check,
            background=self._read_continuously,
            on_subscription=lambda subscribed: self._mirrors.mark_all(subscribed=subscribed),
        )

    def __len__(self) -> int:
        return self._count

    @property
    def bounds(self) -> Bounds:
        return self._models.bounds

    @property
    def trouble(self) -> str | None:
        return self._connection.trouble

    async def start(self) -> None:
        await self._connection.start()

    async def close(self) -> None:
        await self._connection.close()

    async def create(self, model: Model, rows: int | None, account: Account) -> str:
        session_id = secrets.token_urlsafe(16)
        owner, share = account.owner, account.share(self.limit)
        arguments = (self.limit, redis_format.FORMAT, model.name, model.version, rows or 0, owner, share)
        status, count, *owned = await self._connection.call(
            redis_format.CREATE, redis_format.keys_of(session_id), (session_id, self._ttl_ms, *arguments)
        )
        self._count = int(count)
        if status == b"share":
            raise account.share_error(int(owned[0]), self.limit, "sessions")
        if status == b"full":
            raise OverloadedError(f"there are {self._count} sessions, the limit; delete unused sessions")
        self.remember(session_id, SessionInfo(model.name, model.version, rows))
        return session_id

    async def get(self, session_id: str) -> OpenSession:
        """Return a session; this replica reads its model from Redis at the first request and caches it."""
        info = self._known.get(session_id)
        if info is None:
            with self.reporting():
                _, *fields = await self.run(redis_format.DESCRIBE, session_id, self.bounds.size)
                info = self.remember(session_id, redis_format.read_info(session_id, fields, self.bounds.rows))
        return RedisSession(self, session_id, self._models.find(info.name, info.version), info.rows)

    @asynccontextmanager
    async def read(self, session_id: str, due_ms: float | None, account: Account) -> AsyncIterator[Session]:
        remaining_ms = None if due_ms is None else due_ms - now_ms()
        if remaining_ms is None or remaining_ms <= 0:
            with self.reporting():
                snapshot, model = await self._snapshot(session_id, 0.0)
                prediction = redis_format.prediction_of(session_id, snapshot, model, self.bounds.rows)
            yield Session(session_id, prediction)
            return
        with self._mirrors.followed(session_id, account) as mirror:
            with self.reporting():
                snapshot, model = await self._snapshot(session_id, remaining_ms)
                session = mirror.apply(snapshot, model)
            yield session

    async def delete(self, session_id: str) -> None:
        with self.reporting():
            await self.run(redis_format.DELETE, session_id)
        self._known.forget(session_id)

    async def run(self, script: str, session_id: str, *arguments: Any, limit_ms: float | None = None) -> Sequence[Any]:
        """Run a script for one session and return its reply, whose first item is the status; raises as `get`."""
        if _ID.fullmatch(session_id) is None:
            raise unknown(session_id)
        reply: Sequence[Any] = await self._connection.call(
            script, redis_format.keys_of(session_id), (session_id, self._ttl_ms, *arguments), limit_ms
        )
        if reply[0] in (b"gone", b"unknown"):
            self._known.forget(session_id)
            raise gone() if reply[0] == b"gone" else unknown(session_id)
        if reply[0] == b"damaged":
            raise damaged(session_id, "its fields are not those of a session")
        return reply

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Log damaged data that the block finds."""
        try:
            yield
        except DamagedSessionError as error:
            self._report(error)
            raise

    def remember(self, session_id: str, info: SessionInfo) -> SessionInfo:
        self._known.add(session_id, info, 0.0)
        return info

    async def _snapshot(self, session_id: str, wait_ms: float) -> tuple[Snapshot, Model]:
        """Read a session and its model, for a prediction that waits `wait_ms`; with 0 no prediction waits."""
        limit_ms = max(wait_ms, self._tuning.min_read_ms) if wait_ms else None
        bounds = self.bounds
        wait = (math.ceil(wait_ms), self._replica, bounds.fields, bounds.size)
        status, *content = await self.run(redis_format.READ, session_id, *wait, limit_ms=limit_ms)
        if status == b"large":
            await self.get(session_id)  # raises MissingVersionError if its model is larger and not loaded here
            raise damaged(session_id, f"it has more than {bounds.fields} fields or more than {bounds.size} bytes")
        if status == b"apart":
            content = [await self._connection.fetch(redis_format.keys_of(session_id)[0], limit_ms)]
            if not content[0]:
                raise gone()
        snapshot = redis_format.read_snapshot(session_id, content[0], bounds)
        self.remember(session_id, snapshot.info)
        return snapshot, self._models.find(snapshot.info.name, snapshot.info.version)

    async def _check(self) -> None:
        self._models.notice()
        keys = (redis_format.SESSIONS_KEY, redis_format.ENDED_KEY)
        self._count = int(await self._connection.run(redis_format.CHECK, keys, ()))

    def _reread(self, session_id: str) -> None:
        self._unread[session_id] = None
        self._has_unread.set()

    async def _read_continuously(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_READING):
                tasks.create_task(self._read_unread())

    async def _read_unread(self) -> None:
        while True:
            while not self._unread:
                self._has_unread.clear()
                await self._has_unread.wait()
            session_id, _ = self._unread.popitem()
            await self._catch_up(session_id)

    async def _catch_up(self, session_id: str) -> None:
        """Read a session again for the predictions that wait for it."""
        mirror = self._mirrors.find(session_id)
        if mirror is None:
            return
        waiting = () if mirror.session is None else mirror.session.waiting
        due_ms = max((active.machine.deadline_at for active in waiting), default=0.0)
        newest = mirror.newest
        try:
            snapshot, model = await self._snapshot(session_id, max(due_ms - now_ms(), self._tuning.min_read_ms))
            mirror.mark(behind=False)
            mirror.apply(snapshot, model, newest)
        except (GoneSessionError, UnknownSessionError) as error:
            mirror.end(LOST if isinstance(error, UnknownSessionError) else None)
        except DamagedSessionError as error:
            self._report(error)
            mirror.fail(error)
        except MissingVersionError as error:
            _log.warning("%s", error)
            mirror.fail(error)
        except OverloadedError as error:
            mirror.fail(error)

    def _report(self, error: DamagedSessionError) -> None:
        if self._log_limit.passes(str(error)):
            _log.warning("%s", error)
