"""A server of an example's own: `anytime serve` in a process beside it, for as long as the example runs."""

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

PATIENCE_S = 60.0


@contextmanager
def serving(model: Path) -> Iterator[str]:
    """Serve a model file; its address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "anytime", "serve", str(model), "--port", str(port)]
    with tempfile.TemporaryFile() as said, subprocess.Popen(command, stdout=said, stderr=said) as process:  # noqa: S603  (this very package)
        try:
            if not _ready(url, process):
                said.seek(0)
                raise RuntimeError(f"the server did not start: {said.read().decode(errors='replace')[-500:]}")
            yield url
        finally:
            process.terminate()


def _ready(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until it answers; False if it has ended, or takes too long."""
    give_up = time.monotonic() + PATIENCE_S
    with Client(url) as client:
        while time.monotonic() < give_up and process.poll() is None:
            try:
                return bool(client.models())
            except ConnectionLostError:
                time.sleep(0.05)
    return False
