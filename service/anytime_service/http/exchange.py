"""Sending to a client that may read slowly or not at all: the exchange of HTTP, the send queue of a WebSocket.

`Exchange` is one HTTP request and its one response, which may be sent before the request has ended. The server then
reads the rest within its limits, so that the client receives the response, and passes it to an application that still
wants it. Other servers discard it.

Both use `start`, which runs an ASGI `send` directly from a callback, so that an answer does not wait for a task.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from types import coroutine
from typing import Any, NamedTuple, Protocol, cast

from starlette.types import Receive, Scope, Send

from anytime_service.clock import now_ms
from anytime_service.errors import BodyTooLargeError
from anytime_service.limits.memory import Account
from anytime_service.limits.turns import slice_end

MAX_BYTES = 1024 * 1024  # most bytes queued for a client that does not read; above it, the server gives up
ADMITTED = "anytime_service.admitted"  # key in the ASGI state: the decision of admission control, if it is already made
STORE_REPLY = "anytime_service.keep"  # key in the ASGI state: stores the reply for further requests with this head

_log = logging.getLogger("anytime_service")


class DirectConnection(Protocol):
    """The extension `DIRECT`: what a WebSocket of this server can do beyond ASGI, for the application's task.

    `sent_bytes` counts the content of all messages.
    """

    sent_bytes: int

    def abort(self) -> None:
        """Close without a closing handshake, which would wait for a client that does not read."""

    def charge(self, account: Account) -> None:
        """Count the bytes of the connection on another account."""

    def deliver(self, on_message: Callable[[str | bytes | bytearray], None]) -> None:
        """Pass every message to `on_message` when it is read, in the context of this task; `receive` skips them."""

    def write(self, content: bytes, *, text: bool) -> bool:
        """Send a message; return False, and do nothing, if the client does not read or the connection is closed."""


def admission_of(scope: Scope) -> tuple[bool | None, Callable[[Reply], None] | None]:
    """Return the values of `ADMITTED` and `STORE_REPLY` in a request's ASGI scope, each None if absent."""
    state = scope.get("state") or {}
    return state.get(ADMITTED), state.get(STORE_REPLY)


def start(awaitable: Awaitable[None], context: Context | None = None) -> asyncio.Task[None] | None:
    """Run a coroutine until it first waits; return None if it has ended, else the task that continues it.

    Sending almost never waits, except for a client that reads too slowly. The coroutine must not use the current task
    before its first wait, because it runs outside any task until then. It runs in `context`, if that is given.
    """
    running = cast(Coroutine[Any, Any, None], awaitable)  # what every ASGI server's `send` returns
    try:
        waiting_for = running.send(None) if context is None else context.run(running.send, None)
    except StopIteration:
        return None
    task = asyncio.get_running_loop().create_task(_resumed(running, waiting_for), context=context)
    task.add_done_callback(lambda _: running.close())  # a task cancelled before its first step has resumed nothing
    return task


async def _resumed(running: Coroutine[Any, Any, None], waiting_for: Any) -> None:
    await _relayed(running, waiting_for)


@coroutine
def _relayed(running: Coroutine[Any, Any, None], waiting_for: Any) -> Generator[Any, Any, None]:
    """Pass the futures of a started coroutine to the current task, and their results back to the coroutine."""
    while True:
        try:
            try:
                result = yield waiting_for
            except BaseException as error:
                waiting_for = running.throw(error)
            else:
                waiting_for = running.send(result)
        except StopIteration:
            return


class Reply(NamedTuple):
    """A response that is small enough to be sent in one piece."""

    status: int
    media_type: str
    content: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    close: bool = False
    """Whether the server closes the connection after the response."""

    def all_headers(self) -> list[tuple[bytes, bytes]]:
        content = (b"content-type", self.media_type.encode()), (b"content-length", b"%d" % len(self.content))
        close = (b"connection", b"close")
        return [*self.headers, *(content if self.status != 204 else ()), *((close,) if self.close else ())]


async def send_reply(send: Send, reply: Reply, kind: str = "http.response") -> None:
    """Send a reply as the response to a request, or to a handshake by the kind `websocket.http.response`."""
    await send({"type": f"{kind}.start", "status": reply.status, "headers": reply.all_headers()})
    await send({"type": f"{kind}.body", "body": reply.content})


