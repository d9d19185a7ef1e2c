"""Sources of training data: a table, read in this process or on a cluster, or moments.

`open_source` checks everything that training reads before the first long pass. A source then returns the moments of the
folds, which `anytime.training.fit.fit` learns from, and the rows themselves for a likelihood.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from anytime.cli import console
from anytime.cli.console import remark
from anytime.cli.options import RefitOptions, TableFormat
from anytime.cli.plan import Plan
from anytime.data.dataset import Dataset, Progress, ignored
from anytime.data.draft import default_groups
from anytime.data.formats import ReadAs, Table
from anytime.data.survey import Survey, checked_dataset, settle_target, surveyed
from anytime.errors import GroupsError, TrainingError, listed, suggestion
from anytime.families import family_of
from anytime.features.bases import MIN_LEVEL_ROWS
from anytime.features.expansion import Expansion
from anytime.features.learning import clampable
from anytime.folds import fold_count
from anytime.groups import FeatureGroups, load_groups
from anytime.inference.conformal import conformal_rank
from anytime.model.model import Model
from anytime.moments.accumulate import check_memory
from anytime.moments.files import StoredMoments, are_moments
from anytime.moments.moments import Moments
from anytime.target import Target
from anytime.training.clamping import Clamped
from anytime.training.family import ChosenFamily, family_of_classes
from anytime.training.likelihood import Observations, Observed
from anytime.training.resequencing import Retrained, moments_of_groups
from anytime.training.rows import TrainingRows

if TYPE_CHECKING:
    from anytime.training.dask import Cluster


@contextmanager
def open_backend(backend: Literal["local", "dask"], scheduler: str | None) -> Iterator[Cluster | None]:
    """Return the cluster that --backend and --scheduler select; None if rows are read in this process."""
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


class ColumnRoles(NamedTuple):
    """The meaning of the columns of a source, which other tables share."""

    groups: FeatureGroups
    target: Target
    query: str | None
    weights: str | None
    drop_missing: bool = False


@dataclass(frozen=True)
class TableSource(TrainingRows):
    """A table opened for training."""

    remark: str = ""
    """An addition to the message about its task."""
    cluster: Cluster | None = None
    """The cluster that reads the rows; None in this process."""
    given: tuple[str, ...] = ()
    """The groups of the call."""

    @property
    def name(self) -> str:
        return Path(self.dataset.table.name).name

    @property
    def emptied(self) -> tuple[str, ...]:
        """Return the groups that have no usable column."""
        return tuple(name for name in self.given if name not in self.dataset.groups.positions)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what users should know of the columns."""
        return self.found.warnings

    @property
    def columns(self) -> ColumnRoles:
        data = self.dataset
        return ColumnRoles(data.groups, data.target, data.query, data.weights, data.drop_missing)

    def moments(self, groups: FeatureGroups | None = None) -> Sequence[Moments]:
        """Return the moments of each fold; with other `groups`, of their terms, in this process."""
        cluster = self.cluster if groups is None else None
        check_memory((self.dataset if groups is None else replace(self.dataset, groups=groups)).terms.size, self.folds)
        with console.progress(f"reading {self.name}", self.found.used) as advance:
            if cluster is None:
                return self.summed(groups, advance)
            by_class = self.target.law.by_class
            return cluster.moments(self.dataset, self.folds, seed=self.seed, stratified=by_class, progress=advance)

    def clamped(self, progress: Progress = ignored) -> list[Clamped]:
        del progress  # this one is shown
        if not self.open_columns or self.folds < 2:
            return super().clamped()
        with console.progress(f"reading {self.name}", self.found.used) as advance:
            return super().clamped(advance)

    def observed(self) -> Observations | None:
        if self.cluster is None or self.target.law.least_squares:
            return super().observed()
        return self.cluster.observed(self.dataset, self.folds, seed=self.seed, stratified=self.target.law.by_class)


@dataclass(frozen=True)
class MomentsSource:
    """Stored moments of some or all of their groups, in their own folds."""

    stored: StoredMoments
    columns: ColumnRoles
    emptied: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return ", ".join(self.stored.record.data)

    @property
    def remark(self) -> str:
        return f", {self.stored.total.rows} rows in {self.stored.record.folds} folds"

    def moments(self) -> Sequence[Moments]:
        terms = Expansion.of(self.stored.record.groups).plain.terms
        remaining = Expansion.of(self.columns.groups).plain.terms
        return [moments_of_groups(part, terms, remaining) for part in self.stored.parts]

    def read(self) -> tuple[MomentsSource, list[Clamped]]:
        return self, self.clamped()

    def clamped(self) -> list[Clamped]:
        parts = self.moments()
        return [Clamped(None, self.columns.groups, parts, parts)]

    def observed(self) -> None:
        """Moments are for least squares only."""


