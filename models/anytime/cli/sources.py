"""Sources of training data: a table, read in this process or on a cluster, or moments.

The module turns the options of `train`, `compare` and `moments` into the moments of the folds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Protocol

import typer

from anytime._files import check_writable
from anytime.cli.console import progress, remark
from anytime.data.dataset import Dataset, Survey, settle_target, survey_target
from anytime.data.formats import open_table
from anytime.errors import GroupsError, TrainingError, listed, suggestion
from anytime.folds import FoldAssigner, fold_count, stratified
from anytime.groups import FeatureGroups, load_groups
from anytime.inference.conformal import conformal_rank
from anytime.model.model import Model
from anytime.moments.files import Checkpoint, StoredMoments, are_moments
from anytime.moments.moments import Moments
from anytime.target import Target
from anytime.training.likelihood import Observations, Observed
from anytime.training.resequencing import Changes, Retrained, moments_of_groups, remaining_groups
from anytime.types import FamilyName, Task

if TYPE_CHECKING:
    from anytime.moments.files import Checkpoint
    from anytime.training.dask import Cluster

__all__ = [
    "LOCAL",
    "Backend",
    "BackendName",
    "CheckpointFile",
    "Given",
    "Meaning",
    "Scheduler",
    "Source",
    "TableSource",
    "check_checkpoint",
    "check_other_rows",
    "checked_coverage",
    "open_backend",
    "open_calibration",
    "open_retrained",
    "open_source",
    "open_test",
    "source_of",
]

BackendName = Annotated[
    Literal["local", "dask"],
    typer.Option("--backend", help="Where rows are read and summed: here, or on a Dask cluster."),
]
Scheduler = Annotated[
    str | None,
    typer.Option("--scheduler", help="Address of the cluster's scheduler, as tcp://host:8786.", show_default=False),
]
CheckpointFile = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        help="File that stores the progress of reading every 30 s: the same command resumes from it.",
        show_default=False,
    ),
]


class Backend(NamedTuple):
    """Where the rows of a table are read: on a cluster, or in this process if None; and the checkpoint of the pass."""

    cluster: Cluster | None = None
    checkpoint: Checkpoint | None = None

    def done(self) -> None:
        """Remove the checkpoint after the command has written its result."""
        if self.checkpoint is not None:
            self.checkpoint.remove()


LOCAL = Backend()


def check_checkpoint(checkpoint: Path | None, files: Mapping[str, Path | None]) -> None:
    """Refuse a checkpoint that is also a file of the command, because the checkpoint is removed at the end."""
    for what, path in files.items():
        if checkpoint is not None and path is not None and path.resolve() == checkpoint.resolve():
            raise TrainingError(f"--checkpoint is {str(checkpoint)!r}, which is also {what}; expected a separate file")


@contextmanager
def open_backend(
    backend: Literal["local", "dask"], scheduler: str | None, checkpoint: Path | None
) -> Iterator[Backend]:
    """Return the backend that --backend, --scheduler and --checkpoint select.

    Raises
    ------
    TrainingError
        The options conflict, or no scheduler answers.
    """
    if backend == "local":
        if scheduler is not None:
            raise TrainingError("--scheduler requires --backend dask")
        if checkpoint is not None:
            check_writable(checkpoint)
        yield LOCAL if checkpoint is None else Backend(None, Checkpoint(checkpoint))
        return
    if scheduler is None:
        raise TrainingError("--backend dask needs the address of a scheduler; add --scheduler tcp://HOST:8786")
    if checkpoint is not None:
        raise TrainingError("--checkpoint requires --backend local; a cluster rereads lost parts by itself")
    from anytime.training.dask import connected  # noqa: PLC0415

    with connected(scheduler) as cluster:
        yield Backend(cluster)


COVERAGE = 0.9
"""Default coverage."""


MAX_LIKELY_CLASSES = 20
"""Maximum number of distinct whole numbers for which the target may be classes."""


class Meaning(NamedTuple):
    """The meaning of the columns of any table."""

    groups: FeatureGroups
    target: Target
    query: str | None = None
    weights: str | None = None
    drop_missing: bool = False


class Source(Protocol):
    """The data that a model is trained from."""

    @property
    def meaning(self) -> Meaning:
        """The meaning of its columns."""

    @property
    def remark(self) -> str:
        """An addition to the message about its task."""

    @property
    def name(self) -> str:
        """Name of the data."""

    def moments(self, folds: int, seed: int, jobs: int) -> Many[Moments]:
        """Return the moments of each fold."""

    def observed(self, folds: int, seed: int, jobs: int) -> Observations:
        """Return the rows themselves, in the same folds, for a likelihood."""


@dataclass(frozen=True)
class TableSource:
    """A table opened for training, the number of rows with a target, and an addition to the message about its task."""

    dataset: Dataset
    rows: int
    remark: str
    stratified: bool
    backend: Backend = LOCAL

    @property
    def meaning(self) -> Meaning:
        """The meaning of its columns."""
        data = self.dataset
        return Meaning(data.groups, data.target, data.query, data.weights, data.drop_missing)

    @property
    def name(self) -> str:
        """Name of the table's file."""
        return Path(self.dataset.table.name).name

    def moments(self, folds: int, seed: int, jobs: int) -> list[Moments]:
        """Return the moments of each fold, and show progress."""
        cluster, checkpoint = self.backend
        count = self._count(folds)
        with progress(f"reading {self.name}", self.rows) as advance:
            if cluster is not None:
                return cluster.moments(self.dataset, count, seed=seed, stratified=self.stratified, progress=advance)
            return self.dataset.moments(
                count, seed=seed, stratified=self.stratified, n_jobs=jobs, progress=advance, checkpoint=checkpoint
            )

    def observed(self, folds: int, seed: int, jobs: int) -> Observations:
        """Return the rows themselves, in the same folds, for a likelihood."""
        count = self._count(folds)
        if self.backend.cluster is not None:
            return self.backend.cluster.observed(self.dataset, count, seed=seed, stratified=self.stratified)
        blocks = self.dataset.blocks(FoldAssigner(count, seed, stratified=self.stratified))
        return Observed(blocks, self.dataset.target, jobs)

    def _count(self, folds: int) -> int:
        return fold_count(folds, self.rows)


