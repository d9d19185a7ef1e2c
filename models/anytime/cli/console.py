"""Console output: results to standard output, progress and remarks to standard error."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from anytime.cli.streams import complain, redirect_to_nothing
from anytime.errors import reason_of
from anytime.tabulated import Tabulated


def print_results(*parts: Tabulated | str, written: Iterable[Path | None] = ()) -> None:
    """Print tables and lines to standard output; without a terminal tables are wide.

    `written` are the files that the command has completed, if any: then it does not fail if nothing can be printed.
    """
    console = Console()
    complete = " and ".join(str(path) for path in written if path is not None)
    try:
        for part in parts:
            print(part if isinstance(part, str) else part.text(console.width if console.is_terminal else 200))
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if not complete:
            raise
        redirect_to_nothing(sys.stdout)
        complain(f"cannot print the results: {reason_of(error)}; {complete} is complete")


def remark(text: str) -> None:
    """Print a line to standard error; if it is full or closed, the work goes on without."""
    with suppress(OSError):
        Console(stderr=True, highlight=False, soft_wrap=True).print(text, markup=False)


def print_json(value: Any, written: Iterable[Path | None] = ()) -> None:
    """Print a result as JSON, arrays as lists; non-finite numbers, which an extreme row can cause, become null."""
    print_results(json.dumps(_finite(value), indent=1, allow_nan=False), written=written)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_finite(each) for each in (value.tolist() if isinstance(value, np.ndarray) else value)]
    return None if isinstance(value, float) and not isfinite(value) else value


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show activity during work without countable units: a spinner on a terminal, else one line."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        remark(what)
        yield


@contextmanager
def progress(what: str, total: int | None, unit: str = "rows") -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the number of units just completed: a bar on a terminal, else a line every 5 s.

    `total` is the number of all units, or None if it is unknown. The rate of a line counts from the end of the first
    call on, whose units an earlier run may have completed.
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
    done = first = 0
    begun = printed = time.monotonic()

    def advance(just: int) -> None:
        nonlocal done, first, begun, printed
        now = time.monotonic()
        if not done:
            first, begun = just, now
        done += just
        if now - printed > 5.0:
            printed = now
            line = f"{what}: {done:,}{'' if total is None else f' of {total:,}'} {unit}"
            if done > first and now > begun:
                rate = (done - first) / (now - begun)
                line += f", {rate:,.0f} a second"
                if total is not None:
                    line += f", {timedelta(seconds=round((total - done) / rate))} remaining"
            remark(line)

    yield advance


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} {self._unit}/s")
