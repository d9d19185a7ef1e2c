"""The audit of pins, with a vulnerability, without one, and when its service is not reachable."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from deploy.project import DEPLOY
from system import free_port

HASH = f"--hash=sha256:{'0' * 64}"
VULNERABLE = {
    "vulns": [
        {
            "id": "PYSEC-0000-1",
            "summary": "made for a test",
            "affected": [
                {
                    "package": {"name": "leaky", "ecosystem": "PyPI"},
                    "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.2.0"}]}],
                }
            ],
        }
    ]
}


class Service(BaseHTTPRequestHandler):
    """A service that knows one package."""

    status = 200

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["content-length"])))
        reply = json.dumps(VULNERABLE if query["package"]["name"] == "leaky" else {}).encode()
        self.send_response(self.status)
        self.send_header("content-length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def service(status: int = 200) -> Iterator[str]:
    """Run the service, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Service,), {"status": status}))
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/query"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run_audit(lock: Path, url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEPLOY / "audit.py"), str(lock), "--url", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def lock_of(folder: Path, *pins: str) -> Path:
    lock = folder / "some.lock"
    lock.write_text("".join(f"{pin} {HASH}\n" for pin in pins), encoding="utf-8")
    return lock


def test_a_vulnerability_fails_and_is_reported_with_the_fixed_version(tmp_path: Path) -> None:
    with service() as url:
        done = run_audit(lock_of(tmp_path, "sound==2.0", "leaky==1.1.0"), url)
    assert done.returncode == 1
    assert done.stderr == "leaky 1.1.0: PYSEC-0000-1, fixed in 1.2.0\n"


def test_pins_without_vulnerabilities_pass_and_are_counted(tmp_path: Path) -> None:
    with service() as url:
        done = run_audit(lock_of(tmp_path, "sound==2.0", "whole==3.1"), url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("no known vulnerability in 2 pins\n")


@pytest.mark.parametrize("why", ["connection refused", "it answers 503"])
def test_an_unreachable_service_is_reported_in_one_line_and_is_not_a_failure(tmp_path: Path, why: str) -> None:
    lock = lock_of(tmp_path, "leaky==1.1.0")
    if why == "connection refused":
        done = run_audit(lock, f"http://127.0.0.1:{free_port()}/v1/query")
    else:
        with service(503) as url:
            done = run_audit(lock, url)
        assert why in done.stdout
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert "was not audited: the service is not reachable" in done.stdout


def test_a_lock_that_cannot_be_read_fails(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text("leaky>=1.0\n", encoding="utf-8")
    with service() as url:
        done = run_audit(lock, url)
    assert done.returncode == 1
    assert "was not audited" in done.stderr
    assert done.stderr.count("\n") == 1
