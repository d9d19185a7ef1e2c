"""The standard streams of a command: any encoding, full or closed."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from anytime.errors import reason_of

_written: list[Path] = []
"""Files that the command has completed."""


def prepare_streams() -> None:
    """Let streams that cannot represent a character print its escape sequence; forget what an earlier call wrote."""
    _written.clear()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def remember_written(*paths: Path | None) -> None:
    """Note that files are complete, so that the command can no longer fail."""
    _written.extend(path for path in paths if path is not None)


@contextmanager
def printing() -> Iterator[None]:
    """Print results; if that fails although all files are complete, only say so."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if not _written:
            raise
        redirect_to_nothing(sys.stdout)
        complain(f"cannot print the results: {reason_of(error)}; {' and '.join(map(str, _written))} is complete")


def complain(message: str) -> None:
    """Print a line to standard error, unless that is full or closed, which is no reason to stop the work."""
    with suppress(OSError):
        print(message, file=sys.stderr, flush=True)


def redirect_to_nothing(stream: TextIO) -> None:
    """Discard the output to a stream from now on, also what is printed at the exit of the interpreter."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
