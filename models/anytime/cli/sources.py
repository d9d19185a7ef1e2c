"""Tables and moments as the command line opens them, with remarks about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from anytime._files import has_kind
from anytime.cli import console
from anytime.cli.console import remark
from anytime.cli.options import Plan, RefitOptions, TableFormat
from anytime.data.dataset import Dataset, Progress
from anytime.data.draft import default_groups
from anytime.data.formats import Table
from anytime.data.survey import Survey, checked_dataset
from anytime.errors import TrainingError, listed
from anytime.groups import FeatureGroups, load_groups
from anytime.inference.conformal import conformal_rank
from anytime.model.model import Model
from anytime.moments.files import KIND
from anytime.target import Target
from anytime.training.resequencing import Retrained, open_retrained
from anytime.training.table import Observer, Roles, TrainingMoments, TrainingTable, open_moments, open_training

if TYPE_CHECKING:
    from anytime.training.dask import Cluster

Source: TypeAlias = TrainingTable | TrainingMoments


class Console(Observer):
    """What the trainer does, on standard error."""

    def reading(self, name: str, rows: int) -> AbstractContextManager[Progress]:
        return console.progress(f"reading {name}", rows)

    def ordering(self, groups: int) -> AbstractContextManager[None]:
        return console.working(f"ordering {groups} groups and fitting every prefix")

    def screening(self) -> None:
        remark("screening pairs of columns")


@contextmanager
def open_cluster(backend: Literal["local", "dask"], scheduler: str | None) -> Iterator[Cluster | None]:
    """Return the cluster that --backend and --scheduler select; None is this process."""
    if backend == "local":
        if scheduler is not None:
            raise TrainingError("--scheduler requires --backend dask")
        yield None
        return
    if scheduler is None:
        raise TrainingError("--backend dask needs the address of a scheduler; add --scheduler tcp://HOST:8786")
    from anytime.training.dask import connected  # noqa: PLC0415

    with connected(scheduler) as cluster:
        yield cluster


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
    plan: Plan,
    cluster: Cluster | None = None,
    *,
    partial: bool = False,
    known: Target | None = None,
    learned: FeatureGroups | None = None,
    observer: Observer | None = None,
) -> Source:
    """Open and check a table as `open_training`, or moments; options that the one requires do not apply to the other.

    Remarks report excluded columns and rows.
    """
    options = plan.training
    if has_kind(data, KIND):
        if cluster is not None:
            raise TrainingError(f"--backend applies to reading rows; {str(data)!r} contains moments")
        return open_moments(
            data,
            options,
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
        remark(f"{data.name} is one part, for one worker; row groups or a directory of Parquet files are distributed")
    source = open_training(
        table,
        Roles(groups, tuple(plan.target), plan.query, plan.weights),
        options,
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
    left_out = {name for group in groups.groups if group.name in options.without for name in group.features}
    for what, why, names in (
        ("left out", "--without", left_out),
        ("left out", "--drop", {*options.drop}),
        ("ignored", "in no group", {*source.unused} - left_out - {*options.drop}),
    ):
        if found := [name for name in source.unused if name in names]:
            remark(f"{what}: {listed(found, 10)} ({why})")
    remark_missing(source.found)
    return source


def described(source: Source) -> str:
    """Return the task of a source, and what users may want to state otherwise."""
    target, hint = source.target, ""
    if isinstance(source, TrainingMoments):
        return f"task: {target.task}, {source.stored.total.rows} rows in {source.folds} folds"
    if target.classes is not None:
        hint = f", classes {', '.join(map(str, target.classes))}"
    elif len(target.columns) == 1 and source.found.types[target.columns[0]] == "integer":
        count = len(source.found.values[0])
        hint = f" ({count} whole numbers; --task multiclass treats them as classes)" if count <= 20 else ""
    return f"task: {target.task}{hint}" + ("" if source.family is None else f"; {source.family.why}")


def remark_missing(found: Survey) -> None:
    """Print how many rows of a table without a target are left out, if there are some."""
    if found.missing:
        remark(f"left out: {found.missing} of {found.rows} rows of {Path(found.table).name} without a target")


def open_test(test: Path, source: Source, tables: TableFormat) -> Dataset:
    """Open a table to evaluate on, with the columns of the source, and check it before the long pass over it."""
    dataset, found = checked_dataset(source.like(tables.open(test)))
    remark_missing(found)
    return dataset


def open_calibration(calibrate: Path, source: Source, coverage: float, tables: TableFormat) -> Dataset:
    """Open a table to calibrate on, as `open_test`, and check that it has enough rows and no weights.

    The threshold of a weighted table depends on the weight of the row to predict (Tibshirani, Barber, Candès and Ramdas
    2019, "Conformal prediction under covariate shift"), and requests contain no weights.
    """
    dataset = source.like(tables.open(calibrate))
    if dataset.weights is not None:
        raise TrainingError(
            f"--calibrate is {str(calibrate)!r} with weights {dataset.weights!r}; expected no weights, as a "
            "weighted threshold depends on the weight of the row to predict, which is unknown; train without "
            "--calibrate, then calibrate in Python on rows drawn like those to predict"
        )
    dataset, found = checked_dataset(dataset)
    remark_missing(found)
    conformal_rank(found.used, coverage)
    return dataset


def open_refit(model: Model, groups: FeatureGroups, refit: RefitOptions) -> Retrained | None:
    """Open the rows for refitting a model's likelihood on some of its groups; None for least squares or no data."""
    if refit.data is None or model.manifest.learned.family.least_squares:
        return None
    found = open_retrained(
        model,
        refit.open(refit.data),
        groups,
        weights=refit.weights,
        drop_missing=refit.missing_target == "drop",
        n_jobs=refit.n_jobs,
    )
    if found is not None and found.found is not None:
        remark_missing(found.found)
    return found
