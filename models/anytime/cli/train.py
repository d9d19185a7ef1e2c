"""`anytime train`: from a table to a model file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from anytime._files import check_writable
from anytime.cli import options
from anytime.cli.console import print_results, remark, working
from anytime.cli.report import evaluation_table, ndcg_line, steps_table, summary
from anytime.cli.sources import ColumnOptions, TableSource, open_backend, open_calibration, open_source, open_test
from anytime.cli.streams import remember_written
from anytime.errors import TrainingError
from anytime.evaluation.calibrate import calibrated
from anytime.evaluation.evaluate import evaluated, hold_out
from anytime.moments.files import are_moments
from anytime.training.fit import fit, provenance
from anytime.training.options import Options
from anytime.training.pairs import check_folds, fit_with_pairs
from anytime.training.resequencing import Changes
from anytime.types import FamilyName, Method


def train(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Read rows from this table, or moments from this file (*.moments).")
    ],
    out: options.Out,
    groups: options.MaybeGroups = None,
    rows: options.RowsOfCall = None,
    target: options.MaybeTarget = None,
    task: Annotated[
        Literal["auto", "regression", "binary", "multiclass", "count"],
        typer.Option(
            help="Treat the target as numbers, classes or counts. auto: as --family states, or two values are "
            "binary, text is multiclass, others regression."
        ),
    ] = "auto",
    family: Annotated[
        FamilyName | None,
        typer.Option(help="Fit this likelihood; the default is gaussian (least squares), or poisson for --task count."),
    ] = None,
    method: Annotated[
        Method, typer.Option(help="Select groups by this criterion; sparse: by entry on the Group Lasso path.")
    ] = "fr",
    cost_blind: Annotated[bool, typer.Option("--cost-blind", help="Ignore costs in selection.")] = False,
    doubling: Annotated[
        bool, typer.Option("--doubling", help="Limit the cost of each step to the cost of all steps before it.")
    ] = False,
    first: options.First = None,
    without: options.Without = None,
    alpha: options.Alpha = "cv",
    folds: options.Folds = 5,
    one_se: Annotated[
        bool, typer.Option("--one-se", help="Select the largest penalty within one standard error of the best.")
    ] = False,
    nested: Annotated[
        bool,
        typer.Option("--nested", help="Learn the order again in each fold, to measure errors without selection bias."),
    ] = False,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Stop when no remaining group has a projection of the residual longer than this number >= 0."
        ),
    ] = None,
    validation: Annotated[
        Path | None, typer.Option(help="Stop at the prefix with the least error on this table of other rows.")
    ] = None,
    query: options.Query = None,
    weights: options.Weights = None,
    drop: options.Drop = None,
    basis: options.Basis = None,
    text: options.TextColumns = None,
    number: options.NumberColumns = None,
    clamp: options.ClampAt = None,
    pairs: options.Pairs = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="Calibrate intervals or sets on this table of other rows.")
    ] = None,
    coverage: Annotated[
        float | None, typer.Option(help="Set the coverage of intervals or sets, between 0 and 1; the default is 0.9.")
    ] = None,
    test: options.TestTable = None,
    missing_target: options.MissingTarget = "drop",
    drop_missing_target: options.DropMissing = False,
    separator: options.Separator = None,
    decimal: options.Decimal = ".",
    thousands: options.Thousands = None,
    no_moments: Annotated[
        bool,
        typer.Option(
            "--no-moments", help="Store no moments: a smaller file, without resequencing and the policy 'arrived'."
        ),
    ] = False,
    n_jobs: options.Jobs = None,
    seed: options.Seed = 0,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Store the progress of reading in this file every 30 s; the same command resumes from it."),
    ] = None,
    backend: options.BackendName = "local",
    scheduler: options.Scheduler = None,
) -> None:
    """Order the feature groups of a table, fit every prefix, and write the model.

    Missing values of a feature are imputed by its training mean, exactly, in the same pass. From moments (`anytime
    moments`) least squares is trained without a table, with the groups and folds of the moments.

    Example: anytime train train.csv --groups groups.yaml --target target --out model.safetensors
    """
    family = family or ("poisson" if task == "count" else "gaussian")
    changes = Changes(first=tuple(first or ()), without=tuple(without or ()))
    training = Options(
        method,
        cost_blind=cost_blind,
        doubling=doubling,
        alpha=options.parsed_alpha(alpha),
        one_se=one_se,
        nested=nested,
        family=family,
        epsilon=epsilon,
        first=changes.first or (),
        pairs=options.parsed_pairs(pairs),
    )
    training.check()
    jobs, folds = options.workers(n_jobs), options.checked_folds(folds, needed=nested or training.alpha == "cv")
    _check_pairs(training, folds, backend, data)
    if calibrate is None and coverage is not None:
        raise TrainingError(f"--coverage is {coverage} without a table to calibrate on; add --calibrate TABLE")
    coverage = 0.9 if coverage is None else coverage
    _check_other_rows({"--validation": validation, "--calibrate": calibrate}, data, "the model learns from")
    if validation is not None:
        _check_other_rows({"--test": test}, validation, "chooses where to stop")
    check_writable(out, (".safetensors",))
    tables = {"DATA": data, "--validation": validation, "--calibrate": calibrate, "--test": test}
    _check_checkpoint(checkpoint, {"--out": out, "--groups": groups, **tables})
    columns = ColumnOptions(
        groups,
        target,
        task,
        family,
        query,
        weights,
        drop,
        options.drops_missing(missing_target, drop_missing_target),
        folds,
        seed,
        jobs,
        changes=changes,
        basis=options.checked_basis(basis),
        clamp=options.parsed_clamp(clamp),
        rows=rows,
        types=options.stated_types(text, number),
        reader=options.table_reader(separator, decimal, thousands),
    )
    with open_backend(backend, scheduler, checkpoint) as opened:
        source = open_source(data, columns, opened)
        calibration = None if calibrate is None else open_calibration(calibrate, source, coverage, columns.reader)
        tested = None if test is None else open_test(test, source, columns.reader)
        validated = None if validation is None else open_test(validation, source, columns.reader)
        settled = source.columns
        remark(f"task: {settled.target.task}{source.remark}")
        parts, observed = source.moments(), source.observed()
        with working(f"ordering {len(settled.groups)} groups and fitting every prefix"):
            held = None if validated is None else hold_out(validated, family, n_jobs=jobs)
            fitted = fit(parts, settled.groups, training, observed, hold_out=held)
        if isinstance(source, TableSource) and training.pairs is not None:
            remark("screening pairs of columns")
            fitted = fit_with_pairs(fitted, source, folds=len(parts), seed=seed, hold_out=held)
    origin = provenance(fitted, source.name, folds=len(parts) if len(parts) > 1 else None, seed=seed)
    model = fitted.model(
        out.stem,
        settled.target,
        origin,
        query=settled.query,
        keep_moments=not no_moments,
        left_out=(*changes.without, *source.emptied),
        remarks=source.warnings,
    )
    if calibration is not None:
        with working(f"calibrating on {calibration.table.name}"):
            model = calibrated(model, replace(calibration, groups=model.groups), coverage)
    evaluation = None
    if tested is not None:
        with working(f"evaluating on {tested.table.name}"):
            evaluation = evaluated(model, replace(tested, groups=model.groups), n_jobs=jobs)
    model = model.save(out)
    remember_written(out)
    if opened.checkpoint is not None:
        opened.checkpoint.remove()
    table = steps_table(model) if evaluation is None else evaluation_table(model, evaluation)
    queries = [] if evaluation is None else ndcg_line(evaluation)
    print_results(table, *queries, summary(model), f"wrote {out} ({out.stat().st_size / 1024:.0f} KiB)")


def _check_pairs(training: Options, folds: int, backend: str, data: Path) -> None:
    """Refuse --pairs where the rows are not read in this process, or are in too few folds."""
    if training.pairs is None:
        return
    check_folds(training, folds)
    if backend != "local":
        raise TrainingError("--pairs requires --backend local: pairs are screened on rows in this process")
    if are_moments(data):
        raise TrainingError(f"--pairs requires a table; {str(data)!r} contains moments, without rows to screen")


def _check_other_rows(tables: Mapping[str, Path | None], data: Path, use_of_data: str) -> None:
    """Refuse tables, by option, that must have their own rows: not those of `data`, nor each other's."""
    uses = {data: use_of_data}
    for option, path in tables.items():
        if path is None:
            continue
        for other, use in uses.items():
            if path.exists() and other.exists() and path.samefile(other):
                raise TrainingError(f"{option} is {str(other)!r}, which {use}; expected a table with other rows")
        uses[path] = f"{option} uses"


def _check_checkpoint(checkpoint: Path | None, files: Mapping[str, Path | None]) -> None:
    """Refuse a checkpoint that is also a file of the command, because the checkpoint is removed at the end."""
    for what, path in files.items():
        if checkpoint is not None and path is not None and path.resolve() == checkpoint.resolve():
            raise TrainingError(f"--checkpoint is {str(checkpoint)!r}, which is also {what}; expected a separate file")
