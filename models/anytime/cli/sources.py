"""Where the rows of a table are gone over: in this process, or on a cluster; and where a pass is remembered.

From the options of `train` and `compare` to the moments of the folds.

What `train` learns from: a table, or moments of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Protocol

import typer

from anytime.cli.console import progress, remark
from anytime.cli.options import check_directory
from anytime.data.dataset import Dataset
from anytime.data.formats import open_table
from anytime.data.survey import Survey, settle_target, survey_target
from anytime.errors import GroupsError, TrainingError, listed, suggestion
from anytime.folds import FoldAssigner, fold_count, stratified
from anytime.groups import FeatureGroups, load_groups
from anytime.inference.conformal import conformal_rank
from anytime.model.model import Model
from anytime.moments.checkpoint import Checkpoint
from anytime.moments.files import StoredMoments, are_moments
from anytime.moments.moments import Moments
from anytime.target import Target
from anytime.training.likelihood import Observations, Observed
from anytime.training.resequencing import Changes, Retrained, kept_groups, moments_of_groups
from anytime.types import FamilyName, Task

if TYPE_CHECKING:
    from anytime.moments.checkpoint import Checkpoint
    from anytime.training.dask import Cluster

__all__ = [
    "HERE",
    "BackendName",
    "CheckpointFile",
    "Given",
    "Meaning",
    "Place",
    "Scheduler",
    "Source",
    "TableSource",
    "check_checkpoint",
    "check_other_rows",
    "checked_coverage",
    "open_again",
    "open_calibration",
    "open_source",
    "open_test",
    "place",
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
        help="File that remembers the pass over the table every 30 s: the same command goes on from there.",
        show_default=False,
    ),
]


class Place(NamedTuple):
    """Where the rows of a table are gone over: on a cluster, or here where None; and what remembers how far."""

    cluster: Cluster | None = None
    checkpoint: Checkpoint | None = None

    def done(self) -> None:
        """What the pass was for is written: forget it."""
        if self.checkpoint is not None:
            self.checkpoint.remove()


HERE = Place()


def check_checkpoint(checkpoint: Path | None, files: Mapping[str, Path | None]) -> None:
    """Refuse a checkpoint that is one of the files which the command reads or writes, for it is removed at the end."""
    for what, path in files.items():
        if checkpoint is not None and path is not None and path.resolve() == checkpoint.resolve():
            raise TrainingError(
                f"--checkpoint is {str(checkpoint)!r}, which is {what} as well; expected a file of its own"
            )


@contextmanager
def place(backend: Literal["local", "dask"], scheduler: str | None, checkpoint: Path | None) -> Iterator[Place]:
    """What --backend, --scheduler and --checkpoint say.

    Raises
    ------
    TrainingError
        They do not go together, or no scheduler answers.
    """
    if backend == "local":
        if scheduler is not None:
            raise TrainingError("--scheduler goes with --backend dask")
        if checkpoint is not None:
            check_directory(checkpoint)
        yield HERE if checkpoint is None else Place(None, Checkpoint(checkpoint))
        return
    if scheduler is None:
        raise TrainingError("--backend dask needs the address of a scheduler; add --scheduler tcp://HOST:8786")
    if checkpoint is not None:
        raise TrainingError("--checkpoint goes with --backend local; what a cluster loses it reads again by itself")
    from anytime.training.dask import connected  # noqa: PLC0415

    with connected(scheduler) as cluster:
        yield Place(cluster)


COVERAGE = 0.9
"""What is to be covered unless told."""


FEW = 20
"""Different whole numbers up to which a target may well be classes."""


class Meaning(NamedTuple):
    """What columns mean, whichever table they are in."""

    groups: FeatureGroups
    target: Target
    query: str | None = None
    weights: str | None = None
    drop_missing: bool = False


class Source(Protocol):
    """What a model is trained from."""

    @property
    def meaning(self) -> Meaning:
        """What its columns mean."""

    @property
    def remark(self) -> str:
        """What else is to be said of its task."""

    @property
    def name(self) -> str:
        """Where its rows come from."""

    def moments(self, folds: int, seed: int, jobs: int) -> Many[Moments]:
        """Moments of each fold."""

    def observed(self, folds: int, seed: int, jobs: int) -> Observations:
        """The rows themselves, in the same folds, for a likelihood."""


@dataclass(frozen=True)
class TableSource:
    """A table opened for training, how many of its rows have a target, and what else is to be said of its task."""

    dataset: Dataset
    rows: int
    remark: str
    stratified: bool
    place: Place = HERE

    @property
    def meaning(self) -> Meaning:
        """What its columns mean."""
        data = self.dataset
        return Meaning(data.groups, data.target, data.query, data.weights, data.drop_missing)

    @property
    def name(self) -> str:
        """Name of the table's file."""
        return Path(self.dataset.table.name).name

    def moments(self, folds: int, seed: int, jobs: int) -> list[Moments]:
        """Moments of each fold, while progress is told."""
        cluster, checkpoint = self.place
        count = self._count(folds)
        with progress(f"reading {self.name}", self.rows) as told:
            if cluster is not None:
                return cluster.moments(self.dataset, count, seed=seed, stratified=self.stratified, progress=told)
            return self.dataset.moments(
                count, seed=seed, stratified=self.stratified, n_jobs=jobs, progress=told, checkpoint=checkpoint
            )

    def observed(self, folds: int, seed: int, jobs: int) -> Observations:
        """The rows themselves, in the same folds, for a likelihood."""
        count = self._count(folds)
        if self.place.cluster is not None:
            return self.place.cluster.observed(self.dataset, count, seed=seed, stratified=self.stratified)
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
    place: Place = HERE,
    changes: Changes | None = None,
) -> TableSource:
    """Open and check everything that training will read; remarks say what was settled and what is left out."""
    loaded = _without(kept_groups(load_groups(groups), changes or Changes()), drop or ())
    table = open_table(data if place.cluster is None else data.resolve())
    if place.cluster is not None and len(table.starts) == 1:
        remark(f"{data.name} is one piece, for one worker: row groups or a directory of Parquet files are shared out")
    survey = survey_target(table, target, drop_missing=drop_missing)
    settled = settle_target(survey, task, family) if known is None else known
    dataset = Dataset(table, loaded, settled, query, weights, drop_missing)
    ignored = dataset.check()
    if ignored:
        remark(f"ignored: {listed(ignored, 10)} (in no group)")
    if survey.missing:
        remark(f"left out: {survey.missing} of {survey.rows} rows without a target")
    said = _remark(survey, dataset.target, family)
    return TableSource(dataset, survey.rows - survey.missing, said, stratified(family), place)


