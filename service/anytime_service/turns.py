"""Turns for connections that have sent more than is taken apart at once.

However many they are, together they have a millisecond of each turn of the event loop; who comes first is who waited
longest. So connections that send a megabyte of tiny messages slow each other, not those that send little.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from anytime_service.clock import now_ms

__all__ = ["SHARE_MS", "Turns"]

SHARE_MS = 1.0
"""Time in each turn of the loop; whoever has begun when it is over still finishes a slice."""


class Turns:
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
