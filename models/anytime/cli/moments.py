"""`anytime moments`: what a site has learned from its rows, as a file without the rows."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Annotated, Literal

import typer

from anytime.cli.arguments import (
    Drop,
    DropMissing,
    Folds,
    Jobs,
    MaybeGroups,
    MaybeTarget,
    Query,
    Seed,
    Weights,
    checked_folds,
    workers,
)
from anytime.cli.backends import BackendName, Scheduler, place
from anytime.cli.console import remark, results

__all__ = ["moments"]

Sources = Annotated[
    list[Path], typer.Argument(metavar="DATA...", help="Tables and moments, all added up.", show_default=False)
]
Minus = Annotated[
    list[Path] | None,
    typer.Option("--minus", help="Moments to take away, of rows that are in the others.", show_default=False),
]
OutMoments = Annotated[Path, typer.Option("--out", help="File to write, named *.moments.", show_default=False)]
Decay = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Weight that rows of the first DATA keep beside those of the others.")
]


def moments(
    data: Sources,
    out: OutMoments,
    groups: MaybeGroups = None,
    target: MaybeTarget = None,
    task: Annotated[Literal["auto", "regression", "binary", "multiclass"], typer.Option(help="As for train.")] = "auto",
    minus: Minus = None,
    decay: Decay = 1.0,
    folds: Folds = 5,
    query: Query = None,
    weights: Weights = None,
    drop: Drop = None,
    drop_missing_target: DropMissing = False,
    n_jobs: Jobs = None,
    seed: Seed = 0,
    backend: BackendName = "local",
    scheduler: Scheduler = None,
) -> None:
    """Learn the moments of tables, add them to others, take some away, and write them: `train` needs no more.

    They are sums over rows, by fold; yet moments of few rows may tell them all. Send none of fewer rows than features.
    """
    from anytime.cli.moments_files import check_moments_out, gathered  # noqa: PLC0415
    from anytime.cli.sources import Given  # noqa: PLC0415
    from anytime.kept_moments import KeptMoments  # noqa: PLC0415

    count, jobs = max(checked_folds(folds, needed=False), 1), workers(n_jobs)
    check_moments_out(out)
    given = Given(groups, target, task, "gaussian", query, weights, drop, drop_missing_target)
    with place(backend, scheduler, None) as where:
        first, *others = gathered(data, given, count, seed, jobs, where)
    total = reduce(KeptMoments.merge, others, first.decayed(decay) if decay < 1.0 else first)
    left = reduce(KeptMoments.without, map(KeptMoments.load, minus or ()), total)
    if len(left.parts) < len(total.parts):
        remark(
            "what is taken away was not added as it is, so its rows may be in any fold: one fold is left, for --alpha"
        )
    left.save(out)
    record, whole = left.record, left.total
    features, rows = len(record.groups.features), whole.rows
    if rows < features:
        remark(f"{rows} rows of {features} features: whoever has these moments may tell the rows themselves")
    results().print(
        f"wrote {out} ({out.stat().st_size / 1024:.0f} KiB): {rows} rows of weight {whole.weight:g}, "
        f"{features} features in {len(record.groups)} groups, {record.folds} folds",
        markup=False,
    )
