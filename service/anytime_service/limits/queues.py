"""Timeout queue and TTL cache."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from anytime_service.clock import now_ms
from anytime_service.limits.turns import slice_end

Item = TypeVar("Item")


class TimeoutQueue(Generic[Item]):
    """Items that share the timeout `limit_s`: connections that wait for a request, bodies that wait for their end.

    They expire in the order in which they were added, so a single timer serves the oldest one, and adding or removing
    one costs one dictionary operation. The event loop calls `on_timeout` with each, after its removal from the queue;
    of many that expire together, as many in a turn as fit in its slice.
    """

    def __init__(self, limit_s: float, on_timeout: Callable[[Item], None]) -> None:
        self._limit_s = limit_s
        self._on_timeout = on_timeout
        self._since: dict[Item, float] = {}
        self._timer: asyncio.Handle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def first(self) -> Item:
        return next(iter(self._since))

    def begin(self, item: Item) -> None:
        if item not in self._since:
            self._since[item] = now_ms()
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
