"""The client sends fewer requests to a server that refuses them, and more after the overload."""

from __future__ import annotations

import random

import pytest

from anytime_service.client.engine import FEW, K, Throttle

BURST = 8.0


class Clock:
    """Seconds that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def served(throttle: Throttle, clock: Clock, capacity: float, wanted: float, seconds: float) -> tuple[int, int, int]:
    """Return how many predictions were wanted, sent and accepted by a server with a capacity per second and a burst."""
    sent = accepted = 0
    tokens = BURST
    count = round(wanted * seconds)
    for _ in range(count):
        clock.now += 1.0 / wanted
        tokens = min(tokens + capacity / wanted, BURST)
        if throttle.rejects():
            continue
        sent += 1
        taken = int(tokens >= 1.0)
        tokens, accepted = tokens - taken, accepted + taken
        throttle.record(accepted=bool(taken))
    return count, sent, accepted


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def throttle(clock: Clock) -> Throttle:
    return Throttle(clock, random.Random(0).random)


def test_every_request_is_sent_to_a_server_that_accepts(throttle: Throttle, clock: Clock) -> None:
    wanted, sent, accepted = served(throttle, clock, 1_000.0, 500.0, 10.0)
    assert wanted == sent == accepted


@pytest.mark.parametrize("excess", [1.5, 2.0, 5.0, 50.0])
def test_a_server_that_refuses_receives_a_few_more_requests_than_it_accepts(
    excess: float, throttle: Throttle, clock: Clock
) -> None:
    served(throttle, clock, 100.0, 100.0 * excess, 5.0)
    _, sent, accepted = served(throttle, clock, 100.0, 100.0 * excess, 20.0)
    assert accepted == pytest.approx(2_000, rel=0.05)
    assert accepted < sent < 1.1 * K * accepted


def test_after_the_overload_every_request_is_soon_sent_again(throttle: Throttle, clock: Clock) -> None:
    served(throttle, clock, 50.0, 200.0, 10.0)
    served(throttle, clock, 1_000.0, 200.0, 20.0)
    wanted, sent, _ = served(throttle, clock, 1_000.0, 200.0, 5.0)
    assert sent == wanted


def test_a_few_refusals_and_old_ones_do_not_throttle(throttle: Throttle, clock: Clock) -> None:
    for number in range(100):
        throttle.record(accepted=False)
        assert number >= FEW or not throttle.rejects()
    for passed_s, throttled in ((0.0, True), (60.0, False)):
        clock.now += passed_s
        assert any(throttle.rejects() for _ in range(1_000)) == throttled
