"""The relay of the drills stalls what it forwards; drills fail if its delays let answers arrive too early."""

from __future__ import annotations

import time

from drills.attacks.wire import connect, receive, replies, send_all
from drills.relay import Relay
from service.drills.test_tools import REQUEST
from service.serving import Running


def test_a_stalled_relay_loses_nothing(service: Running) -> None:
    with Relay([service.port], probe=False) as relay, connect(relay.port) as sock:
        send_all(sock, REQUEST)
        receive(sock)
        relay.stall_s, relay.stalls_per_s = 0.2, 50.0
        time.sleep(0.1)
        started = time.perf_counter()
        send_all(sock, REQUEST)
        relay.stalls_per_s = 0.0
        assert list(replies(receive(sock)[0])) == ["200"]
        assert time.perf_counter() - started >= 0.1
