"""The time of a turn of the event loop, and the only place that hands it out.

A turn is one poll of the sockets, and what runs until the next. Whatever a client can make long works for a `Slice` and
then lets the loop poll: messages and requests that a connection has received, groups that are decoded and added,
deadlines that are due together, timeouts, events of a session, pages, metrics. What is left waits for a later turn in
one of the queues of `Turns`, whose length load shedding reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from anytime_service.clock import now_ms

SLICE_MS = 1.0  # time for one piece of work, and for a queue, in each turn; what has started when it is over still ends
AT_ONCE = 16 * 1024  # bytes of a message that shares a turn with others; a longer one has a turn of its own
LEARNED = 0.1  # weight of the latest turn of a long message in their mean duration


class Slice:
    """The time that some work has in this turn, from now on."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = now_ms() + SLICE_MS

    def is_over(self) -> bool:
        return now_ms() > self._until


class FairQueue:
    """A first-in, first-out queue of callbacks that has a slice of each turn of the event loop.

    Connections that send a megabyte of tiny messages slow each other down, but not connections that send little.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._due = False
        self._slice: Slice | None = None  # that of `run` in this turn

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def submit(self, work: Callable[[], None]) -> None:
        self._waiting.append(work)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._work)

    def run(self, work: Callable[[], None]) -> None:
        """Do some work at once, or in its order when the slice of this turn is over."""
        if not (self._due or self._slice):
            self._slice = Slice()
            asyncio.get_running_loop().call_soon(self._end_turn)
        if self._due or (self._slice is not None and self._slice.is_over()):
            self.submit(work)
        else:
            work()

    def _end_turn(self) -> None:
        self._slice = None

    def _work(self) -> None:
        here = Slice()
        try:
            while self._waiting:
                self._waiting.popleft()()
                if here.is_over():
                    break
        finally:  # an error of one callback is no reason to forget the others
            self._due = bool(self._waiting)
            if self._due:
                asyncio.get_running_loop().call_soon(self._work)


class Turns:
    """The queues of a server: deadlines that are `due`, other `work`, and long messages, one in each turn."""

    def __init__(self) -> None:
        self.due = FairQueue()
        self.work = FairQueue()
        self._long = asyncio.Lock()
        self._waiting = 0
        self._took_ms = 0.0
        self._begun_ms = 0.0

    @property
    def unread(self) -> bool:
        """Whether bytes were received that are not decoded, or may wait in a socket."""
        return bool(self.work) or self._long.locked()

    @property
    def long_ms(self) -> float:
        """The expected time until a long message that arrives now has its turn."""
        return self._waiting * self._took_ms

    async def turn(self, size: int = AT_ONCE + 1) -> None:
        """Wait for the next turn of the loop, in which one long message may be decoded, or a slice of others."""
        if size <= AT_ONCE:
            return
        self._waiting += 1
        try:
            async with self._long:
                await asyncio.sleep(0)
        finally:
            self._waiting -= 1
            now = now_ms()
            if self._begun_ms:  # another one had its turn directly before
                self._took_ms += (now - self._begun_ms - self._took_ms) * LEARNED
            self._begun_ms = now if self._waiting else 0.0

    def slices(self) -> Callable[[], Awaitable[None]]:
        """Return a function that waits for the next turn of the loop when a request has used its time in this one."""
        here = Slice()

        async def after_one() -> None:
            nonlocal here
            if here.is_over():
                await self.turn()
                here = Slice()

        return after_one
