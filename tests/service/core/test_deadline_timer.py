"""Alarms on the two event loops. Late is what the machine makes it; early is a promise."""

from __future__ import annotations

import asyncio

import pytest

from anytime_service.clock import now_ms
from anytime_service.core.active_prediction import SLACK_MS, DeadlineTimer
from service.loops import LOOPS, run

every_loop = pytest.mark.parametrize("loop", LOOPS)


@every_loop
@pytest.mark.parametrize("delay_ms", [-5.0, 0.0, 0.1, 0.5, 0.95, 1.0, 1.05, 1.9, 5.0, 7.3, 20.0])
def test_an_alarm_strikes_once_and_hardly_ever_early(loop: str, delay_ms: float) -> None:
    async def main() -> list[float]:
        here = asyncio.get_running_loop()
        fired: list[float] = []
        for i in range(10):
            due = now_ms() + delay_ms + i / 10
            DeadlineTimer(here, due, lambda due=due: fired.append(now_ms() - due))  # type: ignore[misc]
        assert not fired, "never from the constructor"
        while len(fired) < 10:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        return fired

    late = run(main(), loop)
    assert len(late) == 10
    assert min(late) >= -SLACK_MS
    assert max(late) < 1_000


@every_loop
def test_many_alarms_fire_in_the_order_in_which_they_are_due(loop: str) -> None:
    async def main() -> list[tuple[float, float]]:
        here, begin = asyncio.get_running_loop(), now_ms()
        fired: list[tuple[float, float]] = []
        for i in range(500):
            due = begin + 20 + i * 167 % 500 / 10
            DeadlineTimer(here, due, lambda due=due: fired.append((due, now_ms() - due)))  # type: ignore[misc]
        while len(fired) < 500:
            await asyncio.sleep(0.005)
        return fired

    fired = run(main(), loop)
    assert len({due for due, _ in fired}) == 500
    latest, stall_ms = fired[0][0], max(late for _, late in fired)
    for due, _ in fired:
        # Two that are due within the slack and the loop's turn may change places.
        assert due > latest - 10 - stall_ms
        latest = max(latest, due)


@every_loop
def test_an_alarm_that_is_cancelled_never_strikes(loop: str) -> None:
    async def main() -> None:
        here = asyncio.get_running_loop()
        fired: list[int] = []
        alarms = [DeadlineTimer(here, now_ms() + delay, lambda: fired.append(1)) for delay in (-1, 0, 0.5, 1.5, 100)]
        for alarm in alarms[:4]:
            alarm.cancel()
        for _ in range(3):  # it has woken meanwhile, and looks again
            await asyncio.sleep(0.0005)
        alarms[4].cancel()
        alarms[4].cancel()
        await asyncio.sleep(0.03)
        assert not fired

    run(main(), loop)


@every_loop
def test_cancelling_from_the_strike_or_after_it_does_nothing(loop: str) -> None:
    async def main() -> None:
        fired: list[DeadlineTimer] = []

        def strike() -> None:
            fired.append(alarm)
            alarm.cancel()

        alarm = DeadlineTimer(asyncio.get_running_loop(), now_ms() + 1, strike)
        while not fired:
            await asyncio.sleep(0.001)
        alarm.cancel()
        await asyncio.sleep(0.01)
        assert len(fired) == 1

    run(main(), loop)


@every_loop
def test_the_loop_serves_others_while_an_alarm_waits(loop: str) -> None:
    async def main() -> int:
        turns, fired = 0, False

        def strike() -> None:
            nonlocal fired
            fired = True

        DeadlineTimer(asyncio.get_running_loop(), now_ms() + 0.9, strike)
        while not fired:
            turns += 1
            await asyncio.sleep(0)
        return turns

    # The machine may hold the process for the whole wait, but not every time.
    assert any(run(main(), loop) > 1 for _ in range(20))
