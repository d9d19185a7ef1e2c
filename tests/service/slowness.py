"""Extractors that are slow, or that note their calls, in a module that a worker process imports quickly."""

from __future__ import annotations

import os
from time import perf_counter_ns, sleep
from typing import Any

SLOW_S = 0.06
"""Beside which nothing else that these tests do takes long."""


def slow(x: dict[str, Any]) -> Any:
    sleep(SLOW_S)
    return x["hog"]


class Noting:
    """An extractor that leaves a file for each call."""

    def __init__(self, group: str) -> None:
        self.group = group

    def __call__(self, x: dict[str, Any]) -> Any:
        (x["folder"] / f"{self.group}-{perf_counter_ns()}-{os.getpid()}").touch()
        return x[self.group]
