"""Where words go: results to standard output, progress and remarks to standard error."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["print_json", "progress", "remark", "results", "working"]

PLAIN_SECONDS = 5.0
"""Between two lines of progress where there is no terminal."""


def results() -> Console:
    """Console for results; as wide as they are where there is no terminal."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=200)


def remark(text: str) -> None:
    """Say something that is not a result."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(text, markup=False)


def print_json(value: Any) -> None:
    """Print a result for programs."""
    print(json.dumps(value, indent=1, allow_nan=False))


@contextmanager
def working(what: str) -> Iterator[None]:
    """Context of work that has no rows to count: a sign of life on a terminal, else a line."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(what):
            yield
        return
    remark(what)
    yield


@contextmanager
def progress(what: str, total: int, unit: str = "rows") -> Iterator[Callable[[int], None]]:
    """Context that counts work done: a bar on a terminal, else a line now and then.

    Yields
    ------
    Callable
        To be called with the number of units just done.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda just: bar.advance(task, just)
        return
    done, last = 0, time.monotonic()

    def plain(just: int) -> None:
        nonlocal done, last
        done += just
        if time.monotonic() - last > PLAIN_SECONDS:
            last = time.monotonic()
            remark(f"{what}: {done} of {total} {unit}")

    yield plain
