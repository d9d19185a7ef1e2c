"""`anytime resequence`: a model's groups in another order, without data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anytime.cli.arguments import DropMissing, Jobs, ModelFile, Weights, workers
from anytime.cli.output import Out, check_out
from anytime.manifest import Method

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
First = Annotated[
    list[str] | None,
    typer.Option("--first", help="Group to take before all others; repeat it for an order.", show_default=False),
]
Without = Annotated[
    list[str] | None, typer.Option("--without", help="Group to leave out; may be repeated.", show_default=False)
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
    without: Without = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Table to fit on; least squares needs none.", show_default=False)
    ] = None,
    weights: Weights = None,
    drop_missing_target: DropMissing = False,
    n_jobs: Jobs = None,
) -> None:
    """Order a model's groups anew: at other costs, by another rule, some first, without some.

    Least squares needs no data, only the moments that the model carries.
    """
    from anytime.artifact import load  # noqa: PLC0415
    from anytime.cli.console import remark, results, working  # noqa: PLC0415
    from anytime.cli.reporting import steps_table, summary  # noqa: PLC0415
    from anytime.errors import TrainingError, listed  # noqa: PLC0415
    from anytime.groups import load_groups  # noqa: PLC0415
    from anytime.resequencing import Changes, kept_groups, left_out  # noqa: PLC0415
    from anytime.resequencing import resequence as resequenced  # noqa: PLC0415

    check_out(out)
    changes = Changes(method, alpha, cost_blind, doubling, tuple(first or ()), tuple(without or ()))
    if costs is None and changes == Changes():
        raise TrainingError("nothing is to be changed; give --costs, --method, --alpha, --first, --without or another")
    loaded = load(model)
    groups = None if costs is None else load_groups(costs)
    ignored = [] if groups is None else left_out(loaded, groups)
    if ignored:
        remark(f"ignored: {listed(ignored, 10)} (left out when the model was trained)")
    again = None
    if data is not None and loaded.manifest.family != "gaussian":
        from anytime.cli.learning import open_again  # noqa: PLC0415

        again = open_again(
            loaded,
            kept_groups(loaded, changes),
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
