"""The tools of the drills do what they are for: networks are bad, disks full, loads judged, answers read."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from anytime.model.model import Model
from benchmarks.load.child import Child
from drills.attacks.frames import messages
from drills.attacks.wire import connected, heard, push, replies
from drills.disk import small_disk
from drills.load import judged
from drills.relay import Relay
from drills.steady import Sample, Steady
from service.serving import Running
from system import free_port

ASKED = b"GET /livez HTTP/1.1\r\nHost: drill\r\n\r\n"


def test_a_relay_delays_what_passes_it(service: Running) -> None:
    with Relay([service.port], probe=False) as relay:
        relay.delay_s = 0.05
        begun = time.perf_counter()
        response = httpx.get(f"http://127.0.0.1:{relay.port}/livez")
        assert response.json() == {"status": "ok"}
        assert time.perf_counter() - begun >= 0.1


def test_a_relay_passes_over_who_does_not_listen(service: Running) -> None:
    with Relay([free_port(), service.port], probe=False) as relay:
        for _ in range(4):
            assert httpx.get(f"http://127.0.0.1:{relay.port}/livez").status_code == 200


def test_a_relay_cuts_the_connections_to_who_stands_still() -> None:
    still = socket.create_server(("127.0.0.1", 0))
    with still, Relay([still.getsockname()[1]]) as relay, connected(relay.port) as sock:
        push(sock, ASKED)
        assert heard(sock) == (b"", "RST")


def test_a_relay_resets_connections(service: Running) -> None:
    with Relay([service.port], probe=False) as relay, connected(relay.port) as sock:
        push(sock, ASKED)
        assert list(replies(heard(sock)[0])) == ["200"]
        relay.resets_per_s = 50.0
        assert heard(sock) == (b"", "RST")


def test_a_relay_stands_still_and_loses_nothing(service: Running) -> None:
    with Relay([service.port], probe=False) as relay, connected(relay.port) as sock:
        push(sock, ASKED)
        heard(sock)
        relay.stall_s, relay.stalls_per_s = 0.2, 50.0
        time.sleep(0.1)
        begun = time.perf_counter()
        push(sock, ASKED)
        relay.stalls_per_s = 0.0
        assert list(replies(heard(sock)[0])) == ["200"]
        assert time.perf_counter() - begun >= 0.1


def test_what_came_back_is_told_apart() -> None:
    problem = b'{"detail": "why"}'
    head = b"HTTP/1.1 %d X\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
    told = head % (413, b"application/problem+json", len(problem)) + problem
    assert list(replies(told)) == ["problem 413"]
    assert list(replies(head % (413, b"text/plain", 3) + b"why")) == ["plain 413"]
    assert list(replies(head % (413, b"application/problem+json", 2) + b"{}")) == ["plain 413"]
    assert list(replies(b"HTTP/1.1 100 Continue\r\n\r\n" + head % (200, b"text/plain", 0))) == ["100", "200"]
    assert list(replies(told + told + b"what?")) == ["problem 413", "problem 413", "nonsense"]
    error = b'{"type": "error", "problem": {"status": 422, "detail": %b}}'
    frames = [error % b'"why"', error % b'""', b'{"type": "answer"}']
    content = b"".join(bytes([0x81, len(each)]) + each for each in frames)
    close = b"\x88\x02\x03\xf3"
    assert list(messages(content + close)) == ["error 422", "bare error 422", "answer", "close 1011"]


def test_a_disk_that_is_full_takes_nothing_and_is_free_again(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        if not disk.mounted:
            pytest.skip("no file system may be mounted here")
        disk.fill([])
        with pytest.raises(OSError, match="No space"):
            (tmp_path / "more").write_bytes(bytes(4096))
        disk.free()
        (tmp_path / "more").write_bytes(bytes(4096))


SAMPLE = Sample(
    at_s=0.0,
    asked=100,
    answered=100,
    errors=0,
    left_p50=0.1,
    left_p99=0.1,
    left_p999=0.1,
    left_bare_p99=0.1,
    came_p50=0.2,
    came_p99=0.2,
    came_p999=0.2,
    came_bare_p99=0.2,
    load_p99=0.1,
    busy=0.7,
    mib=100.0,
    descriptors=30,
    own_descriptors=20,
    threads=9,
    gc_ms=0.0,
    stood_ms=0.0,
)


def steady(model: Model, **changed: Any) -> Steady:
    """A load of ten minutes in which nothing was wrong, and what is changed in it."""
    made = Steady(model, Child(os.getpid(), 0), 100.0)
    made.samples = [SAMPLE._replace(at_s=5.0 * i) for i in range(120)]
    made.asked = made.answered = 12_000
    for late_ms in (made.left_ms, made.left_bare_ms, made.came_bare_ms, made.came_ms["websocket"]):
        late_ms.extend([0.1] * 1000)
    for name, value in changed.items():
        setattr(made, name, value)
    return made


def test_the_judge_of_a_steady_load_condemns_what_is_wrong(model: Model) -> None:
    assert not judged(steady(model), 180.0)
    grown = [SAMPLE._replace(at_s=5.0 * i, mib=100.0 + i / 10) for i in range(120)]
    unmatched = [SAMPLE._replace(at_s=5.0 * i, descriptors=30 + i) for i in range(120)]
    slow = [sample._replace(load_p99=5.0) for sample in steady(model).samples]
    late = steady(model).left_ms
    late.extend([2.0] * 100)
    wrong: list[dict[str, Any]] = [
        {"samples": grown},
        {"samples": unmatched},
        {"samples": slow},
        {"found": Counter({"prediction 1, the library's is 2": 1})},
        {"found": Counter({"stalled": 100})},
        {"left_ms": late},
    ]
    for changed in wrong:
        assert len(judged(steady(model, **changed), 180.0)) == 1, changed
    assert judged(steady(model, samples=[]), 180.0)
    assert judged(steady(model, answered=0), 180.0)


def test_growth_before_the_load_is_warm_is_no_leak(model: Model) -> None:
    warming = [SAMPLE._replace(at_s=5.0 * i, mib=100.0 + min(i, 30)) for i in range(120)]
    assert not judged(steady(model, samples=warming), 180.0)
