"""SIGHUP from the start of `anytime serve` to its end: it requests a reload, and never ends the process.

The command calls `remember` before it imports and loads anything. A server that has started handles the signals itself,
also those of before.
"""

from __future__ import annotations

import signal
from threading import current_thread, main_thread

remembered: list[int] = []
"""Signals that no server has handled yet."""


def remember() -> None:
    if current_thread() is main_thread():
        signal.signal(signal.SIGHUP, lambda number, _: remembered.append(number))
