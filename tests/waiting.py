"""How tests wait for a state: with one limit, which only a broken program exceeds on any machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic, sleep

WAIT_S = 60.0


def until(holds: Callable[[], object], expected: str = "what the line of this call waits for") -> None:
    """Wait until something holds; the first checks follow each other fast, since one may take milliseconds of work."""
    give_up, pause_s = monotonic() + WAIT_S, 0.005
    while not holds():
        if monotonic() > give_up:
            raise AssertionError(f"waited {WAIT_S:g} s in vain: {expected}")
        sleep(pause_s)
        pause_s = min(1.2 * pause_s, 0.05)


async def until_async(holds: Callable[[], object], expected: str = "what the line of this call waits for") -> None:
    """Wait until something holds, and let the event loop run meanwhile."""
    give_up = monotonic() + WAIT_S
    while not holds():
        if monotonic() > give_up:
            raise AssertionError(f"waited {WAIT_S:g} s in vain: {expected}")
        await asyncio.sleep(0.005)
