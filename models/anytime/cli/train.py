"""`anytime train`: from a table to a model file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from anytime._files import check_writable
from anytime.cli.console import remark, results, working
from anytime.cli.options import (
    Alpha,
    Drop,
    DropMissing,
    First,
    Folds,
    Jobs,
    MaybeGroups,
    MaybeTarget,
    Out,
    Query,
    Seed,
    Weights,
    Without,
    checked_folds,
    parsed_alpha,
    workers,
)
from anytime.cli.report import evaluation_table, steps_table, summary
from anytime.cli.sources import (
    BackendName,
    CheckpointFile,
    Given,
    Scheduler,
    check_checkpoint,
    check_other_rows,
    checked_coverage,
    open_backend,
    open_calibration,
    open_test,
    source_of,
)
from anytime.evaluation import evaluate as evaluation
from anytime.evaluation.calibrate import calibrated
from anytime.training.fit import fit, provenance
from anytime.training.options import Options
from anytime.training.resequencing import Changes
from anytime.types import FamilyName, Method

__all__ = ["train"]

Calibrating = Annotated[
    Path | None,
    typer.Option("--calibrate", help="Table of other rows, for calibrated intervals or sets.", show_default=False),
]
Coverage = Annotated[
    float | None,
    typer.Option("--coverage", help="Coverage of intervals or sets; 0.9 by default.", show_default=False),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        "--epsilon", help="Stop when no remaining group has a longer projection of the residual.", show_default=False
    ),
]
Validating = Annotated[
    Path | None,
    typer.Option(
        "--validation", help="Table of other rows: stop at the prefix with the least error there.", show_default=False
    ),
]
TablesOrMoments = Annotated[Path, typer.Argument(metavar="DATA", help="Table, or a moments file.", show_default=False)]
Testing = Annotated[Path | None, typer.Option("--test", help="Table to evaluate every prefix on.", show_default=False)]


def train(
    data: TablesOrMoments,
    out: Out,
    groups: MaybeGroups = None,
    target: MaybeTarget = None,
    task: Annotated[
        Literal["auto", "regression", "binary", "multiclass", "count"],
        typer.Option(
            help="auto: as --family; else floats and most integers regression, two values binary, text multiclass."
        ),
    ] = "auto",
    family: Annotated[
        FamilyName | None,
        typer.Option(
            help="Likelihood to fit; gaussian (least squares) by default, poisson for counts.", show_default=False
        ),
    ] = None,
    method: Annotated[Method, typer.Option(help="Selection criterion; sparse: entry on the Group Lasso path.")] = "fr",
    cost_blind: Annotated[bool, typer.Option("--cost-blind", help="Ignore costs in selection.")] = False,
    doubling: Annotated[
        bool,
        typer.Option("--doubling", help="Limit each step to the cost of all before it: a bound at every budget."),
    ] = False,
    first: First = None,
    without: Without = None,
    alpha: Alpha = "cv",
    folds: Folds = 5,
    one_se: Annotated[
        bool, typer.Option("--one-se", help="Select the largest penalty within one standard error of the best.")
    ] = False,
    nested: Annotated[
        bool, typer.Option("--nested", help="Measure errors with the order relearned in each fold.")
    ] = False,
    epsilon: Epsilon = None,
    validation: Validating = None,
    query: Query = None,
    weights: Weights = None,
    drop: Drop = None,
    calibrate: Calibrating = None,
    coverage: Coverage = None,
    test: Testing = None,
    drop_missing_target: DropMissing = False,
    no_moments: Annotated[
        bool, typer.Option("--no-moments", help="Smaller file, without re-sequencing and the policy 'arrived'.")
    ] = False,
    n_jobs: Jobs = None,
    seed: Seed = 0,
    checkpoint: CheckpointFile = None,
    backend: BackendName = "local",
    scheduler: Scheduler = None,
) -> None:
    """Order the feature groups of a table, fit every prefix, and write the model.

    Missing values of a feature are imputed by its training mean, exactly, in the same pass. From moments (`anytime
    moments`) least squares is trained without a table, with the groups and folds of the moments.
    """
    settled = family or ("poisson" if task == "count" else "gaussian")
    changes = Changes(first=tuple(first or ()), without=tuple(without or ()))
    options = Options(
        method,
        cost_blind=cost_blind,
        doubling=doubling,
        alpha=parsed_alpha(alpha),
        one_se=one_se,
        nested=nested,
        family=settled,
        epsilon=epsilon,
        first=tuple(first or ()),
    )
    options.check()
    jobs, folds = workers(n_jobs), checked_folds(folds, needed=nested or options.alpha == "cv")
    share = checked_coverage(coverage, calibrate)
    check_other_rows({"--validation": validation, "--calibrate": calibrate}, data)
    if validation is not None and test is not None:
        check_other_rows({"--test": test}, validation, "chooses where to stop")
    check_writable(out, (".safetensors",))
    tables = {"DATA": data, "--validation": validation, "--calibrate": calibrate, "--test": test}
    check_checkpoint(checkpoint, {"--out": out, "--groups": groups, **tables})
    with open_backend(backend, scheduler, checkpoint) as where:
        given = Given(groups, target, task, settled, query, weights, drop, drop_missing_target, changes=changes)
        source = source_of(data, given, where)
        calibrating = None if calibrate is None else open_calibration(calibrate, source, share)
        testing = None if test is None else open_test(test, source)
        validating = None if validation is None else open_test(validation, source)
        found = source.meaning.target
        remark(f"task: {found.task}{source.remark}")
        parts = source.moments(folds, seed, jobs)
        observed = None if settled == "gaussian" else source.observed(folds, seed, jobs)
        with working(f"ordering {len(source.meaning.groups)} groups and fitting every prefix"):
            held = None if validating is None else evaluation.hold_out(validating, settled, n_jobs=jobs)
            fitted = fit(parts, source.meaning.groups, options, observed, hold_out=held)
    origin = provenance(fitted, source.name, folds=len(parts) if len(parts) > 1 else None, seed=seed)
    model = fitted.model(
        out.stem,
        found,
        origin,
        query=source.meaning.query,
        keep_moments=not no_moments,
        left_out=changes.without,
    )
    if calibrating is not None:
        with working(f"calibrating on {calibrating.table.name}"):
            model = calibrated(model, replace(calibrating, groups=model.groups), share)
    evaluated = None
    if testing is not None:
        with working(f"evaluating on {testing.table.name}"):
            evaluated = evaluation.evaluated(model, replace(testing, groups=model.groups), n_jobs=jobs)
    model = model.save(out)
    where.done()
    console = results()
    console.print(steps_table(model) if evaluated is None else evaluation_table(model, evaluated))
    console.print(summary(model), markup=False)
    console.print(f"wrote {out} ({out.stat().st_size / 1024:.0f} KiB)", markup=False)
