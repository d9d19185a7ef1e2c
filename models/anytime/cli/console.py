"""Console output: results to standard output, progress and remarks to standard error; and errors as one line."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text
from typer.exceptions import TyperException

from anytime.errors import AnytimeError, EnvironmentFailure, TrainingError, reason_of, summary
from anytime.tabulated import Tabulated

if TYPE_CHECKING:
    from anytime.data.survey import Survey


def remark(text: str) -> None:
    """Print a line to standard error; if that is full or closed, the work goes on, and nothing more is printed there.

    Not by rich, which ends the process where nobody reads a pipe.
    """
    if sys.stderr is not None:  # the process began without it
        try:
            print(text, file=sys.stderr, flush=True)
        except OSError:
            redirect_to_nothing(sys.stderr)


def redirect_to_nothing(stream: TextIO) -> None:
    """Discard the output to a stream from now on, also what is printed at the exit of the interpreter."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def report(error: Exception, complete: str = "") -> int:
    """Print the line that reports an error, and return the exit code; with ANYTIME_DEBUG raise what nobody expects.

    `complete` says what is complete in spite of it.
    """
    message, code = str(error), 1
    if isinstance(error, BrokenPipeError):
        # The reader of the output closed it (`anytime show | head`); no more output is possible.
        redirect_to_nothing(sys.stdout)
        return code
    if isinstance(error, AnytimeError):
        # Errors of the client are also OSErrors if the network failed.
        code = 1 if isinstance(error, EnvironmentFailure | OSError) else 2
        if isinstance(error, TrainingError):  # about an option of the library, such as min_level_rows
            message = re.sub("^[a-z_]+(?= is )", lambda name: f"--{name[0].replace('_', '-')}", message)
    elif isinstance(error, TyperException):
        words = error.format_message().rstrip(".").replace("Value error, ", "")  # the words of pydantic
        given = repr(error.__cause__.errors()[0]["input"]) if isinstance(error.__cause__, ValidationError) else ""
        words += f", not {given}" if given not in words else ""
        message, code = f"{words}; see 'anytime --help' or 'anytime COMMAND --help'", 2
    elif isinstance(error, MemoryError):
        message = "out of memory; use a machine with more memory, or fewer columns"
    elif os.environ.get("ANYTIME_DEBUG"):
        raise error
    elif not isinstance(error, OSError):
        message = f"internal error: {summary(error)}; set ANYTIME_DEBUG=1 for the traceback and report it"
    elif error.strerror:
        message = reason_of(error) + (f": {error.filename!r}" if error.filename else "")
    remark(f"error: {' '.join(message.split())}{complete}")
    return code


@dataclass
class Done:
    """The files that a command has completed, and what follows: its failures lose no file."""

    files: list[Path] = field(default_factory=list)
    failed: bool = False

    @contextmanager
    def then(self, file: Path | None = None) -> Iterator[None]:
        """Go on if the work within fails, after a line about that; `print` ends the command with exit code 1.

        Work that succeeds has completed one more file, if one is given.
        """
        try:
            yield
        except Exception as error:
            self.failed = True
            report(error, f"; {self} is complete" if self.files else "")
        else:
            self.files += [] if file is None else [file]

    def print(self, *parts: Tabulated | str) -> None:
        """Print tables and lines to standard output; without a terminal tables are wide.

        A command that has completed a file does not fail if nothing can be printed.
        """
        console = Console()
        try:
            for part in parts:
                print(part if isinstance(part, str) else part.text(console.width if console.is_terminal else 200))
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError as error:
            if not self.files:
                raise
            redirect_to_nothing(sys.stdout)
            remark(f"cannot print the results: {reason_of(error)}; {self} is complete")
        if self.failed:
            raise typer.Exit(1)

    def __str__(self) -> str:
        return " and ".join(map(str, self.files))


def print_results(*parts: Tabulated | str) -> None:
    """Print the results of a command that writes no file."""
    Done().print(*parts)


def as_json(value: Any) -> str:
    """Return a result as JSON, arrays as lists; non-finite numbers, which an extreme row can cause, become null."""
    return json.dumps(_finite(value), indent=1, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_finite(each) for each in (value.tolist() if isinstance(value, np.ndarray) else value)]
    return None if isinstance(value, float) and not isfinite(value) else value


def remark_missing(found: Survey) -> None:
    """Print how many rows of a table without a target are left out, if there are some."""
    if found.missing:
        remark(f"left out: {found.missing} of {found.rows} rows of {Path(found.table).name} without a target")


def working(what: str) -> AbstractContextManager[object]:
    """Show activity during work without countable units: a spinner on a terminal, else one line."""
    console = Console(stderr=True)
    if console.is_terminal:
        return console.status(what)
    remark(what)
    return nullcontext()


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
            _Rate(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=total, unit=unit)
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
            rate = (done - first) / max(now - begun, 1e-9)
            if rate:
                line += f", {rate:,.0f} a second"
            if rate and total is not None:
                line += f", {timedelta(seconds=round((total - done) / rate))} remaining"
            remark(line)

    yield advance


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} {task.fields['unit']}/s")