Source: TypeAlias = TableSource | MomentsSource


def open_source(data: Path, plan: Plan, cluster: Cluster | None = None) -> Source:
    """Open and check a table or moments; options that the one requires do not apply to the other."""
    if not are_moments(data):
        return open_table_source(data, plan, cluster)
    if cluster is not None:
        raise TrainingError(f"--backend applies to reading rows; {str(data)!r} contains moments")
    return _open_moments(data, plan)


def open_groups(table: Table, path: Path | None, used: Sequence[str]) -> FeatureGroups:
    """Return the groups of a file, or each column at cost 1; a remark names the index if left out.

    `used` are columns with another use, which no pattern matches.
    """
    if path is None:
        known = default_groups(table, used)
        remark(f"no --groups: each of {len(known)} columns is a group at cost 1 (`anytime groups` drafts a file)")
    else:
        loaded = load_groups(path)
        known = loaded.matched(name for name in table.columns if name not in {*used} | table.index)
        if known is loaded:
            return known
    left = [name for name in table.columns if name in table.index - {*used, *known.features}]
    if left:
        remark(f"left out: {listed(left)} (an index; name it in a group to use it)")
    return known


def open_table_source(
    data: Path,
    plan: Plan,
    cluster: Cluster | None = None,
    *,
    partial: bool = False,
    known: Target | None = None,
    learned: FeatureGroups | None = None,
) -> TableSource:
    """Open and check all that training reads; remarks report the target's meaning and excluded columns and rows.

    Parameters
    ----------
    partial : bool
        Whether rows of other sites follow, so that one value of the target is enough.
    known : Target | None
        The target, if it is stated or that of an earlier table.
    learned : FeatureGroups | None
        The groups of an earlier table, whose bases and types are used again.
    """
    if not plan.target:
        raise TrainingError(f"{str(data)!r} is a table; give --target")
    table = plan.open(data if cluster is None else data.resolve())
    used = [name for name in (*plan.target, plan.query, plan.weights) if name is not None]
    stated_groups = open_groups(table, plan.groups, used)
    groups = plan.changed(stated_groups)
    for feature in plan.drop or ():
        if feature not in groups.features:
            raise GroupsError(f"--drop {feature}: no group has this feature; {suggestion(feature, groups.features)}")
    complete = groups
    groups = groups.without(plan.drop) if plan.drop else groups
    excluded = set(stated_groups.features) - set(groups.features)
    if cluster is not None and len(table.starts) == 1:
        remark(f"{data.name} is one part, for one worker; row groups or a directory of Parquet files are distributed")
    Dataset(table, groups, Target("regression", tuple(plan.target)), plan.query, plan.weights).check()
    stated: dict[str, ReadAs] = {**plan.types}
    if known is not None:
        stated |= dict.fromkeys(known.columns, known.type)
    if learned is not None:
        stated |= learned.known_types
    given = groups if learned is None else groups.with_bases(learned.bases)
    groups, found = surveyed(
        table,
        given,
        plan.target,
        query=plan.query,
        weights=plan.weights,
        stated=stated,
        option=plan.common_basis if learned is None else None,
        clamp=plan.clamping if learned is None else None,
        drop_missing=plan.drops_missing,
        min_level_rows=plan.least_level_rows,
        seed=plan.seed,
    )
    if known is None or not known.is_consistent:  # of one class: others follow
        known = settle_target(found, plan.task, plan.training.family, partial=partial)
    dataset = Dataset(table, groups, known, plan.query, plan.weights, plan.drops_missing)
    if plan.balances:
        dataset = dataset.balanced()
        remark(_balance(dataset))
    ignored = [name for name in dataset.check() if name not in table.index and name not in found.unusable]
    for option, names in (("--without", set(stated_groups.features) - set(complete.features)), ("--drop", plan.drop)):
        if left := [name for name in ignored if name in (names or ())]:
            remark(f"left out: {listed(left, 10)} ({option})")
    if unknown := [name for name in ignored if name not in excluded]:
        remark(f"ignored: {listed(unknown, 10)} (in no group)")
    remark_missing(found)
    folds = fold_count(plan.folds, found.used)
    chosen = _chosen_family(dataset, plan, cluster, found.used, folds)
    if chosen is not None:
        dataset = replace(dataset, target=replace(known, family=chosen.name))
    selects = plan.selects and folds > 1 and cluster is None
    return TableSource(
        dataset,
        folds,
        plan.seed,
        plan.n_jobs,
        dataset.target,
        found,
        clampable(groups, given, plan.clamping) if selects else (),
        remark=_note(found, known) + ("" if chosen is None else f"; {chosen.why}"),
        cluster=cluster,
        given=complete.names,
    )


