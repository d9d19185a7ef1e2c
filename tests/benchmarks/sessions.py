"""Cost of sessions in Redis and in memory: `python tests/benchmarks/sessions.py`; needs redis-server.

Measured is the processor time of the server per request, without that of Redis, and the ratio to the same requests with
sessions in memory, interleaved: medians of many rounds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from anytime.model.model import Model
from benchmarks.harness import CLIENT_CORE, SERVER_CORE, pin_to_core, script_options
from benchmarks.load.child import Child, server
from benchmarks.load.engine import CONNECTIONS
from benchmarks.load.frames import post
from benchmarks.load.models import temporary_model, values_of
from benchmarks.serving import Scenario, measured, requested, session
from service.redis_server import redis_server

GROUPS, WIDTH = 20, 10


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
        requested(child, [post(f"/sessions/{full}/groups", every)], 1)
        get = f"GET /sessions/{full}/predict HTTP/1.1\r\nHost: load\r\n\r\n".encode()
        return partial(requested, child, [get] * CONNECTIONS, 50)

    yield Scenario(f"POST a group of {WIDTH} numbers, Redis / memory", posting(redis), posting(memory))
    yield Scenario(f"GET of {GROUPS} groups, Redis / memory", reading(redis), reading(memory))


def main() -> None:
    rounds = script_options(__doc__, rounds={"type": int, "default": 15}).rounds
    pin_to_core(SERVER_CORE)  # the core of Redis: the client has its own core for itself
    with redis_server() as redis, temporary_model(groups=GROUPS, size=WIDTH) as (path, model):
        pin_to_core(CLIENT_CORE)
        shared = server("admitting", path, ANYTIME_SESSION_STORE=redis.url())
        with server("admitting", path) as memory, shared as replica:
            measured(costs(model, replica, memory), rounds)


if __name__ == "__main__":
    main()
