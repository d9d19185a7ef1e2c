"""Single: the largest squared gradient of any one feature of a group, max_d sum_p b_dp^2 (section 2)."""

from __future__ import annotations

import numpy as np

from anytime.arrays import Float, Index
from anytime.sweep import Sweep

__all__ = ["Single"]


class Single:
    """Judges a group by its best feature, and so underestimates groups whose features tell something only together."""

    needs_blocks = False

    def scores(self, sweep: Sweep) -> Float:
        """Scores of all groups."""
        scores = np.zeros(len(sweep.sizes))
        scores[sweep.live] = np.maximum.reduceat(np.square(sweep.b).sum(axis=1), sweep.starts[sweep.live])
        return scores

    def union_score(self, sweep: Sweep, rows: Index) -> float:
        """Score of several groups at once."""
        return float(np.square(sweep.b[rows]).sum(axis=1).max(initial=0.0))
