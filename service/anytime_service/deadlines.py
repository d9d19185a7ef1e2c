"""Alarms that strike on time, on event loops that count in whole milliseconds.

An event loop's timer is a rough tool: uvloop rounds a delay to milliseconds and counts it from a clock that stood still
since its turn began, so it fires up to .9 ms early (libuv#4773) or half a millisecond late. An alarm asks it for the
whole milliseconds that are left and spends the rest, less than one, going round the loop, which serves everything else
meanwhile. Nothing is cancelled and no task is woken on the way to the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anytime_service.clock import now_ms

__all__ = ["SLACK_MS", "Alarm"]

SLACK_MS = 0.2
"""An alarm may strike this much early, rather than go round the loop for so little."""


def _nothing() -> None:
    """Do nothing."""


class Alarm:
    """Calls back once, at `due_ms` by our clock; earlier by at most `SLACK_MS`, later by what the loop is busy.

    Parameters
    ----------
    loop : the event loop that runs.
    due_ms : when, by `now_ms`.
    strike : called from the loop, never from the constructor.
    """

    __slots__ = ("_due_ms", "_handle", "_loop", "_strike")

    def __init__(self, loop: asyncio.AbstractEventLoop, due_ms: float, strike: Callable[[], None]) -> None:
        self._loop = loop
        self._due_ms = due_ms
        self._strike = strike
        self._handle = self._armed(due_ms - now_ms())

    def cancel(self) -> None:
        """Never strike. Safe at any time."""
        self._handle.cancel()
        self._strike = _nothing  # which has this alarm: together they would wait for the garbage collector

    def _armed(self, left_ms: float) -> asyncio.Handle:
        whole = int(left_ms)
        return self._loop.call_later(whole / 1000.0, self._wake) if whole > 0 else self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        left_ms = self._due_ms - now_ms()
        if left_ms > SLACK_MS:
            self._handle = self._armed(left_ms)
        else:
            self._strike()
