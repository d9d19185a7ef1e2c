"""Single: the largest squared gradient of any one feature of a group, max_d sum_p b_dp^2 (section 5.2)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from anytime.selection.criteria.criterion import Criterion
from anytime.selection.sweep import SelectionState
from anytime.types import Float, Index


class SingleFeature(Criterion):
    """The squared gradient of a group's best feature.

    It underestimates groups whose features are informative only together.
    """

    name = "single"
    combine: ClassVar[np.ufunc] = np.maximum
    """Combines the squared gradients of a group's features."""

    def scores(self, state: SelectionState) -> Float:
        scores = np.zeros(len(state.sizes))
        remaining = state.remaining_groups
        scores[remaining] = self.combine.reduceat(np.square(state.b).sum(axis=1), state.starts[remaining])
        return scores

    def union_score(self, state: SelectionState, rows: Index) -> float:
        return float(self.combine.reduce(np.square(state.b[rows]).sum(axis=1), initial=0.0))
