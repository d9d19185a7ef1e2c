"""The service with instrumentation: bare timers in the same event loop, and the lateness of sent answers.

`WS /timer` receives "NAME DELAY_MS" and sends NAME back from a bare `loop.call_later`: the best that any server could
do. `GET /measured` returns the measurements since the last request.
"""

from __future__ import annotations

import asyncio
import gc
import time
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from anytime.inference.prediction import Answer
from anytime_service.api.openapi import AnytimeAPI
from anytime_service.clock import now_ms
from anytime_service.telemetry.metrics import ModelMetrics

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

    def answered(self, original: Any, metrics: ModelMetrics, answer: Answer, late_ms: float | None) -> None:
        """Record an answer, and pass it on to the service's own metrics."""
        original(metrics, answer, late_ms)
        if late_ms is not None:
            self.stats.late_ms.append(late_ms)

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
        try:
            while True:
                name, delay = (await websocket.receive_text()).split()
                due = now_ms() + float(delay)
                loop.call_later(float(delay) / 1000.0, self._fire, websocket, name, due)
        except WebSocketDisconnect:
            pass

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
    instruments = _Instruments()
    original = ModelMetrics.answered
    gc.callbacks.append(instruments.collected)

    def answered(metrics: ModelMetrics, answer: Answer, late_ms: float | None) -> None:
        instruments.answered(original, metrics, answer, late_ms)

    partial(setattr, ModelMetrics, "answered")(answered)
    app.router.routes += [WebSocketRoute("/timer", instruments.timer), Route("/measured", instruments.report)]
    return app
