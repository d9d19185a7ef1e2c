"""A small model by hand, and the service on a real socket, for the tests."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from time import monotonic, sleep
from typing import Any

import httpx
import numpy as np
from starlette.types import ASGIApp

from anytime.groups import load_groups
from anytime.manifest import Manifest, Provenance, StepRecord
from anytime.model import AnytimeModel
from anytime.prefixes import PrefixModels
from anytime_service.server import bind, build_server
from anytime_service.settings import Settings

GROUPS = {
    "cost_unit": "ms",
    "groups": [
        {"name": "speed", "features": ["v"], "cost": 1.0},
        {"name": "hog", "features": ["h0", "h1"], "cost": 4.0},
        {"name": "blood", "features": [], "cost": 2.0},
        {"name": "lab", "features": ["l0"], "cost": 3.0, "requires": ["blood"]},
    ],
}
VALUES: dict[str, list[float]] = {"speed": [2.0], "hog": [1.0, -1.0], "lab": [0.5]}
BASE_RATE = 10.0


def small_model(name: str = "brake", *, responses: int = 1, classes: tuple[str, ...] | None = None) -> AnytimeModel:
    """A model of three steps: speed (1 ms), hog (4 ms), blood and lab (5 ms)."""
    steps = [("speed", ("speed",), 1.0), ("hog", ("hog",), 4.0), ("lab", ("blood", "lab"), 5.0)]
    spent = np.cumsum([cost for _, _, cost in steps]).tolist()
    records = tuple(
        StepRecord(
            group=group,
            adds=adds,
            cost=cost,
            cumulative_cost=total,
            explained_variance=0.1 * (i + 1),
            r2=0.2 * (i + 1),
            cv_error=1.0 / (i + 1),
            alpha=1e-5,
        )
        for i, ((group, adds, cost), total) in enumerate(zip(steps, spent, strict=True))
    )
    manifest = Manifest(
        name=name,
        version="v1",
        task="multiclass" if classes and len(classes) > 2 else "binary" if classes else "regression",
        target=("y",) if classes else tuple(f"y{p}" for p in range(responses)),
        responses=tuple(f"y{p}" for p in range(responses)),
        classes=classes,
        groups=load_groups(GROUPS),
        method="fr",
        alpha=1e-5,
        prior_error=2.0,
        steps=records,
        provenance=Provenance(created="2024-01-01", library="0", data="by hand", rows=8, weight=8.0),
    )
    rng = np.random.default_rng(0)
    ends = np.array([0, 1, 3, 4])
    prefixes = PrefixModels(
        mean=np.array([1.0, 0.5, -0.5, 0.25]),
        scale=np.ones(4),
        intercept=np.full(responses, BASE_RATE if classes is None else 0.4),
        response_scale=np.ones(responses),
        columns=np.arange(4),
        ends=ends,
        packed=rng.normal(size=(int(ends.sum()), responses)),
    )
    return AnytimeModel(manifest, prefixes)


@dataclass(frozen=True)
class Running:
    """A service that listens."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, body: Any, **parameters: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/predict", json=body, params=parameters, timeout=30)

    def get(self, path: str, **parameters: Any) -> httpx.Response:
        return httpx.get(self.url + path, params=parameters, timeout=30)

    def connect(self) -> Connection:
        return Connection(socket.create_connection(("127.0.0.1", self.port), timeout=30))


class Connection:
    """A client that sends and reads bytes when a test says so."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.file = sock.makefile("rb")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.sock.close()

    def send(self, content: bytes) -> None:
        self.sock.sendall(content)

    def head(self, query: str = "", length: int | None = None, **headers: str) -> None:
        """Send the head of a POST /predict; without a length the body comes in chunks."""
        form = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self.send(f"POST /predict?{query} HTTP/1.1\r\nHost: test\r\n{form}\r\n{more}\r\n".encode())

    def response(self) -> tuple[int, dict[str, str], Any]:
        """Read one response: status, headers, JSON."""
        status = int(self.file.readline().split()[1])
        headers: dict[str, str] = {}
        while line := self.file.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return status, headers, json.loads(self.file.read(int(headers["content-length"])))

    def at_end(self) -> bool:
        """Wait for the server to close; True when it did so without more to read."""
        return self.file.read(1) == b""


@contextmanager
def running(app: ASGIApp, settings: Settings) -> Iterator[Running]:
    """Run an application in a thread, on a port of its own."""
    server = build_server(app, settings)
    with bind(settings) as listening:
        port: int = listening.getsockname()[1]
        thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        give_up = monotonic() + 30
        while not server.started:
            assert thread.is_alive()
            assert monotonic() < give_up
            sleep(0.005)
        try:
            yield Running(port)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
