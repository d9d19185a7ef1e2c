"""From the arguments of `anytime moments` to moments, each with what its columns mean.

`anytime moments`: what a site has learned from its rows, as a file without the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated, Literal

import typer

from anytime.cli.console import remark, results
from anytime.cli.options import (
    Drop,
    DropMissing,
    Folds,
    Jobs,
    MaybeGroups,
    MaybeTarget,
    Query,
    Seed,
    Weights,
    check_directory,
    checked_folds,
    workers,
)
from anytime.cli.sources import HERE, BackendName, Given, Place, Scheduler, place, source_of
from anytime.errors import ArtifactError, TableError, listed
from anytime.moments.files import MomentsRecord, StoredMoments, are_moments
from anytime.moments.moments import Moments
from anytime.training.provenance import library_version, now

__all__ = [
    "check_moments_out",
    "gathered",
    "moments",
]


def check_moments_out(out: Path) -> None:
    """Refuse a file that could not be written, or would be taken for a model."""
    if out.suffix != ".moments":
        raise ArtifactError(f"--out is {str(out)!r}; expected a name that ends in .moments")
    check_directory(out)


def gathered(
    data: Sequence[Path], given: Given, folds: int, seed: int, jobs: int, place: Place = HERE
) -> list[StoredMoments]:
    """Moments of each of some tables and moments.

    What the target means is settled by the first: a table after it may lack some of its classes, and have no others.

    Raises
    ------
    AnytimeError
        What `source_of` and `StoredMoments.load` refuse; or the target is another than that of the first.
    """
    found: list[StoredMoments] = []
    for path in data:
        if are_moments(path):
            found.append(StoredMoments.load(path))
            continue
        known = found[0].target if found else None
        if known is not None and given.target and tuple(given.target) != known.columns:
            raise TableError(
                f"--target is {listed(given.target)}; the moments in {str(data[0])!r} are of {listed(known.columns)}"
            )
        source = source_of(path, given._replace(known=known), place)
        meaning = source.meaning
        record = MomentsRecord(
            created=now(),
            library=library_version(),
            data=(source.name,),
            task=meaning.target.task,
            target=meaning.target.columns,
            classes=meaning.target.classes,
            query=meaning.query,
            weights=meaning.weights,
            groups=meaning.groups,
            folds=folds,
        )
        parts = tuple(source.moments(folds, seed, jobs))
        # There are no more parts than rows.
        nothing = Moments.empty(parts[0].features, parts[0].responses, parts[0].fill)
        found.append(StoredMoments(record, parts + (nothing,) * (folds - len(parts))))
    return found


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
    count, jobs = max(checked_folds(folds, needed=False), 1), workers(n_jobs)
    check_moments_out(out)
    given = Given(groups, target, task, "gaussian", query, weights, drop, drop_missing_target)
    with place(backend, scheduler, None) as where:
        first, *others = gathered(data, given, count, seed, jobs, where)
    total = reduce(StoredMoments.merge, others, first.decayed(decay) if decay < 1.0 else first)
    left = reduce(StoredMoments.without, map(StoredMoments.load, minus or ()), total)
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
