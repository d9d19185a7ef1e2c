"""The rows of a training table, read as often as a fit needs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from anytime.data.dataset import Dataset, Progress, ignored
from anytime.folds import FoldAssigner
from anytime.groups import FeatureGroups
from anytime.moments.accumulate import Block
from anytime.moments.files import Checkpoint
from anytime.moments.moments import Moments
from anytime.target import Target
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

    def summed(
        self, groups: FeatureGroups | None = None, progress: Progress = ignored, checkpoint: Checkpoint | None = None
    ) -> Sequence[Moments]:
        """Return the moments of each fold, of the terms of other groups if there are some."""
        dataset = self.dataset if groups is None else replace(self.dataset, groups=groups)
        return dataset.moments(
            self.folds,
            seed=self.seed,
            stratified=self.target.law.by_class,
            n_jobs=self.jobs,
            progress=progress,
            checkpoint=checkpoint,
        )

    def moments(self, groups: FeatureGroups | None = None) -> Sequence[Moments]:
        return self.summed(groups)

    def blocks(self) -> Iterator[Block]:
        return self.dataset.blocks(FoldAssigner(self.folds, self.seed, stratified=self.target.law.by_class))

    def observed(self) -> Observations | None:
        """Return the rows themselves, in the same folds, for a likelihood."""
        return None if self.target.law.least_squares else Observed(self.blocks(), self.target, self.jobs)
