"""Training: from a table, what its columns are for, and options, to a model.

The command line and the estimators both train by `open_training` and `train`. A table is opened and checked first, then
read as often as a fit needs its rows. A stream of rows is trained by least squares: each call of `extended` adds rows,
and `Stream.trained` learns from all of them so far. Rows are stored, and the bases learned again, until there are as
many rows as bases are learned from. From then on only the moments are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from multiprocessing import current_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from joblib import cpu_count
from joblib.parallel import get_active_backend

from anytime.data.dataset import MIN_WEIGHT, ColumnError, Dataset, Progress, ignored
from anytime.data.formats import ReadAs, Table
from anytime.data.formats.memory import MemoryTable, table_of
from anytime.data.formats.table import JoinedTable
from anytime.data.survey import Survey, check_words, settle_target, surveyed, without_columns
from anytime.errors import GroupsError, TrainingError, refuse, suggestion
from anytime.families import default_family, family_of
from anytime.features.bases import MIN_LEVEL_ROWS
from anytime.features.expansion import Expansion
from anytime.features.learning import Sample, sample_size
from anytime.folds import FoldAssigner
from anytime.groups import FeatureGroups
from anytime.model.model import Model
from anytime.moments.accumulate import Block, check_memory
from anytime.moments.files import StoredMoments
from anytime.moments.moments import Moments
from anytime.target import Target, check_family
from anytime.training.fit import ALL, Candidates, Fit, fit, paired, provenance
from anytime.training.likelihood import Observations, Observed
from anytime.training.model_selection import Terms, Validation
from anytime.training.options import FOLDS, Options
from anytime.training.pairs import Screened, are_sought
from anytime.training.prices import DefaultFamily, affordable, affordable_levels, family_of_classes
from anytime.types import FamilyName, Float

if TYPE_CHECKING:
    from anytime.training.dask import Cluster

LONG_PASS = 2**20
"""Number of values in a pass from which all cores help."""


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are for: the features of groups, targets, query, weights and numbers of folds."""

    groups: FeatureGroups
    target: tuple[str, ...]
    query: str | None = None
    weights: str | None = None
    folds: str | None = None


def unseen(what: str, total: int | None = None) -> AbstractContextManager[Progress]:  # noqa: ARG001
    """Show nothing of some work."""
    return nullcontext(ignored)