def open_source(
    data: Path,
    groups: Path,
    target: Many[str],
    task: Task | Literal["auto"],
    family: FamilyName = "gaussian",
    *,
    query: str | None,
    weights: str | None,
    drop: Many[str] | None,
    drop_missing: bool,
    known: Target | None = None,
    backend: Backend = LOCAL,
    changes: Changes | None = None,
) -> TableSource:
    """Open and check all that training reads; remarks report the target's meaning and excluded columns and rows."""
    loaded = _without(remaining_groups(load_groups(groups), changes or Changes()), drop or ())
    table = open_table(data if backend.cluster is None else data.resolve())
    if backend.cluster is not None and len(table.starts) == 1:
        remark(f"{data.name} is one part, for one worker; row groups or a directory of Parquet files are distributed")
    survey = survey_target(table, target, drop_missing=drop_missing)
    settled = settle_target(survey, task, family) if known is None else known
    dataset = Dataset(table, loaded, settled, query, weights, drop_missing)
    ignored = dataset.check()
    if ignored:
        remark(f"ignored: {listed(ignored, 10)} (in no group)")
    if survey.missing:
        remark(f"left out: {survey.missing} of {survey.rows} rows without a target")
    note = _remark(survey, dataset.target, family)
    return TableSource(dataset, survey.rows - survey.missing, note, stratified(family), backend)


def _remark(survey: Survey, target: Target, family: FamilyName) -> str:
    """Return the classes, or a hint that the target might be classes."""
    if target.classes is not None:
        likelihood = "binomial" if len(target.classes) == 2 else "multinomial"
        hint = f"; least squares on their indicators (--family {likelihood} fits probabilities)"
        return f", classes {', '.join(map(str, target.classes))}{hint * (family == 'gaussian')}"
    count = len(survey.values[0])
    few_integers = len(target.columns) == 1 and survey.kinds[0] in "iu" and count <= MAX_LIKELY_CLASSES
    return f" ({count} whole numbers; --task multiclass treats them as classes)" if few_integers else ""


def open_test(test: Path, source: Source) -> Dataset:
    """Open a table to evaluate on, with the columns of the source, and check it before the long pass over it."""
    return _open_like(test, source)[0]


def check_other_rows(tables: Mapping[str, Path | None], data: Path, use_of_data: str = "the model learns from") -> None:
    """Refuse tables, by option, that must have their own rows: not those of the training data, nor each other's."""
    uses = {data: use_of_data}
    for option, path in tables.items():
        for other, use in uses.items():
            if path is not None and path.exists() and other.exists() and path.samefile(other):
                raise TrainingError(f"{option} is {str(other)!r}, which {use}; expected a table with other rows")
        if path is not None:
            uses[path] = f"{option} uses"


def checked_coverage(coverage: float | None, calibrate: Path | None) -> float:
    """Return the value of --coverage; it requires a table to calibrate on."""
    if calibrate is None and coverage is not None:
        raise TrainingError(f"--coverage is {coverage} without a table to calibrate on; add --calibrate TABLE")
    return COVERAGE if coverage is None else coverage


def open_calibration(calibrate: Path, source: Source, coverage: float) -> Dataset:
    """Open a table to calibrate on, as `open_test`, and check that it has enough rows.

    Raises
    ------
    TrainingError
        It has too few rows, or rows have weights: the threshold of a weighted table depends on the weight of the row to
        predict (Tibshirani, Barber, Candès and Ramdas 2019, "Conformal prediction under covariate shift"), and requests
        contain no weights.
    """
    if source.meaning.weights is not None:
        raise TrainingError(
            f"--calibrate is {str(calibrate)!r} with weights {source.meaning.weights!r}; expected no weights, as a "
            "weighted threshold depends on the weight of the row to predict, which is unknown; train without "
            "--calibrate, then calibrate in Python on rows drawn like those to predict"
        )
    dataset, rows = _open_like(calibrate, source)
    conformal_rank(rows, coverage)
    return dataset