def _chosen_family(dataset: Dataset, plan: Plan, cluster: Cluster | None, rows: int, folds: int) -> ChosenFamily | None:
    """Return the default family of classes; None if one is stated, or the target is no classes."""
    if dataset.target.classes is None or not plan.opens_family or cluster is not None:
        return None
    return family_of_classes(dataset.target, plan.training, dataset.terms, rows, folds)


def _balance(dataset: Dataset) -> str:
    """Return the class weights in words, and what they change."""
    pairs = zip(dataset.target.classes or (), dataset.class_weights or (), strict=True)
    weights = ", ".join(f"{label} {weight:.3g}" for label, weight in pairs)
    return f"class weights: {weights}; probabilities are those of equally frequent classes"


def _note(found: Survey, target: Target) -> str:
    """Return the classes, or a hint that the target might be classes."""
    if target.classes is not None:
        return f", classes {', '.join(map(str, target.classes))}"
    count = len(found.values[0])
    few_integers = len(target.columns) == 1 and found.types[target.columns[0]] == "integer" and count <= 20
    return f" ({count} whole numbers; --task multiclass treats them as classes)" if few_integers else ""


def _open_moments(data: Path, plan: Plan) -> MomentsSource:
    stored = StoredMoments.load(data)
    record = stored.record
    if not family_of(plan.training.family).least_squares:
        raise TrainingError(
            f"family {plan.training.family!r} is fitted on rows, and {str(data)!r} contains moments; train on the table"
        )
    table_options = {
        "--query": plan.query,
        "--weights": plan.weights,
        "--drop": plan.drop,
        "--class-weight": plan.balances,
        "--missing-target error": not plan.drops_missing,
        "--basis": plan.basis not in (None, "auto"),
        "--clamp": plan.clamp not in (None, "auto"),
        "--min-level-rows": plan.min_level_rows not in ("auto", str(MIN_LEVEL_ROWS)),
    }
    for option, value in table_options.items():
        if value:
            raise TrainingError(f"{option} requires a table; {str(data)!r} contains moments, which determine it")
    if plan.target and tuple(plan.target) != record.target:
        raise TrainingError(f"--target is {', '.join(plan.target)}; the moments are of {', '.join(record.target)}")
    if plan.task not in ("auto", record.task):
        raise TrainingError(f"--task is {plan.task}; the moments are of task {record.task}")
    if record.classes is not None and not stored.target.is_consistent:
        raise TrainingError(
            f"{str(data)!r} contains moments of the class {record.classes[0]!r} alone; add those of other classes with "
            "'anytime moments'"
        )
    groups = record.groups if plan.groups is None else record.groups.with_costs(load_groups(plan.groups))
    return MomentsSource(stored, ColumnRoles(plan.changed(groups), stored.target, record.query, record.weights))


def remark_missing(found: Survey) -> None:
    """Print how many rows of a table without a target are left out, if there are some."""
    if found.missing:
        remark(f"left out: {found.missing} of {found.rows} rows of {Path(found.table).name} without a target")


def open_test(test: Path, source: Source, tables: TableFormat) -> Dataset:
    """Open a table to evaluate on, with the columns of the source, and check it before the long pass over it."""
    dataset, found = checked_dataset(Dataset(tables.open(test), *source.columns))
    remark_missing(found)
    return dataset


def open_calibration(calibrate: Path, source: Source, coverage: float, tables: TableFormat) -> Dataset:
    """Open a table to calibrate on, as `open_test`, and check that it has enough rows and no weights.

    The threshold of a weighted table depends on the weight of the row to predict (Tibshirani, Barber, Candès and Ramdas
    2019, "Conformal prediction under covariate shift"), and requests contain no weights.
    """
    weights = source.columns.weights
    if weights is not None:
        raise TrainingError(
            f"--calibrate is {str(calibrate)!r} with weights {weights!r}; expected no weights, as a "
            "weighted threshold depends on the weight of the row to predict, which is unknown; train without "
            "--calibrate, then calibrate in Python on rows drawn like those to predict"
        )
    dataset, found = checked_dataset(Dataset(tables.open(calibrate), *source.columns))
    remark_missing(found)
    conformal_rank(found.used, coverage)
    return dataset


def open_retrained(model: Model, groups: FeatureGroups, refit: RefitOptions) -> Retrained | None:
    """Open the rows for refitting a model's likelihood on some of its groups; None for least squares or no data."""
    manifest = model.manifest
    target = manifest.learned
    if refit.data is None or target.law.least_squares:
        return None
    dataset, found = checked_dataset(
        Dataset(refit.open(refit.data), groups, target, None, refit.weights, refit.drops_missing)
    )
    remark_missing(found)
    source = TableSource(dataset, 1, 0, refit.n_jobs, target, found)
    return Retrained(source.name, source.moments()[0], Observed(source.blocks(), target, refit.n_jobs))
