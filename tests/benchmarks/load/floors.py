"""Baselines of the service: the least work that the same framework can do with the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from fastapi import FastAPI, WebSocket
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect

ROWS, WIDTH = 1000, 10
"""Rows and features of the packed group."""


class _Predict(msgspec.Struct):
    groups: dict[str, list[float]]


def floors() -> FastAPI:
    """Echoes, a product and bare routes inside FastAPI."""
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
