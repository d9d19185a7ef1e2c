"""The way to Redis: scripts that end in time, one subscription, and whether there is a way at all.

A request waits for Redis for as long as it may and no longer; what it asked then runs out by itself, as cancelling in
the midst would cost the connection. Beside the requests one task holds the subscription. It asks once a second, and at
once when a request got no answer, whether all is well; when it is not it begins anew, after a pause that grows and is
never the same on two replicas. Only when that fails too are sessions said to be out of reach, and requests refused
without asking, until it has succeeded.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import FullJitterBackoff, NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from anytime.errors import AnytimeError
from anytime_service.clock import now_ms
from anytime_service.errors import DamagedSessionError, SessionsUnreachableError
from anytime_service.urls import shown_address

__all__ = ["AT_A_TIME", "CHECK_S", "CONNECTIONS", "TOLD_S", "Link"]

CONNECTIONS = 16
"""Connections for requests; one more is the subscription's."""

CHECK_S = 1.0
"""How often is asked whether all is well."""

TOLD_S = 60.0
"""How often is logged that Redis refuses the same."""

AT_A_TIME = 16
"""Messages heard before others have their turn."""

_PAUSES = FullJitterBackoff(cap=1.0, base=0.05)

_WHYS: tuple[tuple[type[Exception], str], ...] = (
    (AuthenticationError, "it refuses the user or the password"),
    (NoPermissionError, "its user may not do what is needed"),
    (BusyLoadingError, "it is loading its data"),
    (OutOfMemoryError, "it is out of memory"),
    (ReadOnlyError, "it is a read-only copy"),
    (ResponseError, "it answers with an error"),
    (RedisConnectionError, "there is no connection to it"),
    (OSError, "there is no connection to it"),
)

_log = logging.getLogger("anytime_service")


