"""Sessions in Redis: every replica accepts groups and answers; `scripts` describes the stored data."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime_service.clock import now_ms
from anytime_service.errors import (
    DamagedSessionError,
    FieldError,
    GoneSessionError,
    MissingVersionError,
    OverloadedError,
    UnknownSessionError,
)
from anytime_service.limits.memory import Account, MemoryBudget
from anytime_service.limits.queues import TTLCache
from anytime_service.sessions.link import Link
from anytime_service.sessions.mirrors import LOST, Mirrors, prediction_of
from anytime_service.sessions.packing import (
    Bounds,
    ModelVersions,
    SessionInfo,
    Snapshot,
    damaged,
    packed,
    pieces,
    read_info,
    read_rows,
    read_snapshot,
)
from anytime_service.sessions.scripts import (
    ADD_GROUPS,
    CHECK,
    CREATE,
    DELETE,
    DESCRIBE,
    ENDED_KEY,
    FORMAT,
    READ,
    SESSIONS_KEY,
    keys_of,
)
from anytime_service.sessions.store import AcceptedGroups, OpenSession, Session, checked_groups, gone, unknown

__all__ = ["MAX_KNOWN", "MIN_MS", "RedisSession", "RedisSessions"]

MIN_MS = 20.0
"""Least time to read a session in ms, even if its deadline is sooner: an answer late by a round trip beats none."""

MAX_KNOWN = 10_000
"""Number of sessions whose models are cached, so that posting groups takes one round trip."""

_READING = 4
"""Number of sessions that are read again concurrently."""

_REPORTED, _REPORTED_MS = 1_000, 60_000.0
"""Number of messages about damaged data to remember, and for how long in ms: each is logged once in that time."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_log = logging.getLogger("anytime_service")


class RedisSession:
    """A session that accepts groups, see `OpenSession`."""

    def __init__(self, store: RedisSessions, name: str, model: Model, rows: int | None) -> None:
        self.id = name
        self.model = model
        self._store = store
        self._rows = rows

    async def add_groups(self, values: Mapping[str, Any]) -> AcceptedGroups:
        """Add groups; all are validated before they are sent to Redis, and none is sent if one is invalid."""
        arrays = checked_groups(Prediction(self.model, self._rows), values)
        rows = len(next(iter(arrays.values()))) if arrays else 0
        pairs = [each for name, array in arrays.items() for each in (name, packed(self.id, name, array))]
        store, bounds = self._store, self._store.bounds
        with store.reporting():
            status, *reply = await store.ask(ADD_GROUPS, self.id, rows, bounds.fields, bounds.size, *pairs)
            if status == b"rows":
                known = read_rows(self.id, reply[0], bounds.rows)
                checked_groups(Prediction(self.model, known), values)  # names other errors than the number of rows
                raise FieldError("groups", f"groups have {rows} rows; expected {known}, as before")
        if arrays and self._rows is None:
            store.learn_rows(self.id, self.model, rows)
        replaced, fields = (pieces(each, 2 * bounds.fields) for each in reply)
        return AcceptedGroups(_prefix(self.model, fields), {name.decode() for name in replaced})


