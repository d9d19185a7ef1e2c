"""Forward regression where rows are fewer than columns, by kernels of the rows.

A matrix of second moments of rank r is S = A'A, where A (r, D) are the rows up to a rotation. With q = A'y, and the
kernel K_G = A_G A_G' of a set of groups, which is the sum of their kernels,

    w(G) = A_G' (K_G + alpha I)^-1 y,    F(G) = 1/2 (|y|^2 - alpha tr y'(K_G + alpha I)^-1 y).

A factorisation takes r^3/3 operations, however many columns the groups have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.linalg.lapack import dpstrf, dtrtrs

from anytime._linalg import Factor, factorise_into, single_blas_thread
from anytime.groups import FeatureGroups
from anytime.moments.moments import Gram
from anytime.selection.criteria import ForwardRegression
from anytime.selection.greedy import GroupOrder, greedy
from anytime.selection.requirements import Candidates
from anytime.selection.rule import Rule
from anytime.selection.sweep import SelectionState
from anytime.types import Float, Index

ROUNDING_SHARE = 1e-12
"""Second moments below this share of the largest are rounding: it moves penalties of 1e-7 by a hundred-thousandth."""


def rows_are_fewer(rows: int, columns: int, groups: int) -> bool:
    """Return whether kernels of so many rows take less time, and no more memory, than the moments of the columns."""
    return groups * rows**2 <= columns**2 and groups**2 * rows**3 <= 3 * columns**3


def rotated_rows(S: Float) -> tuple[Float, Index]:
    """Return A (r, D) with A'A = S, and r columns (r,) in which A is upper triangular; about D^2 r operations."""
    C, pivots, rank, _ = dpstrf(S.T.copy(order="F"), tol=ROUNDING_SHARE * float(np.diagonal(S).max(initial=0.0)))
    A = np.empty((rank, len(S)))
    A[:, pivots - 1] = np.triu(C[:rank])
    return A, pivots[:rank] - 1


@dataclass(frozen=True, eq=False)
class Kernels:
    """The rotated rows A (r, D) and responses y (r, P) of a problem, and the kernels of groups that were needed."""

    A: Float
    y: Float
    _known: dict[bytes, Float] = field(default_factory=dict)

    @staticmethod
    def of(gram: Gram) -> Kernels:
        A, pivots = rotated_rows(gram.S)
        y = gram.q[pivots]
        return Kernels(A, dtrtrs(A[:, pivots], y, trans=1)[0] if len(A) else y)

    def of_columns(self, columns: Index) -> Float:
        """Return the kernel of some columns, (r, r)."""
        key = columns.tobytes()
        if key not in self._known:
            part = self.A[:, columns]
            self._known[key] = part @ part.T
        return self._known[key]

    @staticmethod
    def factor(K: Float, alpha: float) -> Factor:
        """Return the factor of K + alpha I."""
        C = K.T.copy(order="F")
        diagonal = np.einsum("ii->i", C)
        diagonal += alpha
        return factorise_into(C, diagonal.copy())

    def explained(self, K: Float, alpha: float) -> float:
        """Return F of the groups whose kernels sum to K."""
        z = self.factor(K, alpha).forward(self.y)
        return 0.5 * float(np.sum(self.y**2) - alpha * np.sum(z * z))


class _KernelGains(ForwardRegression):
    """The gain F(G + g) - F(G), from the kernels of the groups."""

    needs_blocks = False

    def __init__(self, kernels: Kernels, alpha: float) -> None:
        self._kernels, self._alpha = kernels, alpha
        self.K: Float = np.zeros((len(kernels.y), len(kernels.y)))
        self.F = 0.0

    def scores(self, state: SelectionState) -> Float:
        scores = np.zeros(len(state.sizes))
        for group in state.remaining_groups.tolist():
            if not state.selected[group]:
                rows = state.rows(group)
                scores[group] = self.union_score(state, np.arange(rows.start, rows.stop))
        return scores

    def union_score(self, state: SelectionState, rows: Index) -> float:  # noqa: ARG002
        return max(self._kernels.explained(self.K + self._kernels.of_columns(rows), self._alpha) - self.F, 0.0)

    def select(self, rows: Index) -> None:
        self.K += self._kernels.of_columns(rows)
        self.F = self._kernels.explained(self.K, self._alpha)


class _KernelSearch:
    """Greedy search by kernels."""

    def __init__(self, kernels: Kernels, groups: FeatureGroups, alpha: float, cost_blind: bool) -> None:
        columns = kernels.A.shape[1]
        self._state = SelectionState(groups.slices, np.zeros((columns, 1)), np.ones(columns))
        self._gains = _KernelGains(kernels, alpha)
        self.candidates = Candidates(groups, self._state, self._gains, cost_blind)

    def select(self, adds: tuple[int, ...]) -> float:
        for group in adds:
            rows = self._state.rows(group)
            if rows.stop > rows.start:
                self._gains.select(np.arange(rows.start, rows.stop))
            self._state.selected[group] = True
        return self._gains.F


def kernel_sequencer(gram: Gram, groups: FeatureGroups, rule: Rule) -> Callable[[float], GroupOrder]:
    """Return the order by forward regression as a function of the penalty, which is at least 1e-9."""
    kernels = Kernels.of(gram)

    def order(alpha: float) -> GroupOrder:
        with single_blas_thread():
            return greedy(_KernelSearch(kernels, groups, alpha, rule.cost_blind), groups, rule)

    return order
