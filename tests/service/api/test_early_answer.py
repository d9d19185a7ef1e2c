"""Clients that read while they write see the answer at the deadline, though their upload goes on."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from threading import Timer
from typing import Any

import pytest

from service.serving import VALUES, Running, logged

KIND = "application/x-ndjson"
LINE = json.dumps({"group": "speed", "values": VALUES["speed"]}).encode() + b"\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not here")
def test_curl_prints_the_answer_while_its_input_is_open(service: Running) -> None:
    # With a limit of time (-m) curl waits for its input before it looks for an answer.
    command = ["curl", "-sN", "-X", "POST", "-H", f"Content-Type: {KIND}", "-T", "."]
    with subprocess.Popen(
        [*command, f"{service.url}/predict?deadline_ms=500"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as curl:
        assert curl.stdin is not None
        assert curl.stdout is not None
        too_late = Timer(20, curl.kill)
        too_late.start()
        try:
            curl.stdin.write(LINE)
            curl.stdin.flush()
            reported = b""
            while not reported.endswith(b"}"):
                piece = os.read(curl.stdout.fileno(), 65_536)
                assert piece, "curl ended without an answer"
                reported += piece
        finally:
            too_late.cancel()
            curl.kill()
    answer = json.loads(reported)
    assert (answer["reason"], answer["groups"]) == ("deadline", ["speed"])


def test_aiohttp_sees_the_answer_while_it_streams(service: Running) -> None:
    aiohttp: Any = pytest.importorskip("aiohttp")

    async def lines(answered: asyncio.Event) -> AsyncIterator[bytes]:
        yield LINE
        while not answered.is_set():
            await asyncio.sleep(0.005)
            yield b"\n"

    async def main() -> None:
        async with aiohttp.ClientSession(headers={"content-type": KIND}) as client:
            for _ in range(3):
                answered = asyncio.Event()
                url = f"{service.url}/predict?deadline_ms=250"
                async with asyncio.timeout(20), client.post(url, data=lines(answered)) as response:
                    answer = await response.json()
                    answered.set()
                assert (answer["reason"], answer["groups"]) == ("deadline", ["speed"])

    with logged() as records:
        asyncio.run(main())
    assert not records
