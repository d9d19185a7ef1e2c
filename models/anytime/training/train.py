"""Training: from a table, what its columns are for, and options, to a model.

The command line and the estimators both train by `open_training` and `train`. A stream of rows is trained by least
squares: each call of `extended` adds rows, and `Stream.trained` learns from all of them so far. Rows are stored, and
the bases learned again, until there are as many rows as bases are learned from. From then on only the moments are
stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from anytime.data.formats.memory import MemoryTable
from anytime.data.formats.table import JoinedTable
from anytime.errors import TrainingError
from anytime.features.learning import sample_size
from anytime.folds import FoldAssigner
from anytime.groups import FeatureGroups
from anytime.model.model import Model
from anytime.moments.moments import Moments
from anytime.target import Target
from anytime.training.fit import Fit, fit, provenance
from anytime.training.model_selection import Validation
from anytime.training.options import Options
from anytime.training.pairs import check_folds, fit_with_pairs
from anytime.training.table import Observer, Roles, TrainingMoments, TrainingTable, open_training, threads
from anytime.types import FamilyName, Float


@dataclass(frozen=True, eq=False)
class Trained:
    """What was learned, and from what.

    Attributes
    ----------
    fit : Fit
        The sequence with its prefix models.
    source : TrainingTable | TrainingMoments
        The rows, without unusable columns.
    data : str
        The name of the rows in a model; `target`, `query` and `weights` are their columns, and `seed` is that of their
        folds. `columns` are all columns of an array.
    """

    fit: Fit
    source: TrainingTable | TrainingMoments
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
                columns=self.columns,
            ),
            query=self.query,
            keep_moments=keep_moments,
            left_out=tuple(name for name in source.given if name not in source.groups.positions),
            remarks=source.warnings,
            decisions=source.decisions,
        )


def train(
    source: TrainingTable | TrainingMoments,
    *,
    validation: Callable[[FeatureGroups, FamilyName], Validation] | None = None,
) -> Trained:
    """Learn the sequence and the coefficients of every prefix.

    Parameters
    ----------
    validation : Callable[[FeatureGroups, FamilyName], Validation] | None
        Makes, of the usable groups and the family, rows that choose how many steps the model keeps.

    Raises
    ------
    TableError
        A value is invalid.
    TrainingError
        The rows or the options admit no fit.
    """
    options = source.options
    if options.pairs is not None:
        check_folds(options, source.folds)
    source, parts = source.read()
    source.observer.warnings = source.warnings
    with source.observer.ordering(len(source.groups)):
        held = None if validation is None else validation(source.groups, source.target.family.label)
        fitted = fit(parts, source.groups, options, source.observed(), validation=held)
    if options.pairs is not None and isinstance(source, TrainingTable):
        source.observer.screening()
        fitted = fit_with_pairs(fitted, source, validation=held)
    weights = source.dataset.weights if isinstance(source, TrainingTable) else source.stored.record.weights
    return Trained(fitted, source, source.name, source.target, source.query, options.seed, weights)


class MoreRows(NamedTuple):
    """Rows of one call, without their weights (rows,)."""

    table: MemoryTable
    weights: Float


@dataclass(frozen=True)
class Stream:
    """The rows of a stream so far: those stored to learn bases from, the folds of the next rows, and the moments."""

    stored: tuple[MoreRows, ...]
    assigner: FoldAssigner
    parts: Sequence[Moments]
    source: TrainingTable

    def trained(self) -> Trained:
        """Learn the sequence."""
        source = self.source
        fitted = fit(self.parts, source.groups, source.options)
        return Trained(fitted, source, source.name, source.target, None, source.options.seed)


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
        source = replace(stream.source, options=replace(options, family=stream.source.target.family.label))
        return replace(stream, assigner=assigner, parts=moments, source=source)
    earlier = () if stream is None else (each._replace(weights=each.weights * decay) for each in stream.stored)
    stored = (*earlier, rows)
    tables = [each.table.with_columns({roles.weights: each.weights}) for each in stored]
    table = JoinedTable(tables[0].path, tables)
    source, parts = open_training(table, roles, options, known=target, streamed=True, observer=observer).read()
    observer.warnings = source.warnings
    assigner = FoldAssigner(source.folds, options.seed, stratified=False)
    assigner.skip(source.dataset.tally(assigner.copy()))
    stores = source.found.sample is not None and sum(len(each.weights) for each in stored) < sample_size(
        len(roles.groups.features)
    )
    return Stream(stored if stores else (), assigner, parts, source)
