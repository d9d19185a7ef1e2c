"""Servers in separate processes, pinned to one core, with what they measure: the service, its floors, and others.

As a script this is such a server: it prints its port and serves until it is terminated. The service has two more
routes. `WS /timer` receives "NAME DELAY_MS" and sends NAME back from a bare `loop.call_later`: the best that any server
could do. `GET /measured` returns the measurements since the last request.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvicorn
from fastapi import FastAPI, WebSocket
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from anytime._linalg import single_blas_thread
from anytime.inference.prediction import Answer, Prediction
from anytime.inference.runner import Runner
from anytime.loaded import load
from anytime.model.model import Model
from anytime_service.api.openapi import AnytimeAPI
from anytime_service.app import create_app
from anytime_service.clock import now_ms
from anytime_service.models.registry import load_registry
from anytime_service.server.run import Server, bind, control_collections, map_large_blocks
from anytime_service.settings import Settings
from anytime_service.telemetry.metrics import ModelMetrics
from benchmarks.harness import SERVER_CORE, Process, pin_to_core, set_priority
from benchmarks.load.frames import post
from benchmarks.load.models import values_of

ROWS, WIDTH = 1000, 10
"""Rows and features of the packed group."""

CHECK_S = 0.001
GC_MS = 1.0
"""A garbage collection longer than this is recorded."""

STALL_MS = 2.2
"""A turn of the loop longer than this is recorded. The check takes up to 2 ms, as the loop counts milliseconds."""


class ServerStats(msgspec.Struct):
    """Measurements of the server.

    Attributes
    ----------
    late_ms : lateness of each answer triggered by a deadline, when it is sent.
    bare_ms : the same for bare timers.
    stalls : begin and end of stalls of the loop, in milliseconds of the system's clock.
    gc_ms : length of each garbage collection of more than a millisecond.
    worked_ms : the largest processor time of a turn of the loop, which pauses of the machine do not change.
    """

    late_ms: list[float]
    bare_ms: list[float]
    stalls: list[tuple[float, float]]
    gc_ms: list[float]
    worked_ms: float = 0.0


@dataclass(frozen=True)
class Child:
    """A running server in another process."""

    pid: int
    port: int

    @property
    def cpu_us(self) -> float:
        """Processor time of all its threads, in microseconds."""
        threads = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1000.0

    @property
    def resident_mib(self) -> float:
        """Resident memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def measured(self) -> ServerStats:
        """Return the server's measurements since the last call."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/measured", timeout=30) as response:
            return msgspec.json.decode(response.read(), type=ServerStats)


@contextmanager
def server(name: str, *models: Path, **variables: str) -> Iterator[Child]:
    """Run an application until the end of the block: "service", "floors", "admitting", "runner" or "whole".

    "admitting" is the service with admission control disabled. "runner" and "whole" compute the groups of each request
    themselves: until its deadline, or all of them or none.
    """
    with Process("benchmarks.load.child", name, *models, **variables) as process:
        yield Child(process.popen.pid, int(process.line()))


class _Instruments:
    """Records the events of one event loop."""

    def __init__(self) -> None:
        self.stats = ServerStats([], [], [], [])
        self.checking = False
        self.gc_started = 0.0

    def collected(self, phase: str, _info: object) -> None:
        now = now_ms()
        if phase == "start":
            self.gc_started = now
        elif now - self.gc_started > GC_MS:
            self.stats.gc_ms.append(now - self.gc_started)

    async def report(self, _request: Request) -> Response:
        """Return and reset the measurements."""
        stats, self.stats = self.stats, ServerStats([], [], [], [])
        if not self.checking:
            self.checking = True
            self._check_loop(now_ms(), time.thread_time())
        return Response(msgspec.json.encode(stats), media_type="application/json")

    async def timer(self, websocket: WebSocket) -> None:
        """Send names back after their delays."""
        await websocket.accept()
        loop = asyncio.get_running_loop()
        with suppress(WebSocketDisconnect):
            while True:
                name, delay = (await websocket.receive_text()).split()
                due = now_ms() + float(delay)
                loop.call_later(float(delay) / 1000.0, self._fire, websocket, name, due)

    def _fire(self, websocket: WebSocket, name: str, due: float) -> None:
        self.sending = asyncio.ensure_future(websocket.send_text(name))
        self.stats.bare_ms.append(now_ms() - due)

    def _check_loop(self, last: float, worked_s: float) -> None:
        now = now_ms()
        if now - last > STALL_MS:
            self.stats.stalls.append((last, now))
        self.stats.worked_ms = max(self.stats.worked_ms, (time.thread_time() - worked_s) * 1e3)
        asyncio.get_running_loop().call_later(CHECK_S, self._check_loop, now, time.thread_time())


def instrumented(app: AnytimeAPI) -> AnytimeAPI:
    """Add the routes and the instrumentation."""
    instruments, original = _Instruments(), ModelMetrics.answered
    gc.callbacks.append(instruments.collected)

    def answered(metrics: ModelMetrics, answer: Answer, late_ms: float | None) -> None:
        original(metrics, answer, late_ms)
        if late_ms is not None:
            instruments.stats.late_ms.append(late_ms)

    partial(setattr, ModelMetrics, "answered")(answered)
    app.router.routes += [WebSocketRoute("/timer", instruments.timer), Route("/measured", instruments.report)]
    return app


class _Predict(msgspec.Struct):
    groups: dict[str, list[float]]


def floors() -> FastAPI:
    """Echoes, a product and bare routes inside FastAPI: the least work that it can do with the same bytes."""
    app = FastAPI()
    groups = msgspec.json.Decoder(dict[str, list[float]])
    predict = msgspec.json.Decoder(_Predict)
    encode = msgspec.json.Encoder().encode
    rng = np.random.default_rng(0)
    X, coef = rng.standard_normal((ROWS, WIDTH)), rng.standard_normal((WIDTH, 1))

    async def relay(websocket: WebSocket, receive: Any, send: Any, act: Callable[[], object] = lambda: None) -> None:
        await websocket.accept()
        with suppress(WebSocketDisconnect):
            while True:
                content = await receive()
                act()
                await send(content)

    @app.websocket("/echo")
    async def echo(websocket: WebSocket) -> None:
        await relay(websocket, websocket.receive_text, websocket.send_text)

    @app.websocket("/score")
    async def score(websocket: WebSocket) -> None:
        await relay(websocket, websocket.receive_bytes, websocket.send_bytes, lambda: X @ coef)

    async def add_groups(request: Request) -> Response:
        values = groups.decode(await request.body())
        return Response(encode({"prefix": len(values), "steps": 20, "replaced": []}), media_type="application/json")

    async def answer(request: Request) -> Response:
        values = predict.decode(await request.body()).groups
        return Response(encode({"prediction": 1.0, "prefix": len(values)}), media_type="application/json")

    app.add_route("/sessions/{id}/groups", add_groups, methods=["POST"])
    app.add_route("/predict", answer, methods=["POST"])
    return app


DEADLINE_MS, TOTAL_MS = 20.0, 5.0
"""The deadline of every request, and the processor time of all groups together."""

ROUNDS = 100
"""Of a hash function that lets other threads run, between two looks at the clock: about 30 us."""


def request() -> bytes:
    """Return a request whose deadline counts from now."""
    return post("/", b"%.6f" % (time.perf_counter() + DEADLINE_MS / 1e3))


def extractors(model: Model) -> dict[str, Callable[[Any], list[float]]]:
    """Return extractors that use processor time in proportion to the costs of their groups."""
    rng, costs = np.random.default_rng(6), model.groups.costs
    unit_s = TOTAL_MS / 1e3 / float(costs.sum())

    def computed(seconds: float, values: list[float], _: Any) -> list[float]:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            hashlib.pbkdf2_hmac("sha256", b"", b"", ROUNDS)
        return values

    prices = {name: unit_s * float(costs[model.groups.position(name)]) for name in model.places}
    return {name: partial(computed, seconds, values_of(model, name, rng)) for name, seconds in prices.items()}


def computing(model: Model, *, whole: bool) -> ASGIApp:
    """Return an application that computes groups, and answers with the number of complete steps.

    The body of a request is the time of its deadline, by `time.perf_counter`, which all processes share: so the time
    that it waited in the connection counts.

    Parameters
    ----------
    whole : compute all groups, and refuse at once where the deadline does not leave the time. Otherwise `Runner`
        computes groups until the deadline, up to the share of the cost that is the share of the time left, so that
        requests that had to wait take less. Its base rate counts as no answer.
    """
    of, cost_per_ms = extractors(model), float(model.groups.costs.sum()) / DEADLINE_MS
    runner = Runner(model, of, example=None if whole else ())

    def complete(left_ms: float) -> int:
        if left_ms < TOTAL_MS:
            return 0
        prediction = Prediction(model, 1)
        for name, extract in of.items():
            prediction.add(name, extract(None))
        return prediction.answer().prefix

    async def answer(_scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]  # empty for a health probe
        left_ms = max((float(body or 0.0) - time.perf_counter()) * 1e3, 0.0)
        prefix = complete(left_ms) if whole else runner.run((), left_ms, budget=cost_per_ms * left_ms).prefix
        content = msgspec.json.encode({"prefix": prefix})
        headers = [(b"content-length", str(len(content)).encode())]
        status = 200 if prefix or not body else 503
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    return answer


def plain(app: ASGIApp) -> uvicorn.Config:
    """Return the configuration of our server without our code."""
    return uvicorn.Config(
        app,
        access_log=False,
        lifespan="off",
        log_level="warning",
        server_header=False,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
    )


def main() -> None:
    pin_to_core(SERVER_CORE)
    name, models = sys.argv[1], tuple(map(Path, sys.argv[2:]))
    settings = Settings(port=0)
    if name == "admitting":  # its connections stay open while the floors are measured
        settings = settings.model_copy(update={"idle_timeout_s": 3600.0})
    if name == "floors":
        running = uvicorn.Server(plain(floors()))
    elif name in ("runner", "whole"):
        set_priority(real_time=False)  # its threads inherit it
        running = uvicorn.Server(plain(computing(load(models[0]), whole=name == "whole")))
    else:
        app = instrumented(create_app(load_registry(models), settings))
        if name == "admitting":
            admission = app.state.service.admission
            decide = admission.admits
            partial(setattr, admission, "admits")(lambda now_ms: decide(now_ms) or True)
        running = Server(app, settings)
    with bind(settings) as listening, single_blas_thread():
        control_collections()  # as `anytime serve` does
        map_large_blocks()
        print(listening.getsockname()[1], flush=True)
        running.run(sockets=[listening])


if __name__ == "__main__":
    main()
