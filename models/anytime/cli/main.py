"""The commands in one application, and the one place where an error becomes a line and an exit code.

0: success. 1: the work failed (network, disk, a worker, out of memory). 2: the call or a file is invalid.
3: `costs --check` found drift. 130: interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from typing import Annotated

import typer
from typer.exceptions import TyperException

from anytime.cli.certify import certify
from anytime.cli.compare import compare
from anytime.cli.costs import costs
from anytime.cli.evaluate import evaluate
from anytime.cli.export import export
from anytime.cli.moments import moments
from anytime.cli.plot import plot
from anytime.cli.profile import profile
from anytime.cli.reproduce import reproduce
from anytime.cli.resequence import resequence
from anytime.cli.show import show
from anytime.cli.train import train
from anytime.errors import AnytimeError

__all__ = ["application", "main"]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

COMMANDS = (train, moments, show, evaluate, compare, plot, resequence, profile, costs, certify, export, reproduce)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"anytime-linear {version('anytime-linear')}")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Linear predictions that are ready whenever the deadline strikes."""


def application() -> typer.Typer:
    """The command line with every installed command; others come by the entry points `anytime.commands`."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    app.callback()(_options)
    for command in COMMANDS:
        app.command()(command)
    for entry in sorted(entry_points(group="anytime.commands"), key=lambda entry: entry.name):
        app.command(entry.name)(entry.load())
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        code = application()(args=arguments, prog_name="anytime", standalone_mode=False)
    except TyperException as error:
        return _failed(f"{error.format_message().rstrip('.')}; see 'anytime --help' or 'anytime COMMAND --help'", 2)
    except AnytimeError as error:
        # Errors of the client are OSErrors as well where the network failed.
        return _failed(str(error), 1 if error.environment or isinstance(error, OSError) else 2)
    except (typer.Abort, KeyboardInterrupt):
        return _failed("stopped", INTERRUPTED)
    except BrokenPipeError:
        # The reader of the output has gone (`anytime show | head`), so nothing more can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MemoryError:
        return _failed("out of memory; use a machine with more, or fewer columns", 1)
    except Exception as error:
        if os.environ.get("ANYTIME_DEBUG"):
            raise
        if isinstance(error, OSError):
            where = f": {error.filename!r}" if error.filename else ""
            return _failed(f"{error.strerror.lower()}{where}" if error.strerror else str(error), 1)
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return _failed(f"internal error: {what}; set ANYTIME_DEBUG=1 for the traceback and report it", 1)
    if code == INTERRUPTED:
        return _failed("stopped", code)
    return code if isinstance(code, int) else 0


def _failed(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code