def _remark(survey: Survey, target: Target, family: FamilyName) -> str:
    """The classes, or a hint that there might be some."""
    if target.classes is not None:
        likelihood = "binomial" if len(target.classes) == 2 else "multinomial"
        hint = f"; least squares on their indicators (--family {likelihood} fits probabilities)"
        return f", classes {', '.join(map(str, target.classes))}{hint * (family == 'gaussian')}"
    count = len(survey.values[0])
    few_integers = len(target.columns) == 1 and survey.kinds[0] in "iu" and count <= FEW
    return f" ({count} whole numbers; --task multiclass makes them classes)" if few_integers else ""


def open_test(test: Path, source: Source) -> Dataset:
    """A table to measure on, with the columns of the source, checked before the long pass over it."""
    return _beside(test, source)[0]


def check_other_rows(tables: Mapping[str, Path | None], data: Path, use_of_data: str = "the model learns from") -> None:
    """Refuse tables, by option, that must hold rows of their own: not those to learn from, nor each other's."""
    uses = {data: use_of_data}
    for option, path in tables.items():
        for other, use in uses.items():
            if path is not None and path.exists() and other.exists() and path.samefile(other):
                raise TrainingError(f"{option} is {str(other)!r}, which {use}; expected a table of other rows")
        if path is not None:
            uses[path] = f"{option} takes"


def checked_coverage(coverage: float | None, calibrate: Path | None) -> float:
    """The value of --coverage, where there is a table to calibrate on."""
    if calibrate is None and coverage is not None:
        raise TrainingError(f"--coverage is {coverage}, and no table is given to calibrate on; add --calibrate TABLE")
    return COVERAGE if coverage is None else coverage


