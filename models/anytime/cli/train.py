"""From a table: `anytime groups` drafts a groups file, `train` makes a model file, and `moments` what training needs.

Moments are sums, which leave a site without its rows. `anytime basis` writes a groups file with the basis of every
column, to share.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anytime._files import check_writable, created, has_kind
from anytime._version import __version__
from anytime.cli import options
from anytime.cli.console import Done, progress, remark, remark_missing, working
from anytime.cli.summary import steps_table, summary
from anytime.data.dataset import Dataset
from anytime.data.draft import default_groups, drafted
from anytime.data.formats import Table
from anytime.data.survey import MAX_WHOLE, checked_dataset, surveyed
from anytime.errors import GroupsError, TableError, TrainingError, listed
from anytime.evaluation.calibrate import calibrated
from anytime.evaluation.evaluate import evaluated, validation as stopping_rule
from anytime.features.bases import MIN_LEVEL_ROWS
from anytime.features.expansion import Expansion
from anytime.groups import SUFFIXES, FeatureGroups, load_groups, write_groups, write_text
from anytime.inference.conformal import conformal_rank
from anytime.moments.files import KIND, MomentsRecord, StoredMoments
from anytime.moments.moments import Moments
from anytime.target import Target
from anytime.training import train as training
from anytime.training.options import Options
from anytime.training.train import Observer, Roles, TrainingMoments, TrainingTable, open_moments, open_training
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
            "--no-moments",
            help="Store no moments: the file is smaller, but `resequence` and the policy 'arrived' need them.",
        ),
    ] = False,
    backend: options.BackendName = "local",
    scheduler: options.Scheduler = None,
) -> None:
    """Order the feature groups of a table, fit every prefix, and write the model.

    The training mean of a column replaces its missing values. DATA may also be a file of `anytime moments`, on which
    least squares is trained without a table, with the groups and folds of that file.

    Example: anytime train train.csv --groups groups.yaml --target target --out model.safetensors
    """
    share = options.stated_coverage(coverage, calibrate)
    for option, path, other, use in (
        ("--validation", validation, data, "the model learns from"),
        ("--calibrate", calibrate, data, "the model learns from"),
        ("--calibrate", calibrate, validation, "--validation uses"),
        ("--test", test, validation, "chooses where to stop"),
        ("--test", test, calibrate, "--calibrate uses"),
    ):
        if path is not None and other is not None and path.exists() and other.exists() and path.samefile(other):
            raise TrainingError(f"{option} is {str(other)!r}, which {use}; expected a table with other rows")
    check_writable(out, (".safetensors",))
    with open_cluster(backend, scheduler) as cluster:
        source = open_source(data, plan, cluster)
        calibration, tested, validated = (
            None if path is None else open_test(source.like(plan.open(path)), of)
            for path, of in ((calibrate, share), (test, None), (validation, None))
        )
        rule = None if validated is None else partial(stopping_rule, validated, n_jobs=plan.n_jobs)
        remark(described(source))
        try:
            found = training.train(source, validation=rule)
        except TrainingError:  # perhaps because of what the warnings name
            for each in source.observer.warnings:
                remark(f"warning: {each}")
            raise
    model = found.model(out.stem, keep_moments=not no_moments).save(out)
    done, evaluation = Done([out]), None
    if calibration is not None:
        with done.then(), working(f"calibrating on {calibration.table.name}"):
            model = calibrated(model, replace(calibration, groups=model.groups), share).save(out)
    if tested is not None:
        with done.then(), working(f"evaluating on {tested.table.name}"):
            evaluation = evaluated(model, replace(tested, groups=model.groups), n_jobs=plan.n_jobs)
    done.print(steps_table(model, evaluation), summary(model), f"wrote {out} ({out.stat().st_size / 1024:.0f} KiB)")


def open_cluster(backend: str, scheduler: str | None) -> AbstractContextManager[Cluster | None]:
    """Return the cluster that --backend and --scheduler select; None is this process."""
    if scheduler is None and backend == "dask":
        raise TrainingError("--backend dask needs the address of a scheduler; add --scheduler tcp://HOST:8786")
    if scheduler is None:
        return nullcontext()
    if backend == "local":
        raise TrainingError("--scheduler requires --backend dask")
    from anytime.training.dask import connected  # noqa: PLC0415

    return connected(scheduler)


def open_groups(table: Table, path: Path | None, used: Sequence[str]) -> FeatureGroups:
    """Return the groups of a file, or each column at cost 1; a remark names the index if left out.

    `used` are columns with another use, which no pattern matches.
    """
    if path is None:
        known = default_groups(table, used)
        remark(f"no --groups: each of {len(known)} columns is a group at cost 1 (`anytime groups` drafts a file)")
    else:
        loaded, others = load_groups(path), {*used} | table.index
        known = loaded.matched(name for name in table.columns if name not in others)
        if known is loaded:
            return known
    index = table.index - {*used, *known.features}
    if left := [name for name in table.columns if name in index]:
        remark(f"left out: {listed(left)} (an index; name it in a group to use it)")
    return known


def open_source(
    data: Path,
    plan: options.Plan,
    cluster: Cluster | None = None,
    *,
    partial: bool = False,
    known: Target | None = None,
    learned: FeatureGroups | None = None,
) -> TrainingTable | TrainingMoments:
    """Open and check a table as `open_training`, or moments; options that the one requires do not apply to the other.

    Remarks report excluded columns and rows.
    """
    stated, observer = plan.training, Observer(progress, working, remark)
    if has_kind(data, KIND):
        if cluster is not None:
            raise TrainingError(f"--backend applies to reading rows; {str(data)!r} contains moments")
        return open_moments(
            data,
            stated,
            costs=None if plan.groups is None else load_groups(plan.groups),
            target=plan.target or (),
            query=plan.query,
            weights=plan.weights,
            observer=observer,
        )
    if not plan.target:
        raise TrainingError(f"{str(data)!r} is a table; give --target")
    table = plan.open(data if cluster is None else data.resolve())
    used = [name for name in (*plan.target, plan.query, plan.weights) if name is not None]
    groups = open_groups(table, plan.groups, used)
    if cluster is not None and len(table.starts) == 1:
        remark(
            f"{data.name} has one part, so one worker reads it; row groups or a directory of Parquet files are spread"
        )
    source = open_training(
        table,
        Roles(groups, tuple(plan.target), plan.query, plan.weights),
        stated,
        known=known,
        learned=learned,
        partial=partial,
        cluster=cluster,
        observer=observer,
    )
    if (factors := source.dataset.class_weights) is not None:
        pairs = zip(source.target.classes or (), factors, strict=True)
        weights = ", ".join(f"{label} {weight:.3g}" for label, weight in pairs)
        remark(f"class weights: {weights}; probabilities are those of equally frequent classes")
    left_out = {name for group in groups.groups if group.name in stated.without for name in group.features}
    for what, why, names in (
        ("left out", "--without", left_out),
        ("left out", "--drop", {*stated.drop}),
        ("ignored", "in no group", {*source.unused} - left_out - {*stated.drop}),
    ):
        if found := [name for name in source.unused if name in names]:
            remark(f"{what}: {listed(found, 10)} ({why})")
    remark_missing(source.found)
    return source


def described(source: TrainingTable | TrainingMoments) -> str:
    """Return the task of a source, and what users may want to state otherwise."""
    target, hint = source.target, ""
    if isinstance(source, TrainingMoments):
        return f"task: {target.task}, {sum(part.rows for part in source.parts)} rows in {source.folds} folds"
    if target.classes is not None:
        hint = f", classes {', '.join(map(str, target.classes))}"
    elif len(target.columns) == 1 and source.found.types[target.columns[0]] == "integer":
        count = len(source.found.values[0])
        hint = f" ({count} whole numbers; --task multiclass treats them as classes)" if count <= MAX_WHOLE else ""
    return f"task: {target.task}{hint}" + ("" if source.family is None else f"; {source.family.why}")


def open_test(dataset: Dataset, coverage: float | None = None) -> Dataset:
    """Check a table to evaluate on, or with `coverage` to calibrate on, before the long pass over the training table.

    A calibration needs enough rows, and no weights. The threshold of a weighted table depends on the weight of the row
    to predict (Tibshirani, Barber, Candès and Ramdas 2019, "Conformal prediction under covariate shift"), and requests
    contain no weights.
    """
    if coverage is not None and dataset.weights is not None:
        raise TrainingError(
            f"--calibrate is {dataset.table.name!r} with weights {dataset.weights!r}; expected no weights, as a "
            "weighted threshold depends on the weight of the row to predict, which is unknown; train without "
            "--calibrate, then calibrate in Python on rows drawn like those to predict"
        )
    dataset, found = checked_dataset(dataset)
    remark_missing(found)
    if coverage is not None:
        conformal_rank(found.used, coverage)
    return dataset


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
    """Sum the rows of tables into moments, add and subtract moments files, and write the result, which `train` reads.

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
    Done([out]).print(
        f"wrote {out} ({out.stat().st_size / 1024:.0f} KiB): {rows} rows of weight {whole.weight:g}, "
        f"{features} features in {len(record.groups)} groups, {record.folds} folds"
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
        source = open_source(path, plan, cluster, partial=True, known=known, learned=learned)
        assert isinstance(source, TrainingTable)  # noqa: S101  (not moments)
        source, parts = (source, source.moments()) if found else source.read()  # the columns are those of the first
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


@options.spread
def groups(
    data: options.Data,
    target: Annotated[list[str], typer.Option(help="Predict this column; repeat for several responses.")],
    out: Annotated[Path, typer.Option(help="Write the draft to this file (*.yaml).")],
    by_prefix: Annotated[
        str | None,
        typer.Option(
            help="Join columns into a group if their names are the same up to this mark, such as '_'.", metavar="MARK"
        ),
    ] = None,
    cost: options.Costs = None,
    query: Annotated[str | None, typer.Option(help="Leave out this column: it is the query of each row.")] = None,
    weights: Annotated[str | None, typer.Option(help="Leave out this column: it is the weight of each row.")] = None,
    text: options.TextColumns = None,
    number: options.NumberColumns = None,
    *,
    tables: options.TableFormat,
) -> None:
    """Write a groups file with comments to edit: what each column holds, and which columns are left out and why.

    Each column is a group at cost 1, unless --by-prefix and --cost state otherwise.

    Example: anytime groups train.csv --target target --by-prefix _ --cost hog=2.5ms --out groups.yaml
    """
    check_writable(out, (".yaml", ".yml"))
    if out.exists():
        raise GroupsError(f"{str(out)!r} exists, perhaps with your costs; remove it, or name another file")
    table = tables.open(data)
    with working(f"reading a sample of {data.name}"):
        draft = drafted(
            table,
            target,
            others=[name for name in (query, weights) if name is not None],
            stated=options.stated_types(text, number),
            by_prefix=by_prefix,
            costs=options.parsed_costs(cost),
        )
    head = (
        f"{data.name}, {draft.rows:,} rows, target {', '.join(target)}; set costs, and join columns computed together"
    )
    write_text(draft.text(" ".join(head.split())), out)
    for name, why in draft.left_out.items():
        remark(f"left out: {name!r} ({why})")
    Done([out]).print(
        f"wrote {out}: {len(draft.groups.features)} columns in {len(draft.groups)} groups, "
        f"{len(draft.left_out)} left out"
    )


@options.spread
def basis(
    data: options.Data,
    out: Annotated[Path, typer.Option(help="Write the groups with their bases to this file (JSON or YAML).")],
    groups: options.MaybeGroups = None,
    basis: options.Basis = None,
    clamp: options.ClampAt = None,
    min_level_rows: options.MinLevelRows = str(MIN_LEVEL_ROWS),
    target: Annotated[
        list[str] | None, typer.Option(help="Learn only from rows with a value in this column; repeat for several.")
    ] = None,
    text: options.TextColumns = None,
    number: options.NumberColumns = None,
    pairs: options.Pairs = "0",
    seed: options.Seed = 0,
    *,
    tables: options.TableFormat,
) -> None:
    """Learn the bases of the columns of a table, and write a groups file that states them.

    The file states the knots, levels and range of every column, and whether missing values have an indicator; with
    --pairs, which requires --target, also the pairs of columns whose products are terms. `train` and `moments` use
    these as they are, so the moments of several tables can be added.

    Example: anytime basis train.csv --groups groups.yaml --basis hinge --out bases.yaml
    """
    check_writable(out, SUFFIXES)
    least = options.number_or_word(min_level_rows, int)
    learning = Options(
        clamp=options.number_or_word(clamp),
        min_level_rows=least,
        types=options.stated_types(text, number),
        pairs=options.number_or_word(pairs, int),
        seed=seed,
    )
    options.checked_fixed(clamp, min_level_rows)
    if learning.pairs != 0 and not target:
        raise TrainingError(f"--pairs is {pairs} without a target that pairs explain; add --target")
    table = tables.open(data)
    known = open_groups(table, groups, target or ())
    if ignored := Dataset(table, known, Target("regression", tuple(target or ()))).check():
        remark(f"ignored: {listed(ignored, 10)} (in no group)")
    with working(f"reading a sample of {data.name}"):
        written, found = surveyed(
            table,
            known,
            target or (),
            stated=learning.types,
            option=basis,
            clamp=learning.clamp,
            min_level_rows=learning.min_level_rows,
            drop_missing=True,
            seed=seed,
            complete=True,
        )
        if learning.pairs != 0:
            known = open_training(table, Roles(written, tuple(target or ())), learning).with_found_pairs()
            written = written.with_pairs(known.pairs)
    for each in (*found.warnings, *found.decisions):
        remark(each)
    write_groups(written, out)
    counts = Counter(str(each.basis).partition(":")[0] for each in written.bases.values())
    kinds = ", ".join(f"{count} {name}" for name, count in counts.items())
    terms, count = Expansion.of(written).size, len(written.pairs)
    kinds += f", {count} pair{'s' * (count != 1)}" if count else ""
    Done([out]).print(f"wrote {out}: {len(written.features)} columns ({kinds}) become {terms} terms")
