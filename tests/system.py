"""Programs of the system that tests run next to the service: Redis, proxies, Prometheus."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pytest


def program(name: str) -> str:
    """Return the path of a program; skip the test if it is not installed."""
    places = (
        f"{Path(sys.executable).parent}:/usr/sbin:/sbin:/usr/local/sbin"  # the first has programs from Python packages
    )
    found = shutil.which(name) or shutil.which(name, path=places)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def free_port() -> int:
    """Return an unused port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Return whether a port accepts connections."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler], **attributes: Any) -> Iterator[int]:
    """Run a server in a thread, whose handler has some attributes; yield its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), attributes))
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def started(
    command: Sequence[object], ready: Callable[[], bool], cwd: Path | None = None, timeout_s: float = 60.0
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program from when it is ready until the end of the block; if it does not start, report its output."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([str(word) for word in command], cwd=cwd, stdout=output, stderr=subprocess.STDOUT)
        try:
            deadline = monotonic() + timeout_s
            while not ready():
                if process.poll() is not None or monotonic() > deadline:
                    output.seek(0)
                    raise AssertionError(
                        f"{command[0]} did not start: {output.read().decode(errors='replace')[-2000:]}"
                    )
                sleep(0.02)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)
