"""Clock for deadlines."""

from __future__ import annotations

from time import perf_counter


def now_ms() -> float:
    """Return the time in ms. The clocks of event loops are not used, since they may stand still during a turn."""
    return perf_counter() * 1000.0
