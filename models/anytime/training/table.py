"""Training tables: opened and checked first, then read as often as a fit needs their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing import current_process
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from joblib import cpu_count
from joblib.parallel import get_active_backend

from anytime.data.dataset import ColumnError, Dataset, Progress, ignored
from anytime.data.formats import ReadAs, Table
from anytime.data.survey import Survey, settle_target, surveyed, without_columns
from anytime.errors import GroupsError, refuse, suggestion
from anytime.families import default_family, family_of
from anytime.features.bases import MIN_LEVEL_ROWS
from anytime.features.expansion import Expansion
from anytime.folds import FoldAssigner
from anytime.groups import FeatureGroups
from anytime.moments.accumulate import Block, check_memory
from anytime.moments.files import StoredMoments
from anytime.moments.moments import Moments
from anytime.target import Target, check_family
from anytime.training.likelihood import Observations, Observed
from anytime.training.options import FOLDS, Options
from anytime.training.prices import DefaultFamily, affordable, family_of_classes

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


class Observer:
    """What a caller shows while the trainer works; by default nothing."""

    warnings: Sequence[str] = ()
    """Warnings about the table, set before the fit: they may explain why it fails."""

    def reading(self, name: str, rows: int) -> AbstractContextManager[Progress]:  # noqa: ARG002
        """Show a pass over the rows of a table."""
        return nullcontext(ignored)

    def ordering(self, groups: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Show that groups are ordered."""
        return nullcontext()

    def screening(self) -> None:
        """Show that pairs of columns are screened."""


