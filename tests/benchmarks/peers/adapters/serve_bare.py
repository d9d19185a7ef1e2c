"""The floor: an ASGI application without a framework, under uvicorn, that parses JSON and multiplies."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import uvicorn

__all__ = ["Linear"]


class Linear:
    """`POST` {"x": [...]} returns {"prediction": ...}; there are no other routes, checks or limits."""

    def __init__(self, path: str) -> None:
        with np.load(path, allow_pickle=False) as model:
            self.coef, self.intercept = model["coef"], float(model["intercept"])

    async def __call__(
        self,
        _scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        x = np.asarray(json.loads(body)["x"])
        content = json.dumps({"prediction": float(x @ self.coef) + self.intercept}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


if __name__ == "__main__":
    uvicorn.run(
        Linear(os.environ["PEERS_MODEL"]), port=int(sys.argv[1]), access_log=False, log_level="warning", lifespan="off"
    )
