"""Training on a stream of rows by least squares: each call adds rows, and learns from all of them so far.

Rows are stored, and the bases learned again, until there are as many rows as bases are learned from. From then on only
the moments are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from anytime.data.formats.memory import MemoryTable
from anytime.data.formats.table import JoinedTable
from anytime.errors import TrainingError
from anytime.features.learning import sample_size
from anytime.folds import FoldAssigner
from anytime.target import Target
from anytime.training.clamping import Clamped
from anytime.training.fit import fit_clamped
from anytime.training.options import Options
from anytime.training.table import Observer, Roles, TrainingTable, open_training, threads
from anytime.training.train import Trained
from anytime.types import Float


class MoreRows(NamedTuple):
    """Rows of one call, without their weights (rows,)."""

    table: MemoryTable
    weights: Float


@dataclass(frozen=True)
class Stream:
    """The rows of a stream so far: those stored to learn bases from, the folds of the next rows, and the moments.

    Without rows, there is one clamp.
    """

    stored: tuple[MoreRows, ...]
    assigner: FoldAssigner
    clamped: list[Clamped]
    source: TrainingTable

    def trained(self) -> tuple[Self, Trained]:
        """Learn the sequence; return the stream, without clamps that were not selected if it stores no rows."""
        source = self.source
        fitted = fit_clamped(self.clamped, source.options)
        stream = self
        if not self.stored:
            (chosen,) = (each for each in self.clamped if each.clamp == fitted.clamp)
            source = replace(source, dataset=replace(source.dataset, groups=chosen.groups))
            stream = replace(self, clamped=[chosen], source=source)
        return stream, Trained(fitted, source, source.name, source.target, None, source.options.seed)


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
    if stream is None or stream.stored:
        earlier = () if stream is None else tuple(each._replace(weights=each.weights * decay) for each in stream.stored)
        return _learned((*earlier, rows), roles, options, target, observer)
    dataset = replace(stream.source.dataset, table=rows.table.with_columns(_weights_column(roles, rows.weights)))
    assigner = stream.assigner.copy()  # a copy, so that rejected rows consume no folds
    ((clamp, groups, sums, _),) = stream.clamped
    before = [moments.decayed(decay) for moments in sums]
    jobs = threads(options.n_jobs, len(rows.weights) * dataset.terms.size)
    moments = dataset.summed(dataset.blocks(assigner), assigner.folds, n_jobs=jobs, before=before)
    source = replace(stream.source, options=replace(options, family=stream.source.target.family.label))
    return replace(stream, assigner=assigner, clamped=[Clamped(clamp, groups, moments, moments)], source=source)


def _learned(
    stored: tuple[MoreRows, ...], roles: Roles, options: Options, target: Target, observer: Observer
) -> Stream:
    """Return the stream of some rows, with bases learned from them."""
    tables = [each.table.with_columns(_weights_column(roles, each.weights)) for each in stored]
    table = JoinedTable(tables[0].path, tables)
    source, clamped = open_training(table, roles, options, known=target, streamed=True, observer=observer).read()
    observer.warnings = source.warnings
    assigner = FoldAssigner(source.folds, options.seed, stratified=False)
    assigner.skip(source.dataset.tally(assigner.copy()))
    learns = source.found.sample is not None or bool(source.open_columns)
    stores = learns and sum(len(each.weights) for each in stored) < sample_size(len(roles.groups.features))
    return Stream(stored if stores else (), assigner, clamped, source)


def _weights_column(roles: Roles, weights: Float) -> Mapping[str, Float]:
    assert roles.weights is not None  # noqa: S101  (each row has a weight: earlier ones may decay)
    return {roles.weights: weights}
