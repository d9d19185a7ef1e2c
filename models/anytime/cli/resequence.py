"""`anytime resequence`: a model's order at other costs, without data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anytime.cli.arguments import ModelFile
from anytime.cli.output import Out, check_out

__all__ = ["resequence"]

Costs = Annotated[Path, typer.Option("--costs", help="Groups file with the new costs.", show_default=False)]


def resequence(model: ModelFile, costs: Costs, out: Out) -> None:
    """Order a model's groups anew at other costs, from the moments that it carries."""
    from anytime import training  # noqa: PLC0415
    from anytime.artifact import load  # noqa: PLC0415
    from anytime.cli.console import remark, results  # noqa: PLC0415
    from anytime.cli.reporting import steps_table, summary  # noqa: PLC0415
    from anytime.groups import load_groups  # noqa: PLC0415

    check_out(out)
    changed = training.resequence(load(model), load_groups(costs), out.stem).save(out)
    remark("one penalty for all prefixes, and none of them cross-validated: a model carries no folds")
    console = results()
    console.print(steps_table(changed))
    console.print(summary(changed), markup=False)
    console.print(f"wrote {out}", markup=False)
