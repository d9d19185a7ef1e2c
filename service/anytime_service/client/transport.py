"""Where the server is: one address for its HTTP routes and its WebSocket.

One live WebSocket that many predictions share, each by its id.

Nothing that the server sends can pile up here: of the updates of a prediction the last is kept, predictions that nobody
waits for are forgotten beyond a number, and what cannot be sent is bounded in bytes. A link that is lost stays lost;
`connection` makes another.

The connection to a server: a link when there is one, another when it is lost.

    no link --link()--> connecting --> link, until it is lost
                            |
                            +--> refused: told to everyone who waits; the next attempt is not made before a pause

Who asks while an attempt is under way shares it. Pauses double from 50 ms to 1 s and vary by half, so that a server
that comes back is not met by all of its clients at once. Who has the time waits through a pause, who has not is told.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from anytime.inference.answer import Answer
from anytime_service.client.errors import ClientError, ClosedError, ConnectionLostError, ProblemError, ReplyError
from anytime_service.client.messages import (
    Begin,
    End,
    Group,
    Reply,
    decode,
    decode_reply,
    encode_frame,
    problem_of,
    seconds_of,
)
from anytime_service.client.throttle import NetworkMargin, Throttle

__all__ = [
    "MAX_REPLY_BYTES",
    "SUBPROTOCOL",
    "Address",
    "Channel",
    "Connection",
    "Link",
    "Outcome",
    "authorization",
]

SUBPROTOCOL = "anytime.v1"

_SECURE = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


@dataclass(frozen=True)
class Address:
    """Addresses of one server.

    Attributes
    ----------
    shown : what messages call it.
    http : base of the HTTP routes, without a slash at its end.
    stream : address of the WebSocket.
    uds : path of a Unix socket to connect to instead of the host that the addresses name; None over TCP.
    """

    shown: str
    http: str
    stream: str
    uds: str | None = None

    @classmethod
    def of(cls, url: str) -> Address:
        """Read `http://host:port`, `https://...`, with or without a path, or `unix:/path/of/socket`.

        Raises
        ------
        ClientError
            It is none of these.
        """
        if url.startswith("unix:") and len(url) > len("unix:"):
            # The host goes into the Host header, and nowhere else.
            return cls(url, "http://localhost", "ws://localhost/stream", url.removeprefix("unix:"))
        try:
            parts = urlsplit(url)
            known = parts.scheme in _SECURE and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:  # a port that is no number, a bracket that does not close
            known = False
        if not known or parts.query or parts.fragment:
            raise ClientError(f"the address of the server is {url!r}; expected one like http://127.0.0.1:8000")
        stream = _SECURE[parts.scheme]
        place = parts.netloc + parts.path.rstrip("/")
        return cls(url, f"{stream.replace('ws', 'http')}://{place}", f"{stream}://{place}/stream")


def authorization(api_key: str | None) -> dict[str, str]:
    """Headers that carry the key.

    Raises
    ------
    ClientError
        A header cannot carry it.
    """
    if api_key is None:
        return {}
    if not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        raise ClientError("the API key has characters that no header can carry; expected printable ASCII, no spaces")
    return {"Authorization": f"Bearer {api_key}"}


MAX_OPEN = 1024
"""Predictions that may be open on one link."""

MAX_LEFT = 256
"""Predictions that nobody waits for whose answers can still teach the margin."""

MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""Bytes that may wait to be sent; a network that lets more pile up is as good as broken."""

_log = logging.getLogger("anytime.client")

Outcome: TypeAlias = Answer | ProblemError | ConnectionLostError
"""What a prediction is told: its answer, that a frame of it was refused, that the link is lost."""


@dataclass(eq=False)
class Channel:
    """One prediction on a link.

    Attributes
    ----------
    id : its id on this link.  told_ms : the deadline that the server was told; None for none.
    wake : called with each outcome, in the event loop; None once nobody waits.
    begun : when it was begun, by `time.perf_counter`.
    update, answer : the last update and the answer, as far as they have come.
    """

    id: int
    told_ms: float | None
    wake: Callable[[Channel, Outcome], None] | None
    begun: float = field(default_factory=time.perf_counter)
    update: Answer | None = None
    answer: Answer | None = None

    def tell(self, outcome: Outcome) -> None:
        """Pass an outcome on to whoever waits."""
        if self.wake is not None:
            self.wake(self, outcome)


