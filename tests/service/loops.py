"""Event loops that the service may run on, for the tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], loop: str = "uvloop") -> T:
    """Run a coroutine on a loop of its own; what the loop would only have logged fails."""
    failures: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.get_loop().set_exception_handler(lambda _loop, context: failures.append(context))
        result = runner.run(main)
    assert not failures
    return result
