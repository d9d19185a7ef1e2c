"""The time by which deadlines are kept."""

from __future__ import annotations

from time import perf_counter

__all__ = ["now_ms"]


def now_ms() -> float:
    """Tell the time, in milliseconds; event loops have clocks too, but keep them for a whole turn."""
    return perf_counter() * 1000.0
