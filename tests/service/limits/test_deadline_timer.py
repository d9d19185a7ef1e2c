"""Timers of deadlines: on a simulated event loop, and on the two that the service runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from anytime_service.clock import now_ms
from anytime_service.limits import turns
from anytime_service.limits.turns import SLACK_MS, DeadlineTimer, Turns
from service.loops import LOOPS

every_loop = pytest.mark.parametrize("loop", LOOPS)

FREE: Any = SimpleNamespace(due=SimpleNamespace(run=lambda call: call()), unread=False)
"""Turns in which nothing waits."""

TURN_MS = 0.001
"""How long each callback of the simulated loop takes."""


class ClockLoop:
    """An event loop whose time stands still while it works, and whose timers fire early, as those of uvloop do."""

    def __init__(self, early_ms: float) -> None:
        self.now_ms = 0.0
        self._early_ms = early_ms
        self._numbers = count()
        self._due: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []

    def call_soon(self, call: Callable[..., object], *arguments: object) -> None:
        heappush(self._due, (self.now_ms, next(self._numbers), call, arguments))

    def call_later(self, delay_s: float, call: Callable[..., object], *arguments: object) -> None:
        at_ms = self.now_ms + max(1000.0 * delay_s - self._early_ms, 0.0)
        heappush(self._due, (at_ms, next(self._numbers), call, arguments))

    def run(self) -> None:
        while self._due:
            at_ms, _, call, arguments = heappop(self._due)
            self.now_ms = max(self.now_ms, at_ms) + TURN_MS
            call(*arguments)


@pytest.mark.parametrize("early_ms", [0.0, 0.5, 0.9])
def test_timers_fire_once_in_order_and_at_most_the_slack_early(
    early_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop: Any = ClockLoop(early_ms)
    monkeypatch.setattr(turns, "now_ms", lambda: loop.now_ms)
    fired: list[tuple[float, float]] = []
    dues = [-5.0, 0.0, 0.1, 0.5, 0.95, 1.0, 1.05, 1.9, 5.0, 7.3, *(20 + i * 167 % 500 / 10 for i in range(500))]
    for due in dues:
        DeadlineTimer(loop, FREE, due, partial(lambda due: fired.append((due, loop.now_ms)), due))
    assert not fired, "never from the constructor"
    loop.run()
    assert sorted(due for due, _ in fired) == sorted(dues)
    latest, turns_ms = 0.0, len(dues) * TURN_MS
    for due, at_ms in fired:
        assert due - SLACK_MS <= at_ms <= max(due, 0.0) + 2 * turns_ms
        assert max(due, 0.0) >= latest - SLACK_MS - turns_ms
        latest = max(latest, due)


@every_loop
async def test_a_timer_that_is_cancelled_never_fires(loop: str) -> None:
    here = asyncio.get_running_loop()
    fired: list[int] = []
    timers = [
        DeadlineTimer(here, Turns(), now_ms() + delay, lambda: fired.append(1)) for delay in (-1, 0, 0.5, 1.5, 100)
    ]
    for timer in timers[:4]:
        timer.cancel()
    for _ in range(3):  # it has woken meanwhile, and looks again
        await asyncio.sleep(0.0005)
    for _ in range(2):
        timers[4].cancel()

    def expire() -> None:
        fired.append(2)
        timer.cancel()

    timer = DeadlineTimer(here, Turns(), now_ms() + 1, expire)
    while not fired:
        await asyncio.sleep(0.001)
    timer.cancel()
    await asyncio.sleep(0.02)
    assert fired == [2], "once, and cancelled from its callback and after it"


def test_the_loop_serves_others_while_a_timer_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    loop: Any = ClockLoop(0.0)
    monkeypatch.setattr(turns, "now_ms", lambda: loop.now_ms)
    order: list[str] = []

    def serve() -> None:
        order.append("serve")
        if "fire" not in order:
            loop.call_soon(serve)

    DeadlineTimer(loop, FREE, 0.9, lambda: order.append("fire"))
    loop.call_soon(serve)
    loop.run()
    assert (order.count("serve") > 1, order.count("fire")) == (True, 1)
