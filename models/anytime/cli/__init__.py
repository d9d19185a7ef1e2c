"""The command line: `anytime train`, `show`, `evaluate`, `plot`, `profile`, `costs` and others, and entry points."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Until a command begins, Ctrl-C ends the process at once: nothing is open, and an interrupted import would print a
    traceback.
    """
    signal.signal(signal.SIGINT, _stop)
    from anytime.cli.main import main as run  # noqa: PLC0415

    return run(arguments)


def _stop(*_: Any) -> None:
    os.write(2, b"error: stopped\n")
    os._exit(130)