@dataclass(frozen=True)
class TrainingTable:
    """A table for training, the folds of its rows, and the options as they apply to it. Its iteration reads the rows.

    Attributes
    ----------
    unused : tuple[str, ...]
        Columns that have no role.
    given : tuple[str, ...]
        The groups to train, also those without usable columns.
    family : DefaultFamily | None
        The family of classes, if it was not stated.
    jobs : int | None
        Threads of a pass.
    cluster : Cluster | None
        Where the rows are read; None is this process.
    """

    dataset: Dataset
    options: Options
    folds: int
    found: Survey
    unused: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    family: DefaultFamily | None = None
    jobs: int | None = None
    cluster: Cluster | None = None
    observer: Observer = field(default_factory=Observer)

    @property
    def name(self) -> str:
        return Path(self.dataset.table.name).name

    @property
    def groups(self) -> FeatureGroups:
        return self.dataset.groups

    @property
    def target(self) -> Target:
        return self.dataset.target

    @property
    def query(self) -> str | None:
        return self.dataset.query

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what users should know of the columns."""
        return self.found.warnings

    @property
    def decisions(self) -> tuple[str, ...]:
        """Return what was decided about the columns without the user."""
        return self.found.decisions

    def like(self, table: Table) -> Dataset:
        """Return another table whose columns have the same meaning."""
        return replace(self.dataset, table=table, fold=None, class_weights=None)

    def moments(self, groups: FeatureGroups | None = None) -> Sequence[Moments]:
        """Return the moments of each fold; with other `groups`, of their terms, in this process."""
        dataset = self.dataset if groups is None else replace(self.dataset, groups=groups)
        check_memory(dataset.terms.size, self.folds)
        seed, by_class = self.options.seed, self.target.family.by_class
        with self.observer.reading(self.name, self.found.used) as advance:
            if self.cluster is None or groups is not None:
                return dataset.moments(self.folds, seed=seed, stratified=by_class, n_jobs=self.jobs, progress=advance)
            return self.cluster.moments(dataset, self.folds, seed=seed, stratified=by_class, progress=advance)

    def read(self) -> tuple[Self, Sequence[Moments]]:
        """Return the rows and the moments of each fold; without columns whose values have no moments, if others remain.

        Such values are infinite, or too large or too small to square.
        """
        try:
            return self, self.moments()
        except ColumnError as error:
            dataset = self.dataset
            if error.column not in dataset.groups.features:
                raise
            groups, found = without_columns(dataset.groups, dataset.infinite() or [error], self.found)
        return replace(self, dataset=replace(dataset, groups=groups), found=found).read()

    def blocks(self) -> Iterator[Block]:
        return self.dataset.blocks(self._assigner)

    __iter__ = blocks

    @property
    def _assigner(self) -> FoldAssigner:
        return FoldAssigner(self.folds, self.options.seed, stratified=self.target.family.by_class)

    def observed(self) -> Observations | None:
        """Return the rows themselves, in the same folds, for a likelihood."""
        family = self.target.family
        if family.least_squares:
            return None
        if self.cluster is None:
            return Observed(self, self.target, self.jobs)
        return self.cluster.observed(self.dataset, self.folds, seed=self.options.seed, stratified=family.by_class)


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
    Dataset(table, groups, Target("regression", roles.target), roles.query, roles.weights).check()
    stated: dict[str, ReadAs] = {**options.types}
    if known is not None:
        stated |= dict.fromkeys(known.columns, known.type)
    if learned is not None:
        stated |= learned.known_types
    given = groups if learned is None else groups.with_bases(learned.bases)
    selects, drops, least = options.folds != 0, options.missing_target == "drop", options.min_level_rows
    groups, found = surveyed(
        table,
        given,
        roles.target,
        query=roles.query,
        weights=roles.weights,
        stated=stated,
        option=None if learned is not None or (options.basis == "auto" and not selects) else options.basis,
        clamp=None if learned is not None else options.clamp,
        drop_missing=drops,
        min_level_rows=MIN_LEVEL_ROWS if least == "auto" and not selects else least,
        seed=options.seed,
    )
    if known is None or not known.is_consistent:  # of one class: others follow
        known = settle_target(found, options.task, options.family, partial=partial)
    check_family(known.family.label, known)
    if streamed or partial or not known.family.extrapolates:  # other rows may lie beyond the range; or lines stop, too
        line = {"line": "own" if known.family.extrapolates else None}
        lines = {name: basis for name, basis in groups.bases.items() if (basis.model_extra or {}).get("line")}
        bases = {name: basis.model_copy(update=line) for name, basis in lines.items()}
        groups = groups.with_bases({**groups.bases, **bases})
    dataset = Dataset(table, groups, known, roles.query, roles.weights, drops, roles.folds)
    if options.class_weight is not None:
        dataset = dataset.weighted(options.class_weight)
    unused = tuple(name for name in dataset.check() if name not in table.index and name not in found.unusable)
    count = options.folds
    if count is None:
        count = FOLDS if options.needs_folds or len(dataset.expansion.choices) > 1 else 0
    if not (streamed or roles.folds is not None):  # at most one fold per row
        count = min(count, max(found.used, 2))
    folds = max(count, 1)
    groups, decided = (dataset.groups, ()) if partial else affordable(dataset.groups, found.used, folds)
    dataset = replace(dataset, groups=groups)
    family: DefaultFamily | None = None
    if known.classes is not None and options.family is None and cluster is None:
        family = family_of_classes(known, options, dataset.terms, found.used, folds)
        dataset = replace(dataset, target=replace(known, family_name=family.name))
        decided = (*decided, f"classes are fitted by {family.why}") if family.is_cheaper else decided
    found = replace(found, decisions=(*found.decisions, *decided))
    return TrainingTable(
        dataset,
        replace(options, family=dataset.target.family.label, n_jobs=threads(options.n_jobs, LONG_PASS)),
        folds,
        found,
        unused,
        complete.names,
        family,
        threads(options.n_jobs, found.rows * dataset.terms.size),
        cluster,
        observer or Observer(),
    )


def threads(n_jobs: int | None, values: int) -> int | None:
    """Return joblib's `n_jobs` for a pass over so many values: all cores if it is None and the pass is long.

    It stays None if joblib states the number, and in a fit that joblib or multiprocessing runs along with others.
    """
    backend, stated = get_active_backend()
    runs_alone = backend.nesting_level == 0 and not current_process().daemon
    if n_jobs is None and stated is None and runs_alone and values >= LONG_PASS:
        return int(cpu_count())
    return n_jobs


@dataclass(frozen=True)
class TrainingMoments:
    """Stored moments to train on, of some or all of their groups, in their own folds; other attributes are theirs."""

    stored: StoredMoments
    groups: FeatureGroups
    options: Options
    name: str
    folds: int
    target: Target
    query: str | None
    observer: Observer
    given = warnings = decisions = ()

    def like(self, table: Table) -> Dataset:
        """Return a table whose columns have the meaning of those of the moments."""
        return Dataset(table, self.groups, self.target, self.query, self.stored.record.weights)

    def read(self) -> tuple[Self, Sequence[Moments]]:
        """Return the moments of the groups."""
        terms, remaining = (Expansion.of(groups).plain.terms for groups in (self.stored.record.groups, self.groups))
        parts = [moments_of_groups(part, terms, remaining) for part in self.stored.parts]
        return self, parts

    def observed(self) -> None:
        """Moments are for least squares only."""


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
    }
    (only, *_) = record.classes or (None,)
    refuse(
        {
            f"family {family!r} is fitted on rows, and {what}; train on the table": not family_of(family).least_squares,
            f"--pairs requires a table; {what}, without rows to screen": options.pairs is not None,
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
    return TrainingMoments(
        stored,
        groups,
        replace(options, family=family),
        ", ".join(record.data),
        record.folds,
        stored.target,
        record.query,
        observer or Observer(),
    )


def moments_of_groups(moments: Moments, groups: FeatureGroups, remaining: FeatureGroups) -> Moments:
    """Return the moments of the columns of some of the groups."""
    slices = [s for name, s in zip(groups.names, groups.slices, strict=True) if name in remaining.positions]
    return moments.restricted(np.concatenate([np.arange(s.start, s.stop) for s in slices]))
