"""A server for one example: `anytime serve` in its own process while the example runs."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anytime_service.client import Client, ConnectionLostError

__all__ = ["serving"]

TIMEOUT_S = 60.0


@contextmanager
def serving(model: Path) -> Iterator[str]:
    """Serve a model file and yield the address of the server."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "anytime", "serve", str(model), "--port", str(port)]
    with tempfile.TemporaryFile() as output, subprocess.Popen(command, stdout=output, stderr=output) as process:  # noqa: S603  (this package)
        try:
            if not _ready(url, process):
                output.seek(0)
                raise RuntimeError(f"the server did not start: {output.read().decode(errors='replace')[-500:]}")
            yield url
        finally:
            process.terminate()


def _ready(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the server answers; return False if it has ended or the timeout expires."""
    expires = time.monotonic() + TIMEOUT_S
    with Client(url) as client:
        while time.monotonic() < expires and process.poll() is None:
            try:
                return bool(client.models())
            except ConnectionLostError:
                time.sleep(0.05)
    return False
