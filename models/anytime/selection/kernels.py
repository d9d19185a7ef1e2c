"""Forward regression where rows are fewer than columns, by kernels of the rows.

A matrix of second moments of rank r is S = A'A, where A (r, D) are the rows up to a rotation. With the responses y in
the same rotation, and the kernel K_G = A_G A_G' of a set of groups, which is the sum of their kernels,

    w(G) = A_G' (K_G + alpha I)^-1 y,    F(G) = 1/2 (|y|^2 - alpha tr y'(K_G + alpha I)^-1 y).

A factorisation takes r^3/3 operations, however many columns the groups have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg.lapack import dpstrf

from anytime._linalg import Factor, factorise_into, single_blas_thread
from anytime.groups import FeatureGroups
from anytime.moments.moments import CANCELLATION_TOLERANCE, CONSTANT_TOLERANCE, Moments
from anytime.selection.criteria import ForwardRegression, SelectionState
from anytime.selection.greedy import GroupOrder, Rule, Search, greedy
from anytime.types import Float, Index

ROUNDING_SHARE = 1e-12
"""Second moments below this share of a column's own are rounding: penalties of 1e-7 move by a hundred-thousandth."""


def rotated_rows(part: Moments) -> Float:
    """Return rows R (r + 1, 1 + D + P + M) of [1, X, Y, U], up to a rotation; about (D + P + M)^2 r operations.

    The first row has the means, and the others A'A = scatter; each is times the root of the weight. Rows of several
    tables, one above the other, are those of all.
    """
    deviation = np.sqrt(np.maximum(np.diagonal(part.scatter), 0.0))  # negative by rounding, of a level without rows
    root = np.sqrt(part.weight)
    deviation[deviation <= CONSTANT_TOLERANCE * root * np.abs(part.mean)] = 0.0
    shares = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    C = part.scatter.T * shares
    C *= shares[:, np.newaxis]
    C, pivots, rank, _ = dpstrf(C, tol=ROUNDING_SHARE, overwrite_a=1)
    R = np.zeros((rank + 1, 1 + len(deviation)))
    R[1:, pivots] = np.triu(C[:rank])
    R[:, 1:] *= deviation
    R[0] = root * np.append(1.0, part.mean)
    return R


@dataclass(frozen=True, eq=False)
class Kernels:
    """The rotated rows A (r, D) and responses y (r, P) of a problem in standard units, and the kernels of groups.

    Attributes
    ----------
    like : Moments
        What the columns of `rotated_rows` are; its scatter is not used.
    mean, scale : Float
        (D + P,) those of `Gram`.
    """

    A: Float
    y: Float
    like: Moments
    mean: Float
    scale: Float
    _known: dict[bytes, Float] = field(default_factory=dict)
    _solved: dict[tuple[bytes, float], Float] = field(default_factory=dict)

    @staticmethod
    def of(rows: Sequence[Float], like: Moments) -> Kernels:
        """Return the problem of the `rotated_rows` of some tables, which have the same columns and fill."""
        D, width, R = like.features, like.features + like.responses, np.concatenate(rows)
        weight = float(R[:, 0] @ R[:, 0])
        mean = R[:, 0] @ R[:, 1:] / weight
        own = replace(like, weight=weight, mean=mean)
        gaps = np.concatenate([np.empty(0, dtype=np.intp), *(np.arange(*span) for span in like.missing)])
        before = np.square(R[:, 1 + gaps] - np.multiply.outer(R[:, 0], mean[gaps])).sum(axis=0)
        mean = np.append(own.observed_mean, mean[D:width])
        Z = _imputed(R, like, mean)
        squares = np.square(Z).sum(axis=0)
        moved = before + weight * np.square(mean[gaps] - like.fill[gaps])
        squares[gaps] *= squares[gaps] > CANCELLATION_TOLERANCE * moved
        deviation = np.sqrt(squares / weight)
        flat = deviation <= CONSTANT_TOLERANCE * np.abs(mean)
        scale = np.where(flat, 1.0, deviation)
        Z *= np.where(flat, 0.0, 1.0 / (np.sqrt(weight) * scale))
        return Kernels(Z[:, :D], Z[:, D:], like, mean, scale)

    def held_out(self, R: Float) -> tuple[Float, Float]:
        """Return the `rotated_rows` of another table in the units of these, divided by the root of its weight."""
        Z = _imputed(R, self.like, self.mean) / (np.linalg.norm(R[:, 0]) * self.scale)
        return Z[:, : self.like.features], Z[:, self.like.features :]

    def of_columns(self, columns: Index) -> Float:
        """Return the kernel of some columns, (r, r)."""
        key = columns.tobytes()
        if key not in self._known:
            part = self.A[:, columns]
            self._known[key] = part @ part.T
        return self._known[key]

    @staticmethod
    def factor(K: Float, alpha: float, into: Float) -> Factor:
        """Return the factor of K + alpha I, in the memory of another matrix in Fortran order."""
        np.copyto(into, K.T)
        diagonal = np.einsum("ii->i", into)
        diagonal += alpha
        return factorise_into(into, diagonal.copy())

    def solutions(self, K: Float, into: Float, columns: Index, alphas: Sequence[float]) -> Iterator[Float]:
        """Yield (K + alpha I)^-1 y (r, P) of the kernel K of some columns, stored for others; `into` as in `factor`."""
        key = np.sort(columns).tobytes()
        for alpha in alphas:
            if (key, alpha) not in self._solved:
                self._solved[key, alpha] = self.factor(K, alpha, into).solve(self.y)
            yield self._solved[key, alpha]

    def coefficients(self, columns: Index, alphas: Sequence[float]) -> Iterator[Float]:
        """Yield the coefficients (d, P) of a few columns."""
        A = self.A[:, columns]
        C, right, into = A.T @ A, A.T @ self.y, np.empty((len(columns), len(columns)), order="F")
        for alpha in alphas:
            yield self.factor(C, alpha, into).solve(right)


