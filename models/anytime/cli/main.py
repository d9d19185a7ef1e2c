"""The commands in one application, and the conversion of errors to one line and an exit code.

0: success. 1: the work failed (network, disk, a worker, out of memory). 2: the call or a file is invalid.
3: `costs --check` found drift. 130: interrupted.

A command is imported when it is called, so that `anytime show` loads no trainer and `anytime --help` loads nothing.
"""

from __future__ import annotations

import ast
import inspect
import io
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from threading import current_thread, main_thread
from types import SimpleNamespace
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from anytime._version import __version__
from anytime.errors import AnytimeError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""

WIDTH = {"max_content_width": 120}

COMMANDS = {
    "groups": ("train", "Draft a groups file: what the columns of a table hold, and which to leave out."),
    "train": ("train", "Order the feature groups of a table, fit every prefix, and write the model."),
    "basis": ("train", "Learn the bases of the columns of a table, and write a groups file that states them."),
    "moments": ("train", "Sum the rows of tables into a moments file for `train`; add and subtract such files."),
    "show": ("model_file", "Print a model: its steps, costs and errors."),
    "predict": ("predict", "Predict the rows of a table within a budget, and write them to a file."),
    "evaluate": ("predict", "Measure every prefix of a model on a table."),
    "report": ("model_file", "Write a page about a model: quality by cost, groups, shapes, reliability, warnings."),
    "what-if": ("resequence", "Show what a model would lose at other costs or without some groups."),
    "plot": ("model_file", "Draw explained variance against cost, or the shapes of columns."),
    "resequence": ("resequence", "Reorder the groups of a model for other costs, without the training data."),
    "profile": ("costs", "Measure the time of each group's extractor on this machine, as its cost."),
    "costs": (
        "costs",
        "Read the costs of the groups from a running service, and report whether the sequence should change.",
    ),
    "certify": ("model_file", "Compare each prefix with the best set of groups of its cost."),
    "export": ("model_file", "Write a model as JSON or as a C header."),
}
"""Commands of the library: the module with the function of that name, and the help text."""

SECTIONS = {
    "Train": ("groups", "train", "basis", "moments", "compare"),
    "Decide": ("show", "predict", "evaluate", "report", "what-if", "plot", "certify"),
    "Serve": ("demo", "serve", "export"),
    "Maintain": ("profile", "costs", "resequence"),
    "Papers": ("reproduce",),
}
"""The commands in the help, by what they are for."""

EPILOG = "Run 'anytime COMMAND --help' for the options and an example of a command."


def _summary(name: str) -> str:
    """Return the first line that documents a command of another package, without importing its module."""
    (entry,) = entry_points(group="anytime.commands", name=name)
    spec = find_spec(entry.module)
    source = "" if spec is None or spec.origin is None else Path(spec.origin).read_text(encoding="utf-8")
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    found = next((ast.get_docstring(node) for node in functions if node.name == entry.attr), None)
    return (found or "").partition("\n")[0]


class _Command(TyperCommand):
    """A command whose help has a section for each panel of its options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            title = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record is not None:
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class _Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return [*COMMANDS, *sorted(entry_points(group="anytime.commands").names)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name in COMMANDS:
            function = getattr(import_module(f"anytime.cli.{COMMANDS[cmd_name][0]}"), cmd_name.replace("-", "_"))
        elif others := tuple(entry_points(group="anytime.commands", name=cmd_name)):
            function = others[0].load()
        else:
            return None
        text, _, example = (inspect.getdoc(function) or "").partition("\n\nExample: ")
        # The command is imported: from here on Ctrl-C interrupts its work, which removes what is half-written.
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler and current_thread() is main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
        app.command(cmd_name, cls=_Command, help=text, epilog=f"\b\nExample:\n  {example}", context_settings=WIDTH)(
            function
        )
        return typer.main.get_command(app)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        # The base class imports all commands for their help.
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [SimpleNamespace(value=name, type="plain", help=COMMANDS.get(name, ("", ""))[1]) for name in names]
        return items or super().shell_complete(ctx, incomplete)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        texts = {name: COMMANDS[name][1] if name in COMMANDS else _summary(name) for name in self.list_commands(ctx)}
        placed = {name for names in SECTIONS.values() for name in names}
        sections = SECTIONS | {"Others": tuple(name for name in texts if name not in placed)}
        width = max(map(len, texts))
        for title, names in sections.items():
            if lines := [(name.ljust(width), texts[name]) for name in names if name in texts]:
                with formatter.section(title):
                    formatter.write_dl(lines)


def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Train, inspect and serve linear predictions that are available at every deadline."""
    if version:
        print(f"anytime-linear {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        context.fail("Missing command.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # of characters that it cannot represent
    before, AnytimeError.names_flags = AnytimeError.names_flags, True
    app = typer.Typer(cls=_Commands, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(context_settings=WIDTH, epilog=EPILOG, invoke_without_command=True)(_options)
    try:
        code = app(args=arguments, prog_name="anytime", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except Exception as error:
        from anytime.cli.console import report  # noqa: PLC0415  (what prints errors takes time to import)

        code = report(error)
    finally:
        AnytimeError.names_flags = before
    if code == INTERRUPTED:
        from anytime.cli.console import remark  # noqa: PLC0415

        remark("error: stopped")
    return code if isinstance(code, int) else 0
