"""Laps of an event loop: how long it takes to come round once, and how much it works, a few hundred times a second.

A lap is measured between two callbacks that follow each other by one turn. Meanwhile the loop does not sleep, so that
what is measured is work alone: all that had come, and was due, at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import thread_time

from anytime_service.admission import PERIOD_MS
from anytime_service.clock import now_ms

__all__ = ["Pulse"]


class Pulse:
    """Measures laps for as long as it is told to go on.

    Parameters
    ----------
    lapped : called with the time, how long a lap took, and the time of the processor that the loop's thread has taken
        since the lap before; tells whether to measure another.
    """

    def __init__(self, lapped: Callable[[float, float, float], bool]) -> None:
        self._lapped = lapped
        self._begun_ms = 0.0
        self._worked_ms = 0.0

    def start(self) -> None:
        """Begin; in the event loop."""
        self._worked_ms = thread_time() * 1000.0
        self._wait()

    def _wait(self) -> None:
        asyncio.get_running_loop().call_later(PERIOD_MS / 1000.0, self._beat)

    def _beat(self) -> None:
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._begun_ms = now_ms()
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        now, worked_ms = now_ms(), thread_time() * 1000.0
        since_ms, self._worked_ms = worked_ms - self._worked_ms, worked_ms
        if self._lapped(now, now - self._begun_ms, since_ms):
            self._wait()
