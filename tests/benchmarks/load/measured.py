"""The service with a second pair of eyes: bare timers in the same event loop, and how late its answers leave.

`WS /timer` takes "NAME DELAY_MS" and sends NAME back from a bare `loop.call_later`: what any server could do at best.
`GET /measured` tells what has happened since it was last asked.
"""

from __future__ import annotations

import asyncio
import gc
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

__all__ = ["Seen", "measured"]

PULSE_S = 0.001
NOTED_MS = 1.0
"""Garbage collected for longer is noted."""

STALL_MS = 2.2
"""A loop that comes round later is noted. The pulse itself takes up to 2 ms, as the loop counts whole milliseconds."""


class Seen(msgspec.Struct):
    """What has happened in the server.

    Attributes
    ----------
    late_ms : answer left minus deadline, of every answer that a deadline brought.
    bare_ms : the same of bare timers.
    stalls : from when to when the loop did not come round, in milliseconds of the system's clock.
    collecting_ms : how long each collection of garbage of more than a millisecond took.
    """

    late_ms: list[float]
    bare_ms: list[float]
    stalls: list[tuple[float, float]]
    collecting_ms: list[float]


class _Watch:
    """Notes what happens in one event loop."""

    def __init__(self) -> None:
        self.seen = Seen([], [], [], [])
        self.beating = False
        self.collecting = 0.0

    def collected(self, phase: str, _told: object) -> None:
        """Note a collection of garbage."""
        now = now_ms()
        if phase == "start":
            self.collecting = now
        elif now - self.collecting > NOTED_MS:
            self.seen.collecting_ms.append(now - self.collecting)

    def answered(self, told: Any, signals: ModelMetrics, answer: Answer, late_ms: float | None) -> None:
        """Note an answer on its way to the service's own record."""
        told(signals, answer, late_ms)
        if late_ms is not None:
            self.seen.late_ms.append(late_ms)

    async def tell(self, _request: Request) -> Response:
        """Tell and forget what has happened."""
        told, self.seen = self.seen, Seen([], [], [], [])
        if not self.beating:
            self.beating = True
            self._beat(now_ms())
        return Response(msgspec.json.encode(told), media_type="application/json")

    async def timer(self, websocket: WebSocket) -> None:
        """Send names back after their delays."""
        await websocket.accept()
        loop = asyncio.get_running_loop()
        try:
            while True:
                name, delay = (await websocket.receive_text()).split()
                due = now_ms() + float(delay)
                loop.call_later(float(delay) / 1000.0, self._strike, websocket, name, due)
        except WebSocketDisconnect:
            pass

    def _strike(self, websocket: WebSocket, name: str, due: float) -> None:
        self.sending = asyncio.ensure_future(websocket.send_text(name))
        self.seen.bare_ms.append(now_ms() - due)

    def _beat(self, last: float) -> None:
        now = now_ms()
        if now - last > STALL_MS:
            self.seen.stalls.append((last, now))
        asyncio.get_running_loop().call_later(PULSE_S, self._beat, now)


def measured(app: AnytimeAPI) -> AnytimeAPI:
    """Add the routes, and the notes."""
    watch = _Watch()
    told = ModelMetrics.answered
    gc.callbacks.append(watch.collected)

    def answered(signals: ModelMetrics, answer: Answer, late_ms: float | None) -> None:
        watch.answered(told, signals, answer, late_ms)

    partial(setattr, ModelMetrics, "answered")(answered)
    app.router.routes += [WebSocketRoute("/timer", watch.timer), Route("/measured", watch.tell)]
    return app