def open_calibration(calibrate: Path, source: Source, coverage: float) -> Dataset:
    """Open a table to calibrate on, as `open_test`, and check that it has enough rows.

    Raises
    ------
    TrainingError
        It has too few rows, or rows have weights: the threshold of a weighted table depends on the weight of the row to
        predict (Tibshirani, Barber, Candès and Ramdas 2019, "Conformal prediction under covariate shift"), and requests
        carry no weights.
    """
    if source.meaning.weights is not None:
        raise TrainingError(
            f"--calibrate is {str(calibrate)!r} with weights {source.meaning.weights!r}; expected no weights, as a "
            "weighted threshold depends on the weight of the row to predict, which is unknown; train without "
            "--calibrate, then calibrate in Python on rows drawn like those to predict"
        )
    dataset, rows = _beside(calibrate, source)
    conformal_rank(rows, coverage)
    return dataset


def _beside(path: Path, source: Source) -> tuple[Dataset, int]:
    """A table with the columns of the source, checked, and how many of its rows have a target."""
    like = source.meaning
    table = open_table(path)
    query = like.query if like.query is not None and table.has(like.query) else None
    survey = survey_target(table, like.target.columns, drop_missing=like.drop_missing)
    dataset = Dataset(table, like.groups, like.target, query, like.weights, like.drop_missing)
    dataset.check()
    return dataset, survey.rows - survey.missing


def open_again(
    model: Model, groups: FeatureGroups, data: Path, *, weights: str | None, drop_missing: bool, jobs: int
) -> Retrained:
    """The rows that a model's likelihood is fitted on again, of some of its groups, with their moments."""
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
    """The options that say what the columns of a table mean.

    `known` is the meaning of the target, if that is settled; `changes` names groups to leave out or to place first.
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
class _KeptSource:
    """Moments as a source, of some or all of their groups, in the folds that they were made with."""

    kept: StoredMoments
    meaning: Meaning
    remark: str

    @property
    def name(self) -> str:
        """The tables."""
        return ", ".join(self.kept.record.data)

    def moments(self, _folds: int, _seed: int, _jobs: int) -> Many[Moments]:
        """Moments of each fold."""
        groups = self.kept.record.groups
        return [moments_of_groups(part, groups, self.meaning.groups) for part in self.kept.parts]

    def observed(self, _folds: int, _seed: int, _jobs: int) -> Observations:
        """Refuse: there are no rows."""
        raise TrainingError("moments have no rows, which likelihoods are fitted on; train on the table")


def source_of(data: Path, given: Given, place: Place = HERE) -> Source:
    """Open a table or moments, and check them.

    Raises
    ------
    TrainingError
        An option that a table needs is left out, or one is given that moments do not take.
    """
    if are_moments(data):
        if place != HERE:
            raise TrainingError(
                f"--backend and --checkpoint are for reading rows; {str(data)!r} holds moments, summed already"
            )
        return _kept(data, given)
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
        place=place,
        changes=given.changes,
    )


def _kept(path: Path, given: Given) -> _KeptSource:
    kept = StoredMoments.load(path)
    record = kept.record
    if given.family != "gaussian":
        raise TrainingError(
            f"family {given.family!r} is fitted on rows, and {str(path)!r} holds moments; train on the table"
        )
    asked = {
        "--query": given.query,
        "--weights": given.weights,
        "--drop": given.drop,
        "--drop-missing-target": given.drop_missing,
    }
    for option, value in asked.items():
        if value:
            raise TrainingError(f"{option} goes with a table; {str(path)!r} holds moments, in which that is settled")
    if given.target and tuple(given.target) != record.target:
        raise TrainingError(f"--target is {', '.join(given.target)}; the moments are of {', '.join(record.target)}")
    if given.task not in ("auto", record.task):
        raise TrainingError(f"--task is {given.task}; the moments are of task {record.task}")
    groups = record.groups if given.groups is None else record.groups.with_costs(load_groups(given.groups))
    remark = f", {kept.total.rows} rows in {record.folds} folds"
    meaning = Meaning(kept_groups(groups, given.changes), kept.target, record.query, record.weights)
    return _KeptSource(kept, meaning, remark)
