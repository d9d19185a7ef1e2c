"""Sending from a callback: an ASGI `send` run on the spot, so that an answer need not wait for a task's turn.

`send` is a coroutine that nearly never waits: it writes to the socket's buffer and returns. Started by hand it has
written when it returns. Where the client reads too slowly it does wait, and goes on as a task.

One HTTP request and its one response, which may leave before the request has ended.

Sending the whole response with `more_body` delivers it at once and keeps the server reading under our limits; left to
itself it reads on for as long as the client sends. If the body ends within them, the connection serves the next
request; if not, we return without completing the response, upon which the server closes the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any, NamedTuple, cast

from starlette.types import Receive, Scope, Send

from anytime_service.clock import now_ms
from anytime_service.errors import BodyTooLargeError, SlowRequestError
from anytime_service.limits.memory import Held
from anytime_service.limits.queues import TimeoutQueue

__all__ = ["ABORT", "ADMITTED", "CHARGE", "KEEP", "LINGER_S", "Exchange", "Reply", "decided", "start"]


def start(awaitable: Awaitable[None]) -> asyncio.Task[None] | None:
    """Run a coroutine up to where it first waits; None if it has ended, else the task in which it goes on.

    It must not ask for the current task before it waits: there is none.
    """
    running = cast(Coroutine[Any, Any, None], awaitable)  # what every ASGI server's `send` returns
    try:
        waiting_for = running.send(None)
    except StopIteration:
        return None
    task = asyncio.get_running_loop().create_task(_resumed(running, waiting_for))
    task.add_done_callback(lambda _: running.close())  # cancelled before its first turn, it has resumed nothing
    return task


async def _resumed(running: Coroutine[Any, Any, None], waiting_for: Any) -> None:
    await _relayed(running, waiting_for)


@coroutine
def _relayed(running: Coroutine[Any, Any, None], waiting_for: Any) -> Generator[Any, Any, None]:
    """Hand what a started coroutine waits for to the task that this runs in, and what comes of it back."""
    while True:
        try:
            try:
                got = yield waiting_for
            except BaseException as error:
                waiting_for = running.throw(error)
            else:
                waiting_for = running.send(got)
        except StopIteration:
            return


LINGER_S = 2.0
"""How long a body may go on after its answer: some clients read nothing before they have sent everything."""


class Reply(NamedTuple):
    """A response that is small enough to be sent at once."""

    status: int
    media_type: str
    content: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    close: bool = False
    """Whether the connection is to serve no other request."""


class Exchange:
    """A request that is read and a response that is sent, in any order.

    Parameters
    ----------
    receive, send : the channels.
    limit : bytes that the body may have; as many again are let pass after the response.
    held : counts the bytes of the body that are kept.
    bodies : waits for whole bodies where no deadline answers before; None waits for as long as it takes.

    Attributes
    ----------
    replied : whether the response has been sent.
    gone : whether the client closed the connection before it was.
    ended : whether the whole body has come.  ended_ms : when.
    rest : called with what still comes of the body after the response, where that is of use; at the end maybe with
        nothing.
    """

    __slots__ = (
        "_advice",
        "_bodies",
        "_bytes",
        "_close",
        "_held",
        "_kept",
        "_late",
        "_limit",
        "_linger",
        "_lingered",
        "_most",
        "_receive",
        "_send",
        "_sending",
        "_task",
        "ended",
        "ended_ms",
        "gone",
        "replied",
        "rest",
    )

    def __init__(
        self,
        receive: Receive,
        send: Send,
        limit: int,
        held: Held | None = None,
        bodies: TimeoutQueue[Exchange] | None = None,
    ) -> None:
        self.replied = False
        self.gone = False
        self.ended = False
        self.ended_ms = 0.0
        self.rest: Callable[[bytes], None] | None = None
        self._receive = receive
        self._send = send
        self._limit = self._most = limit
        self._advice = "send fewer rows or groups at once"
        self._held = held
        self._kept = 0
        self._bodies = bodies
        self._late = False
        self._bytes = 0
        self._close = False
        self._task: asyncio.Task[object] | None = None
        self._sending: list[asyncio.Task[None]] = []
        self._linger: asyncio.TimerHandle | None = None
        self._lingered = False

    def limit_to(self, limit: int, advice: str) -> None:
        """Limit this body to fewer bytes than others; `advice` is what the refusal says to do."""
        if limit < self._limit:
            self._most, self._advice = limit, advice

    def may_be_interrupted(self) -> None:
        """Say that a timer may send the response; called by the task that reads the request."""
        self._task = asyncio.current_task()

    def reply(self, reply: Reply) -> None:
        """Send the response, on the spot; from the request's own task or from a timer. Only the first one is sent."""
        if self.replied or self.gone:
            return
        self.replied, self._close = True, reply.close
        headers = list(reply.headers)
        if reply.status != 204:
            headers.append((b"content-type", reply.media_type.encode()))
            headers.append((b"content-length", b"%d" % len(reply.content)))
        if reply.close:
            headers.append((b"connection", b"close"))
        self._push({"type": "http.response.start", "status": reply.status, "headers": headers})
        self._push({"type": "http.response.body", "body": reply.content, "more_body": not self.ended})
        if not self.ended:
            self._bytes = 0
            self._task = self._task or asyncio.current_task()
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._stop_lingering)

    async def body(self) -> AsyncIterator[bytes]:
        """Read the body, as it comes, until it has ended or the response has been sent.

        Raises
        ------
        BodyTooLargeError
            It goes on past the limit.
        """
        while not (self.ended or self.replied or self.gone):
            chunk = await self._next()
            self._check_size()
            if chunk and not self.replied:
                yield chunk

    async def whole(self) -> bytes:
        """Read the body to its end, or until the response has been sent.

        Raises
        ------
        BodyTooLargeError
            It goes on past the limit of bytes.
        SlowRequestError
            It goes on past the limit of time.
        OverloadedError
            Too many bytes are held already.
        """
        chunks: list[bytes] = []
        if self._bodies is not None:
            self._task = asyncio.current_task()
            self._bodies.begin(self)
        try:
            while not (self.ended or self.replied or self.gone):
                chunks.append(await self._next())
                self._check_size()
                self.keeps(self._bytes)
        finally:
            if self._bodies is not None:
                self._bodies.end(self)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def overdue(self) -> None:
        """Have the reading of a body that has not come in time end with SlowRequestError."""
        if self._task is not None:
            self._late = True
            self._task.cancel()

    def keeps(self, size: int) -> None:
        """Tell how many bytes of the body are kept, until `finish`.

        Raises
        ------
        OverloadedError
            Too many bytes are held already.
        """
        if self._held is not None:
            if size > self._kept:
                self._held.check(size - self._kept)
            self._held.bytes += size - self._kept
            self._kept = size

    async def finish(self) -> None:
        """Wait for the response, let the rest of the body run out after it, and complete it."""
        self.keeps(0)
        if self.ended and self.replied and self._linger is None and not self._sending:
            return
        try:
            while not (self.replied or self.gone):  # a timer will send it, if the client stays
                await self._next()
            early = self._linger is not None
            while not (self.ended or self.gone or self._bytes > self._limit):
                await self._next()
            for task in self._sending:
                await task
            if early and not self.gone and (self.ended or self._close):
                await self._send({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:
            if not self._lingered:
                raise
        finally:
            self.keeps(0)  # late lines may have been looked at
            if self._linger is not None:
                self._linger.cancel()

    def _check_size(self) -> None:
        if self._bytes > self._most:
            raise BodyTooLargeError(f"the body has more than {self._most} bytes, which is the limit; {self._advice}")

    async def _next(self) -> bytes:
        try:
            message = await self._receive()
        except asyncio.CancelledError:
            if self._late:
                self._late = False
                raise SlowRequestError("the body has not come in time; send it at once, or with a deadline") from None
            if not self._lingered:
                raise
            self.gone = True
            return b""
        if message["type"] == "http.disconnect":
            self.gone = not self.replied or not self.ended
            return b""
        chunk: bytes = message.get("body", b"")
        self._bytes += len(chunk)
        if not message.get("more_body", False):
            self.ended, self.ended_ms = True, now_ms()
        if self.replied and self.rest is not None:
            self.rest(chunk)
        return chunk

    def _push(self, message: dict[str, object]) -> None:
        if self._sending:  # the client reads slowly: the messages follow each other
            self._sending.append(asyncio.get_running_loop().create_task(self._after_last(self._sending[-1], message)))
            return
        task = start(self._send(message))
        if task is not None:
            self._sending.append(task)

    async def _after_last(self, last: asyncio.Task[None], message: dict[str, object]) -> None:
        await last
        await self._send(message)

    def _stop_lingering(self) -> None:
        self._lingered = True
        if self._task is not None:
            self._task.cancel()


ADMITTED = "anytime_service.admitted"
"""In the state of a request's scope: whether its prediction is begun, where that has been decided."""


KEEP = "anytime_service.keep"
"""In the state of a request's scope: takes the reply that the next request with this head is told at once."""


def decided(scope: Scope) -> tuple[bool | None, Callable[[Reply], None] | None]:
    """What has been decided of a request: whether its prediction is begun, and who keeps the base rate told instead."""
    state = scope.get("state") or {}
    return state.get(ADMITTED), state.get(KEEP)


ABORT = "anytime_service.abort"
"""Extension of a WebSocket's scope whose `abort` cuts the connection off."""


CHARGE = "anytime_service.charge"
"""Extension of a WebSocket's scope whose `charge` has what the connection holds counted by another `Held`."""
