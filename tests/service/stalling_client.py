"""A program that a test stops and continues while it runs extractors under a deadline, through a client.

Usage: `python -m service.stalling_client URL KIND DEADLINE_MS RUNS FOLDER`. It prints one answer a line, as JSON. All
groups but the last are ready; the last one comes from the named pipe in FOLDER/i. Run i begins when FOLDER/i has the
file `go`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any

from anytime.inference.prediction import Answer
from anytime_service.client import AsyncClient, Client
from models.stalling import extractors

AT_HAND = {"speed": [2.0], "hog": [1.0, -1.0]}


def slow(x: Any) -> Any:
    """Wait for the values of the last group."""
    return extractors("lab")["lab"](Path(x["folder"]))


EXTRACTORS: dict[str, Callable[[Any], Any]] = {"speed": itemgetter("speed"), "hog": itemgetter("hog"), "lab": slow}


def main(url: str, kind: str, deadline_ms: str, runs: str, folder: str) -> None:
    """Run the extractors, once for each run."""
    inputs = [{**AT_HAND, "folder": str(Path(folder) / str(i))} for i in range(int(runs))]
    if kind == "sync":
        with Client(url) as client:
            client.warm_up(EXTRACTORS)
            for x in inputs:
                wait(x)
                show(client.run(EXTRACTORS, x, float(deadline_ms)))
    else:
        asyncio.run(run_all(url, float(deadline_ms), inputs))


async def run_all(url: str, deadline_ms: float, inputs: list[dict[str, Any]]) -> None:
    """Run the extractors in an event loop."""
    async with AsyncClient(url) as client:
        await client.warm_up(EXTRACTORS)
        for x in inputs:
            wait(x)
            show(await client.run(EXTRACTORS, x, deadline_ms))


def wait(x: dict[str, Any]) -> None:
    """Wait until the test is ready for a run."""
    while not (Path(x["folder"]) / "go").exists():
        time.sleep(0.005)


def show(answer: Answer) -> None:
    """Print an answer."""
    print(json.dumps(asdict(answer)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
