"""Waiting for many at once, each for the same time: a connection for its request, a body for its end.

All wait equally long, so they are overdue in the order in which they began. Beginning and ending cost a dictionary's
entry; there is one timer, for the one that has waited longest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Patience"]

Item = TypeVar("Item")


class Patience(Generic[Item]):
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
