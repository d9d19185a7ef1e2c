"""No-whiten: the squared norm of a group's gradient, |b_g|_F^2 (section 2)."""

from __future__ import annotations

import numpy as np

from anytime.arrays import Float, Index
from anytime.sweep import Sweep

__all__ = ["NoWhiten"]


class NoWhiten:
    """Adds up the features of a group one by one, and so overestimates groups that repeat a good feature."""

    needs_blocks = False

    def scores(self, sweep: Sweep) -> Float:
        """Scores of all groups."""
        scores = np.zeros(len(sweep.sizes))
        scores[sweep.live] = np.add.reduceat(np.square(sweep.b).sum(axis=1), sweep.starts[sweep.live])
        return scores

    def union_score(self, sweep: Sweep, rows: Index) -> float:
        """Score of several groups at once."""
        return float(np.square(sweep.b[rows]).sum())
