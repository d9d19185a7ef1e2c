"""What uvicorn's server and a protocol class expect of one another; no other file depends on it.

uvicorn calls the class that it got as `Config(http=CLASS)` once for each connection, with the keyword arguments of
`Host`. While the connection is open, it is in `server_state.connections`, and tasks that answer requests are in
`server_state.tasks`: at the end, uvicorn calls `shutdown` of each connection, and waits until both are empty. It counts
the responses in `total_requests`, and updates `default_headers` (the date) once a second by a new list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any, Protocol

import uvicorn
from starlette.types import ASGIApp

from anytime_service.http.exchange import start


class ServerState(Protocol):
    """The part of uvicorn's state of a server that connections use."""

    connections: set[Any]
    tasks: set[asyncio.Task[None]]
    default_headers: list[tuple[bytes, bytes]]
    total_requests: int


class Host:
    """The server of a connection, made from the arguments that uvicorn passes."""

    __slots__ = ("app", "app_state", "loop", "root_path", "state")

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.app: ASGIApp = config.loaded_app
        self.app_state = app_state
        self.loop = _loop or asyncio.get_running_loop()
        self.root_path = config.root_path
        self.state = server_state

    def run(self, answering: Coroutine[Any, Any, None], *, direct: bool = False) -> None:
        """Run a coroutine that answers a request in a task; if `direct`, from its first wait on."""
        task = start(answering, copy_context()) if direct else self.loop.create_task(answering)
        if task is not None:
            self.state.tasks.add(task)
            task.add_done_callback(self.state.tasks.discard)
