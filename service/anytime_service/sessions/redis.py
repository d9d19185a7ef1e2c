"""Sessions kept in Redis, so that any replica takes a group and any answers; see `scripts` for what is kept how."""

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
from anytime_service.limits.memory import Account, Held
from anytime_service.limits.queues import TTLCache
from anytime_service.sessions.kept_models import ModelVersions
from anytime_service.sessions.link import Link
from anytime_service.sessions.mirrors import LOST, Mirrors, prediction_of
from anytime_service.sessions.packing import (
    About,
    Bounds,
    Snapshot,
    damaged,
    packed,
    pieces,
    read_about,
    read_rows,
    read_snapshot,
)
from anytime_service.sessions.scripts import (
    CHECK,
    CREATE,
    DELETE,
    DESCRIBE,
    ENDED_KEY,
    FORMAT,
    READ,
    SESSIONS_KEY,
    TAKE,
    keys_of,
)
from anytime_service.sessions.store import OpenSession, Session, Took, checked_groups, gone, unknown

__all__ = ["MAX_KNOWN", "MIN_MS", "RedisSession", "RedisSessions"]

MIN_MS = 20.0
"""Time that reading a session has, however soon its deadline: an answer late by a round trip is better than none."""

MAX_KNOWN = 10_000
"""Sessions whose models are remembered, so that handing over groups takes one round trip."""

_READING = 4
"""Sessions that are read again at once."""

