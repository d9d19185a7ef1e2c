"""The standard streams of a command, which may be full or closed."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO


def complain(message: str) -> None:
    """Print a line to standard error, unless that is full or closed, which is no reason to stop the work."""
    with suppress(OSError):
        print(message, file=sys.stderr, flush=True)


def redirect_to_nothing(stream: TextIO) -> None:
    """Discard the output to a stream from now on, also what is printed at the exit of the interpreter."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