class Link:
    """One replica's way to Redis.

    Parameters
    ----------
    url : as `checked_address` lets it through.
    timeout_ms : longest time that anybody waits for an answer.
    channel : what to subscribe to.
    hear : called with every message.
    check : asks whether all is well, by `run`.
    beside : runs for as long as there is a subscription.
    heard_of : called with True when there is a subscription again, with False when it is lost.

    Raises
    ------
    AnytimeError
        The URL has a parameter that cannot be.
    """

    def __init__(
        self,
        url: str,
        timeout_ms: float,
        channel: str,
        *,
        hear: Callable[[bytes], None],
        check: Callable[[], Awaitable[None]],
        beside: Callable[[], Coroutine[Any, Any, None]],
        heard_of: Callable[[bool], None],
    ) -> None:
        self.trouble: str | None = "it has not been asked yet"
        self._place = shown_address(url)
        self._timeout_s = timeout_ms / 1000.0
        self._channel = channel
        self._hear, self._check, self._beside, self._heard_of = hear, check, beside, heard_of
        self._pool: Any = self._pool_of(url)  # some of its types are missing
        self._redis = Redis(connection_pool=self._pool)
        self._scripts: dict[str, Any] = {}
        self._under_way: set[asyncio.Task[Any]] = set()
        self._task: asyncio.Task[None] | None = None
        self._told, self._told_ms = "", 0.0
        self._poked = asyncio.Event()
        self._heard = asyncio.Event()
        self._tried = asyncio.Event()

    async def start(self) -> None:
        """Begin, and wait until there is a way to Redis or has turned out to be none."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep())
        await self._tried.wait()

    async def close(self) -> None:
        """End the subscription, and close every connection."""
        if self._task is not None:
            while not self._task.done():
                self._task.cancel()
                await asyncio.wait((self._task,), timeout=self._timeout_s)
            self._task = None
            self._tried.clear()
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=self._timeout_s)
            for task in late:
                task.cancel()
        with suppress(RedisError, OSError):
            await self._pool.disconnect()

    async def call(
        self, script: str, keys: Sequence[str], arguments: Sequence[Any], most_ms: float | None = None
    ) -> Any:
        """Run a script, unless it is known that there is no way to Redis; see `run`."""
        if self._task is None:
            await self.start()
        if self.trouble is not None:
            raise SessionsUnreachableError(self.trouble)
        return await self.run(script, keys, arguments, most_ms)

    async def run(
        self, script: str, keys: Sequence[str], arguments: Sequence[Any], most_ms: float | None = None
    ) -> Any:
        """Run a script, and tell what it returned.

        Parameters
        ----------
        most_ms : longest time to wait, where it is shorter than that of every call.

        Raises
        ------
        SessionsUnreachableError
            There was no answer in time, or none that is of use; what was asked may still be done.
        DamagedSessionError
            A key is of another kind.
        """
        known = self._scripts.get(script)
        if known is None:
            known = self._scripts[script] = self._redis.register_script(script)
        wait_s = self._timeout_s if most_ms is None else min(self._timeout_s, max(most_ms / 1000.0, 0.0))
        try:
            return await self._in_time(known(keys=keys, args=arguments), wait_s)
        except (RedisError, OSError) as error:
            if isinstance(error, ResponseError) and "WRONGTYPE" in str(error):  # Redis 6 names the script before it
                raise DamagedSessionError(
                    f"the value of key {keys[0][:100]!r} in Redis is not of this service; begin another session by POST"
                    " /sessions"
                ) from error
            if isinstance(error, ResponseError):
                self._tell(error)
            elif wait_s >= self._timeout_s or not isinstance(error, TimeoutError):
                self._poked.set()
            raise SessionsUnreachableError(self._why(error, wait_s)) from error

    def _tell(self, error: ResponseError) -> None:
        """Log what Redis will not do, once in a while."""
        now = now_ms()
        if str(error) != self._told or now - self._told_ms > TOLD_S * 1000.0:
            self._told, self._told_ms = str(error), now
            _log.error("sessions cannot be used: %s: %s", self._why(error, 0.0), error)

    async def _in_time(self, asked: Coroutine[Any, Any, Any], wait_s: float) -> Any:
        """Wait for what was asked so long; it is not cancelled, as that may be lost inside, or lose a connection."""
        task = asyncio.get_running_loop().create_task(asked)
        self._under_way.add(task)
        task.add_done_callback(self._over)
        await asyncio.wait((task,), timeout=wait_s)
        if not task.done():
            raise TimeoutError
        return task.result()

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked has been told, or has gone

    async def _keep(self) -> None:
        """Hold the subscription, again and again."""
        failures = 0
        while True:
            connection = self._pool.make_connection()
            try:
                async with asyncio.timeout(self._timeout_s):
                    await connection.connect()
                    await connection.send_command("SUBSCRIBE", self._channel)
                    await connection.read_response()
                await self._check()
                self._found()
                failures = 0
                self._heard_of(True)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._listen(connection))
                    tasks.create_task(self._watch(connection))
                    tasks.create_task(self._beside())
            except Exception as error:
                failures += 1
                self._heard_of(False)
                await self._failed(_first_of(error), once=failures == 1 and self.trouble is None)
            finally:
                with suppress(RedisError, OSError):
                    await connection.disconnect(nowait=True)
            await asyncio.sleep(_PAUSES.compute(failures))

    async def _listen(self, connection: Any) -> None:
        """Hand on what comes."""
        for count in itertools.count(1):
            reply = await connection.read_response(timeout=3600.0)  # nothing may come for long; `_watch` sees to that
            self._heard.set()
            if reply is not None and reply[0] == b"message":
                self._hear(reply[2])
            if count % AT_A_TIME == 0:
                await asyncio.sleep(0)

    async def _watch(self, connection: Any) -> None:
        """See that both ways answer, the subscription's and that of requests."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._poked.wait()
            self._poked.clear()
            self._heard.clear()
            await self._in_time(connection.send_command("PING"), self._timeout_s)
            await self._check()
            async with asyncio.timeout(self._timeout_s):
                await self._heard.wait()

    def _found(self) -> None:
        if self.trouble is not None and self._tried.is_set():
            _log.info("sessions can be reached again at %s", self._place)
        self.trouble = None
        self._tried.set()

    async def _failed(self, error: BaseException, *, once: bool) -> None:
        """Make nothing of a subscription that is lost, if it comes back at once; say so where it does not."""
        if not isinstance(error, RedisError | OSError | AnytimeError):
            _log.error("the subscription to sessions failed", exc_info=error)
        if once:
            return
        why = self._why(error, self._timeout_s)
        if self.trouble is None or not self._tried.is_set():
            told = str(error) or type(error).__name__
            _log.error("sessions cannot be reached at %s: %s (%s); all else is served", self._place, why, told)
        self.trouble = why
        self._tried.set()
        with suppress(RedisError, OSError):  # nobody takes these now, and they may lead to where Redis was
            await self._pool.disconnect(inuse_connections=False)

    def _why(self, error: BaseException, waited_s: float) -> str:
        if isinstance(error, SessionsUnreachableError):
            return error.why
        if isinstance(error, TimeoutError | RedisTimeoutError):
            return f"no answer within {waited_s * 1000.0:.0f} ms"
        return next((why for kind, why in _WHYS if isinstance(error, kind)), "a fault of this server; its log says why")

    def _pool_of(self, url: str) -> Any:
        try:
            pool: Any = BlockingConnectionPool.from_url(
                url,
                max_connections=CONNECTIONS,
                timeout=self._timeout_s,
                socket_timeout=self._timeout_s,
                socket_connect_timeout=self._timeout_s,
                # What was sent may have been done: whoever asked decides whether to send it again.
                retry=Retry(NoBackoff(), 0),
                protocol=2,
                client_name="anytime",
            )
            pool.make_connection()
        except (TypeError, ValueError, RedisError) as error:
            raise AnytimeError(f"setting ANYTIME_SESSION_STORE: a parameter of its URL cannot be: {error}") from error
        return pool


def _first_of(error: BaseException) -> BaseException:
    """What went wrong first, of several tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
