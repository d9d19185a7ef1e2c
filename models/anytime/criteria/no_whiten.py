"""No-whiten: the squared norm of a group's gradient, |b_g|_F^2 (section 2)."""

from __future__ import annotations

import numpy as np

from anytime.arrays import Float, Index
from anytime.left import Left

__all__ = ["NoWhiten"]


class NoWhiten:
    """Adds up the features of a group one by one, and so overestimates groups that repeat a good feature."""

    needs_blocks = False

    def scores(self, left: Left) -> Float:
        """Scores of all groups."""
        scores = np.zeros(len(left.sizes))
        scores[left.live] = np.add.reduceat(np.square(left.b).sum(axis=1), left.starts[left.live])
        return scores

    def union_score(self, left: Left, rows: Index) -> float:
        """Score of several groups at once."""
        return float(np.square(left.b[rows]).sum())

    def lengths(self, scores: Float) -> Float:
        """Lengths of the gradients, |b_g|_F."""
        lengths: Float = np.sqrt(scores)
        return lengths