@dataclass
class Observer:
    """What a caller shows while the trainer works; by default nothing.

    Attributes
    ----------
    progress : Callable[[str, int], AbstractContextManager[Progress]]
        Shows a pass over a number of rows; its function gets the number of rows just read.
    working : Callable[[str], AbstractContextManager[object]]
        Shows work of one step.
    remark : Callable[[str], object]
        Shows a line.
    warnings : Sequence[str]
        Warnings about the table, set before the fit: they may explain why it fails.
    """

    progress: Callable[[str, int], AbstractContextManager[Progress]] = unseen
    working: Callable[[str], AbstractContextManager[object]] = unseen
    remark: Callable[[str], object] = unseen
    warnings: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a fit learns from, and the options as they apply to it.

    Attributes
    ----------
    name : str
        The name of the table in a model; `target`, `query` and `weights` are its columns.
    class_weights : tuple[float, ...] | None
        As in `Dataset`.
    given : tuple[str, ...]
        The groups to train, also those without usable columns.
    warnings, decisions : tuple[str, ...]
        What users should know of the columns, and what was decided about them without the user.
    """

    name: str
    groups: FeatureGroups
    target: Target
    query: str | None
    weights: str | None
    options: Options
    folds: int
    class_weights: tuple[float, ...] | None = None
    given: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    observer: Observer = field(default_factory=Observer)

    def like(self, table: Table) -> Dataset:
        """Return another table whose columns have the same meaning."""
        drops = self.options.missing_target == "drop"
        return Dataset(table, self.groups, self.target, self.query, self.weights, drops)


@dataclass(frozen=True, kw_only=True)
class TrainingTable(Source):
    """A table for training. Its iteration reads the rows, with their folds.

    Attributes
    ----------
    unused : tuple[str, ...]
        Columns that have no role.
    family : DefaultFamily | None
        The family of classes, if it was not stated.
    jobs : int | None
        Threads of a pass.
    cluster : Cluster | None
        Where the rows are read; None is this process.
    drawn : Screened | None
        The rows that pairs are screened on, which `read` drew if the options look for pairs.
    """

    dataset: Dataset
    found: Survey
    unused: tuple[str, ...] = ()
    family: DefaultFamily | None = None
    jobs: int | None = None
    cluster: Cluster | None = None
    drawn: Screened | None = None

    @classmethod
    def of(cls, dataset: Dataset, found: Survey, **more: Any) -> Self:
        """Return a checked table; `more` are the other attributes."""
        return cls(
            name=Path(dataset.table.name).name,
            groups=dataset.groups,
            target=dataset.target,
            query=dataset.query,
            weights=dataset.weights,
            class_weights=dataset.class_weights,
            warnings=found.warnings,
            decisions=found.decisions,
            dataset=dataset,
            found=found,
            **more,
        )

    def moments(self, groups: FeatureGroups | None = None, drawn: Screened | None = None) -> Sequence[Moments]:
        """Return the moments of each fold; with other `groups`, of their terms, within other work that is shown.

        `drawn` draws from the rows.
        """
        dataset = self.dataset if groups is None else replace(self.dataset, groups=groups)
        check_memory(dataset.terms.size, self.folds)
        progress = self.observer.progress if groups is None else unseen
        with progress(f"reading {self.name}", self.found.used) as advance:
            if self.cluster is not None:
                seed, by_class = self.options.seed, self.target.family.by_class
                return self.cluster.moments(
                    dataset, self.folds, seed=seed, stratified=by_class, progress=advance, drawn=drawn
                )
            blocks = dataset.blocks(self._assigner, n_jobs=self.jobs, progress=advance)
            return dataset.summed(blocks if drawn is None else drawn.drawing_from(blocks), self.folds, n_jobs=self.jobs)

    def read(self) -> tuple[Self, Sequence[Moments]]:
        """Return the rows and the moments of each fold; without columns whose values have no moments, if others remain.

        Such values are infinite, or too large or too small to square.
        """
        sought = are_sought(self.options, self.groups, self.folds)
        drawn = Screened.of(self.options, self.groups) if sought else None
        try:
            return replace(self, drawn=drawn), self.moments(drawn=drawn)
        except ColumnError as error:
            if error.column not in self.groups.features:
                raise
            groups, found = without_columns(self.groups, self.dataset.infinite() or [error], self.found)
        dataset = replace(self.dataset, groups=groups)
        return replace(self, groups=groups, dataset=dataset, found=found, warnings=found.warnings).read()

    def with_found_pairs(self) -> FeatureGroups:
        """Return the groups, with the pairs that the options request if some are found."""
        source, parts = self.read()
        terms = Terms(Expansion.of(source.groups), parts, Moments.merged(parts)).reduced(ALL)
        found = paired(Candidates(terms, ALL), source, source.options)
        return source.groups.with_pairs(found.terms.expansion.groups.pairs)

    def screened(self) -> Sample:
        """Return the rows that pairs are screened on, which `read` drew."""
        assert self.drawn is not None  # noqa: S101  (it draws wherever the options look for pairs)
        return self.drawn.sample()

    @property
    def _assigner(self) -> FoldAssigner:
        return FoldAssigner(self.folds, self.options.seed, stratified=self.target.family.by_class)

    def __iter__(self) -> Iterator[Block]:
        return self.dataset.blocks(self._assigner)

    def observed(self) -> Observations | None:
        """Return the rows themselves, in the same folds, for a likelihood."""
        family = self.target.family
        if family.least_squares:
            return None
        if self.cluster is None:
            return Observed(self, self.target, self.jobs)
        return self.cluster.observed(self.dataset, self.folds, seed=self.options.seed, stratified=family.by_class)


@dataclass(frozen=True, kw_only=True)
class TrainingMoments(Source):
    """Moments to train on, of the groups' terms in their own folds."""

    parts: Sequence[Moments]

    def read(self) -> tuple[Self, Sequence[Moments]]:
        return self, self.parts

    def observed(self) -> None:
        """Moments are for least squares only."""