class Link:
    """A WebSocket at work; belongs to one event loop.

    Parameters
    ----------
    socket : connected.
    margin : learns from answers that a deadline interrupted.
    """

    def __init__(self, socket: ClientConnection, margin: NetworkMargin) -> None:
        self.lost: ConnectionLostError | None = None
        self._socket = socket
        self._margin = margin
        self._next = 0
        self._open: dict[int, Channel] = {}
        self._left: OrderedDict[int, Channel] = OrderedDict()
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._sendable = asyncio.Event()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        self._ending: asyncio.Task[None] | None = None

    def begin(self, begin: Begin, wake: Callable[[Channel, Outcome], None]) -> Channel:
        """Open a prediction as `begin` says, but for its id, which is the link's to give.

        Raises
        ------
        ClientError
            Too many are open.
        """
        if len(self._open) >= MAX_OPEN:
            raise ClientError(f"{MAX_OPEN} predictions are open on this client; wait for some, or use another client")
        channel = Channel(self._next, begin.deadline_ms, wake)
        self._next += 1
        if self.lost is None:
            self._open[channel.id] = channel
            self.send(msgspec.structs.replace(begin, id=channel.id))
        else:
            channel.tell(self.lost)
        return channel

    def send(self, frame: Begin | Group | End) -> None:
        """Send a frame as soon as the network takes it; dropped when the link is lost."""
        if self.lost is not None:
            return
        content = encode_frame(frame)
        if self._unsent and self._unsent_bytes + len(content) > MAX_UNSENT_BYTES:
            self._lose(f"the network does not take what is sent: {self._unsent_bytes} bytes wait already")
            return
        self._unsent.append(content)
        self._unsent_bytes += len(content)
        self._sendable.set()

    def leave(self, channel: Channel) -> None:
        """Wait no longer for a prediction; its answer, if it still comes, is dropped."""
        channel.wake = None
        if self._open.pop(channel.id, None) is None:
            return
        self._left[channel.id] = channel
        while len(self._left) > MAX_LEFT:
            self._left.popitem(last=False)

    async def close(self) -> None:
        """Close the socket and wait until nothing works on it any more; a lost link closes by itself too."""
        self._lose("the client was closed")
        if self._ending is not None:
            await self._ending

    async def _end(self) -> None:
        with suppress(Exception):  # a socket that breaks while it is closed is closed
            await self._socket.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while True:
                reply = decode_reply(await self._socket.recv())
                if reply is not None:
                    self._take(reply)
        except ConnectionClosed as error:
            self._lose(_closing(error))
        except ReplyError as error:
            self._lose(str(error))
        except Exception as error:
            _log.exception("reading from the server failed")
            self._lose(f"reading from the server failed: {error!r}")  # nobody must wait for a reader that is no more

    async def _write(self) -> None:
        with suppress(ConnectionClosed):  # which the reader tells
            while True:
                await self._sendable.wait()
                while self._unsent:
                    frame = self._unsent.popleft()
                    self._unsent_bytes -= len(frame)
                    await self._socket.send(frame)
                self._sendable.clear()

    def _take(self, reply: Reply) -> None:
        channel = None
        if isinstance(reply.id, int):
            channel = self._open.get(reply.id) or self._left.get(reply.id)
        if channel is None:
            if isinstance(reply.content, ProblemError) and reply.id is None:
                _log.warning("the server refused a frame: %s", reply.content)
        elif isinstance(reply.content, ProblemError):
            channel.tell(reply.content)
        elif reply.final:
            self._open.pop(channel.id, None)
            self._left.pop(channel.id, None)
            self._learn(channel, reply.content)
            channel.answer = reply.content
            channel.tell(reply.content)
        else:
            channel.update = reply.content

    def _learn(self, channel: Channel, answer: Answer) -> None:
        if answer.reason != "deadline" or channel.told_ms is None:
            return
        delay_ms = (time.perf_counter() - channel.begun) * 1e3 - channel.told_ms
        # Far too early: the server keeps to a maximum of its own, which says nothing of the network.
        early = delay_ms < -1.0
        if channel.told_ms == 0.0:
            self._margin.guess(delay_ms)
        elif not early:
            self._margin.add(delay_ms)

    def _lose(self, reason: str) -> None:
        if self.lost is not None:
            return
        self.lost = ConnectionLostError(reason)
        channels = list(self._open.values())
        self._open.clear()
        self._left.clear()
        self._unsent.clear()
        self._unsent_bytes = 0
        self._ending = asyncio.create_task(self._end())
        for channel in channels:
            channel.tell(self.lost)


def _closing(error: ConnectionClosed) -> str:
    """Say how a connection ended."""
    frame = error.rcvd
    if frame is None:
        return "the connection to the server broke"
    reason = f" {frame.reason}" if frame.reason else ""
    return f"the server closed the connection ({frame.code}{reason})"


MAX_REPLY_BYTES = 64 * 1024 * 1024
"""Largest reply that is read: 10,000 rows of 100 classes, and as much again."""

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0

PING_INTERVAL_S = 5.0
PING_TIMEOUT_S = 10.0
"""A network that has gone silent is noticed after 15 s; until then answers are missed one by one."""

