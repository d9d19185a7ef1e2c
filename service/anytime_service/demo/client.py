"""A client with a deadline: groups are computed by a worker process, and what there is is asked about just in time."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from types import TracebackType
from typing import Any, Self

import numpy as np

from anytime.arrays import Float
from anytime.workers import Workers
from anytime_service.demo.extractors import Extractor

__all__ = ["DeadlineClient", "Timed"]

WARM_UP = 50
"""Requests before the first that counts."""

REMEMBERED = 100
"""Last requests whose duration tells how much of a deadline the next one needs."""


@dataclass(frozen=True)
class Timed:
    """An answer of the server, and when it was here, in milliseconds after the image was."""

    answer: Mapping[str, Any]
    elapsed_ms: float


class DeadlineClient:
    """Extracts groups of digits in sequence order and asks the server for the prediction before the deadline strikes.

    Parameters
    ----------
    port : where the server listens on this machine.
    order : groups in the order in which the model computes them.
    extractors : one for each group; they run in a process of their own, so that none of them holds up the deadline.
    """

    def __init__(self, port: int, order: list[str], extractors: Mapping[str, Extractor]) -> None:
        self._order = order
        self._connection = HTTPConnection("127.0.0.1", port, timeout=10)
        self._workers = Workers(extractors, "process")
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._workers.close()
        self._connection.close()

    def warm_up(self, image: Float) -> None:
        """Learn what a request takes, and let every worker compute each group once."""
        groups = {}
        for _ in range(self._workers.count):
            for arrival in self._workers.start(self._order, image).arrivals(time.perf_counter() + 10):
                groups[arrival.group] = np.asarray(arrival.values).tolist()
        for _ in range(WARM_UP):
            begin = time.perf_counter()
            self._ask(groups)
            self._seconds.append(time.perf_counter() - begin)

    def predict(self, image: Float, deadline_ms: float) -> Timed:
        """The server's answer from the groups that could be computed in time."""
        margin = float(np.quantile(self._seconds, 0.95))
        begin = time.perf_counter()
        # What the request takes is kept back, but not the whole of a short deadline.
        collect_until = begin + deadline_ms / 1e3 - min(margin, 0.9 * deadline_ms / 1e3)
        extraction = self._workers.start(self._order, image)
        groups = {a.group: np.asarray(a.values).tolist() for a in extraction.arrivals(collect_until)}
        extraction.cancel()
        answer = self._ask(groups)
        end = time.perf_counter()
        if end > collect_until:
            self._seconds.append(end - collect_until)
        return Timed(answer, (end - begin) * 1e3)

    def _ask(self, groups: Mapping[str, list[float]]) -> Mapping[str, Any]:
        body = json.dumps({"groups": groups})
        self._connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer: Mapping[str, Any] = json.loads(response.read())
        if response.status != 200:
            raise RuntimeError(f"the server answered {response.status}: {answer.get('detail')}")
        return answer
