"""A program that a test stops and continues while it runs extractors under a deadline.

Usage: `python -m models.stalling MODEL WORKER DEADLINE_MS`. Each line of its input is the folder of a run; it prints
the answer as a line of JSON. The groups come from the named pipes in the folder; `started` appears there when the first
extractor is at work.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import anytime
from anytime.inference.runner import Runner
from anytime.inference.workers import Worker


def piped(group: str, folder: Path) -> list[float]:
    """Wait for a group's values, as an extractor waits for a device."""
    (folder / "started").touch()
    with (folder / group).open() as pipe:
        return cast(list[float], json.loads(pipe.readline()))


def extractors(*groups: str) -> dict[str, Callable[[Any], Any]]:
    """Return an extractor for each group, which worker processes can import."""
    return {group: partial(piped, group) for group in groups}


def main(model: str, worker: str, deadline_ms: str) -> None:
    """Run the extractors, once for each line."""
    loaded = anytime.load(model)
    with Runner(loaded, extractors(*loaded.groups.featured), cast(Worker, worker)) as runner:
        for line in sys.stdin:
            print(json.dumps(asdict(runner.run(Path(line.rstrip("\n")), float(deadline_ms)))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
