"""Waiting for many at once, each for the same time: a connection for its request, a body for its end.

All wait equally long, so they are overdue in the order in which they began. Beginning and ending cost a dictionary's
entry; there is one timer, for the one that has waited longest.

Turns for connections that have sent more than is taken apart at once.

However many they are, together they have a millisecond of each turn of the event loop; who comes first is who waited
longest. So connections that send a megabyte of tiny messages slow each other, not those that send little.

How many messages a second one connection may send: a bucket that fills at the rate and is emptied by messages.

What is remembered of things that are over: for a while, and not of too many.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from anytime_service.clock import now_ms

__all__ = [
    "SHARE_MS",
    "FairQueue",
    "TTLCache",
    "TimeoutQueue",
    "TokenBucket",
]

Item = TypeVar("Item")


class TimeoutQueue(Generic[Item]):
    """Those who are waited for.

    Parameters
    ----------
    limit_s : how long each is waited for.
    over : called from the event loop with each that took longer; it is not waited for any more then.
    """

    def __init__(self, limit_s: float, over: Callable[[Item], None]) -> None:
        self._limit_s = limit_s
        self._over = over
        self._since: dict[Item, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def first(self) -> Item:
        """Who has been waited for longest."""
        return next(iter(self._since))

    def begin(self, item: Item) -> None:
        """Wait for somebody, if that has not begun."""
        if item not in self._since:
            loop = asyncio.get_running_loop()
            self._since[item] = loop.time()
            if self._timer is None:
                self._timer = loop.call_later(self._limit_s, self._look)

    def end(self, item: Item) -> None:
        """Wait no longer. Safe at any time."""
        self._since.pop(item, None)

    def _look(self) -> None:
        """Let go of those who are overdue, and look again when the next is."""
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._since:
            item, since = next(iter(self._since.items()))
            left_s = since + self._limit_s - loop.time()
            if left_s > 0:
                self._timer = loop.call_later(left_s, self._look)
                return
            del self._since[item]
            self._over(item)


SHARE_MS = 1.0
"""Time in each turn of the loop; whoever has begun when it is over still finishes a slice."""


class FairQueue:
    """A queue, worked off a little in each turn of the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._due = False

    def ask(self, work: Callable[[], None]) -> None:
        """Ask for one turn."""
        self._waiting.append(work)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        until = now_ms() + SHARE_MS
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()
            if now_ms() > until:
                break
        self._due = bool(self._waiting)
        if self._due:
            asyncio.get_running_loop().call_soon(self._work)


BURST_S = 0.1
"""Messages of so much time may come at once."""

LEAST = 100.0
"""As many may come at once however low the rate is."""


class TokenBucket:
    """The bucket of one connection.

    Parameters
    ----------
    rate : messages a second; 0 is no limit.
    """

    __slots__ = ("_at_ms", "_left", "_most", "_rate_ms")

    def __init__(self, rate: float) -> None:
        self._rate_ms = rate / 1000.0
        self._most = self._left = max(rate * BURST_S, LEAST)
        self._at_ms = 0.0

    def spend(self, count: int, now_ms: float) -> float:
        """Take out messages that have come; the milliseconds to wait before more are taken, 0 for none."""
        if self._rate_ms == 0.0:
            return 0.0
        self._left = min(self._left + (now_ms - self._at_ms) * self._rate_ms, self._most) - count
        self._at_ms = now_ms
        return 0.0 if self._left >= 0.0 else -self._left / self._rate_ms


class TTLCache(Generic[Item]):
    """Items by name, forgotten in the order in which they came.

    Parameters
    ----------
    most : how many there may be.
    for_ms : how long each is remembered at least, where that is not too many, and until another comes.
    """

    def __init__(self, most: int, for_ms: float) -> None:
        self._most = most
        self._for_ms = for_ms
        self._kept: OrderedDict[str | int, tuple[float, Item]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: object) -> bool:
        return name in self._kept

    def get(self, name: str | int) -> Item | None:
        """The item of a name, None if there is none or no more."""
        found = self._kept.get(name)
        return None if found is None else found[1]

    def add(self, name: str | int, item: Item, now_ms: float) -> None:
        """Remember an item, and forget what is old or too many."""
        kept = self._kept
        kept[name] = now_ms, item
        while len(kept) > self._most or next(iter(kept.values()))[0] < now_ms - self._for_ms:
            kept.popitem(last=False)

    def forget(self, name: str | int) -> None:
        """Forget a name, if it is known."""
        self._kept.pop(name, None)
