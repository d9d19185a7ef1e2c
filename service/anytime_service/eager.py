"""Sending from a callback: an ASGI `send` run on the spot, so that an answer need not wait for a task's turn.

`send` is a coroutine that nearly never waits: it writes to the socket's buffer and returns. Started by hand it has
written when it returns. Where the client reads too slowly it does wait, and goes on as a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from types import coroutine
from typing import Any, cast

__all__ = ["start"]


def start(awaitable: Awaitable[None]) -> asyncio.Task[None] | None:
    """Run a coroutine up to where it first waits; None if it has ended, else the task in which it goes on.

    It must not ask for the current task before it waits: there is none.
    """
    running = cast(Coroutine[Any, Any, None], awaitable)  # what every ASGI server's `send` returns
    try:
        waiting_for = running.send(None)
    except StopIteration:
        return None
    task = asyncio.get_running_loop().create_task(_resumed(running, waiting_for))
    task.add_done_callback(lambda _: running.close())  # cancelled before its first turn, it has resumed nothing
    return task


async def _resumed(running: Coroutine[Any, Any, None], waiting_for: Any) -> None:
    await _relayed(running, waiting_for)


@coroutine
def _relayed(running: Coroutine[Any, Any, None], waiting_for: Any) -> Generator[Any, Any, None]:
    """Hand what a started coroutine waits for to the task that this runs in, and what comes of it back."""
    while True:
        try:
            try:
                got = yield waiting_for
            except BaseException as error:
                waiting_for = running.throw(error)
            else:
                waiting_for = running.send(got)
        except StopIteration:
            return
