"""The command `anytime demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from anytime.errors import AnytimeError

__all__ = ["demo"]


def demo(
    once: Annotated[bool, typer.Option("--once", help="Stop the server at the end.")] = False,
    port: Annotated[int, typer.Option(help="Port of the server; a free port if it is in use.")] = 8000,
) -> None:
    """Train on scikit-learn's digits, serve the model, and watch predictions improve until their deadlines."""
    try:
        from anytime_service.demo.story import run_demo  # noqa: PLC0415  (keeps `anytime --help` quick)
    except ModuleNotFoundError as error:
        raise AnytimeError(f"the demo needs {error.name}; pip install 'anytime-linear[all]'") from error
    run_demo(once=once, port=port)
