"""Clients on a slow network, and clients that stand still."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from anytime_service.client import Client
from service.client.test_client import but
from service.client.test_network import SHORT_MS, Network, client, network, pausing
from service.serving import VALUES, Running
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
    release = threading.Event()
    extractors = but(lab=pausing("lab", lambda: release.wait(60)))
    with Client(server.url) as client, ThreadPoolExecutor(1) as thread:
        client.warm_up(extractors)
        for run in range(1, MAX_RUNS + 1):
            running = thread.submit(client.run, extractors, VALUES, DEADLINE_MS)
            until(lambda run=run: server.metric("anytime_group_seconds_count", group="hog") == run)  # type: ignore[misc]
            client._portal.call(stand_still)
            answer = running.result()
            assert (answer.elapsed_ms > DEADLINE_MS, answer.missing) == (True, ("lab",))
            release.set()
            if answer.note is None:
                break
            release.clear()
    assert (answer.groups, answer.note) == (("speed", "hog"), None)
