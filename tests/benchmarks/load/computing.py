"""A server that computes the groups of each request itself: until its deadline, or all of them or none.

The body of a request is the time of its deadline, by `time.perf_counter`, which all processes share: so the time that
it waited in the connection counts.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
from starlette.types import ASGIApp, Receive, Scope, Send

from anytime.inference.prediction import Prediction
from anytime.inference.runner import Runner
from anytime.model.model import Model
from benchmarks.load.frames import post
from benchmarks.load.models import values_of

DEADLINE_MS, TOTAL_MS = 20.0, 5.0
"""The deadline of every request, and the processor time of all groups together."""

ROUNDS = 100
"""Of a hash function that lets other threads run, between two looks at the clock: about 30 us."""


def request() -> bytes:
    """Return a request whose deadline counts from now."""
    return post("/", b"%.6f" % (time.perf_counter() + DEADLINE_MS / 1e3))


def extractors(model: Model) -> dict[str, Callable[[Any], list[float]]]:
    """Return extractors that use processor time in proportion to the costs of their groups."""
    rng, costs = np.random.default_rng(6), model.groups.costs
    unit_s = TOTAL_MS / 1e3 / float(costs.sum())

    def computed(seconds: float, values: list[float], _: Any) -> list[float]:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            hashlib.pbkdf2_hmac("sha256", b"", b"", ROUNDS)
        return values

    prices = {name: unit_s * float(costs[model.groups.position(name)]) for name in model.places}
    return {name: partial(computed, seconds, values_of(model, name, rng)) for name, seconds in prices.items()}


def computing(model: Model, *, whole: bool) -> ASGIApp:
    """Return an application that answers with the number of complete steps.

    Parameters
    ----------
    whole : compute all groups, and refuse at once where the deadline does not leave the time. Otherwise `Runner`
        computes groups until the deadline, up to the share of the cost that is the share of the time left, so that
        requests that had to wait take less. Its base rate counts as no answer.
    """
    of, cost_per_ms = extractors(model), float(model.groups.costs.sum()) / DEADLINE_MS
    runner = Runner(model, of, example=None if whole else ())

    def complete(left_ms: float) -> int:
        if left_ms < TOTAL_MS:
            return 0
        prediction = Prediction(model, 1)
        for name, extract in of.items():
            prediction.add(name, extract(None))
        return prediction.answer().prefix

    async def answer(_scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]  # empty for a health probe
        left_ms = max((float(body or 0.0) - time.perf_counter()) * 1e3, 0.0)
        prefix = complete(left_ms) if whole else runner.run((), left_ms, budget=cost_per_ms * left_ms).prefix
        content = msgspec.json.encode({"prefix": prefix})
        headers = [(b"content-length", str(len(content)).encode())]
        status = 200 if prefix or not body else 503
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    return answer
