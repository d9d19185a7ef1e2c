"""Learning from a stream: moments by fold, to which batches of rows are added while older rows decay."""

from __future__ import annotations

import math
from typing import Any

from anytime.errors import TrainingError
from anytime.folds import FoldAssigner
from anytime.moments.accumulate import fold_moments_of
from anytime.moments.moments import Moments
from anytime.types import Float

__all__ = [
    "MomentStream",
]


class MomentStream:
    """Moments of the rows seen so far.

    Parameters
    ----------
    folds : number of folds, 1 without cross-validation.
    seed : seed of the fold assignment.
    """

    def __init__(self, folds: int, seed: int) -> None:
        self._folds = folds
        self._assigner = FoldAssigner(folds, seed, stratified=False)
        self.parts: list[Moments] = []

    def add(
        self, X: Any, Y: Float, weights: Float | None = None, *, decay: float = 1.0, n_jobs: int | None = None
    ) -> None:
        """Add rows.

        Parameters
        ----------
        X : (n, D) features, NaN where missing.  Y : (n, P) responses.  weights : (n,) or None.
        decay : factor for the weight of all earlier rows, 0 to 1.

        Raises
        ------
        TrainingError
            The decay is not between 0 and 1.
        TableError
            A value is infinite or too large; nothing changes.
        """
        if not (math.isfinite(decay) and 0.0 <= decay <= 1.0):
            raise TrainingError(f"decay is {decay}; expected a number between 0 and 1")
        assigner = self._assigner.copy()  # a copy, so that rejected rows consume no folds
        folds = assigner.take(Y, None)
        new = fold_moments_of(X, Y, weights, folds, self._folds, n_jobs=n_jobs)
        if self.parts:
            new = [old.decayed(decay).merge(part) for old, part in zip(self.parts, new, strict=True)]
        self._assigner, self.parts = assigner, new
