"""`anytime train`: from a table to a model file."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from anytime._files import check_writable
from anytime.cli import options
from anytime.cli.console import print_results, remark, working
from anytime.cli.sources import Console, described, open_calibration, open_cluster, open_source, open_test
from anytime.cli.summary import steps_table, summary
from anytime.errors import TrainingError
from anytime.evaluation.calibrate import calibrated
from anytime.evaluation.evaluate import evaluated
from anytime.evaluation.evaluate import validation as stopping_rule
from anytime.training.train import train as trained_on


@options.spread
def train(
    data: options.DataOrMoments,
    out: options.Out,
    plan: options.TrainPlan,
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
    backend: options.BackendName = "local",
    scheduler: options.Scheduler = None,
) -> None:
    """Order the feature groups of a table, fit every prefix, and write the model.

    Missing values of a feature are imputed by its training mean, exactly, in the same pass. From moments (`anytime
    moments`) least squares is trained without a table, with the groups and folds of the moments.

    Example: anytime train train.csv --groups groups.yaml --target target --out model.safetensors
    """
    if plan.training.pairs is not None and backend != "local":
        raise TrainingError("--pairs requires --backend local: pairs are screened on rows in this process")
    share = options.stated_coverage(coverage, calibrate)
    for option, path, other, use in (
        ("--validation", validation, data, "the model learns from"),
        ("--calibrate", calibrate, data, "the model learns from"),
        ("--calibrate", calibrate, validation, "--validation uses"),
        ("--test", test, validation, "chooses where to stop"),
    ):
        if path is not None and other is not None and path.exists() and other.exists() and path.samefile(other):
            raise TrainingError(f"{option} is {str(other)!r}, which {use}; expected a table with other rows")
    check_writable(out, (".safetensors",))
    shown = Console()
    with open_cluster(backend, scheduler) as cluster:
        source = open_source(data, plan, cluster, observer=shown)
        calibration = None if calibrate is None else open_calibration(calibrate, source, share, plan)
        tested = None if test is None else open_test(test, source, plan)
        validated = None if validation is None else open_test(validation, source, plan)
        remark(described(source))
        rule = None if validated is None else partial(stopping_rule, validated, n_jobs=plan.n_jobs)
        try:
            found = trained_on(source, validation=rule)
        except TrainingError:  # perhaps because of what the warnings name
            for each in shown.warnings:
                remark(f"warning: {each}")
            raise
    model = found.model(out.stem, keep_moments=not no_moments)
    if calibration is not None:
        with working(f"calibrating on {calibration.table.name}"):
            model = calibrated(model, replace(calibration, groups=model.groups), share)
    evaluation = None
    if tested is not None:
        with working(f"evaluating on {tested.table.name}"):
            evaluation = evaluated(model, replace(tested, groups=model.groups), n_jobs=plan.n_jobs)
    model = model.save(out)
    size = out.stat().st_size / 1024
    print_results(steps_table(model, evaluation), summary(model), f"wrote {out} ({size:.0f} KiB)", written=[out])