class RedisSessions:
    """Session store in Redis, see `SessionStore`.

    Parameters
    ----------
    url, timeout_ms : URL of Redis, and the longest time that a request waits for it.
    limit : largest number of sessions of all replicas together.
    ttl_s : time after its last use at which a session expires, in seconds.
    models : finds the model that a session began with.
    held : memory budget that counts the bytes of the values of mirrored sessions; None as in `MemorySessions`.
    """

    kind: Literal["memory", "redis"] = "redis"

    def __init__(
        self,
        url: str,
        timeout_ms: float,
        limit: int,
        ttl_s: float,
        models: ModelVersions,
        held: MemoryBudget | None = None,
    ) -> None:
        self.limit = limit
        self.ttl_s = ttl_s
        self._ttl_ms = max(int(ttl_s * 1000), 1)
        self._models = models
        self._replica = secrets.token_urlsafe(9)
        self._count = 0
        self._known: OrderedDict[str, SessionInfo] = OrderedDict()
        self._unread: dict[str, None] = {}
        self._has_unread = asyncio.Event()
        self._reported: TTLCache[None] = TTLCache(_REPORTED, _REPORTED_MS)
        self._mirrors = Mirrors(self._reread, lambda: self.bounds, held, self._report)
        self._link = Link(
            url,
            timeout_ms,
            f"anytime:replica:{self._replica}",
            on_message=self._mirrors.receive,
            check=self._check,
            background=self._read_continuously,
            on_subscription=lambda subscribed: self._mirrors.mark_all(subscribed=subscribed),
        )

    def __len__(self) -> int:
        return self._count

    @property
    def bounds(self) -> Bounds:
        """Return the largest sizes of a session."""
        return self._models.bounds

    @property
    def trouble(self) -> str | None:
        """Return why Redis is unavailable; None if it is available."""
        return self._link.trouble

    @property
    def followed(self) -> int:
        """Return the number of sessions that this replica mirrors because predictions wait for them."""
        return len(self._mirrors)

    async def start(self) -> None:
        """Try to connect; after a failure the link tries again in the background."""
        await self._link.start()

    async def close(self) -> None:
        """Close all connections."""
        await self._link.close()

    async def create(self, model: Model, rows: int | None, account: Account | None = None) -> str:
        """Begin a session, see `SessionStore.create`; limit and shares apply to all replicas together."""
        name = secrets.token_urlsafe(16)
        owner, share = ("", self.limit) if account is None else (account.owner, account.share(self.limit))
        arguments = (self.limit, FORMAT, model.name, model.version, rows or 0, owner, share)
        status, count, *owned = await self._link.call(CREATE, keys_of(name), (name, self._ttl_ms, *arguments))
        self._count = int(count)
        if status == b"share" and account is not None:
            raise account.share_error(int(owned[0]), self.limit, "sessions")
        if status == b"full":
            raise OverloadedError(f"there are {self._count} sessions, the limit; delete unused sessions")
        self._remember(name, SessionInfo(model.name, model.version, rows))
        return name

    async def get(self, name: str) -> OpenSession:
        """Return a session; this replica reads its model from Redis at the first request and caches it."""
        known = self._known.get(name)
        if known is None:
            with self.reporting():
                _, *fields = await self.ask(DESCRIBE, name, self.bounds.size)
                known = self._remember(name, read_info(name, fields, self.bounds.rows))
        return RedisSession(self, name, self._models.find(known.name, known.version), known.rows)

    @asynccontextmanager
    async def read(
        self, name: str, due_ms: float | None = None, account: Account | None = None
    ) -> AsyncIterator[Session]:
        """Yield a session with all its groups, see `SessionStore.read`."""
        remaining_ms = None if due_ms is None else due_ms - now_ms()
        if remaining_ms is None or remaining_ms <= 0:
            with self.reporting():
                snapshot, model = await self._snapshot(name, 0.0)
                prediction = prediction_of(name, snapshot, model, self.bounds.rows)
            yield Session(name, prediction)
            return
        with self._mirrors.followed(name, account) as mirror:
            with self.reporting():
                snapshot, model = await self._snapshot(name, remaining_ms)
                session = mirror.apply(snapshot, model)
            yield session

    async def delete(self, name: str) -> None:
        """End a session and answer its open predictions on every replica."""
        with self.reporting():
            await self.ask(DELETE, name)
        self._known.pop(name, None)

    async def ask(self, script: str, name: str, *arguments: Any, limit_ms: float | None = None) -> Sequence[Any]:
        """Run a script for one session and return its reply; the first element is the status.

        Raises
        ------
        GoneSessionError, UnknownSessionError, DamagedSessionError, SessionsUnreachableError
            As `SessionStore.get`.
        """
        if _ID.fullmatch(name) is None:
            raise unknown(name)
        reply: Sequence[Any] = await self._link.call(script, keys_of(name), (name, self._ttl_ms, *arguments), limit_ms)
        if reply[0] in (b"gone", b"unknown"):
            self._known.pop(name, None)
            raise gone() if reply[0] == b"gone" else unknown(name)
        if reply[0] == b"damaged":
            raise damaged(name, "its fields are not those of a session")
        return reply

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Log damaged data that the block finds."""
        try:
            yield
        except DamagedSessionError as error:
            self._report(error)
            raise

    def learn_rows(self, name: str, model: Model, rows: int) -> None:
        """Cache the number of rows of a session after its first values are stored."""
        self._remember(name, SessionInfo(model.name, model.version, rows))

    async def _snapshot(self, name: str, wait_ms: float) -> tuple[Snapshot, Model]:
        """Read a session and its model, for a prediction that waits `wait_ms`; with 0 no prediction waits."""
        limit_ms = max(wait_ms, MIN_MS) if wait_ms else None
        bounds = self.bounds
        wait = (math.ceil(wait_ms), self._replica, bounds.fields, bounds.size)
        status, *content = await self.ask(READ, name, *wait, limit_ms=limit_ms)
        if status == b"large":
            await self.get(name)  # raises MissingVersionError if its model is larger and not loaded here
            raise damaged(name, f"it has more than {bounds.fields} fields or more than {bounds.size} bytes")
        snapshot = read_snapshot(name, content[0], bounds)
        self._remember(name, SessionInfo(snapshot.name, snapshot.version, snapshot.rows))
        return snapshot, self._models.find(snapshot.name, snapshot.version)

    async def _check(self) -> None:
        self._models.notice()
        self._count = int(await self._link.run(CHECK, (SESSIONS_KEY, ENDED_KEY), ()))

    def _remember(self, name: str, known: SessionInfo) -> SessionInfo:
        self._known[name] = known
        self._known.move_to_end(name)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return known

    def _reread(self, name: str) -> None:
        self._unread[name] = None
        self._has_unread.set()

    async def _read_continuously(self) -> None:
        """Read sessions again as needed, several concurrently."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_READING):
                tasks.create_task(self._read_unread())

    async def _read_unread(self) -> None:
        while True:
            while not self._unread:
                self._has_unread.clear()
                await self._has_unread.wait()
            name, _ = self._unread.popitem()
            await self._catch_up(name)

    async def _catch_up(self, name: str) -> None:
        """Read a session again for the predictions that wait for it."""
        mirror = self._mirrors.find(name)
        if mirror is None:
            return
        waiting = () if mirror.session is None else mirror.session.waiting
        due_ms = max((live.opened.deadline_at or 0.0 for live in waiting), default=0.0)
        newest = mirror.newest
        try:
            snapshot, model = await self._snapshot(name, max(due_ms - now_ms(), MIN_MS))
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
        """Log damaged data, the same message once in a time, since a client may repeat its request."""
        if str(error) not in self._reported:
            self._reported.add(str(error), None, now_ms())
            _log.warning("%s", error)


def _prefix(model: Model, fields: Sequence[bytes]) -> int:
    """Return the longest prefix that the groups among the fields of a session complete."""
    missing = list(model.groups_added)
    for field in fields:
        if field.startswith(b"g:"):
            place = model.places.get(field[2:].decode(errors="replace"))
            if place is not None:
                missing[place.step] -= 1
    return next((prefix for prefix in range(model.steps) if missing[prefix + 1]), model.steps)
