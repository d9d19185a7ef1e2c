"""`anytime resequence`: reorder the groups of a model, without data for least squares."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anytime.cli.console import remark, results, working
from anytime.cli.options import DropMissing, First, Jobs, ModelFile, Out, Weights, Without, check_out, workers
from anytime.cli.report import steps_table, summary
from anytime.cli.sources import open_again
from anytime.errors import TrainingError, listed
from anytime.groups import load_groups
from anytime.inference.loaded import load
from anytime.training.resequencing import Changes, kept_groups, left_out
from anytime.training.resequencing import resequence as resequenced
from anytime.types import Method

__all__ = ["resequence"]

Costs = Annotated[Path | None, typer.Option("--costs", help="Groups file with the new costs.", show_default=False)]
NewMethod = Annotated[Method | None, typer.Option("--method", help="Another criterion.", show_default=False)]
NewAlpha = Annotated[
    float | None, typer.Option("--alpha", help="Another penalty, for all prefixes.", show_default=False)
]
CostBlind = Annotated[
    bool | None,
    typer.Option("--cost-blind/--no-cost-blind", help="Forget costs in selection, or not.", show_default=False),
]
Doubling = Annotated[
    bool | None,
    typer.Option("--doubling/--no-doubling", help="Take no step dearer than all before it, or do.", show_default=False),
]


def resequence(
    model: ModelFile,
    out: Out,
    costs: Costs = None,
    method: NewMethod = None,
    alpha: NewAlpha = None,
    cost_blind: CostBlind = None,
    doubling: Doubling = None,
    first: First = None,
    no_first: Annotated[
        bool, typer.Option("--no-first", help="Place no group first that the model has first.")
    ] = False,
    without: Without = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Table to fit on; least squares needs none.", show_default=False)
    ] = None,
    weights: Weights = None,
    drop_missing_target: DropMissing = False,
    n_jobs: Jobs = None,
) -> None:
    """Reorder the groups of a model: at other costs, by another rule, some first, without some.

    Least squares needs no data, only the moments in the model. Options that are not given stay as in the model.
    """
    check_out(out)
    if first and no_first:
        raise TrainingError("--first and --no-first are given; expected one of them")
    leading = () if no_first else tuple(first) if first else None
    changes = Changes(method, alpha, cost_blind, doubling, leading, tuple(without or ()))
    if costs is None and changes == Changes():
        raise TrainingError("nothing changes; give --costs, --method, --alpha, --first, --without or another option")
    loaded = load(model)
    groups = None if costs is None else load_groups(costs)
    ignored = [] if groups is None else left_out(loaded, groups)
    if ignored:
        remark(f"ignored: {listed(ignored, 10)} (left out of the model)")
    again = None
    if data is not None and loaded.manifest.family != "gaussian":
        again = open_again(
            loaded,
            kept_groups(loaded.groups, changes),
            data,
            weights=weights,
            drop_missing=drop_missing_target,
            jobs=workers(n_jobs),
        )
    elif data is not None:
        remark("--data is not needed: the moments are in the model")
    with working(f"ordering {len(loaded.groups) - len(changes.without)} groups and fitting every prefix"):
        changed = resequenced(loaded, groups, out.stem, again, changes).save(out)
    remark("one penalty for all prefixes, and none of them cross-validated: a model carries no folds")
    if loaded.manifest.calibration is not None:
        remark("not calibrated: these are other prefixes")
    if loaded.manifest.certificate is not None:
        remark("not certified: these are other costs")
    console = results()
    console.print(steps_table(changed))
    console.print(summary(changed), markup=False)
    console.print(f"wrote {out}", markup=False)
