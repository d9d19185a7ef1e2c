"""`anytime train`: from a table to a model file. `anytime moments`: to a file of the sums that training needs.

Moments leave a site without its rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anytime._files import check_writable, created, has_kind
from anytime._version import __version__
from anytime.cli import options
from anytime.cli.console import print_results, remark, working
from anytime.cli.sources import Console, described, open_calibration, open_cluster, open_source, open_test
from anytime.cli.summary import steps_table, summary
from anytime.errors import TableError, TrainingError, listed
from anytime.evaluation.calibrate import calibrated
from anytime.evaluation.evaluate import evaluated
from anytime.evaluation.evaluate import validation as stopping_rule
from anytime.moments.files import KIND, MomentsRecord, StoredMoments
from anytime.moments.moments import Moments
from anytime.target import Target
from anytime.training.table import TrainingTable
from anytime.training.train import train as trained_on
from anytime.types import Label, Task

if TYPE_CHECKING:
    from anytime.training.dask import Cluster


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
        rule = None if validated is None else partial(stopping_rule, validated, n_jobs=plan.n_jobs)
        remark(described(source))
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
    print_results(
        steps_table(model, evaluation),
        summary(model),
        f"wrote {out} ({out.stat().st_size / 1024:.0f} KiB)",
        written=[out],
    )


@options.spread
def moments(
    data: Annotated[
        list[Path],
        typer.Argument(metavar="DATA...", help="Add these tables and moments files (*.moments).", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="Write the moments to this file (*.moments).")],
    plan: options.Plan,
    classes: Annotated[
        str | None,
        typer.Option(help="Use these classes, separated by commas; the tables may lack some.", metavar="A,B,..."),
    ] = None,
    minus: Annotated[
        list[Path] | None,
        typer.Option(help="Subtract this moments file, whose rows must be in DATA; repeat for several."),
    ] = None,
    decay: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Multiply the weights of the rows of the first DATA by this factor.")
    ] = 1.0,
    backend: options.BackendName = "local",
    scheduler: options.Scheduler = None,
) -> None:
    """Sum the rows of tables into moments, add and subtract others, and write them: `train` needs nothing else.

    Moments are sums over rows, by fold. Moments of few rows may reveal the rows: send none with fewer rows than
    features.

    Example: anytime moments train.csv --groups groups.yaml --target target --out train.moments
    """
    stated = _stated(classes, plan.target or (), plan.training.task)
    check_writable(out, (".moments",))
    with open_cluster(backend, scheduler) as cluster:
        first, *others = _gathered(data, plan, stated, cluster)
    total = reduce(StoredMoments.merge, others, first.decayed(decay) if decay < 1.0 else first)
    result = reduce(StoredMoments.without, map(StoredMoments.load, minus or ()), total)
    if len(result.parts) < len(total.parts):
        remark(
            "the subtracted moments are not among those added, so their rows may be in any fold: the result has one "
            "fold and needs a fixed --alpha"
        )
    result.save(out)
    record, whole = result.record, result.total
    features, rows = len(record.groups.features), whole.rows
    if rows < features:
        remark(f"{rows} rows of {features} features: the rows may be recoverable from these moments")
    print_results(
        f"wrote {out} ({out.stat().st_size / 1024:.0f} KiB): {rows} rows of weight {whole.weight:g}, "
        f"{features} features in {len(record.groups)} groups, {record.folds} folds",
        written=[out],
    )


def _gathered(
    data: Sequence[Path], plan: options.Plan, stated: Target | None, cluster: Cluster | None
) -> list[StoredMoments]:
    """Return the moments of each of some tables and moments files.

    The first input defines the bases and the meaning of the target: later tables may lack some of its classes, but have
    no others, unless it has one class only. Moments files may each lack classes of the others.
    """
    found: list[StoredMoments] = []
    folds = max(plan.folds, 1)
    unusable = list(plan.drop or ())
    for path in data:
        if has_kind(path, KIND):
            found.append(StoredMoments.load(path))
            continue
        known = stated or (found[0].target if found else None)
        if known is not None and plan.target and tuple(plan.target) != known.columns:
            raise TableError(
                f"--target is {listed(plan.target)}; the moments in {str(data[0])!r} are of {listed(known.columns)}"
            )
        learned = found[0].record.groups if found else None
        plan = replace(plan, drop=unusable)
        source = open_source(path, plan, cluster, partial=True, known=known, learned=learned, observer=Console())
        assert isinstance(source, TrainingTable)  # noqa: S101  (not moments)
        if found:  # the columns are those of the first input
            parts = source.moments()
        else:
            source, parts = source.read()
        for each in (*source.warnings, *source.decisions):
            remark(each)
        unusable += source.found.unusable
        record = MomentsRecord(
            created=created(),
            library=__version__,
            data=(source.name,),
            task=source.target.task,
            target=source.target.columns,
            classes=source.target.classes,
            query=source.query,
            weights=source.dataset.weights,
            groups=source.groups,
            folds=folds,
        )
        # Small tables have fewer parts than folds; pad with empty moments.
        empty = Moments.empty(parts[0].features, parts[0].responses, parts[0].fill)
        found.append(StoredMoments(record, (*parts, *(empty,) * (folds - len(parts)))))
    return found


def _stated(classes: str | None, target: Sequence[str], task: Literal["auto", Task]) -> Target | None:
    """Return the target that --classes states: whole numbers if all are, booleans, or text."""
    if classes is None:
        return None
    words = [word.strip() for word in classes.split(",")]
    if len(target) != 1 or task in ("regression", "count"):
        raise TrainingError("--classes requires one --target, whose task is classes")
    labels: list[Label] = [*words]
    if all(word.lower() in ("true", "false") for word in words):
        labels = [word.lower() == "true" for word in words]
    elif all(re.fullmatch("-?(0|[1-9][0-9]*)", word) for word in words):  # 01 is a code, which is text
        labels = [int(word) for word in words]
    if len(set(labels)) < max(len(labels), 2) or "" in labels:
        raise TrainingError(f"--classes is {classes!r}; expected two or more different classes, separated by commas")
    return Target.of_classes(tuple(target), sorted(labels))