CLOSE_TIMEOUT_S = 1.0


class Connection:
    """Keeps a link to one server; belongs to one event loop.

    Parameters
    ----------
    address, headers : where and with what to connect.
    timeout_s : how long an attempt may take.
    ssl : context for `wss`; None for the system's own.
    """

    def __init__(
        self, address: Address, headers: Mapping[str, str], *, timeout_s: float, ssl: SSLContext | None = None
    ) -> None:
        self.margin = NetworkMargin()
        self.throttle = Throttle()
        self._address = address
        self._headers = dict(headers)
        self._timeout_s = timeout_s
        self._ssl = ssl
        self._link: Link | None = None
        self._attempt: asyncio.Task[Link | ClientError] | None = None
        self._refused: ClientError | None = None
        self._refusals = 0
        self._retry_at = 0.0
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def link(self, until: float | None = None) -> Link | None:
        """Find the link, or make one.

        Parameters
        ----------
        until : when to wait no longer, by `time.perf_counter`; None waits for as long as an attempt may take.

        Returns
        -------
        Link or None
            None when the moment came first; the attempt goes on.

        Raises
        ------
        ConnectionLostError
            The server cannot be reached.
        ProblemError
            It refuses the connection: the key is wrong, it is full.
        """
        if self._closed:
            raise ClosedError("this client is closed; make another")
        if self._link is not None and self._link.lost is None:
            return self._link
        if self._refused is not None and until is not None and until < self._retry_at:
            raise copy.copy(self._refused) from self._refused
        if self._attempt is None:
            self._attempt = asyncio.create_task(self._connect())
        attempt = self._attempt
        await asyncio.wait({attempt}, timeout=None if until is None else max(0.0, until - time.perf_counter()))
        if not attempt.done():
            return None
        if attempt.cancelled():
            raise ClosedError("this client was closed meanwhile; make another")
        made = attempt.result()
        if isinstance(made, ClientError):
            raise copy.copy(made) from made
        return made

    async def close(self) -> None:
        """Close the link, and give up an attempt at one."""
        self._closed = True
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.gather(self._attempt, return_exceptions=True)
        if self._link is not None:
            await self._link.close()
        await asyncio.gather(*self._closing)

    async def _connect(self) -> Link | ClientError:
        """Make a link; what goes wrong is returned, since perhaps nobody waits for it any more."""
        try:
            await asyncio.sleep(max(0.0, self._retry_at - time.perf_counter()))
            made = await self._open()
        finally:
            self._attempt = None
        if isinstance(made, Link):
            if self._link is not None:  # it is lost; what is left of it may take a second to close
                closing = asyncio.create_task(self._link.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            self._link, self._refused, self._refusals = made, None, 0
        else:
            self._refused, self._refusals = made, self._refusals + 1
            pause = min(FIRST_PAUSE_S * 2.0 ** min(self._refusals - 1, 16), LONGEST_PAUSE_S)
            self._retry_at = time.perf_counter() + pause * random.uniform(0.5, 1.0)  # noqa: S311  (no secret)
        return made

    async def _open(self) -> Link | ClientError:
        where: dict[str, Any] = {}
        if self._address.uds is not None:
            where = {"unix": True, "path": self._address.uds}
        elif self._ssl is not None:
            where = {"ssl": self._ssl}
        try:
            socket = await connect(
                self._address.stream,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                compression=None,  # numbers do not shrink, and it takes time that nobody has
                additional_headers=self._headers,
                open_timeout=self._timeout_s,
                close_timeout=CLOSE_TIMEOUT_S,
                ping_interval=PING_INTERVAL_S,
                ping_timeout=PING_TIMEOUT_S,
                max_size=MAX_REPLY_BYTES,
                **where,
            )
        except InvalidStatus as error:
            return self._refusal(error)
        except (OSError, WebSocketException) as error:
            return ConnectionLostError(f"cannot connect to {self._address.shown}: {_reason(error)}")
        if socket.subprotocol != SUBPROTOCOL:
            await socket.close(1002)
            return ConnectionLostError(f"{self._address.shown} does not speak {SUBPROTOCOL}; is it an anytime server?")
        return Link(socket, self.margin)

    def _refusal(self, error: InvalidStatus) -> ClientError:
        """Read why the handshake was refused."""
        response = error.response
        status = response.status_code
        if "problem+json" in response.headers.get("Content-Type", "") and response.body:
            try:
                return problem_of(
                    decode(bytes(response.body)), status, seconds_of(response.headers.get("Retry-After", ""))
                )
            except ReplyError:
                pass
        return ConnectionLostError(f"{self._address.shown} refused the connection with HTTP status {status}")


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__
