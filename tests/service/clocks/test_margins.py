"""A client learns how slow its network is."""

from __future__ import annotations

import threading
import time

from anytime_service.client import Client
from service.client.test_client import but
from service.client.test_network import SHORT_MS, Network, client, network, pausing
from service.serving import VALUES
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