_REPORTED, _REPORTED_MS = 1_000, 60_000.0
"""Kinds of damage that are remembered, and how long: the same damage is logged once in that time."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_log = logging.getLogger("anytime_service")


class RedisSession:
    """A session that groups can be handed to, see `OpenSession`."""

    def __init__(self, store: RedisSessions, name: str, model: Model, rows: int | None) -> None:
        self.id = name
        self.model = model
        self._store = store
        self._rows = rows

    async def take(self, values: Mapping[str, Any]) -> Took:
        """Take groups; they are checked before they go to Redis, and none goes if one is refused."""
        arrays = checked_groups(Prediction(self.model, self._rows), values)
        rows = len(next(iter(arrays.values()))) if arrays else 0
        pairs = [each for name, array in arrays.items() for each in (name, packed(self.id, name, array))]
        store, bounds = self._store, self._store.bounds
        with store.reporting():
            status, *told = await store.ask(TAKE, self.id, rows, bounds.fields, bounds.size, *pairs)
            if status == b"rows":
                known = read_rows(self.id, told[0], bounds.rows)
                checked_groups(
                    Prediction(self.model, known), values
                )  # raises what is wrong, if not the number of rows alone
                raise FieldError("groups", f"groups have {rows} rows; expected {known}, as before")
        if arrays and self._rows is None:
            store.learn_rows(self.id, self.model, rows)
        again, fields = (pieces(each, 2 * bounds.fields) for each in told)
        return Took(_completed(self.model, fields), {name.decode() for name in again})


class RedisSessions:
    """Sessions by id, see `SessionStore`.

    Parameters
    ----------
    url, timeout_ms : where Redis is, and how long a request waits for it.
    most : sessions there may be at once, on all replicas together.
    ttl_s : how long after its last use a session is kept.
    models : finds the model that a session was begun with.
    held : counts the bytes of the values of those that somebody here waits for; None as of `MemorySessions`.
    """

    kind: Literal["memory", "redis"] = "redis"

    def __init__(
        self,
        url: str,
        timeout_ms: float,
        most: int,
        ttl_s: float,
        models: ModelVersions,
        held: Held | None = None,
    ) -> None:
        self.most = most
        self.ttl_s = ttl_s
        self._ttl_ms = max(int(ttl_s * 1000), 1)
        self._models = models
        self._replica = secrets.token_urlsafe(9)
        self._count = 0
        self._known: OrderedDict[str, About] = OrderedDict()
        self._unread: dict[str, None] = {}
        self._some_unread = asyncio.Event()
        self._reported: TTLCache[None] = TTLCache(_REPORTED, _REPORTED_MS)
        self._mirrors = Mirrors(self._read_again, lambda: self.bounds, held, self._report)
        self._link = Link(
            url,
            timeout_ms,
            f"anytime:replica:{self._replica}",
            hear=self._mirrors.hear,
            check=self._check,
            beside=self._keep_reading,
            heard_of=lambda there: self._mirrors.mark_all(hearing=there),
        )

    def __len__(self) -> int:
        return self._count

    @property
    def bounds(self) -> Bounds:
        """What a session here can have at most."""
        return self._models.bounds

    @property
    def trouble(self) -> str | None:
        """Why Redis cannot be reached."""
        return self._link.trouble

    @property
    def followed(self) -> int:
        """How many sessions are followed here because somebody waits for them."""
        return len(self._mirrors)

    async def start(self) -> None:
        """Connect, or turn out to be unable to; goes on trying."""
        await self._link.start()

    async def close(self) -> None:
        """Close every connection."""
        await self._link.close()

    async def create(self, model: Model, rows: int | None, account: Account | None = None) -> str:
        """Begin a session, see `SessionStore.create`; limit and shares apply to all replicas together."""
        name = secrets.token_urlsafe(16)
        owner, share = ("", self.most) if account is None else (account.owner, account.share(self.most))
        about = (self.most, FORMAT, model.name, model.version, rows or 0, owner, share)
        status, count, *owned = await self._link.call(CREATE, keys_of(name), (name, self._ttl_ms, *about))
        self._count = int(count)
        if status == b"share" and account is not None:
            raise account.over_share(int(owned[0]), self.most, "sessions")
        if status == b"full":
            raise OverloadedError(f"there are {self._count} sessions; delete those that are done with")
        self._know(name, About(model.name, model.version, rows))
        return name

    async def get(self, name: str) -> OpenSession:
        """Find a session; only the first time that this replica hears of it does Redis have to tell its model."""
        known = self._known.get(name)
        if known is None:
            with self.reporting():
                _, *fields = await self.ask(DESCRIBE, name, self.bounds.size)
                known = self._know(name, read_about(name, fields, self.bounds.rows))
        return RedisSession(self, name, self._models.find(known.name, known.version), known.rows)

    @asynccontextmanager
    async def read(
        self, name: str, due_ms: float | None = None, account: Account | None = None
    ) -> AsyncIterator[Session]:
        """Find a session with all its groups, see `SessionStore.read`."""
        left_ms = None if due_ms is None else due_ms - now_ms()
        if left_ms is None or left_ms <= 0:
            with self.reporting():
                snapshot, model = await self._snapshot(name, 0.0)
                prediction = prediction_of(name, snapshot, model, self.bounds.rows)
            yield Session(name, prediction)
            return
        with self._mirrors.followed(name, account) as mirror:
            with self.reporting():
                snapshot, model = await self._snapshot(name, left_ms)
                session = mirror.show(snapshot, model)
            yield session

    async def delete(self, name: str) -> None:
        """End a session; those who wait are answered, on every replica."""
        with self.reporting():
            await self.ask(DELETE, name)
        self._known.pop(name, None)

    async def ask(self, script: str, name: str, *arguments: Any, most_ms: float | None = None) -> Sequence[Any]:
        """Run a script about one session; its status and what it told.

        Raises
        ------
        GoneSessionError, UnknownSessionError, DamagedSessionError, SessionsUnreachableError
            As `SessionStore.get`.
        """
        if _ID.fullmatch(name) is None:
            raise unknown(name)
        told: Sequence[Any] = await self._link.call(script, keys_of(name), (name, self._ttl_ms, *arguments), most_ms)
        if told[0] in (b"gone", b"unknown"):
            self._known.pop(name, None)
            raise gone() if told[0] == b"gone" else unknown(name)
        if told[0] == b"damaged":
            raise damaged(name, "its fields are not those of a session")
        return told

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Log damage that is found inside the block."""
        try:
            yield
        except DamagedSessionError as error:
            self._report(error)
            raise

    def learn_rows(self, name: str, model: Model, rows: int) -> None:
        """Remember how many rows a session has, now that its first values have come."""
        self._know(name, About(model.name, model.version, rows))

    async def _snapshot(self, name: str, wait_ms: float) -> tuple[Snapshot, Model]:
        """Read a session, for somebody who waits that long or, with 0, for nobody."""
        most_ms = max(wait_ms, MIN_MS) if wait_ms else None
        bounds = self.bounds
        wait = (math.ceil(wait_ms), self._replica, bounds.fields, bounds.size)
        status, *content = await self.ask(READ, name, *wait, most_ms=most_ms)
        if status == b"large":
            await self.get(name)  # raises MissingVersionError if it is of a larger model that is not here
            raise damaged(name, f"it has more than {bounds.fields} fields, or more than {bounds.size} bytes")
        snapshot = read_snapshot(name, content[0], bounds)
        self._know(name, About(snapshot.name, snapshot.version, snapshot.rows))
        return snapshot, self._models.find(snapshot.name, snapshot.version)

    async def _check(self) -> None:
        self._models.notice()
        self._count = int(await self._link.run(CHECK, (SESSIONS_KEY, ENDED_KEY), ()))

    def _know(self, name: str, known: About) -> About:
        self._known[name] = known
        self._known.move_to_end(name)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return known

    def _read_again(self, name: str) -> None:
        self._unread[name] = None
        self._some_unread.set()

    async def _keep_reading(self) -> None:
        """Read what has to be read again, some at once."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_READING):
                tasks.create_task(self._read_unread())

    async def _read_unread(self) -> None:
        while True:
            while not self._unread:
                self._some_unread.clear()
                await self._some_unread.wait()
            name, _ = self._unread.popitem()
            await self._catch_up(name)

    async def _catch_up(self, name: str) -> None:
        """Read a session again for those who wait."""
        mirror = self._mirrors.find(name)
        if mirror is None:
            return
        waiting = () if mirror.session is None else mirror.session.waiting
        due_ms = max((live.opened.deadline_at or 0.0 for live in waiting), default=0.0)
        newest = mirror.newest
        try:
            snapshot, model = await self._snapshot(name, max(due_ms - now_ms(), MIN_MS))
            mirror.mark(behind=False)
            mirror.show(snapshot, model, newest)
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
        """Log damage, the same only once in a while: a client may send its request again and again."""
        if str(error) not in self._reported:
            self._reported.add(str(error), None, now_ms())
            _log.warning("%s", error)


def _completed(model: Model, fields: Sequence[bytes]) -> int:
    """Longest prefix that the groups among the fields of a session complete."""
    lacking = list(model.lacking)
    for field in fields:
        if field.startswith(b"g:"):
            place = model.places.get(field[2:].decode(errors="replace"))
            if place is not None:
                lacking[place.step] -= 1
    return next((prefix for prefix in range(model.steps) if lacking[prefix + 1]), model.steps)
