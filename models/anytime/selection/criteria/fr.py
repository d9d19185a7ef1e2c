"""Forward regression: the exact gain in explained variance, 1/2 tr(b_g' C_{g|G}^-1 b_g) (CS-G-FR)."""

from __future__ import annotations

import numpy as np

from anytime.selection.criteria.criterion import Criterion
from anytime.selection.gains import gain, gains
from anytime.selection.sweep import SelectionState
from anytime.types import Float, Index


class ForwardRegression(Criterion):
    """The gain F(G + g) - F(G), from the candidates' conditional blocks."""

    name = "fr"
    needs_blocks = True
    doubling_theorem = True

    def whitening_share(self, shares: Float) -> float:  # noqa: ARG002
        """Return nu of Theorem 3.2, which is 1."""
        return 1.0

    def scores(self, state: SelectionState) -> Float:
        scores = np.zeros(len(state.sizes))
        for stack in state.classes:
            scores[stack.groups] = gains(stack.blocks, state.b[stack.rows], state.reference[stack.rows])
        return scores

    def union_score(self, state: SelectionState, rows: Index) -> float:
        return gain(state.conditional(rows), state.b[rows], state.reference[rows])

    def lengths(self, scores: Float) -> Float:
        """Return the lengths of the projections, sqrt(tr(b_g' C_{g|G}^-1 b_g)): a gain is half of the square."""
        return np.sqrt(2.0 * scores)
