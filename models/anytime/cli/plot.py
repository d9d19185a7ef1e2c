"""`anytime plot`: a model's curve as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anytime._files import check_writable
from anytime.cli.console import remark
from anytime.cli.options import ModelFile
from anytime.evaluation.plots import FORMATS, plot_model
from anytime.inference.prediction import load

__all__ = ["plot"]


def plot(
    model: ModelFile,
    out: Annotated[Path, typer.Option("--out", help="Picture to write: png, svg or pdf.", show_default=False)],
) -> None:
    """Draw the explained variance of each prefix of a model against its cost."""
    check_writable(out, FORMATS)
    plot_model(load(model), out)
    remark(f"wrote {out}")
