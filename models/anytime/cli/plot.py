"""`anytime plot`: a model's curve as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anytime.cli.arguments import ModelFile

__all__ = ["plot"]


def plot(
    model: ModelFile,
    out: Annotated[Path, typer.Option("--out", help="Picture to write: png, svg or pdf.", show_default=False)],
) -> None:
    """Draw what each prefix of a model explains, against its cost."""
    from anytime.artifact import load  # noqa: PLC0415
    from anytime.cli.console import remark  # noqa: PLC0415
    from anytime.plotting import check_picture, plot_model  # noqa: PLC0415

    check_picture(out)
    plot_model(load(model), out)
    remark(f"wrote {out}")
