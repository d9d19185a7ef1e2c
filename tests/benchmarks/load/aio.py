"""Streamed POST by aiohttp, as a Python program would send it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable

import aiohttp
import numpy as np
import uvloop

from benchmarks.load.predictions import DEADLINES_MS, LoadPrediction


def stream_by_aiohttp(
    port: int, predictions: Iterable[LoadPrediction], rng: np.random.Generator, rate: float
) -> tuple[list[float], list[float]]:
    """Stream predictions next to bare timers; return the lateness of the timers and of the load generator."""
    return uvloop.run(_stream(f"http://127.0.0.1:{port}", predictions, rng, rate))


async def _stream(
    url: str, predictions: Iterable[LoadPrediction], rng: np.random.Generator, rate: float
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
        for prediction in predictions:
            at += float(rng.exponential(1.0 / rate))
            await _until(at, late)
            running.append(asyncio.create_task(_request(client, url, prediction, late)))
            if prediction.name % 2 == 0:
                delay = float(rng.choice(DEADLINES_MS))
                due[str(prediction.name)] = time.perf_counter() + delay / 1000.0
                await websocket.send_str(f"{prediction.name} {delay}")
        await asyncio.wait(running, timeout=30)
        reading.cancel()
    return bare, late


async def _timers(websocket: aiohttp.ClientWebSocketResponse, due: dict[str, float], bare: list[float]) -> None:
    async for message in websocket:
        late_ms = (time.perf_counter() - due.pop(message.data)) * 1000.0
        bare.append(late_ms)


async def _request(client: aiohttp.ClientSession, url: str, prediction: LoadPrediction, late: list[float]) -> None:
    query = {"deadline_ms": str(prediction.deadline_ms), "policy": prediction.policy}
    headers = {"Content-Type": "application/x-ndjson"}
    prediction.started = time.perf_counter()
    async with client.post(f"{url}/predict", params=query, data=_lines(prediction, late), headers=headers) as response:
        content = await response.read()
        prediction.answers.append((time.perf_counter(), json.loads(content)))


async def _lines(prediction: LoadPrediction, late: list[float]) -> AsyncIterator[bytes]:
    yield b"\n"  # otherwise the headers, and with them the deadline, wait for the first group
    for offset, group, values in prediction.groups:
        await _until(prediction.started + offset, late)
        if prediction.answers:
            return
        yield json.dumps({"group": group, "values": values}).encode() + b"\n"
        prediction.sent[group] = time.perf_counter()
    while not prediction.answers:
        if prediction.end_s is not None and time.perf_counter() > prediction.started + prediction.end_s:
            return
        await asyncio.sleep(0.002)


async def _until(at: float, late: list[float]) -> None:
    wait_s = at - time.perf_counter()
    if wait_s > 0:
        await asyncio.sleep(wait_s)
    late.append((time.perf_counter() - at) * 1000.0)
