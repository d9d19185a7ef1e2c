"""A program that a test stops and continues while it runs extractors under a deadline, through a client.

Usage: `python -m service.stalling_client URL KIND DEADLINE_MS`. Each line of its input is the folder of a run; it
prints the answer as a line of JSON. All groups but the last are ready; the last one comes from the named pipe in the
folder.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
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


def main(url: str, kind: str, deadline_ms: str) -> None:
    """Run the extractors, once for each line."""
    if kind == "sync":
        with Client(url) as client:
            client.warm_up(EXTRACTORS)
            for x in inputs():
                show(client.run(EXTRACTORS, x, float(deadline_ms)))
    else:
        asyncio.run(run_all(url, float(deadline_ms)))


async def run_all(url: str, deadline_ms: float) -> None:
    """Run the extractors in an event loop."""
    async with AsyncClient(url) as client:
        await client.warm_up(EXTRACTORS)
        for x in inputs():
            show(await client.run(EXTRACTORS, x, deadline_ms))


def inputs() -> Iterator[dict[str, Any]]:
    """Yield the input of each run when the test is ready for it."""
    for line in sys.stdin:
        yield {**AT_HAND, "folder": line.rstrip("\n")}


def show(answer: Answer) -> None:
    """Print an answer."""
    print(json.dumps(asdict(answer)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
