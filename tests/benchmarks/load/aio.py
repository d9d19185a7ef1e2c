"""Streamed POST by aiohttp: what a program in Python would use."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable

import aiohttp
import numpy as np
import uvloop

from benchmarks.load.asked import DEADLINES_MS, Asked

__all__ = ["stream_by_aiohttp"]


def stream_by_aiohttp(
    port: int, predictions: Iterable[Asked], rng: np.random.Generator, rate: float
) -> tuple[list[float], list[float]]:
    """Stream predictions, with bare timers beside them; how late the timers came, and how late the load itself was."""
    return uvloop.run(_streamed(f"http://127.0.0.1:{port}", predictions, rng, rate))


async def _streamed(
    url: str, predictions: Iterable[Asked], rng: np.random.Generator, rate: float
) -> tuple[list[float], list[float]]:
    late: list[float] = []
    bare: list[float] = []
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
        client.ws_connect(f"{url}/timer") as websocket,
    ):
        due: dict[str, float] = {}
        reading = asyncio.create_task(_timers(websocket, due, bare))
        running = []
        at = time.perf_counter()
        for asked in predictions:
            at += float(rng.exponential(1.0 / rate))
            await _until(at, late)
            running.append(asyncio.create_task(_ask(client, url, asked, late)))
            if asked.name % 2 == 0:
                delay = float(rng.choice(DEADLINES_MS))
                due[str(asked.name)] = time.perf_counter() + delay / 1000.0
                await websocket.send_str(f"{asked.name} {delay}")
        await asyncio.wait(running, timeout=30)
        reading.cancel()
    return bare, late


async def _timers(websocket: aiohttp.ClientWebSocketResponse, due: dict[str, float], bare: list[float]) -> None:
    async for message in websocket:
        late_ms = (time.perf_counter() - due.pop(message.data)) * 1000.0
        bare.append(late_ms)


async def _ask(client: aiohttp.ClientSession, url: str, asked: Asked, late: list[float]) -> None:
    query = {"deadline_ms": str(asked.deadline_ms), "policy": asked.policy}
    headers = {"Content-Type": "application/x-ndjson"}
    asked.begun = time.perf_counter()
    async with client.post(f"{url}/predict", params=query, data=_lines(asked, late), headers=headers) as response:
        content = await response.read()
        asked.answers.append((time.perf_counter(), json.loads(content)))


async def _lines(asked: Asked, late: list[float]) -> AsyncIterator[bytes]:
    yield b"\n"  # or the head waits for the first group, and the deadline with it
    for offset, group, values in asked.groups:
        await _until(asked.begun + offset, late)
        if asked.answers:
            return
        yield json.dumps({"group": group, "values": values}).encode() + b"\n"
        asked.sent[group] = time.perf_counter()
    while not asked.answers:
        if asked.end_s is not None and time.perf_counter() > asked.begun + asked.end_s:
            return
        await asyncio.sleep(0.002)


async def _until(at: float, late: list[float]) -> None:
    left = at - time.perf_counter()
    if left > 0:
        await asyncio.sleep(left)
    late.append((time.perf_counter() - at) * 1000.0)
