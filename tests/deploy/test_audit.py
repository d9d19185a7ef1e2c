"""The audit of pins, with a vulnerability, without one, and when its service is not reachable."""

from __future__ import annotations

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from deploy.project import DEPLOY
from system import free_port, http_server

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


def run_audit(lock: Path, port: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEPLOY / "audit.py"), str(lock), "--url", f"http://127.0.0.1:{port}/v1/query"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def lock_of(folder: Path, *pins: str) -> Path:
    lock = folder / "some.lock"
    lock.write_text("".join(f"{pin} {HASH}\n" for pin in pins), encoding="utf-8")
    return lock


@pytest.mark.parametrize(
    ("pin", "code", "said"),
    [
        ("leaky==1.1.0", 1, "leaky 1.1.0: PYSEC-0000-1, fixed in 1.2.0\n"),
        ("whole==3.1", 0, "no known vulnerability in 2 pins\n"),
    ],
    ids=["vulnerable", "sound"],
)
def test_a_vulnerability_fails_and_is_reported_with_the_fixed_version(
    tmp_path: Path, pin: str, code: int, said: str
) -> None:
    with http_server(Service) as port:
        done = run_audit(lock_of(tmp_path, "sound==2.0", pin), port)
    assert done.returncode == code
    assert done.stderr == (said if code else "")
    assert done.stdout.endswith("" if code else said)


@pytest.mark.parametrize("why", ["connection refused", "it answers 503"])
def test_an_unreachable_service_is_reported_in_one_line_and_is_not_a_failure(tmp_path: Path, why: str) -> None:
    lock = lock_of(tmp_path, "leaky==1.1.0")
    if why == "connection refused":
        done = run_audit(lock, free_port())
    else:
        with http_server(Service, status=503) as port:
            done = run_audit(lock, port)
        assert why in done.stdout
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert "was not audited: the service is not reachable" in done.stdout


def test_a_lock_that_cannot_be_read_fails(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text("leaky>=1.0\n", encoding="utf-8")
    with http_server(Service) as port:
        done = run_audit(lock, port)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "was not audited" in done.stderr
