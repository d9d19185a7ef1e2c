"""Sources of training data: a table, read in this process or on a cluster, or moments.

`open_source` checks everything that training reads before the first long pass. A source then returns the moments of the
folds, which `anytime.training.fit.fit` learns from, and the rows themselves for a likelihood.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from anytime._files import check_writable
from anytime.cli.console import progress, remark
from anytime.data.dataset import Dataset, Survey, checked_dataset, settle_target, survey_target
from anytime.data.formats import open_table
from anytime.errors import GroupsError, TrainingError, listed, suggestion
from anytime.features.expansion import Expansion
from anytime.features.learning import Clamp
from anytime.folds import FoldAssigner, fold_count, stratified
from anytime.groups import ColumnBasis, FeatureGroups, load_groups
from anytime.inference.conformal import conformal_rank
from anytime.model.model import Model
from anytime.moments.accumulate import Block, check_memory
from anytime.moments.files import Checkpoint, StoredMoments, are_moments
from anytime.moments.moments import Moments
from anytime.target import Target
from anytime.training.likelihood import Observations, Observed
from anytime.training.resequencing import Changes, Retrained, moments_of_groups, remaining_groups
from anytime.types import FamilyName, Task

if TYPE_CHECKING:
    from anytime.training.dask import Cluster


class Backend(NamedTuple):
    """Where the rows of a table are read: on a cluster, or in this process if None; and the checkpoint of the pass."""

    cluster: Cluster | None = None
    checkpoint: Checkpoint | None = None


LOCAL = Backend()


@contextmanager
def open_backend(
    backend: Literal["local", "dask"], scheduler: str | None, checkpoint: Path | None
) -> Iterator[Backend]:
    """Return the backend that --backend, --scheduler and --checkpoint select."""
    if backend == "local":
        if scheduler is not None:
            raise TrainingError("--scheduler requires --backend dask")
        check_writable(checkpoint)
        yield Backend(checkpoint=None if checkpoint is None else Checkpoint(checkpoint))
        return
    if scheduler is None:
        raise TrainingError("--backend dask needs the address of a scheduler; add --scheduler tcp://HOST:8786")
    if checkpoint is not None:
        raise TrainingError("--checkpoint requires --backend local; a cluster rereads lost parts by itself")
    from anytime.training.dask import connected  # noqa: PLC0415

    with connected(scheduler) as cluster:
        yield Backend(cluster)


class ColumnOptions(NamedTuple):
    """The options that define the meaning of a table's columns, and how its rows are read."""

    groups: Path | None
    target: Many[str] | None
    task: Task | Literal["auto"]
    family: FamilyName
    query: str | None
    weights: str | None
    drop: Many[str] | None
    drop_missing: bool
    folds: int
    seed: int
    jobs: int
    known: Target | None = None
    """The target, if it is already determined."""
    changes: Changes = Changes()
    """Names groups to leave out or to place first."""
    basis: str | None = None
    clamp: Clamp = None
    bases: Mapping[str, ColumnBasis] | None = None
    """Bases of the columns, if they are already learned."""
    partial: bool = False
    """Whether rows of other sites follow, so that one value of the target is enough."""
    rows: int | None = None
    """Rows of a call for which costs are stated, if other than in the groups."""

    def changed(self, groups: FeatureGroups) -> FeatureGroups:
        """Return the groups that remain, with costs for the calls of these options."""
        return remaining_groups(groups if self.rows is None else groups.for_rows(self.rows), self.changes)


class Columns(NamedTuple):
    """The meaning of the columns of a source, which other tables share."""

    groups: FeatureGroups
    target: Target
    query: str | None
    weights: str | None
    drop_missing: bool = False


