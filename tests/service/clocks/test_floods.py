"""Floods delay no other connection, and are read at their rate limit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from statistics import median
from threading import Event, Thread
from time import monotonic, perf_counter

import pytest

from anytime_service.settings import Settings
from service.limits.test_fairness import RATE, SENT, messages, pieces, pings
from service.raw_stream import raw, read_frame, text
from service.serving import LINES, VALUES, Connection, Running, chunk, lines_of, run_service, small_model

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


def lateness_of_posts(service: Running, count: int) -> list[float]:
    late = []
    with service.connect() as connection:
        for _ in range(count):
            begun = perf_counter()
            connection.head("deadline_ms=20", content_type=LINES)
            connection.send(chunk(lines_of({"speed": VALUES["speed"]})))
            answer = connection.response()[2]
            late.append((perf_counter() - begun) * 1000 - 20)
            assert (answer["reason"], answer["groups"]) in (("deadline", ["speed"]), ("deadline", []))
            connection.send(b"0\r\n\r\n")
    return late


def flood_with_chunks(service: Running, stop: Event) -> None:
    """Send 200,000 chunks of one byte, over and over."""
    chunks = chunk(b" ") * 2_000
    while not stop.is_set():
        with service.connect() as connection, suppress(OSError):
            connection.head(content_type=LINES)
            for _ in range(100):
                connection.send(chunks)
            connection.send(b"0\r\n\r\n")
            connection.response()


@pytest.mark.parametrize(
    ("lateness", "flood"), [(lateness_of_messages, flood_with_messages), (lateness_of_posts, flood_with_chunks)]
)
def test_a_flood_does_not_delay_other_clients(
    service: Running, lateness: Callable[[Running, int], list[float]], flood: Callable[[Running, Event], None]
) -> None:
    alone = lateness(service, 20)
    stop = Event()
    flooding = Thread(target=flood, args=(service, stop))
    flooding.start()
    try:
        loaded = lateness(service, 40)
    finally:
        stop.set()
        flooding.join(30)
    # Client, flood and service share one interpreter here, so the bounds are wide.
    assert median(loaded) < median(alone) + 60
    assert max(loaded) < max(alone) + 1_000
