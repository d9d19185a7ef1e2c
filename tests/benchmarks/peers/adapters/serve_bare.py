"""The floor: an ASGI application without framework, checks or limits, under uvicorn: it parses JSON and multiplies."""

import json
import sys
from typing import Any

import uvicorn

from benchmarks.peers.adapters.linear import Weights

weights = Weights()


async def linear(_scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer {"x": [...]} with {"prediction": ...}."""
    body, message = b"", {"more_body": True}
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    content = json.dumps({"prediction": weights.predict(json.loads(body)["x"])}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


uvicorn.run(linear, port=int(sys.argv[1]), access_log=False, log_level="warning", lifespan="off")