@dataclass(frozen=True)
class TableSource:
    """A table opened for training, and its number of rows with a target."""

    dataset: Dataset
    rows: int
    family: FamilyName
    folds: int
    seed: int
    jobs: int
    remark: str = ""
    """An addition to the message about its task."""
    backend: Backend = LOCAL

    @property
    def name(self) -> str:
        return Path(self.dataset.table.name).name

    @property
    def columns(self) -> Columns:
        data = self.dataset
        return Columns(data.groups, data.target, data.query, data.weights, data.drop_missing)

    def moments(self, groups: FeatureGroups | None = None) -> Many[Moments]:
        """Return the moments of each fold; with other `groups`, of their terms, in this process."""
        dataset = self.dataset if groups is None else replace(self.dataset, groups=groups)
        cluster, checkpoint = self.backend if groups is None else LOCAL
        folds, seed, by_class = self.folds, self.seed, stratified(self.family)
        check_memory(dataset.terms.size, folds)
        with progress(f"reading {self.name}", self.rows) as advance:
            if cluster is not None:
                return cluster.moments(dataset, folds, seed=seed, stratified=by_class, progress=advance)
            return dataset.moments(
                folds, seed=seed, stratified=by_class, n_jobs=self.jobs, progress=advance, checkpoint=checkpoint
            )

    def blocks(self) -> Iterator[Block]:
        return self.dataset.blocks(FoldAssigner(self.folds, self.seed, stratified=stratified(self.family)))

    def observed(self) -> Observations | None:
        """Return the rows themselves, in the same folds, for a likelihood."""
        if self.family == "gaussian":
            return None
        if self.backend.cluster is not None:
            return self.backend.cluster.observed(
                self.dataset, self.folds, seed=self.seed, stratified=stratified(self.family)
            )
        return Observed(self.blocks(), self.dataset.target, self.jobs)


@dataclass(frozen=True)
class MomentsSource:
    """Stored moments of some or all of their groups, in their own folds."""

    stored: StoredMoments
    columns: Columns

    @property
    def name(self) -> str:
        return ", ".join(self.stored.record.data)

    @property
    def remark(self) -> str:
        return f", {self.stored.total.rows} rows in {self.stored.record.folds} folds"

    def moments(self) -> Many[Moments]:
        terms = Expansion.of(self.stored.record.groups).plain.terms
        remaining = Expansion.of(self.columns.groups).plain.terms
        return [moments_of_groups(part, terms, remaining) for part in self.stored.parts]

    def observed(self) -> None:
        """Moments are for least squares only."""


Source: TypeAlias = TableSource | MomentsSource


def open_source(data: Path, options: ColumnOptions, backend: Backend = LOCAL) -> Source:
    """Open and check a table or moments; options that the one requires do not apply to the other."""
    if not are_moments(data):
        return open_table_source(data, options, backend)
    if backend != LOCAL:
        raise TrainingError(f"--backend and --checkpoint apply to reading rows; {str(data)!r} contains moments")
    return _open_moments(data, options)


def open_table_source(data: Path, options: ColumnOptions, backend: Backend = LOCAL) -> TableSource:
    """Open and check all that training reads; remarks report the target's meaning and excluded columns and rows."""
    if options.groups is None:
        raise TrainingError(f"{str(data)!r} is a table; give --groups")
    if not options.target:
        raise TrainingError(f"{str(data)!r} is a table; give --target")
    table = open_table(data if backend.cluster is None else data.resolve())
    used = (*options.target, options.query, options.weights)
    known = load_groups(options.groups).matched(name for name in table.columns if name not in used)
    groups = options.changed(known)
    for feature in options.drop or ():
        if feature not in groups.features:
            raise GroupsError(f"--drop {feature}: no group has this feature; {suggestion(feature, groups.features)}")
    groups = groups.without(options.drop) if options.drop else groups
    if backend.cluster is not None and len(table.starts) == 1:
        remark(f"{data.name} is one part, for one worker; row groups or a directory of Parquet files are distributed")
    survey = survey_target(table, options.target, drop_missing=options.drop_missing)
    target = options.known or settle_target(survey, options.task, options.family, partial=options.partial)
    dataset = Dataset(table, groups, target, options.query, options.weights, options.drop_missing)
    ignored = dataset.check()
    if ignored:
        remark(f"ignored: {listed(ignored, 10)} (in no group)")
    if survey.missing:
        remark(f"left out: {survey.missing} of {survey.rows} rows without a target")
    if options.bases is None:
        dataset = dataset.with_learned_bases(options.basis, options.clamp, seed=options.seed)
    else:
        dataset = replace(dataset, groups=dataset.groups.with_bases(options.bases))
    rows, note = survey.rows - survey.missing, _note(survey, target, options.family)
    folds = fold_count(options.folds, rows)
    return TableSource(dataset, rows, options.family, folds, options.seed, options.jobs, note, backend)


