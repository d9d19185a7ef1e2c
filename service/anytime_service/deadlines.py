"""Alarms that strike on time, on event loops that count in whole milliseconds.

An event loop's timer is a rough tool: uvloop rounds a delay to milliseconds and counts it from a clock that stood still
since its turn began, so it fires up to .9 ms early (libuv#4773) or half a millisecond late. An alarm asks it for the
whole milliseconds that are left and spends the rest, less than one, going round the loop, which serves everything else
meanwhile. Nothing is cancelled and no task is woken on the way to the answer.

A process that was stopped, or a loop that was busy, calls its timers late, and before it has read what arrived in the
meantime. An alarm that is late lets the loop read its sockets first, so that the answer uses what they hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anytime_service.clock import now_ms

__all__ = ["SLACK_MS", "Alarm"]

SLACK_MS = 0.2
"""An alarm may strike this much early, rather than go round the loop for so little."""

LATE_MS = 1.0
"""An alarm that wakes later than this lets the loop read its sockets before it calls back."""

READS = 3
"""How often the loop then reads its sockets: for the bytes, for a slice of them, for the task that decodes messages."""

READING_MS = 2.0
"""Time after which a late alarm calls back, even if the sockets have not been read so often."""


def _nothing() -> None:
    """Do nothing."""


class Alarm:
    """Calls back once, at `due_ms` by our clock; earlier by at most `SLACK_MS`, later while the loop is busy.

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
        now = now_ms()
        left_ms = self._due_ms - now
        if left_ms > SLACK_MS:
            self._handle = self._armed(left_ms)
        elif left_ms < -LATE_MS:
            self._read(now + READING_MS, READS)
        else:
            self._strike()

    def _read(self, until_ms: float, reads: int) -> None:
        """Call back once the loop has read its sockets `reads` more times, or `until_ms` is past."""
        if reads < 0 or now_ms() >= until_ms:  # below 0: uvloop calls timers before it reads, asyncio after
            self._strike()
        else:
            self._handle = self._loop.call_soon(self._read, until_ms, reads - 1)
