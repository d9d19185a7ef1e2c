"""A client asks less of a server that refuses, and more again when it has time."""

from __future__ import annotations

import random

import pytest

from anytime_service.client.throttle import FEW, K, Throttle

BURST = 8.0


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def served(throttle: Throttle, clock: Clock, capacity: float, wanted: float, seconds: float) -> tuple[int, int, int]:
    """Predictions wanted, asked for and accepted of a server that accepts so many a second, and a few at once."""
    asked = accepted = 0
    tokens = BURST
    count = round(wanted * seconds)
    for _ in range(count):
        clock.now += 1.0 / wanted
        tokens = min(tokens + capacity / wanted, BURST)
        if throttle.rejects():
            continue
        asked += 1
        if tokens >= 1.0:
            tokens -= 1.0
            accepted += 1
            throttle.accepted()
        else:
            throttle.refused()
    return count, asked, accepted


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def throttle(clock: Clock) -> Throttle:
    return Throttle(clock, random.Random(0).random)


def test_a_server_that_accepts_is_asked_for_everything(throttle: Throttle, clock: Clock) -> None:
    wanted, asked, accepted = served(throttle, clock, 1_000.0, 500.0, 10.0)
    assert wanted == asked == accepted


@pytest.mark.parametrize("excess", [1.5, 2.0, 5.0, 50.0])
def test_a_server_that_refuses_is_asked_for_a_little_more_than_it_accepts(
    excess: float, throttle: Throttle, clock: Clock
) -> None:
    served(throttle, clock, 100.0, 100.0 * excess, 5.0)
    _, asked, accepted = served(throttle, clock, 100.0, 100.0 * excess, 20.0)
    assert accepted == pytest.approx(2_000, rel=0.05)
    assert accepted < asked < 1.1 * K * accepted


def test_when_it_has_time_again_it_is_soon_asked_for_everything(throttle: Throttle, clock: Clock) -> None:
    served(throttle, clock, 50.0, 200.0, 10.0)
    served(throttle, clock, 1_000.0, 200.0, 20.0)
    wanted, asked, _ = served(throttle, clock, 1_000.0, 200.0, 5.0)
    assert asked == wanted


def test_a_few_refusals_are_no_reason(throttle: Throttle) -> None:
    for _ in range(int(FEW)):
        throttle.refused()
        assert not throttle.rejects()


def test_what_is_long_ago_is_forgotten(throttle: Throttle, clock: Clock) -> None:
    for _ in range(100):
        throttle.refused()
    assert any(throttle.rejects() for _ in range(10))
    clock.now += 60.0
    assert not any(throttle.rejects() for _ in range(1_000))
