"""The rows of a training table, read as often as a fit needs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from anytime.data.columns import ColumnError
from anytime.data.dataset import Dataset, Progress, ignored
from anytime.data.survey import Survey, without_columns
from anytime.folds import FoldAssigner
from anytime.groups import FeatureGroups
from anytime.moments.accumulate import Block, check_memory
from anytime.moments.moments import Moments
from anytime.target import Target
from anytime.training.clamping import Clamped, clamped_moments
from anytime.training.likelihood import Observations, Observed


@dataclass(frozen=True)
class TrainingRows:
    """A table for training, in this process, and the folds of its rows."""

    dataset: Dataset
    folds: int
    seed: int
    jobs: int | None
    target: Target
    """The target that is fitted; that of the dataset may have other names."""
    found: Survey
    open_columns: tuple[str, ...] = ()
    """Columns whose clamp cross-validation selects."""

    def summed(self, groups: FeatureGroups | None = None, progress: Progress = ignored) -> Sequence[Moments]:
        """Return the moments of each fold, of the terms of other groups if there are some."""
        dataset = self.dataset if groups is None else replace(self.dataset, groups=groups)
        return dataset.moments(
            self.folds, seed=self.seed, stratified=self.target.law.by_class, n_jobs=self.jobs, progress=progress
        )

    def moments(self, groups: FeatureGroups | None = None) -> Sequence[Moments]:
        return self.summed(groups)

    def read(self) -> tuple[Self, list[Clamped]]:
        """Return the rows and the moments as `clamped`; without columns whose values have no moments, if others remain.

        Such values are infinite, or too large or too small to square.
        """
        try:
            return self, self.clamped()
        except ColumnError as error:
            dataset = self.dataset
            if error.column not in dataset.groups.features:
                raise
            groups, found = without_columns(dataset.groups, dataset.infinite() or [error], self.found)
        remaining = tuple(name for name in self.open_columns if name in groups.features)
        return replace(self, dataset=replace(dataset, groups=groups), found=found, open_columns=remaining).read()

    def clamped(self, progress: Progress = ignored) -> list[Clamped]:
        """Return the moments of every clamp that cross-validation selects from; those of the groups where there is one.

        Reads the rows twice, the first time for the ends of the clamps.
        """
        if not self.open_columns or self.folds < 2:
            parts = self.moments()
            return [Clamped(None, self.dataset.groups, parts, parts)]
        check_memory(self.dataset.terms.size, self.folds, clamps=True)
        passes = iter((ignored, progress))
        return clamped_moments(
            self.dataset,
            self.open_columns,
            lambda dataset: dataset.blocks(self._assigner, n_jobs=self.jobs, progress=next(passes)),
            self.folds,
            seed=self.seed,
            extrapolates=self.target.law.extrapolates,
            n_jobs=self.jobs,
        )

    def blocks(self) -> Iterator[Block]:
        return self.dataset.blocks(self._assigner)

    @property
    def _assigner(self) -> FoldAssigner:
        return FoldAssigner(self.folds, self.seed, stratified=self.target.law.by_class)

    def observed(self) -> Observations | None:
        """Return the rows themselves, in the same folds, for a likelihood."""
        return None if self.target.law.least_squares else Observed(_Blocks(self), self.target, self.jobs)


@dataclass(frozen=True)
class _Blocks:
    """The blocks of some rows; each iteration reads the rows again."""

    rows: TrainingRows

    def __iter__(self) -> Iterator[Block]:
        return self.rows.blocks()
