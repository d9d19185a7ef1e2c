"""Where words go: results to standard output, progress and remarks to standard error."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from math import isfinite
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

__all__ = ["Pace", "print_json", "progress", "remark", "results", "working"]

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
    """Print a result for programs; a number that is not finite, as an absurd row can make one, is null."""
    print(json.dumps(_finite(value), indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


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
            _Rate(unit),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda just: bar.advance(task, just)
        return
    pace = Pace()
    last = time.monotonic()

    def plain(just: int) -> None:
        nonlocal last
        pace.add(just)
        if time.monotonic() - last > PLAIN_SECONDS:
            last = time.monotonic()
            remark(f"{what}: {pace.done:,} of {total:,} {unit}{pace.told(total)}")

    yield plain


class Pace:
    """How fast work goes.

    Counted from the first units on, which may have been done in an earlier run.
    """

    def __init__(self) -> None:
        self.done = 0
        self._first = (0, 0.0)

    def add(self, just: int) -> None:
        """Count units that are done."""
        if not self.done:
            self._first = (just, time.monotonic())
        self.done += just

    def told(self, total: int) -> str:
        """Rate and time left, in words; nothing where there is no rate yet."""
        units, since = self._first
        spent = time.monotonic() - since
        if self.done == units or spent <= 0.0:
            return ""
        rate = (self.done - units) / spent
        left = timedelta(seconds=round((total - self.done) / rate))
        return f", {rate:,.0f} a second, {left} left"


class _Rate(ProgressColumn):
    """Units a second, once they are known."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        """Put it in words."""
        return Text("" if task.speed is None else f"{task.speed:,.0f} {self._unit}/s")
