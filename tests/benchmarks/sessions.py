"""What sessions in Redis cost beside sessions in memory: `python tests/benchmarks/sessions.py`; needs redis-server.

Told is the processor time of the server a request, that of Redis not counted, and the ratio to the same requests where
sessions live in memory, in turns: medians of many rounds. Then, how long after the last group was posted to one replica
a prediction that waits at another is there, in time that passed: the publish, and the answer that it brings.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from anytime.model.model import Model
from benchmarks.load.child import CLIENT_CORE, SERVER_CORE, Child, server, settle
from benchmarks.load.frames import HttpClient, post
from benchmarks.load.models import saved_model, values_of
from benchmarks.serving import CONNECTIONS, Measure, Requests, in_turns, report, session
from service.redis_server import redis_server

GROUPS, WIDTH = 20, 10


def get(path: str) -> bytes:
    """A GET request."""
    return f"GET {path} HTTP/1.1\r\nHost: load\r\n\r\n".encode()


def asked(child: Child, request: bytes) -> tuple[int, bytes]:
    """Send one request on a connection of its own."""
    client = HttpClient(child.port)
    client.send(request)
    told = client.response()
    client.close()
    return told


@contextmanager
def shared(path: Path, url: str) -> Iterator[Child]:
    """A replica whose sessions live in Redis."""
    os.environ["ANYTIME_SESSION_STORE"] = url
    with server("service", path) as child:
        del os.environ["ANYTIME_SESSION_STORE"]
        yield child


def costs(model: Model, redis: Child, memory: Child, rounds: int) -> list[Measure]:
    """Posting a group to a session, and asking one that has every group."""
    rng = np.random.default_rng(2)
    names = list(model.places)
    every = json.dumps({name: values_of(model, name, rng) for name in names}).encode()
    one = [json.dumps({name: values_of(model, name, rng)}).encode() for name in names[:CONNECTIONS]]
    posts: list[Requests] = []
    gets: list[Requests] = []
    for child in (redis, memory):
        sessions = [session(child) for _ in one]
        requests = [post(f"/sessions/{name}/groups", body) for name, body in zip(sessions, one, strict=True)]
        posts.append(Requests(child, requests, 50))
        full = session(child)
        asked(child, post(f"/sessions/{full}/groups", every))
        gets.append(Requests(child, [get(f"/sessions/{full}/predict")] * CONNECTIONS, 50))
    return [
        Measure(f"POST a group of {WIDTH} numbers, Redis / memory", *in_turns(posts[0], posts[1], rounds)),
        Measure(f"GET of {GROUPS} groups, Redis / memory", *in_turns(gets[0], gets[1], rounds)),
    ]


def delays(model: Model, posting: Child, waiting: Child, count: int) -> list[tuple[float, float]]:
    """Milliseconds from sending the last group, and from its reply, to the answer that waited elsewhere."""
    rng = np.random.default_rng(3)
    names = list(model.places)
    values = {name: values_of(model, name, rng) for name in names}
    last = json.dumps({names[0]: values.pop(names[0])}).encode()
    poster, waiter = HttpClient(posting.port), HttpClient(waiting.port)
    found = []
    for _ in range(count):
        name = session(posting)
        asked(posting, post(f"/sessions/{name}/groups", json.dumps(values).encode()))
        waiter.send(get(f"/sessions/{name}/predict?deadline_ms=9000"))
        time.sleep(0.02)
        begun = time.perf_counter()
        poster.send(post(f"/sessions/{name}/groups", last))
        poster.response()
        told = time.perf_counter()
        status, content = waiter.response()
        now = time.perf_counter()
        assert status == 200, content
        assert json.loads(content)["reason"] == "complete", content
        found.append(((now - begun) * 1e3, (now - told) * 1e3))
    poster.close()
    waiter.close()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    settle(SERVER_CORE)  # where Redis stays: the client leaves its own core to nobody
    with tempfile.TemporaryDirectory() as folder, redis_server() as redis:
        settle(CLIENT_CORE)
        path = Path(folder) / "load.safetensors"
        model = saved_model(path, groups=GROUPS, size=WIDTH)
        with server("service", path) as memory, shared(path, redis.url()) as a, shared(path, redis.url()) as b:
            report(costs(model, a, memory, given.rounds))
            found = delays(model, a, b, 20 * given.rounds)
            alone = delays(model, memory, memory, 20 * given.rounds)
    for what, each in (("another replica", found), ("memory, one process", alone)):
        for since, column in zip(("sent", "acknowledged"), zip(*each, strict=True), strict=True):
            p50, p99 = statistics.quantiles(column, n=100)[49], statistics.quantiles(column, n=100)[98]
            print(f"answer that waits at {what}, ms after the last group was {since}: p50 {p50:.2f} p99 {p99:.2f}")


if __name__ == "__main__":
    main()
