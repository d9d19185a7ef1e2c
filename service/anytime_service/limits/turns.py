"""The time of a turn of the event loop, and the only place that hands it out.

A turn is one poll of the sockets, and what runs until the next. Whatever a client can make long works until its
`slice_end` and then lets the loop poll: messages and requests that a connection has received, groups that are decoded
and added, deadlines that are due together, timeouts, events of a session, pages, metrics. The rest waits for a later
turn in one of the queues of `Turns`, whose length load shedding reads.

`DeadlineTimer` fires on time although event loops count in whole milliseconds. uvloop rounds a delay to milliseconds
and counts it from a clock that it updates once per iteration, so its timers fire up to 0.9 ms early (libuv#4773) or
half a millisecond late. The deadline timer uses a loop timer for the whole milliseconds, and then reschedules itself in
every iteration, while the loop continues to serve everything else.

A process that was stopped, or a loop that was busy, calls its timers late, and before it reads the data that arrived
meanwhile. A deadline timer that is late lets the loop read its sockets first, so that the answer uses this data.

What many items share is one timer: `TimeoutQueue` has items with the same timeout, `TTLCache` removes old ones when it
gets a new one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar, cast

from anytime.inference.deadline import STALL_S, LateReading
from anytime_service.clock import now_ms

Item = TypeVar("Item")
Result = TypeVar("Result")

SLICE_MS = 1.0  # time for one piece of work, and for a queue, in each turn; what has started when it is over still ends
AT_ONCE = 16 * 1024  # bytes of a message that shares a turn with others; a longer one has a turn of its own
SLACK_MS = 0.2  # a deadline timer may fire this much early instead of running one more iteration of the loop
LEARNED = 0.1  # weight of the latest turn of a long message in their mean duration


def slice_end() -> float:
    """Return the time until which work that begins now goes on in this turn, in ms of `now_ms`."""
    return now_ms() + SLICE_MS


def finished(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine that waits for nothing, in any thread; raise RuntimeError if it waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return cast(Result, done.value)
    coroutine.close()
    raise RuntimeError(f"{coroutine} waits for something; it needs the event loop")


class FairQueue:
    """A first-in, first-out queue of callbacks that has a slice of each turn of the event loop.

    Connections that send a megabyte of tiny messages slow each other down, but not connections that send little.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._due = False
        self._until = 0.0  # the end of the slice of this turn; 0 before it begins

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def submit(self, work: Callable[[], None]) -> None:
        self._waiting.append(work)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._work)

    def run(self, work: Callable[[], None]) -> None:
        """Do some work at once, or in its order when the slice of this turn is over."""
        if self._waiting or now_ms() > self._slice():
            self.submit(work)
        else:
            work()

    def _slice(self) -> float:
        """Return the end of the slice of this turn, which begins now unless it has begun."""
        if not self._until:
            self._until = slice_end()
            asyncio.get_running_loop().call_soon(self._end_turn)
        return self._until

    def _end_turn(self) -> None:
        self._until = 0.0

    def _work(self) -> None:
        until = self._slice()
        try:
            while self._waiting:
                self._waiting.popleft()()
                if now_ms() > until:
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
        until = slice_end()

        async def after_one() -> None:
            nonlocal until
            if now_ms() > until:
                await self.turn()
                until = slice_end()

        return after_one


class DeadlineTimer:
    """A timer that calls `expire` once at `due_ms`; at most `SLACK_MS` earlier, and later while the loop is busy.

    It never calls from the constructor. The timers of one turn of the loop call for a slice of it, others in later
    turns.
    """

    __slots__ = ("_due_ms", "_expire", "_handle", "_loop", "_turns")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, turns: Turns, due_ms: float, expire: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._turns = turns
        self._due_ms = due_ms
        self._expire = expire
        self._handle: asyncio.Handle = loop.call_later(max(int(due_ms - now_ms()), 0) / 1000.0, self._wake)

    def cancel(self) -> None:
        self._handle.cancel()
        self._expire = lambda: None  # the callback refers to this timer; the cycle would wait for the garbage collector

    def _wake(self) -> None:
        now = now_ms()
        remaining_ms = self._due_ms - now
        if remaining_ms > SLACK_MS:
            self._handle = self._loop.call_later(int(remaining_ms) / 1000.0, self._wake)
        elif remaining_ms < -STALL_S * 1000.0:
            self._read(LateReading(-remaining_ms / 1000.0, now / 1000.0))
        else:
            self._turns.due.run(self._call)

    def _read(self, reading: LateReading) -> None:
        """Call back after the loop has read what had arrived."""
        if reading.has_turn(now_ms() / 1000.0, unread=self._turns.unread):
            self._handle = self._loop.call_soon(self._read, reading)
        else:
            self._turns.due.run(self._call)

    def _call(self) -> None:
        self._expire()  # as it is then: maybe the timer was cancelled meanwhile


class TimeoutQueue(Generic[Item]):
    """Items that share the timeout `limit_s`: connections that wait for a request, bodies that wait for their end.

    They expire in the order in which they were added, so a single timer serves the oldest one, and adding or removing
    one costs one dictionary operation. The event loop calls `on_timeout` with each, after its removal from the queue;
    of many that expire together, as many in a turn as fit in its slice. Of more than `most`, the oldest expires at
    once.
    """

    def __init__(self, limit_s: float, on_timeout: Callable[[Item], None], most: float = float("inf")) -> None:
        self._limit_s = limit_s
        self._most = most
        self._on_timeout = on_timeout
        self._since: dict[Item, float] = {}
        self._timer: asyncio.Handle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def begin(self, item: Item) -> None:
        if item not in self._since:
            self._since[item] = now_ms()
            if len(self._since) > self._most:
                self._drop(next(iter(self._since)))
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._expire)

    def end(self, item: Item) -> None:
        """Remove an item. Idempotent."""
        self._since.pop(item, None)

    def _expire(self) -> None:
        self._timer = None
        until = slice_end()
        while self._since:
            item, since = next(iter(self._since.items()))
            now = now_ms()
            remaining_s = (since - now) / 1000.0 + self._limit_s
            if remaining_s > 0 or now > until:
                self._timer = asyncio.get_running_loop().call_later(max(remaining_s, 0.0), self._expire)
                return
            self._drop(item)

    def _drop(self, item: Item) -> None:
        del self._since[item]
        self._on_timeout(item)


class TTLCache(OrderedDict[Hashable, tuple[float, Item]]):
    """Items by name, removed in the order in which they were added: beyond `max_items`, or after `ttl_ms`.

    Each is stored with the time when it was added. `add` removes expired items; until its next call they stay.
    """

    def __init__(self, max_items: int, ttl_ms: float) -> None:
        super().__init__()
        self._max_items = max_items
        self._ttl_ms = ttl_ms

    def find(self, name: Hashable) -> Item | None:
        return self.get(name, (0.0, None))[1]

    def add(self, name: Hashable, item: Item, now_ms: float) -> None:
        self[name] = now_ms, item
        self.move_to_end(name)
        while len(self) > self._max_items or next(iter(self.values()))[0] < now_ms - self._ttl_ms:
            self.popitem(last=False)
