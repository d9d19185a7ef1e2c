"""Slow networks, peers that stand still, and floods."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import monotonic, perf_counter, sleep
from typing import Any

import pytest

from anytime_service.client import Client
from anytime_service.limits.table import HEADERS, NAMES, PAGES, TABLE
from anytime_service.settings import Settings
from drills.costs import DRIVES, driving
from service.client.test_client import but
from service.client.test_network import SHORT_MS, Network, client, network, pausing
from service.commands import Command, command
from service.limits.test_fairness import RATE, SENT, messages, pieces, pings
from service.raw_stream import raw, read_frame, text
from service.serving import VALUES, Connection, Running, run_service, small_model
from waiting import until

__all__ = ["client", "network"]


def test_the_client_sends_a_shorter_deadline_after_it_has_measured_a_slow_network(
    client: Client, network: Network
) -> None:
    release = threading.Event()
    extractors = but(lab=pausing("lab", lambda: release.wait(1.0)))
    client.warm_up(extractors)
    assert client.network_ms < 50
    network.delay_s = 0.08
    first = client.run(extractors, VALUES, SHORT_MS)  # its answer arrives after its end, and sets the margin
    assert first.note is not None
    until(lambda: client.network_ms > 60)
    for _ in range(5):  # the delay of one answer may be a little shorter than that of the next
        second = client.run(extractors, VALUES, 600)
        if "no answer arrived" not in (second.note or ""):
            break
        time.sleep(1.0)  # the extractor at work ends
    assert (second.groups, second.reason) == (("speed", "hog"), "deadline")
    assert "no answer arrived" not in (second.note or "")
    assert second.elapsed_ms < 3_600
    release.set()


DEADLINE_MS, MAX_RUNS = 1_000.0, 3


async def stand_still() -> None:
    """Block the event loop of a client until its deadline has passed, and its answer is here."""
    time.sleep(1.3 * DEADLINE_MS / 1e3)


def test_an_answer_that_arrived_while_the_client_stood_still_is_used(server: Running) -> None:
    """In one of a few runs: the client reads for 2 ms at most, and the machine may pause it for longer."""
    received = partial(server.metric, "anytime_group_seconds_count", model="brake", group="hog")
    before, release = received(), threading.Event()
    extractors = but(lab=pausing("lab", lambda: release.wait(60)))
    with Client(server.url) as client, ThreadPoolExecutor(1) as thread:
        client.warm_up(extractors)
        for run in range(1, MAX_RUNS + 1):
            running = thread.submit(client.run, extractors, VALUES, DEADLINE_MS)
            until(lambda run=run: received() == before + run)  # type: ignore[misc]
            client._portal.call(stand_still)
            answer = running.result()
            assert (answer.elapsed_ms > DEADLINE_MS, answer.missing) == (True, ("lab",))
            release.set()
            if answer.note is None:
                break
            release.clear()
    assert (answer.groups, answer.note) == (("speed", "hog"), None)


# A server that stood still: the answer uses every group that its client had sent by then.


STALL_DEADLINE_MS = 200
Groups = Mapping[str, Any]
Served = tuple[Command, Running]
SIZES = (2_000, 8_000, 20_000, 200_000)
"""Bytes of a group. A read of the socket returns up to 256,000, which the server parses in slices of 2,000 or more."""
GROUPS: dict[str, Groups] = {
    "every group": VALUES,
    **{f"{size} bytes": {"hog": [[0.12345678, 0.62345678]] * (size // 24)} for size in SIZES},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path: Path = tmp_path_factory.mktemp("models") / "brake.safetensors"
    small_model().save(path)
    # Standing still is what these servers do: they are not to refuse predictions for it.
    with command(path, ANYTIME_MAX_LATENESS_MS="10000") as served:
        yield served


@contextmanager
def stopped(served: Served) -> Iterator[None]:
    """Stop the server once a prediction is open, and let it go on long after the deadline."""
    command, service = served
    until(lambda: service.metric("anytime_open_predictions") == 1)
    command.process.send_signal(signal.SIGSTOP)
    try:
        yield
        sleep(1.5 * STALL_DEADLINE_MS / 1000)
    finally:
        command.process.send_signal(signal.SIGCONT)


def over_a_websocket(served: Served, groups: Groups) -> Any:
    with raw(served[1]) as stream:
        stream.send(text({"type": "begin", "id": 1, "deadline_ms": STALL_DEADLINE_MS}))
        with stopped(served):
            for name, values in groups.items():
                stream.send(text({"type": "group", "id": 1, "group": name, "values": values}))
        return json.loads(read_frame(stream)[1])


def by_lines(served: Served, groups: Groups) -> Any:
    with served[1].connect() as client:
        client.head(f"deadline_ms={STALL_DEADLINE_MS}", content_type="application/x-ndjson")
        with stopped(served):
            for name, values in groups.items():
                line = json.dumps({"group": name, "values": values}).encode() + b"\n"
                client.send(b"%x\r\n%b\r\n" % (len(line), line))
        return client.response()[2]


def by_post(served: Served, groups: Groups) -> Any:
    content = json.dumps({"groups": groups}).encode()
    with served[1].connect() as client:
        client.head(f"deadline_ms={STALL_DEADLINE_MS}", len(content))
        with stopped(served):
            client.send(content)
        return client.response()[2]


@pytest.mark.parametrize(
    ("predict", "name"), [*product([over_a_websocket, by_lines], GROUPS), (by_post, "every group")]
)
def test_groups_that_were_sent_while_the_server_stood_still_are_used(
    served: Served, predict: Callable[[Served, Groups], Any], name: str
) -> None:
    """One of five times: the server reads for 2 ms at most, and another process may have its core meanwhile."""
    groups = GROUPS[name]
    used = list(VALUES) if groups is VALUES else []  # hog alone is no prefix
    assert any(
        (answer["reason"], answer["late_groups"], answer["groups"]) == ("deadline", list(groups), used)
        and answer["elapsed_ms"] >= STALL_DEADLINE_MS
        for answer in (predict(served, groups) for _ in range(5))
    )


# Floods delay no other connection, and are read at their rate limit.


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


# The drill of the table of limits: a short form, without the lateness of others, which needs a quiet machine.


ROWS = next(limit for limit in TABLE if limit.limit == "max_rows")
SHORT = {(HEADERS.element, "HTTP"), (NAMES.element, "POST"), (ROWS.element, "WebSocket"), (PAGES.element, "pages")}


def test_elements_at_their_limits_neither_stop_the_loop_nor_exceed_the_memory(tmp_path: Path) -> None:
    chosen = [drive for drive in DRIVES if (drive.element, drive.binding) in SHORT]
    assert {(drive.element, drive.binding) for drive in chosen} == SHORT
    with driving(tmp_path) as run:
        broken = [fault for drive in chosen for fault in run(drive, 1)]
    assert [fault for fault in broken if "ms late" not in fault] == []
