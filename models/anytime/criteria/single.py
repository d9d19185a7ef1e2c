"""Single: the largest squared gradient of any one feature of a group, max_d sum_p b_dp^2 (section 2)."""

from __future__ import annotations

import numpy as np

from anytime.arrays import Float, Index
from anytime.left import Left

__all__ = ["Single"]


class Single:
    """Judges a group by its best feature, and so underestimates groups whose features tell something only together."""

    needs_blocks = False

    def scores(self, left: Left) -> Float:
        """Scores of all groups."""
        scores = np.zeros(len(left.sizes))
        scores[left.live] = np.maximum.reduceat(np.square(left.b).sum(axis=1), left.starts[left.live])
        return scores

    def union_score(self, left: Left, rows: Index) -> float:
        """Score of several groups at once."""
        return float(np.square(left.b[rows]).sum(axis=1).max(initial=0.0))

    def lengths(self, scores: Float) -> Float:
        """Lengths of the projections on the best feature of each group, max_d |b_d|."""
        lengths: Float = np.sqrt(scores)
        return lengths
