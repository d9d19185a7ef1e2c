"""The client sends fewer requests to a server that refuses them, and more after the overload."""

from __future__ import annotations

import random

import pytest

from anytime_service.client.engine import FEW, K, Throttle

BURST = 8.0


class Throttled(Throttle):
    """A throttle with a clock that the test moves."""

    now_s = 100.0

    def __init__(self) -> None:
        super().__init__(lambda: self.now_s, random.Random(0).random)


def served(throttle: Throttled, capacity: float, wanted: float, seconds: float) -> tuple[int, int, int]:
    """Return how many predictions were wanted, sent and accepted by a server with a capacity per second and a burst."""
    sent = accepted = 0
    tokens = BURST
    count = round(wanted * seconds)
    for _ in range(count):
        throttle.now_s += 1.0 / wanted
        tokens = min(tokens + capacity / wanted, BURST)
        if throttle.rejects():
            continue
        sent += 1
        taken = int(tokens >= 1.0)
        tokens, accepted = tokens - taken, accepted + taken
        throttle.record(accepted=bool(taken))
    return count, sent, accepted


def test_every_request_is_sent_to_a_server_that_accepts() -> None:
    throttle = Throttled()
    wanted, sent, accepted = served(throttle, 1_000.0, 500.0, 10.0)
    assert wanted == sent == accepted


@pytest.mark.parametrize("excess", [1.5, 2.0, 5.0, 50.0])
def test_a_server_that_refuses_receives_a_few_more_requests_than_it_accepts(excess: float) -> None:
    throttle = Throttled()
    served(throttle, 100.0, 100.0 * excess, 5.0)
    _, sent, accepted = served(throttle, 100.0, 100.0 * excess, 20.0)
    assert accepted == pytest.approx(2_000, rel=0.05)
    assert accepted < sent < 1.1 * K * accepted


def test_after_the_overload_every_request_is_soon_sent_again() -> None:
    throttle = Throttled()
    served(throttle, 50.0, 200.0, 10.0)
    served(throttle, 1_000.0, 200.0, 20.0)
    wanted, sent, _ = served(throttle, 1_000.0, 200.0, 5.0)
    assert sent == wanted


def test_a_few_refusals_and_old_ones_do_not_throttle() -> None:
    throttle = Throttled()
    for number in range(100):
        throttle.record(accepted=False)
        assert number >= FEW or not throttle.rejects()
    for passed_s, throttled in ((0.0, True), (60.0, False)):
        throttle.now_s += passed_s
        assert any(throttle.rejects() for _ in range(1_000)) == throttled