@np.errstate(under="ignore")  # to 0, a rounding like others
def open_training(
    table: Table,
    roles: Roles,
    options: Options,
    *,
    known: Target | None = None,
    learned: FeatureGroups | None = None,
    partial: bool = False,
    streamed: bool = False,
    cluster: Cluster | None = None,
    observer: Observer | None = None,
) -> TrainingTable:
    """Check all that training reads, and settle what the options leave to the table: types, bases, target and family.

    Parameters
    ----------
    known : Target | None
        The target, if it is stated or that of an earlier table.
    learned : FeatureGroups | None
        The groups of an earlier table, whose bases and types are used again.
    partial : bool
        Whether rows of other sites follow: then one value of the target is enough, and nothing is cross-validated.
    streamed : bool
        Whether later rows follow: then few rows have all folds.
    cluster, observer
        As in `TrainingTable`.

    Raises
    ------
    GroupsError
        The groups, or options about them, do not fit the table.
    TableError
        The table lacks columns, or they do not fit their roles.
    TrainingError
        The target does not fit the family or the options.
    """
    complete = options.remaining(roles.groups if options.rows is None else roles.groups.for_rows(options.rows))
    for name in options.drop:
        if name not in complete.features:
            raise GroupsError(f"--drop {name}: no group has this feature; {suggestion(name, complete.features)}")
    groups = complete.without(options.drop) if options.drop else complete
    own = len(groups.pairs)
    refuse(
        {
            f"pairs is {options.pairs}, and the groups state {own} pair{'s' * (own != 1)}; omit one of these": (
                own > 0 and options.pairs not in ("auto", 0)
            )
        }
    )
    task, drops = "regression" if options.task == "auto" else options.task, options.missing_target == "drop"
    expected = known or Target(task, roles.target, None, options.family)  # as far as it matters before the survey
    Dataset(table, groups, expected, roles.query, roles.weights).check()
    stated: dict[str, ReadAs] = {**options.types}
    if known is not None:
        stated |= dict.fromkeys(known.columns, known.type)
    if learned is not None:
        stated |= learned.known_types
        groups = groups.with_bases(learned.bases)
    if not expected.family.extrapolates:  # lines stop at the range, too, whatever the groups file states
        lines = {f: basis for f, basis in groups.bases.items() if (basis.model_extra or {}).get("line")}
        groups = groups.with_bases(groups.bases | {f: lines[f].model_copy(update={"line": None}) for f in lines})
    selects, least = options.folds != 0, options.min_level_rows
    groups, found = surveyed(
        table,
        groups,
        roles.target,
        query=roles.query,
        weights=roles.weights,
        stated=stated,
        option=None if learned is not None or (options.basis == "auto" and not selects) else options.basis,
        clamp=None if learned is not None else options.clamp,
        drop_missing=drops,
        min_level_rows=MIN_LEVEL_ROWS if least == "auto" and not selects else least,
        seed=options.seed,
        extrapolates=expected.family.extrapolates,
        further=streamed or partial,
        partial=partial or learned is not None,
    )
    if known is None or not known.is_consistent:  # of one class: others follow
        if not (options.task in ("binary", "multiclass") or expected.family.by_class):
            check_words(table, found, stated)
        known = settle_target(found, options.task, options.family, partial=partial)
    check_family(known.family.label, known)
    dataset = Dataset(table, groups, known, roles.query, roles.weights, drops, roles.folds)
    if options.class_weight is not None:
        dataset = dataset.weighted(options.class_weight)
    unused = tuple(name for name in dataset.check() if name not in table.index and name not in found.unusable)
    count = options.folds
    if count is None:
        chooses = options.alpha == "cv" or options.nested or options.basis == "auto"
        count = FOLDS if chooses or len(dataset.terms.choices) > 1 else 0
    if not (streamed or roles.folds is not None):  # at most one fold per row
        count = min(count, max(found.used, 2))
    folds, family = max(count, 1), None
    fixed = partial or learned is not None
    groups, decided = (dataset.groups, ()) if fixed else affordable(dataset.groups, found.used, folds)
    dataset = replace(dataset, groups=groups)
    if known.classes is not None and options.family is None and cluster is None:
        family = family_of_classes(known, options, dataset.terms, found.used, folds)
        dataset = replace(dataset, target=replace(known, family_name=family.name))
        decided = (*decided, f"classes are fitted by {family.why}") if family.is_cheaper else decided
    if not (fixed or dataset.target.family.least_squares) and cluster is None:
        groups, said = affordable_levels(dataset.target, options, dataset.terms, found.used, folds)
        dataset, decided = replace(dataset, groups=groups), (*decided, *said)
    found = replace(found, decisions=(*found.decisions, *decided))
    n_jobs = threads(options.n_jobs, LONG_PASS)
    return TrainingTable.of(
        dataset,
        found,
        options=replace(options, family=dataset.target.family.label, n_jobs=n_jobs),
        folds=folds,
        given=complete.names,
        observer=observer or Observer(),
        unused=unused,
        family=family,
        jobs=threads(options.n_jobs, found.rows * dataset.terms.size),
        cluster=cluster,
    )


def threads(n_jobs: int | None, values: int) -> int | None:
    """Return joblib's `n_jobs` for a pass over so many values: all cores if it is None and the pass is long.

    It stays None if joblib states the number, and in a fit that joblib or multiprocessing runs along with others.
    """
    backend, stated = get_active_backend()
    runs_alone = stated is None and backend.nesting_level == 0 and not current_process().daemon
    return int(cpu_count()) if n_jobs is None and runs_alone and values >= LONG_PASS else n_jobs


