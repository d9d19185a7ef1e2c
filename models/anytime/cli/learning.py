"""From the options of `train` and `compare` to the moments of the folds."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from anytime.calibration import conformal_rank
from anytime.cli.backends import HERE, Place
from anytime.cli.console import progress, remark
from anytime.dataset import Dataset
from anytime.dealing import Deal, fold_count, stratified
from anytime.errors import GroupsError, TrainingError, listed, suggestion
from anytime.generalised import Observations, Observed
from anytime.groups import FeatureGroups, load_groups
from anytime.manifest import FamilyName, Task
from anytime.model import AnytimeModel
from anytime.moments import Moments
from anytime.resequencing import Changes, Retrained, kept_groups
from anytime.tables import open_table
from anytime.targets import Survey, Target, settle_target, survey_target

__all__ = [
    "Meaning",
    "Source",
    "TableSource",
    "check_other_rows",
    "checked_coverage",
    "open_again",
    "open_calibration",
    "open_source",
    "open_test",
]

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
        blocks = self.dataset.blocks(Deal(count, seed, stratified=self.stratified))
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
    model: AnytimeModel, groups: FeatureGroups, data: Path, *, weights: str | None, drop_missing: bool, jobs: int
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