class Exchange:
    """One request and its response; the response may be sent before the request is read completely.

    Parameters
    ----------
    limit : int
        Maximum number of bytes of the body.
    account : Account
        The account that counts the stored bytes of the body.

    Attributes
    ----------
    gone
        Whether the client closed the connection before the response was sent.
    ended
        Whether the complete body has been received, at `ended_ms`.
    rest : Callable[[bytes], None] | None
        Callback that receives the chunks of the body after the response, if set; the last chunk may be empty.
    """

    def __init__(self, receive: Receive, send: Send, limit: int, account: Account) -> None:
        self.replied = False
        self.gone = False
        self.ended = False
        self.ended_ms = 0.0
        self.rest: Callable[[bytes], None] | None = None
        self._receive = receive
        self._send = send
        self._limit = limit
        self._advice = "send fewer rows or groups at once"
        self._account = account
        self._retained = 0
        self._bytes = 0
        self._sending: asyncio.Task[None] | None = None  # the response, while the client reads slowly

    def limit_to(self, limit: int, advice: str) -> None:
        """Set a lower limit for the bytes of this body; the error about a larger body contains `advice`."""
        if limit < self._limit:
            self._limit, self._advice = limit, advice

    def reply(self, reply: Reply) -> None:
        """Send the response at once, from the request's task or from a timer; ignore every call after the first."""
        if not (self.replied or self.gone):
            self.replied = True
            self._sending = start(send_reply(self._send, reply))

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the chunks of the body until it ends or the response has been sent; raise BodyTooLargeError."""
        while not (self.ended or self.replied or self.gone):
            chunk = await self._next()
            if chunk and not self.replied:
                yield chunk

    async def read_all(self) -> bytes | bytearray:
        """Return the body, read until it ends or the response has been sent.

        It grows in one block: pieces of several bodies alternate in memory, and the gaps they leave serve no large one.
        Raise BodyTooLargeError, or OverloadedError if the memory budget is exhausted.
        """
        content: bytes | bytearray = b""
        while not (self.ended or self.replied or self.gone):
            chunk = await self._next()
            self.retain(self._bytes)
            if content and isinstance(content, bytes):
                content = bytearray(content)
            content += chunk
        return content

    def retain(self, size: int) -> None:
        """Set the number of stored bytes of the body as `store`, or raise OverloadedError if more do not fit."""
        if size > self._retained:
            self._account.check(size - self._retained)
        self.store(size)

    def store(self, size: int) -> None:
        """Set the number of stored bytes of the body, without a check; `finish` sets it to 0."""
        self._account.add(size - self._retained)
        self._retained = size

    async def finish(self) -> None:
        """Wait for the response, and pass the rest of the body to `rest`."""
        self.retain(0)
        self._limit = sys.maxsize  # the answer does not depend on the rest
        while not (self.replied or self.gone):  # a timer sends it, unless the client disconnects
            await self._next()
        if self.rest is not None:
            try:
                while not (self.ended or self.gone):
                    await self._next()
            finally:
                self.retain(0)  # reading late lines may have stored bytes
        if self._sending is not None:
            await self._sending

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.gone = not (self.replied and self.ended)
            return b""
        chunk: bytes = message.get("body", b"")
        self._bytes += len(chunk)
        if not message.get("more_body", False):
            self.ended, self.ended_ms = True, now_ms()
        if not self.replied:
            if self._bytes > self._limit:
                raise BodyTooLargeError(f"the body has more than {self._limit} bytes; {self._advice}")
        elif self.rest is not None:
            self.rest(chunk)
        return chunk


class SendQueue:
    """Queue that sends messages in order, and without delay as long as the client reads; `account` counts its bytes.

    It calls `give_up` once if the client is unreachable or reads too slowly. `slow` is whether messages wait.
    """

    def __init__(self, send: Send, give_up: Callable[[], None], account: Account) -> None:
        self._send = send
        self._give_up: Callable[[], None] | None = give_up  # None when it is closed
        self._queue: deque[tuple[dict[str, Any], int]] = deque()
        self._bytes = 0
        self._account = account
        self._flushing: asyncio.Task[None] | None = None
        self.slow = False

    def put(self, message: dict[str, Any], size: int) -> None:
        """Send an ASGI message of about `size` bytes, or queue it; never wait."""
        if self._give_up is None:
            return
        self._queue.append((message, size))
        self._count(size)
        if not self.slow:
            self._flushing = start(self._flush())
            self.slow = self._flushing is not None
        elif self._bytes > MAX_BYTES or not self._account.fits(0):
            self._fail()

    def close(self) -> None:
        """Discard the queue, and send no further message."""
        self._give_up = None
        self._queue.clear()
        if self._bytes:
            self._count(-self._bytes)
        if self._flushing is not None:
            self._flushing.cancel()

    async def flushed(self) -> None:
        if self._flushing is not None:
            await asyncio.wait([self._flushing])

    async def _flush(self) -> None:
        """Send the queued messages when the client reads; yield to the event loop in between."""
        try:
            until = slice_end()
            while self._queue:
                message, size = self._queue.popleft()
                self._count(-size)
                await self._send(message)
                if now_ms() > until:
                    await asyncio.sleep(0)
                    until = slice_end()
        except Exception as error:
            self._fail(error)
        finally:
            self._flushing, self.slow = None, False

    def _count(self, more: int) -> None:
        self._bytes += more
        self._account.add(more)

    def _fail(self, error: Exception | None = None) -> None:
        """Give up on the client; `error` is the reason, an OSError if the client has disconnected."""
        give_up = self._give_up
        if give_up is not None:
            if error is not None and not isinstance(error, OSError):
                _log.warning("giving up on a client: %s: %s", type(error).__name__, error)
            self.close()
            give_up()