def open_moments(
    path: Path,
    options: Options,
    *,
    costs: FeatureGroups | None = None,
    target: Sequence[str] = (),
    query: str | None = None,
    weights: str | None = None,
    observer: Observer | None = None,
) -> TrainingMoments:
    """Return stored moments to train on, at other `costs` if they are given.

    Raises
    ------
    ArtifactError
        The file is not a moments file.
    TrainingError
        An option needs rows, or contradicts the moments.
    """
    stored, what = StoredMoments.load(path), f"{str(path)!r} contains moments"
    record = stored.record
    family = options.family or ("gaussian" if options.task == "auto" else default_family(options.task))
    stated = {
        "--query": query,
        "--weights": weights,
        "--drop": options.drop,
        "--class-weight": options.class_weight,
        "--missing-target error": options.missing_target == "error",
        "--basis": options.basis not in (None, "auto"),
        "--clamp": options.clamp not in (None, "auto"),
        "--min-level-rows": options.min_level_rows not in ("auto", MIN_LEVEL_ROWS),
        "--text or --number": options.types,
        "--seed": options.seed,
    }
    (only, *_) = record.classes or (None,)
    refuse(
        {
            f"family {family!r} is fitted on rows, and {what}; train on the table": not family_of(family).least_squares,
            f"--pairs requires a table; {what}, without rows to screen": options.pairs not in ("auto", 0),
            **{f"{each} requires a table; {what}, which determine it": bool(value) for each, value in stated.items()},
            f"--target is {', '.join(target)}; the moments are of {', '.join(record.target)}": (
                len(target) > 0 and tuple(target) != record.target
            ),
            f"--task is {options.task}; the moments are of task {record.task}": (
                options.task not in ("auto", record.task)
            ),
            f"{what} of the class {only!r} alone; add those of other classes with 'anytime moments'": (
                record.classes is not None and not stored.target.is_consistent
            ),
        }
    )
    groups = record.groups if costs is None else record.groups.with_costs(costs)
    groups = options.remaining(groups if options.rows is None else groups.for_rows(options.rows))
    known, terms = (Expansion.of(each).plain.terms for each in (record.groups, groups))
    return TrainingMoments(
        name=", ".join(record.data),
        groups=groups,
        target=stored.target,
        query=record.query,
        weights=record.weights,
        options=replace(options, family=family),
        folds=record.folds,
        observer=observer or Observer(),
        parts=[moments_of_groups(part, known, terms) for part in stored.parts],
    )


def moments_of_groups(moments: Moments, groups: FeatureGroups, remaining: FeatureGroups) -> Moments:
    """Return the moments of the columns of some of the groups."""
    slices = [s for name, s in zip(groups.names, groups.slices, strict=True) if name in remaining.positions]
    return moments.restricted(np.concatenate([np.arange(s.start, s.stop) for s in slices]))


@dataclass(frozen=True, eq=False)
class Trained:
    """What was learned, and from what.

    Attributes
    ----------
    fit : Fit
        The sequence with its prefix models.
    source : Source
        What is known of the rows, without unusable columns; not the rows themselves, which a stored estimator would
        disclose.
    data : str
        The name of the rows in a model; `target`, `query` and `weights` are their columns, and `seed` is that of their
        folds. `columns` are all columns of an array.
    """

    fit: Fit
    source: Source
    data: str
    target: Target
    query: str | None
    seed: int | None
    weights: str | None = None
    columns: tuple[str, ...] = ()

    def model(self, name: str, *, keep_moments: bool = True) -> Model:
        """Return the model of this name."""
        source = self.source
        return self.fit.model(
            name,
            self.target,
            provenance(
                self.fit,
                self.data,
                folds=source.folds if source.folds > 1 else None,
                seed=self.seed,
                weights=self.weights,
                class_weights=source.class_weights,
                columns=self.columns,
            ),
            query=self.query,
            keep_moments=keep_moments,
            left_out=tuple(name for name in source.given if name not in source.groups.positions),
            remarks=source.warnings,
            decisions=source.decisions,
        )