def _note(survey: Survey, target: Target, family: FamilyName) -> str:
    """Return the classes, or a hint that the target might be classes."""
    if target.classes is not None:
        likelihood = "binomial" if len(target.classes) == 2 else "multinomial"
        hint = f"; least squares on their indicators (--family {likelihood} fits probabilities)"
        return f", classes {', '.join(map(str, target.classes))}{hint * (family == 'gaussian')}"
    count = len(survey.values[0])
    few_integers = len(target.columns) == 1 and survey.kinds[0] in "iu" and count <= 20
    return f" ({count} whole numbers; --task multiclass treats them as classes)" if few_integers else ""


def _open_moments(data: Path, options: ColumnOptions) -> MomentsSource:
    stored = StoredMoments.load(data)
    record = stored.record
    if options.family != "gaussian":
        raise TrainingError(
            f"family {options.family!r} is fitted on rows, and {str(data)!r} contains moments; train on the table"
        )
    table_options = {
        "--query": options.query,
        "--weights": options.weights,
        "--drop": options.drop,
        "--drop-missing-target": options.drop_missing,
        "--basis": options.basis,
        "--clamp": options.clamp is not None,
    }
    for option, value in table_options.items():
        if value:
            raise TrainingError(f"{option} requires a table; {str(data)!r} contains moments, which determine it")
    if options.target and tuple(options.target) != record.target:
        raise TrainingError(f"--target is {', '.join(options.target)}; the moments are of {', '.join(record.target)}")
    if options.task not in ("auto", record.task):
        raise TrainingError(f"--task is {options.task}; the moments are of task {record.task}")
    if record.classes is not None and not stored.target.is_consistent:
        raise TrainingError(
            f"{str(data)!r} contains moments of the class {record.classes[0]!r} alone; add those of other classes with "
            "'anytime moments'"
        )
    groups = record.groups if options.groups is None else record.groups.with_costs(load_groups(options.groups))
    return MomentsSource(stored, Columns(options.changed(groups), stored.target, record.query, record.weights))


def open_test(test: Path, source: Source) -> Dataset:
    """Open a table to evaluate on, with the columns of the source, and check it before the long pass over it."""
    return checked_dataset(Dataset(open_table(test), *source.columns))[0]


def open_calibration(calibrate: Path, source: Source, coverage: float) -> Dataset:
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
    dataset, rows = checked_dataset(Dataset(open_table(calibrate), *source.columns))
    conformal_rank(rows, coverage)
    return dataset


def open_retrained(
    model: Model, groups: FeatureGroups, data: Path | None, *, weights: str | None, drop_missing: bool, jobs: int
) -> Retrained | None:
    """Open the rows for refitting a model's likelihood on some of its groups; None for least squares or no data."""
    manifest = model.manifest
    if data is None or manifest.family == "gaussian":
        return None
    target = Target(manifest.task, manifest.target, manifest.classes)
    dataset, rows = checked_dataset(Dataset(open_table(data), groups, target, None, weights, drop_missing))
    source = TableSource(dataset, rows, manifest.family, folds=1, seed=0, jobs=jobs)
    return Retrained(source.name, source.moments()[0], Observed(source.blocks(), target, jobs))
