"""Floods delay no other connection, and are read at their rate limit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from statistics import median
from threading import Event, Thread
from time import monotonic, perf_counter

import pytest

from anytime_service.settings import Settings
from service.limits.test_fairness import RATE, SENT, messages, pieces, pings
from service.raw_stream import raw, read_frame, text
from service.serving import Connection, Running, run_service, small_model

MIN_S = 0.95 * (SENT - RATE / 10) / RATE
"""A message after a flood waits so long: a burst is read at once, and the rest at the rate."""


@pytest.fixture(scope="module")
def slow() -> Iterator[Running]:
    with run_service([small_model()], Settings(port=0, max_message_rate=RATE)) as service:
        yield service


@pytest.mark.parametrize("flood", [messages, pings, pieces])
def test_a_stream_is_read_at_most_at_its_rate(slow: Running, flood: Callable[[Connection, Running], None]) -> None:
    with raw(slow) as connection:
        begun = monotonic()
        flood(connection, slow)
        connection.send(text({"type": "begin", "id": "after", "deadline_ms": 0}))
        assert json.loads(read_frame(connection)[1])["id"] == "after"
        assert monotonic() - begun > MIN_S


def lateness_of_messages(service: Running, count: int) -> list[float]:
    """How long after their 20 ms answers come, as this client sees it."""
    late = []
    with service.stream() as stream:
        for i in range(count):
            begun = perf_counter()
            assert stream.ask(i, {"speed": [2.0]}, deadline_ms=20)["reason"] == "deadline"
            late.append((perf_counter() - begun) * 1000 - 20)
    return late


def flood_with_messages(service: Running, stop: Event) -> None:
    with raw(service) as connection:
        connection.send(text({"type": "begin", "id": 1, "deadline_ms": 0}))
        while not stop.is_set():
            connection.send(text({"type": "end", "id": 1}) * 2_000)  # dropped: it has been answered


def test_a_flood_does_not_delay_other_clients(service: Running) -> None:
    alone = lateness_of_messages(service, 20)
    stop = Event()
    flooding = Thread(target=flood_with_messages, args=(service, stop))
    flooding.start()
    try:
        loaded = lateness_of_messages(service, 40)
    finally:
        stop.set()
        flooding.join(30)
    # Client, flood and service share one interpreter here, so the bounds are wide.
    assert median(loaded) < median(alone) + 60
    assert max(loaded) < max(alone) + 1_000
