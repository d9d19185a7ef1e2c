"""Answers of 10,000 rows, next to pages and replaced sessions: `python -m benchmarks.load.many_rows PORT SECONDS`.

Prints one line of JSON (`ManyRows`): what the client measured, and what the answers say.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import msgspec
import numpy as np
from websockets.asyncio.client import connect

ROWS, TOGETHER, DEADLINE_MS = 10_000, 24, 300.0
PACKED = {"Content-Type": "application/msgpack", "Accept": "application/json"}


class ManyRows(msgspec.Struct):
    """Times of answers minus their deadlines in ms, as sent (`elapsed_ms`) and received, and counts of the rest."""

    sent: list[float]
    received: list[float]
    refused: int
    pages: int
    replacements: int
    mixed: int


def call(url: str, body: bytes | None = None) -> Any:
    """Return a decoded reply; None if the server refuses."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, PACKED), timeout=30) as reply:
            return msgspec.json.decode(reply.read())
    except urllib.error.HTTPError:
        return None


def packed(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"dtype": "f8", "values": values.tobytes()}


async def waves(port: int, group: str, width: int, until: float, found: ManyRows) -> None:
    """Begin predictions together, and the next ones when all of them are answered or refused."""
    values = packed(np.ones((ROWS, width)))
    async with connect(f"ws://127.0.0.1:{port}/stream", max_size=None, compression=None, proxy=None) as wire:
        number = 0
        while time.perf_counter() < until:
            begun: dict[int, float] = {}
            for number in range(number, number + TOGETHER):  # noqa: B020
                begun[number] = time.perf_counter()
                begin = {"type": "begin", "id": number, "rows": ROWS, "deadline_ms": DEADLINE_MS}
                await wire.send(msgspec.msgpack.encode(begin))
                await wire.send(msgspec.msgpack.encode({"type": "group", "id": number, "group": group, **values}))
            number += 1
            while begun:
                message = msgspec.msgpack.decode(await wire.recv(decode=False))
                at = begun.pop(message["id"], None)
                if message["type"] != "answer":
                    found.refused += 1
                elif at is not None:
                    found.sent.append(message["elapsed_ms"] - DEADLINE_MS)
                    found.received.append((time.perf_counter() - at) * 1e3 - DEADLINE_MS)


def replace(url: str, model: str, group: str, width: int, until: float, found: ManyRows) -> None:
    """Replace the values of a session, and read it: all rows of an answer are alike."""
    session = call(f"{url}/sessions", msgspec.msgpack.encode({"model": model}))["id"]
    while time.perf_counter() < until:
        values = packed(np.full((ROWS, width), float(found.replacements % 2)))
        call(f"{url}/sessions/{session}/groups", msgspec.msgpack.encode({group: values}))
        found.replacements += 1
        answer = call(f"{url}/sessions/{session}/predict")
        found.mixed += answer is not None and len(set(answer["prediction"])) > 1


def read_pages(url: str, model: str, until: float, found: ManyRows) -> None:
    while time.perf_counter() < until:
        found.pages += call(f"{url}/models/{model}") is not None
        time.sleep(0.05)


def main() -> None:
    port, until = int(sys.argv[1]), time.perf_counter() + float(sys.argv[2])
    url, found = f"http://127.0.0.1:{port}", ManyRows([], [], 0, 0, 0, 0)
    model = call(f"{url}/models")[0]["name"]
    group = next(each for each in call(f"{url}/models/{model}")["groups"] if each["features"])
    name, width = group["name"], len(group["features"])
    threads = [
        threading.Thread(target=replace, args=(url, model, name, width, until, found)),
        threading.Thread(target=read_pages, args=(url, model, until, found)),
    ]
    for thread in threads:
        thread.start()
    asyncio.run(waves(port, name, width, until, found))
    for thread in threads:
        thread.join()
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()
