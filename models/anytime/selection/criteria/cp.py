"""Cp: the expected gain on new rows, by Mallows' Cp.

The gain of forward regression is measured on the rows that chose it. A group of many columns without effect has a gain,
too: in the mean 1/2 tr(C_{g|G}^-1 S_{g|G}) sigma^2/n, and its coefficients lower the explained variance of new rows by
as much. The score is therefore

    1/2 tr(b_g' C_{g|G}^-1 b_g) - tr(C_{g|G}^-1 S_{g|G}) sigma^2/n,

where S_{g|G} is C_{g|G} without the penalty of the group itself, so that the trace is its effective degrees of freedom,
and sigma^2 is the variance of the residuals of the current model, summed over the responses: the decrease of Mallows'
Cp (1973), or of the AIC, at each step. The sizes of groups are left open in the outlook of Group-OMP (Lozano,
Swirszcz and Abe, NIPS 2009, section 5). The theorems on forward regression do not cover this score.

A score is negative where a group is expected to do harm. Divided by the cost, the least harm per cost goes first, which
is the order with the largest area under the expected curve.
"""

from __future__ import annotations

import numpy as np

from anytime.selection.criteria.criterion import Criterion
from anytime.selection.criteria.fr import gains_and_freedom
from anytime.selection.sweep import SelectionState
from anytime.types import Float, Index


class MallowsCp(Criterion):
    """The expected gain on new rows: the gain less the degrees of freedom times the noise of a gradient."""

    name = "cp"
    needs_blocks = True

    def scores(self, state: SelectionState) -> Float:
        return state.scores(lambda stack: self._expected(state, stack.blocks, stack.rows))

    def union_score(self, state: SelectionState, rows: Index) -> float:
        return float(self._expected(state, state.conditional(rows)[np.newaxis], rows[np.newaxis])[0])

    def lengths(self, scores: Float) -> Float:
        """Return the lengths of the projections beyond the noise: sqrt(2 score), or 0 where the score is negative."""
        return np.sqrt(2.0 * np.maximum(scores, 0.0))

    def _expected(self, state: SelectionState, C: Float, rows: Index) -> Float:
        gain, freedom = gains_and_freedom(C, state.b[rows], state.reference[rows], state.ridge[rows])
        return gain - freedom * state.noise
