"""An extractor that is slow, in a module that a worker process imports quickly."""

from __future__ import annotations

from time import sleep
from typing import Any

SLOW_S = 0.06
"""Beside which nothing else that these tests do takes long."""


def slow(x: dict[str, Any]) -> Any:
    sleep(SLOW_S)
    return x["hog"]
