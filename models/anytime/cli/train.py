"""`anytime train`: from a table to a model file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from anytime._files import check_writable
from anytime.cli import options
from anytime.cli.console import print_results, remark, working
from anytime.cli.plan import TrainPlan
from anytime.cli.sources import TableSource, open_backend, open_calibration, open_source, open_test
from anytime.cli.streams import remember_written
from anytime.cli.summary import steps_table, summary
from anytime.errors import TrainingError
from anytime.evaluation.calibrate import calibrated
from anytime.evaluation.evaluate import evaluated, hold_out
from anytime.moments.files import are_moments
from anytime.training.fit import fit_clamped, provenance
from anytime.training.pairs import check_folds, fit_with_pairs


@options.spread
def train(
    data: options.DataOrMoments,
    out: options.Out,
    plan: TrainPlan,
    validation: Annotated[
        Path | None, typer.Option(help="Stop at the prefix with the least error on this table of other rows.")
    ] = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="Calibrate intervals or sets on this table of other rows.")
    ] = None,
    coverage: options.Coverage = None,
    test: options.TestTable = None,
    no_moments: Annotated[
        bool,
        typer.Option(
            "--no-moments", help="Store no moments: a smaller file, without resequencing and the policy 'arrived'."
        ),
    ] = False,
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
    _check_pairs(plan, backend, data)
    share = options.stated_coverage(coverage, calibrate)
    _check_other_rows({"--validation": validation, "--calibrate": calibrate}, data, "the model learns from")
    if validation is not None:
        _check_other_rows({"--test": test}, validation, "chooses where to stop")
    check_writable(out, (".safetensors",))
    tables = {"DATA": data, "--validation": validation, "--calibrate": calibrate, "--test": test}
    _check_checkpoint(checkpoint, {"--out": out, "--groups": plan.groups, **tables})
    with open_backend(backend, scheduler, checkpoint) as opened:
        source = open_source(data, plan, opened)
        calibration = None if calibrate is None else open_calibration(calibrate, source, share, plan)
        tested = None if test is None else open_test(test, source, plan)
        validated = None if validation is None else open_test(validation, source, plan)
        remark(f"task: {source.columns.target.task}{source.remark}")
        source, clamped = source.read()
        settled, observed = source.columns, source.observed()
        training = replace(plan.training, family=settled.target.family or plan.training.family)
        folds = len(clamped[0].parts)
        with working(f"ordering {len(settled.groups)} groups and fitting every prefix"):
            held = (
                None
                if validated is None
                else hold_out(replace(validated, groups=settled.groups), training.family, n_jobs=plan.n_jobs)
            )
            try:
                fitted = fit_clamped(clamped, training, observed, hold_out=held)
            except TrainingError:  # perhaps because of what the warnings name
                for each in source.warnings:
                    remark(f"warning: {each}")
                raise
        if isinstance(source, TableSource) and plan.pairs is not None:
            remark("screening pairs of columns")
            fitted = fit_with_pairs(fitted, source, folds=folds, seed=plan.seed, hold_out=held)
    origin = provenance(fitted, source.name, folds=folds if folds > 1 else None, seed=plan.seed)
    model = fitted.model(
        out.stem,
        settled.target,
        origin,
        query=settled.query,
        keep_moments=not no_moments,
        left_out=source.emptied,
        remarks=source.warnings,
    )
    if calibration is not None:
        with working(f"calibrating on {calibration.table.name}"):
            model = calibrated(model, replace(calibration, groups=model.groups), share)
    evaluation = None
    if tested is not None:
        with working(f"evaluating on {tested.table.name}"):
            evaluation = evaluated(model, replace(tested, groups=model.groups), n_jobs=plan.n_jobs)
    model = model.save(out)
    remember_written(out)
    if opened.checkpoint is not None:
        opened.checkpoint.remove()
    size = out.stat().st_size / 1024
    print_results(steps_table(model, evaluation), summary(model), f"wrote {out} ({size:.0f} KiB)")


def _check_pairs(plan: TrainPlan, backend: str, data: Path) -> None:
    """Refuse --pairs where the rows are not read in this process, or are in too few folds."""
    if plan.pairs is None:
        return
    check_folds(plan.training, plan.folds)
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
