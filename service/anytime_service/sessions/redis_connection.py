"""Connection to Redis: scripts with a time limit, one subscription, and the availability of the store.

A request waits for Redis for at most its time limit. The command then continues in the background, since cancelling it
would cost the connection. One task keeps the subscription. It checks once a second, and at once after a request without
an answer, whether Redis works. If the check fails, the task connects again, after a pause that grows and is random, so
that replicas do not connect at the same time. Only if that fails too is the store unavailable, and requests are refused
without a call to Redis until a connection succeeds.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import FullJitterBackoff, NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError as RedisConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError as RedisTimeoutError,
)

from anytime.errors import AnytimeError
from anytime_service.errors import SessionsUnreachableError
from anytime_service.sessions.redis_format import reported
from anytime_service.urls import shown_address

CONNECTIONS = 16  # number of connections for requests; the subscription has one more
AT_A_TIME = 16  # messages to receive before other tasks run
_PAUSES = FullJitterBackoff(cap=1.0, base=0.05)

_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (AuthenticationError, "it refuses the user or the password"),
    (NoPermissionError, "its user lacks a permission"),
    (BusyLoadingError, "it is loading its data"),
    (OutOfMemoryError, "it is out of memory"),
    (ReadOnlyError, "it is a read-only copy"),
    (ResponseError, "it answers with an error"),
    (RedisConnectionError, "there is no connection to it"),
    (OSError, "there is no connection to it"),
)

_log = logging.getLogger("anytime_service")


class RedisConnection:
    """One replica's connection to Redis, by a URL that `checked_address` accepts.

    `check` uses `run` to check whether Redis works. `background` runs while the subscription exists. `on_subscription`
    is called with True when it begins, and with False when it is lost. Raise AnytimeError if a parameter of the URL is
    invalid.
    """

    def __init__(
        self,
        url: str,
        timeout_ms: float,
        channel: str,
        check_s: float,
        *,
        on_message: Callable[[bytes], None],
        check: Callable[[], Awaitable[None]],
        background: Callable[[], Iterable[Coroutine[Any, Any, None]]],
        on_subscription: Callable[[bool], None],
    ) -> None:
        self.trouble: str | None = "there was no attempt to connect yet"
        self._address = shown_address(url)
        self._timeout_s = timeout_ms / 1000.0
        self._channel = channel
        self._check_s = check_s
        self._on_message, self._check = on_message, check
        self._background, self._on_subscription = background, on_subscription
        try:
            self._pool: Any = BlockingConnectionPool.from_url(  # redis-py does not annotate all of its types
                url,
                max_connections=CONNECTIONS,
                timeout=self._timeout_s,
                socket_timeout=self._timeout_s,
                socket_connect_timeout=self._timeout_s,
                # A command that was sent may have been executed: the caller decides whether to repeat it.
                retry=Retry(NoBackoff(), 0),
                protocol=2,
                client_name="anytime",
            )
            self._pool.make_connection()  # type: ignore[no-untyped-call]
        except (TypeError, ValueError, RedisError) as error:
            raise AnytimeError(f"setting ANYTIME_SESSION_STORE: invalid parameter in the URL: {error}") from error
        self._redis: Any = Redis(connection_pool=self._pool)
        self._script: Callable[[str], Any] = cache(self._redis.register_script)
        self._running: set[asyncio.Task[Any]] = set()
        self._task: asyncio.Task[None] | None = None
        self._check_now = asyncio.Event()
        self._received = asyncio.Event()
        self._tried = asyncio.Event()

    async def start(self) -> None:
        """Start, and wait until the first attempt to connect succeeds or fails."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_subscribed())
        await self._tried.wait()

    async def close(self) -> None:
        if self._task is not None:
            while not self._task.done():
                self._task.cancel()
                await asyncio.wait((self._task,), timeout=self._timeout_s)
            self._task = None
            self._tried.clear()
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=self._timeout_s)
            for task in late:
                task.cancel()
        with suppress(RedisError, OSError):
            await self._pool.disconnect()

    async def call(
        self, script: str, keys: Sequence[str], arguments: Sequence[Any], limit_ms: float | None = None
    ) -> Any:
        """Run a script, unless Redis is known to be unavailable; see `run`."""
        await self.start()
        if self.trouble is not None:
            raise SessionsUnreachableError(self.trouble)
        return await self.run(script, keys, arguments, limit_ms)

    async def run(
        self, script: str, keys: Sequence[str], arguments: Sequence[Any], limit_ms: float | None = None
    ) -> Any:
        """Run a script and return its reply; wait at most `limit_ms`, if that is shorter than `timeout_ms`.

        Raise SessionsUnreachableError if there was no answer in time, or Redis answered with an error; the script may
        still be executed. Raise DamagedSessionError if a key has a value of another type.
        """
        return await self._reply(self._script(script)(keys=keys, args=arguments), keys[0], limit_ms)

    async def fetch(self, key: str, limit_ms: float | None = None) -> Mapping[bytes, bytes]:
        """Return a hash, empty without one; raises as `run`."""
        fields: Mapping[bytes, bytes] = await self._reply(self._redis.execute_command("HGETALL", key), key, limit_ms)
        return fields

    async def _reply(self, call: Coroutine[Any, Any, Any], key: str, limit_ms: float | None) -> Any:
        wait_s = self._timeout_s if limit_ms is None else min(self._timeout_s, max(limit_ms / 1000.0, 0.0))
        try:
            return await self._in_time(call, wait_s)
        except (RedisError, OSError) as error:
            if isinstance(error, ResponseError) and "WRONGTYPE" in str(error):  # Redis 6 names the script before it
                raise reported(
                    f"another program wrote key {key[:100]!r} in Redis; begin another session by POST /sessions"
                ) from error
            if isinstance(error, ResponseError):
                _log.error("the session store refused a command: %s: %s", self._reason(error, 0.0), error)
            elif wait_s >= self._timeout_s or not isinstance(error, TimeoutError):
                self._check_now.set()
            raise SessionsUnreachableError(self._reason(error, wait_s)) from error

    async def _in_time(self, call: Coroutine[Any, Any, Any], wait_s: float) -> Any:
        """Wait for a call at most `wait_s`; it is not cancelled, since that may get lost or cost a connection."""
        task = asyncio.get_running_loop().create_task(call)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # Its exception is retrieved, also if the caller has stopped waiting.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        if not (await asyncio.wait((task,), timeout=wait_s))[0]:
            raise TimeoutError
        return task.result()

    async def _keep_subscribed(self) -> None:
        failures = 0
        while True:
            connection = self._pool.make_connection()
            try:
                async with asyncio.timeout(self._timeout_s):
                    await connection.connect()
                    await connection.send_command("SUBSCRIBE", self._channel)
                    await connection.read_response()
                await self._check()
                if self.trouble is not None and self._tried.is_set():
                    _log.info("the session store is available again at %s", self._address)
                self.trouble, failures = None, 0
                self._tried.set()
                self._on_subscription(True)
                async with asyncio.TaskGroup() as tasks:
                    for work in (self._listen(connection), self._watch(connection), *self._background()):
                        tasks.create_task(work)
            except Exception as raised:
                error: BaseException = raised
                failures += 1
                self._on_subscription(False)
                while isinstance(error, BaseExceptionGroup):
                    error = error.exceptions[0]
                await self._failed(error, once=failures == 1 and self.trouble is None)
            finally:
                with suppress(RedisError, OSError):
                    await connection.disconnect(nowait=True)
            await asyncio.sleep(_PAUSES.compute(failures))

    async def _listen(self, connection: Any) -> None:
        for count in itertools.count(1):
            reply = await connection.read_response(timeout=3600.0)  # silence is normal; `_watch` detects a lost link
            self._received.set()
            if reply is not None and reply[0] == b"message":
                self._on_message(reply[2])
            if count % AT_A_TIME == 0:
                await asyncio.sleep(0)

    async def _watch(self, connection: Any) -> None:
        """Check that the subscription and the connections for requests answer."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._check_s):
                    await self._check_now.wait()
            self._check_now.clear()
            self._received.clear()
            await self._in_time(connection.send_command("PING"), self._timeout_s)
            await self._check()
            async with asyncio.timeout(self._timeout_s):
                await self._received.wait()

    async def _failed(self, error: BaseException, *, once: bool) -> None:
        """Mark the store as unavailable and log it, unless this is the first failure (`once`), which is ignored."""
        if not isinstance(error, RedisError | OSError | AnytimeError):
            _log.error("the subscription to the session store failed", exc_info=error)
        if once:
            return
        reason = self._reason(error, self._timeout_s)
        if self.trouble is None or not self._tried.is_set():
            _log.error(
                "the session store is unavailable at %s: %s (%s); other requests are served",
                self._address,
                reason,
                str(error) or type(error).__name__,
            )
        self.trouble = reason
        self._tried.set()
        with suppress(RedisError, OSError):  # idle connections may lead to the address of a former Redis server
            await self._pool.disconnect(inuse_connections=False)

    def _reason(self, error: BaseException, waited_s: float) -> str:
        if isinstance(error, SessionsUnreachableError):
            return error.why
        if isinstance(error, TimeoutError | RedisTimeoutError):
            return f"no answer within {waited_s * 1000.0:.0f} ms"
        return next(
            (reason for kind, reason in _REASONS if isinstance(error, kind)), "an error of this server; see its log"
        )