def _imputed(R: Float, like: Moments, mean: Float) -> Float:
    """Return X and Y of `rotated_rows`, less the mean (D + P,), which replaces missing values of X."""
    Z = R[:, 1 : 1 + len(mean)] - np.multiply.outer(R[:, 0], mean)
    for indicator, (start, stop) in enumerate(like.missing, start=1 + len(mean)):
        Z[:, start:stop] += np.multiply.outer(R[:, indicator], mean[start:stop] - like.fill[start:stop])
    return Z


class _KernelSearch(Search, ForwardRegression):
    """Greedy search by the gain F(G + g) - F(G), from the kernels of the groups."""

    needs_blocks = False

    def __init__(self, kernels: Kernels, groups: FeatureGroups, alpha: float) -> None:
        rows, columns = kernels.A.shape
        super().__init__(groups, SelectionState(groups.slices, np.zeros((columns, 1)), np.ones(columns)), self)
        self._kernels, self._alpha = kernels, alpha
        self._K, self._factor = np.zeros((rows, rows)), np.empty((rows, rows), order="F")
        self._F, self._next = 0.0, dict[bytes, float]()

    def scores(self, state: SelectionState) -> Float:
        scores = np.zeros(len(state.sizes))
        for group in np.flatnonzero(~state.selected & (state.sizes > 0)).tolist():
            scores[group] = self.union_score(state, state.rows(group))
        return scores

    def union_score(self, state: SelectionState, rows: Index) -> float:  # noqa: ARG002
        F = self._next[rows.tobytes()] = self._explained(self._K + self._kernels.of_columns(rows))
        return max(F - self._F, 0.0)

    def select(self, adds: tuple[int, ...]) -> float:
        for group in adds:
            rows = self.state.rows(group)
            if len(rows):
                self._K += self._kernels.of_columns(rows)
                known = self._next.get(rows.tobytes())
                self._F, self._next = self._explained(self._K) if known is None else known, {}
            self.state.selected[group] = True
        return self._F

    def _explained(self, K: Float) -> float:
        """Return F of the groups whose kernels sum to K."""
        y = self._kernels.y
        z = self._kernels.factor(K, self._alpha, self._factor).forward(y)
        return 0.5 * float(np.sum(y**2) - self._alpha * np.sum(z * z))


def kernel_sequencer(kernels: Kernels, groups: FeatureGroups, rule: Rule) -> Callable[[float], GroupOrder]:
    """Return the order by forward regression as a function of the penalty, which is at least 1e-9."""

    @single_blas_thread()
    def order(alpha: float) -> GroupOrder:
        return greedy(_KernelSearch(kernels, groups, alpha), rule)

    return order
