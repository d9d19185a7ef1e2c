"""Baselines of the service: the least work that the same framework can do with the same bytes."""

from __future__ import annotations

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

    @app.websocket("/echo")
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        try:
            while True:
                await websocket.send_text(await websocket.receive_text())
        except WebSocketDisconnect:
            pass

    @app.websocket("/score")
    async def score(websocket: WebSocket) -> None:
        await websocket.accept()
        try:
            while True:
                content = await websocket.receive_bytes()
                X @ coef
                await websocket.send_bytes(content)
        except WebSocketDisconnect:
            pass

    async def add_groups(request: Request) -> Response:
        values = groups.decode(await request.body())
        return Response(encode({"prefix": len(values), "steps": 20, "replaced": []}), media_type="application/json")

    async def answer(request: Request) -> Response:
        values = predict.decode(await request.body()).groups
        return Response(encode({"prediction": 1.0, "prefix": len(values)}), media_type="application/json")

    app.add_route("/sessions/{id}/groups", add_groups, methods=["POST"])
    app.add_route("/predict", answer, methods=["POST"])
    return app