@np.errstate(under="ignore")  # to 0, a rounding like others
def train(
    source: TrainingTable | TrainingMoments,
    *,
    validation: Callable[[FeatureGroups, FamilyName], Validation] | None = None,
    parts: Sequence[Moments] | None = None,
) -> Trained:
    """Learn the sequence and the coefficients of every prefix.

    Parameters
    ----------
    validation : Callable[[FeatureGroups, FamilyName], Validation] | None
        Makes, of the usable groups and the family, rows that choose how many steps the model keeps.
    parts : Sequence[Moments] | None
        The moments of each fold, if the rows were read before.

    Raises
    ------
    TableError
        A value is invalid.
    TrainingError
        The rows or the options admit no fit.
    """
    options, observer, held = source.options, source.observer, None
    if parts is None:
        source, parts = source.read()
    observer.warnings = source.warnings
    with observer.working(f"ordering {len(source.groups)} groups and fitting every prefix"):
        if validation is not None:
            held = validation(source.groups, source.target.family.label)
        rows = source if isinstance(source, TrainingTable) else None
        fitted = fit(parts, source.groups, options, source.observed(), validation=held, rows=rows)
    known = Source(**{each.name: getattr(source, each.name) for each in fields(Source)})
    seed = options.seed if isinstance(source, TrainingTable) else None  # moments do not record that of their folds
    return Trained(fitted, known, source.name, source.target, source.query, seed, source.weights)


class MoreRows(NamedTuple):
    """Rows of one call, without their weights (rows,)."""

    table: MemoryTable
    weights: Float

    def decayed(self, factor: float) -> MoreRows:
        """Return the rows with smaller weights; what falls below the least valid weight counts as 0."""
        weights = self.weights * factor
        return self._replace(weights=np.where(weights < MIN_WEIGHT, 0.0, weights))


@dataclass(frozen=True)
class Stream:
    """The rows of a stream so far: those stored to learn bases from, the folds of the next rows, and the moments."""

    stored: tuple[MoreRows, ...]
    assigner: FoldAssigner
    parts: Sequence[Moments]
    source: TrainingTable

    def trained(self) -> Trained:
        """Learn the sequence."""
        return train(self.source, parts=self.parts)


def extended(
    stream: Stream | None,
    rows: MoreRows,
    decay: float,
    roles: Roles,
    options: Options,
    target: Target,
    observer: Observer,
) -> Stream:
    """Return a stream with more rows, after multiplying the weight of all earlier rows by `decay`; None begins one.

    `roles` name the column that the weights become, and `target` those of the table.

    Raises
    ------
    TrainingError
        `decay` is not between 0 and 1.
    """
    if not 0.0 <= decay <= 1.0:
        raise TrainingError(f"decay is {decay}; expected a number between 0 and 1")
    assert roles.weights is not None  # noqa: S101  (each row has a weight: earlier ones may decay)
    if stream is not None and not stream.stored:
        dataset = replace(stream.source.dataset, table=rows.table.with_columns({roles.weights: rows.weights}))
        assigner = stream.assigner.copy()  # a copy, so that rejected rows consume no folds
        before = [moments.decayed(decay) for moments in stream.parts]
        jobs = threads(options.n_jobs, len(rows.weights) * dataset.terms.size)
        moments = dataset.summed(dataset.blocks(assigner), assigner.folds, n_jobs=jobs, before=before)
        family, n_jobs = stream.source.target.family.label, threads(options.n_jobs, LONG_PASS)
        source = replace(stream.source, options=replace(options, family=family, pairs=0, n_jobs=n_jobs))
        return replace(stream, assigner=assigner, parts=moments, source=source)
    earlier = () if stream is None else (each.decayed(decay) for each in stream.stored)
    stored = (*earlier, rows)
    tables = [each.table.with_columns({roles.weights: each.weights}) for each in stored]
    table = JoinedTable(tables[0].path, tables)
    source, parts = open_training(table, roles, options, known=target, streamed=True, observer=observer).read()
    assigner = FoldAssigner(source.folds, options.seed, stratified=False)
    assigner.skip(source.dataset.tally(assigner.copy()))
    stores = source.found.sample is not None and sum(len(each.weights) for each in stored) < sample_size(
        len(roles.groups.features)
    )
    if stores:
        return Stream(stored, assigner, parts, source)
    # Later rows come without those so far, in which pairs are found; the stream keeps none of them.
    learned = options.pairs != 0 and source.found.sample is not None
    if learned and (pairs := train(source, parts=parts).fit.expansion.groups.pairs):
        groups = source.groups.with_pairs(pairs)
        source = replace(source, groups=groups, dataset=replace(source.dataset, groups=groups))
        parts = source.moments()
    empty = replace(source.dataset, table=table_of("memory", np.empty((0, 1)), ("none",)))
    found, options = replace(source.found, sample=None), replace(source.options, pairs=0)
    return Stream((), assigner, parts, replace(source, dataset=empty, found=found, options=options, drawn=None))
