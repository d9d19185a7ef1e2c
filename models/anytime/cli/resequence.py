"""`anytime resequence`: a model's order at other costs, without data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anytime.cli.arguments import DropMissing, Jobs, ModelFile, Weights, workers
from anytime.cli.output import Out, check_out

__all__ = ["resequence"]

Costs = Annotated[Path, typer.Option("--costs", help="Groups file with the new costs.", show_default=False)]


def resequence(
    model: ModelFile,
    costs: Costs,
    out: Out,
    data: Annotated[
        Path | None, typer.Option("--data", help="Table to fit on; least squares needs none.", show_default=False)
    ] = None,
    weights: Weights = None,
    drop_missing_target: DropMissing = False,
    n_jobs: Jobs = None,
) -> None:
    """Order a model's groups anew at other costs: from the moments that it carries, or on its data for a likelihood."""
    from anytime.artifact import load  # noqa: PLC0415
    from anytime.cli.console import remark, results, working  # noqa: PLC0415
    from anytime.cli.learning import open_again  # noqa: PLC0415
    from anytime.cli.reporting import steps_table, summary  # noqa: PLC0415
    from anytime.errors import listed  # noqa: PLC0415
    from anytime.groups import load_groups  # noqa: PLC0415
    from anytime.resequencing import left_out  # noqa: PLC0415
    from anytime.resequencing import resequence as resequenced  # noqa: PLC0415

    check_out(out)
    loaded, groups = load(model), load_groups(costs)
    ignored = left_out(loaded, groups)
    if ignored:
        remark(f"ignored: {listed(ignored, 10)} (left out when the model was trained)")
    again = None
    if data is not None and loaded.manifest.family != "gaussian":
        again = open_again(loaded, data, weights=weights, drop_missing=drop_missing_target, jobs=workers(n_jobs))
    elif data is not None:
        remark("--data is not needed: the moments are in the model")
    with working(f"ordering {len(loaded.groups)} groups and fitting every prefix"):
        changed = resequenced(loaded, groups, out.stem, again).save(out)
    remark("one penalty for all prefixes, and none of them cross-validated: a model carries no folds")
    if loaded.manifest.calibration is not None:
        remark("not calibrated: these are other prefixes")
    if loaded.manifest.certificate is not None:
        remark("not certified: these are other costs")
    console = results()
    console.print(steps_table(changed))
    console.print(summary(changed), markup=False)
    console.print(f"wrote {out}", markup=False)
