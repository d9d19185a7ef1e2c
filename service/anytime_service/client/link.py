"""One live WebSocket that many predictions share, each by its id.

Nothing that the server sends can pile up here: of the updates of a prediction the last is kept, predictions that nobody
waits for are forgotten beyond a number, and what cannot be sent is bounded in bytes. A link that is lost stays lost;
`connection` makes another.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from anytime.inference.answer import Answer
from anytime_service.client.errors import ClientError, ConnectionLostError, ProblemError, ReplyError
from anytime_service.client.frames import Begin, End, Group, encode_frame
from anytime_service.client.margin import NetworkMargin
from anytime_service.client.replies import Reply, decode_reply

__all__ = ["Channel", "Link", "Outcome"]

MOST_OPEN = 1024
"""Predictions that may be open on one link."""

MOST_LEFT = 256
"""Predictions that nobody waits for whose answers can still teach the margin."""

MOST_UNSENT_BYTES = 64 * 1024 * 1024
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
        if len(self._open) >= MOST_OPEN:
            raise ClientError(f"{MOST_OPEN} predictions are open on this client; wait for some, or use another client")
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
        if self._unsent and self._unsent_bytes + len(content) > MOST_UNSENT_BYTES:
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
        while len(self._left) > MOST_LEFT:
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
