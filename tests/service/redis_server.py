"""A Redis of the tests' own, which they kill, stop and restart."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis

from system import answers, free_port, program, started

__all__ = ["RedisServer", "redis_server"]


class RedisServer:
    """A Redis that stores nothing on disk: it is empty after a restart."""

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self._command = [program("redis-server"), "--port", self.port, "--bind", "127.0.0.1", "--save", "", *options]
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: int = 0, user: str = "") -> str:
        return f"redis://{user}127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        self._process = self._stack.enter_context(started(self._command, lambda: answers(self.port)))

    def kill(self) -> None:
        """As a machine that loses its power."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(60)

    def hang(self) -> None:
        """Have it answer nothing, though its connections stay."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.go_on()
        self._stack.close()

    def execute(self, *command: Any, database: int = 0, password: str | None = None) -> Any:
        """Execute one command."""
        with redis.Redis(port=self.port, db=database, password=password) as client:
            return client.execute_command(*command)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """Run a Redis on a port of its own."""
    server = RedisServer(*options)
    server.start()
    try:
        yield server
    finally:
        server.close()
