"""Cost of sessions in Redis and in memory: `python tests/benchmarks/sessions.py`; needs redis-server.

Measured is the processor time of the server per request, without that of Redis, and the ratio to the same requests with
sessions in memory, interleaved: medians of many rounds. Then the elapsed time from posting the last group to one
replica until a prediction that waits at another is received, which includes the publish and the answer.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from anytime.model.model import Model
from benchmarks.harness import CLIENT_CORE, SERVER_CORE, percentiles, pin_to_core, script_options
from benchmarks.load.child import Child, server
from benchmarks.load.engine import CONNECTIONS
from benchmarks.load.frames import HttpClient, post
from benchmarks.load.models import temporary_model, values_of
from benchmarks.serving import Scenario, measured, requested, session
from service.redis_server import redis_server

GROUPS, WIDTH = 20, 10


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: load\r\n\r\n".encode()


def request(child: Child, content: bytes) -> tuple[int, bytes]:
    """Send one request on a new connection."""
    with closing(HttpClient(child.port)) as client:
        client.send(content)
        return client.response()


def costs(model: Model, redis: Child, memory: Child) -> Iterator[Scenario]:
    """Posting a group to a session, and reading one with all groups."""
    rng = np.random.default_rng(2)
    names = list(model.places)
    every = json.dumps({name: values_of(model, name, rng) for name in names}).encode()
    one = [json.dumps({name: values_of(model, name, rng)}).encode() for name in names[:CONNECTIONS]]

    def posting(child: Child) -> partial[float]:
        return partial(requested, child, [post(f"/sessions/{session(child)}/groups", body) for body in one], 50)

    def reading(child: Child) -> partial[float]:
        full = session(child)
        request(child, post(f"/sessions/{full}/groups", every))
        return partial(requested, child, [get(f"/sessions/{full}/predict")] * CONNECTIONS, 50)

    yield Scenario(f"POST a group of {WIDTH} numbers, Redis / memory", posting(redis), posting(memory))
    yield Scenario(f"GET of {GROUPS} groups, Redis / memory", reading(redis), reading(memory))


def delays(model: Model, posting: Child, waiting: Child, count: int) -> list[tuple[float, float]]:
    """Return milliseconds from sending the last group, and from its response, to the answer at the other replica."""
    rng = np.random.default_rng(3)
    names = list(model.places)
    values = {name: values_of(model, name, rng) for name in names}
    last = json.dumps({names[0]: values.pop(names[0])}).encode()
    found = []
    with closing(HttpClient(posting.port)) as poster, closing(HttpClient(waiting.port)) as waiter:
        for _ in range(count):
            name = session(posting)
            request(posting, post(f"/sessions/{name}/groups", json.dumps(values).encode()))
            waiter.send(get(f"/sessions/{name}/predict?deadline_ms=9000"))
            time.sleep(0.02)
            started = time.perf_counter()
            poster.send(post(f"/sessions/{name}/groups", last))
            poster.response()
            acknowledged = time.perf_counter()
            status, content = waiter.response()
            now = time.perf_counter()
            assert status == 200, content
            assert json.loads(content)["reason"] == "complete", content
            found.append(((now - started) * 1e3, (now - acknowledged) * 1e3))
    return found


def main() -> None:
    args = script_options(__doc__, rounds={"type": int, "default": 15})
    pin_to_core(SERVER_CORE)  # the core of Redis: the client has its own core for itself
    with redis_server() as redis, temporary_model(groups=GROUPS, size=WIDTH) as (path, model):
        pin_to_core(CLIENT_CORE)
        shared = partial(server, "admitting", path, ANYTIME_SESSION_STORE=redis.url())
        with server("admitting", path) as memory, shared() as a, shared() as b:
            measured(costs(model, a, memory), args.rounds)
            found = delays(model, a, b, 20 * args.rounds)
            alone = delays(model, memory, memory, 20 * args.rounds)
    for what, each in (("another replica", found), ("memory, one process", alone)):
        for since, column in zip(("sent", "acknowledged"), zip(*each, strict=True), strict=True):
            p50, p99 = percentiles(column, 50, 99)
            print(f"waiting answer from {what}, ms after the last group was {since}: p50 {p50:.2f} p99 {p99:.2f}")


if __name__ == "__main__":
    main()
