"""The body of a request: read under a limit, and let run out when the answer left before its end."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import NamedTuple

from starlette.types import Receive, Send

from anytime_service.errors import BodyTooLargeError

__all__ = ["LINGER_S", "Body", "ClientGoneError", "Reply", "now_ms", "respond"]

LINGER_S = 2.0
"""How long a body may go on after its answer: some clients read nothing before they have sent everything."""


class ClientGoneError(Exception):
    """The client closed the connection before its body ended: there is nobody to answer."""


class Reply(NamedTuple):
    """A response that is small enough to be sent at once; `close` says that the connection serves no other request."""

    status: int
    media_type: str
    content: bytes
    close: bool = False


def now_ms() -> float:
    """Tell the time, in milliseconds; event loops have clocks too, but keep them for a whole turn."""
    return perf_counter() * 1000.0


class Body:
    """The body of one request, read in a task of its own, so that waiting for it can end before it does.

    Parameters
    ----------
    receive : the channel that it comes by.
    limit : bytes that it may have; as many again are let pass once it is no longer wanted.

    Attributes
    ----------
    ended : whether all of it has come.  ended_ms : when.
    """

    def __init__(self, receive: Receive, limit: int) -> None:
        self.ended = False
        self.ended_ms = 0.0
        self._receive = receive
        self._limit = limit
        self._bytes = 0
        self._wanted = True
        self._chunks: list[bytes] = []
        self._reading: asyncio.Task[None] | None = None

    async def wait(self, seconds: float) -> bool:
        """Read on for at most that long; whether there is nothing more to wait for."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        # A timer that wakes us and cancels nothing is more punctual than a timeout, and the reading goes on.
        done, _ = await asyncio.wait([self._reading], timeout=seconds)
        return bool(done)

    def content(self) -> bytes:
        """Hand over the body, once there is nothing more to wait for.

        Raises
        ------
        BodyTooLargeError
            It goes on past the limit.
        ClientGoneError
            The connection closed before it ended.
        """
        if self._reading is not None:
            self._reading.result()
        return b"".join(self._chunks)

    async def run_out(self) -> bool:
        """Read on, keeping nothing, under the limit and for at most `LINGER_S`; whether it has ended."""
        self._wanted, self._bytes = False, 0
        self._chunks.clear()
        if (
            self._reading is not None and self._reading.done() and not self.ended
        ):  # stopped at the limit: go on from there
            self.close()
            self._reading = None
        await self.wait(LINGER_S)
        return self.ended

    def close(self) -> None:
        """Stop reading."""
        if self._reading is not None and not self._reading.cancel():
            self._reading.exception()  # looked at, so that the loop does not report it as forgotten

    async def _read(self) -> None:
        while not self.ended:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunk: bytes = message.get("body", b"")
            self._bytes += len(chunk)
            if self._bytes > self._limit:
                raise BodyTooLargeError(f"the body has more than {self._limit} bytes, which is as many as are taken")
            if self._wanted:
                self._chunks.append(chunk)
            self.ended = not message.get("more_body", False)
        self.ended_ms = now_ms()


async def respond(send: Send, reply: Reply, body: Body) -> None:
    """Send a response; if the body has not ended yet, the whole response first, then let the body run out.

    Sending the content with `more_body` delivers it at once and keeps the server reading under our limits; left to
    itself it reads on for as long as the client sends. If the body ends within them, the connection serves the next
    request; if not, we return without completing the response, upon which the server closes the connection.
    """
    headers = [(b"content-type", reply.media_type.encode()), (b"content-length", b"%d" % len(reply.content))]
    if reply.close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    early = not body.ended
    await send({"type": "http.response.body", "body": reply.content, "more_body": early})
    if early and (await body.run_out() or reply.close):
        await send({"type": "http.response.body", "body": b""})