def _open_like(path: Path, source: Source) -> tuple[Dataset, int]:
    """Open and check a table with the columns of the source; return it with the number of its rows with a target."""
    like = source.meaning
    table = open_table(path)
    query = like.query if like.query is not None and table.has(like.query) else None
    survey = survey_target(table, like.target.columns, drop_missing=like.drop_missing)
    dataset = Dataset(table, like.groups, like.target, query, like.weights, like.drop_missing)
    dataset.check()
    return dataset, survey.rows - survey.missing


def open_retrained(
    model: Model, groups: FeatureGroups, data: Path, *, weights: str | None, drop_missing: bool, jobs: int
) -> Retrained:
    """Open the rows for refitting a model's likelihood on some of its groups, with their moments."""
    manifest, table = model.manifest, open_table(data)
    survey = survey_target(table, manifest.target, drop_missing=drop_missing)
    target = Target(manifest.task, manifest.target, manifest.classes)
    dataset = Dataset(table, groups, target, None, weights, drop_missing)
    dataset.check()
    source = TableSource(dataset, survey.rows - survey.missing, "", stratified=False)
    return Retrained(source.name, source.moments(1, 0, jobs)[0], source.observed(1, 0, jobs))


def _without(groups: FeatureGroups, drop: Many[str]) -> FeatureGroups:
    for feature in drop:
        if feature not in groups.features:
            raise GroupsError(f"--drop {feature}: no group has this feature; {suggestion(feature, groups.features)}")
    return groups.without(drop) if drop else groups


class Given(NamedTuple):
    """The options that define the meaning of a table's columns.

    `known` is the meaning of the target if it is already determined; `changes` names groups to leave out or to place
    first.
    """

    groups: Path | None
    target: Many[str] | None
    task: Task | Literal["auto"]
    family: FamilyName
    query: str | None
    weights: str | None
    drop: Many[str] | None
    drop_missing: bool
    known: Target | None = None
    changes: Changes = Changes()


@dataclass(frozen=True)
class _MomentsSource:
    """Stored moments as a source, of some or all of their groups, in their own folds."""

    stored: StoredMoments
    meaning: Meaning
    remark: str

    @property
    def name(self) -> str:
        """Names of the tables."""
        return ", ".join(self.stored.record.data)

    def moments(self, _folds: int, _seed: int, _jobs: int) -> Many[Moments]:
        """Return the moments of each fold."""
        groups = self.stored.record.groups
        return [moments_of_groups(part, groups, self.meaning.groups) for part in self.stored.parts]

    def observed(self, _folds: int, _seed: int, _jobs: int) -> Observations:
        """Raise TrainingError: moments have no rows."""
        raise TrainingError("a likelihood is fitted on rows, and moments have none; train on the table")


def source_of(data: Path, given: Given, backend: Backend = LOCAL) -> Source:
    """Open and check a table or moments.

    Raises
    ------
    TrainingError
        An option that a table requires is missing, or an option does not apply to moments.
    """
    if are_moments(data):
        if backend != LOCAL:
            raise TrainingError(f"--backend and --checkpoint apply to reading rows; {str(data)!r} contains moments")
        return _moments_source(data, given)
    for option, value in (("--groups", given.groups), ("--target", given.target)):
        if not value:
            raise TrainingError(f"{str(data)!r} is a table; give {option}")
    assert given.groups is not None and given.target is not None  # noqa: S101, PT018
    return open_source(
        data,
        given.groups,
        given.target,
        given.task,
        given.family,
        query=given.query,
        weights=given.weights,
        drop=given.drop,
        drop_missing=given.drop_missing,
        known=given.known,
        backend=backend,
        changes=given.changes,
    )


def _moments_source(path: Path, given: Given) -> _MomentsSource:
    stored = StoredMoments.load(path)
    record = stored.record
    if given.family != "gaussian":
        raise TrainingError(
            f"family {given.family!r} is fitted on rows, and {str(path)!r} contains moments; train on the table"
        )
    table_options = {
        "--query": given.query,
        "--weights": given.weights,
        "--drop": given.drop,
        "--drop-missing-target": given.drop_missing,
    }
    for option, value in table_options.items():
        if value:
            raise TrainingError(f"{option} requires a table; {str(path)!r} contains moments, which determine it")
    if given.target and tuple(given.target) != record.target:
        raise TrainingError(f"--target is {', '.join(given.target)}; the moments are of {', '.join(record.target)}")
    if given.task not in ("auto", record.task):
        raise TrainingError(f"--task is {given.task}; the moments are of task {record.task}")
    groups = record.groups if given.groups is None else record.groups.with_costs(load_groups(given.groups))
    remark = f", {stored.total.rows} rows in {record.folds} folds"
    meaning = Meaning(remaining_groups(groups, given.changes), stored.target, record.query, record.weights)
    return _MomentsSource(stored, meaning, remark)
