"""Real programs of the system that tests stand the service beside: Redis, proxies, Prometheus."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import pytest

__all__ = ["answers", "free_port", "program", "started"]


def program(name: str) -> str:
    """Path of a program; skips the test where it is not installed."""
    places = f"{Path(sys.executable).parent}:/usr/sbin:/sbin:/usr/local/sbin"  # the first: programs that packages bring
    found = shutil.which(name) or shutil.which(name, path=places)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def free_port() -> int:
    """A port of the loopback interface on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Whether somebody listens on a port."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextmanager
def started(
    command: Sequence[object], ready: Callable[[], bool], cwd: Path | None = None, within_s: float = 20.0
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program from when it is ready until the end of the block; what it printed is told where it never is."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([str(word) for word in command], cwd=cwd, stdout=output, stderr=subprocess.STDOUT)
        try:
            give_up = monotonic() + within_s
            while not ready():
                if process.poll() is not None or monotonic() > give_up:
                    output.seek(0)
                    raise AssertionError(
                        f"{command[0]} did not start: {output.read().decode(errors='replace')[-2000:]}"
                    )
                sleep(0.02)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
