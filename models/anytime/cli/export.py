"""`anytime export`: a model as text, for programs and devices without this library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from anytime._files import check_writable
from anytime.cli.console import remark
from anytime.cli.options import ModelFile
from anytime.groups import write_text
from anytime.inference.prediction import load
from anytime.model.export import c_source, document

__all__ = ["export"]

Form = Annotated[
    Literal["json", "c"],
    typer.Option("--to", help="JSON, or a C11 header for one row at a time.", show_default=False),
]
Into = Annotated[
    Path | None,
    typer.Option("--out", help="File to write, *.json or *.h; standard output by default.", show_default=False),
]


def export(model: ModelFile, to: Form, out: Into = None) -> None:
    """Write the prefixes of a model as JSON or C, for programs and devices without this library."""
    if out is not None:
        check_writable(out, (".json",) if to == "json" else (".h",))
    loaded = load(model)
    text = c_source(loaded) if to == "c" else json.dumps(document(loaded), allow_nan=False) + "\n"
    if out is None:
        print(text, end="")
        return
    write_text(text, out)
    remark(f"wrote {out}")
