"""Selection at the paper's cost: a new model for every candidate of CS-G-FR, one for every step of CS-G-OMP.

The normal equations of each model are solved from scratch by Cholesky. They come from the rows, X_G'X_G/n, as in the
paper's count of operations (section 5.5), or from the precomputed product X'X/n, which favours the literal method.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.linalg import cho_solve, solve_triangular

from anytime.groups import FeatureGroups
from anytime.moments.moments import Gram
from anytime.selection.criteria import whitening
from anytime.selection.greedy import NOISE, best
from anytime.types import Float, Index

__all__ = [
    "Equations",
    "FromGram",
    "FromRows",
    "LiteralPath",
    "literal_fr",
    "literal_omp",
]


@dataclass(frozen=True, eq=False)
class LiteralPath:
    """A sequence and its selection times.

    Attributes
    ----------
    order : (J,) groups as selected.  explained : (J,) F of each prefix from the first group on.
    seconds : (J,) processor time from the start until each group was selected.
    """

    order: Index
    explained: Float
    seconds: Float


class Equations(Protocol):
    """Source of the normal equations of a model."""

    def normal(self, columns: Index) -> tuple[Float, Float]:
        """Return C_G = X_G'X_G/n + alpha I and q_G = X_G'Y/n."""
        ...

    def gradient(self, columns: Index, w: Float) -> Float:
        """Return X'(Y - X_G w)/n of all columns, (D, P)."""
        ...

    def covariance(self, columns: slice) -> Float:
        """Return X_g'X_g/n of one group."""
        ...


@dataclass(frozen=True, eq=False)
class FromGram:
    """Normal equations from the precomputed X'X/n and X'Y/n."""

    gram: Gram
    alpha: float

    def normal(self, columns: Index) -> tuple[Float, Float]:
        """Return C_G and q_G."""
        return self.gram.penalised(self.alpha, columns)

    def gradient(self, columns: Index, w: Float) -> Float:
        """Return X'Y/n - S_.G w."""
        gradient: Float = self.gram.q - self.gram.S[:, columns] @ w
        return gradient

    def covariance(self, columns: slice) -> Float:
        """Return S_g."""
        return self.gram.S[columns, columns]


@dataclass(frozen=True, eq=False)
class FromRows:
    """Normal equations computed from the standardised rows X (n, D) and Y (n, P) at every call."""

    X: Float
    Y: Float
    alpha: float

    @staticmethod
    def of(X: Float, y: Float, gram: Gram, alpha: float) -> FromRows:
        """Standardise rows by the means and deviations of their normal equations."""
        Y = (y[:, np.newaxis] - gram.y_mean) / gram.y_scale
        standard = np.asfortranarray((X - gram.x_mean) / gram.x_scale)
        standard[:, gram.constant] = 0.0
        return FromRows(standard, Y, alpha)

    def normal(self, columns: Index) -> tuple[Float, Float]:
        """Return C_G and q_G."""
        XG, n = self.X[:, columns], len(self.X)
        C = XG.T @ XG / n
        C[np.diag_indices_from(C)] += self.alpha
        return C, XG.T @ self.Y / n

    def gradient(self, columns: Index, w: Float) -> Float:
        """Return X'(Y - X_G w)/n."""
        gradient: Float = self.X.T @ (self.Y - self.X[:, columns] @ w) / len(self.X)
        return gradient

    def covariance(self, columns: slice) -> Float:
        """Return X_g'X_g/n."""
        Xg = self.X[:, columns]
        covariance: Float = Xg.T @ Xg / len(Xg)
        return covariance


def literal_fr(equations: Equations, groups: FeatureGroups) -> LiteralPath:
    """Select by CS-G-FR: at each step, build and solve the model of every candidate, G with g, from scratch.

    Of a solved model only z = L^-1 q is used, F = |z|^2 / 2: its last rows are the candidate's gain, without
    cancellation. Coefficients, which the paper computes too, are omitted, which favours the literal method.
    """
    clock = _Clock(groups)
    chosen = np.zeros(0, dtype=np.intp)
    while len(clock.remaining):
        scores, models = np.zeros(len(groups)), {}
        for g in clock.remaining.tolist():
            C, q = equations.normal(np.append(chosen, clock.columns[g]))
            models[g] = z = solve_triangular(np.linalg.cholesky(C), q, lower=True, check_finite=False)
            scores[g] = 0.5 * np.sum(np.square(z[len(chosen) :]))
        g = clock.choose(scores)
        chosen = np.append(chosen, clock.columns[g])
        clock.select(g, 0.5 * float(np.sum(np.square(models[g]))))
    return clock.path()


def literal_omp(equations: Equations, groups: FeatureGroups) -> LiteralPath:
    """Select by CS-G-OMP, Algorithm 1: at each step one new model, and the gradients of all groups; whitened once."""
    clock = _Clock(groups)
    T = [whitening(equations.covariance(columns)) for columns in groups.slices]
    chosen, w = np.zeros(0, dtype=np.intp), np.zeros((0, 1))
    while len(clock.remaining):
        b = equations.gradient(chosen, w) if len(chosen) else equations.normal(np.arange(len(groups.features)))[1]
        scores = np.zeros(len(groups))
        for g in clock.remaining.tolist():
            scores[g] = np.sum(np.square(T[g].T @ b[groups.slices[g]]))
        g = clock.choose(scores)
        chosen = np.append(chosen, clock.columns[g])
        C, q = equations.normal(chosen)
        w = cho_solve((np.linalg.cholesky(C), True), q, check_finite=False)
        clock.select(g, 0.5 * float(np.sum(q * w)))
    return clock.path()


class _Clock:
    """The remaining groups, and the selection times of the others."""

    def __init__(self, groups: FeatureGroups) -> None:
        self._start = time.process_time()
        self._costs = groups.costs
        self.columns = [np.arange(s.start, s.stop) for s in groups.slices]
        self.remaining = np.arange(len(groups))
        self._selected: list[tuple[int, float, float]] = []

    def choose(self, scores: Float) -> int:
        """Return the group with the best score per cost, free groups first; ties as everywhere in this library."""
        significant = np.where(scores < NOISE, 0.0, scores)
        free = self.remaining[self._costs[self.remaining] == 0]
        if len(free):
            return best(significant, self._costs, free)
        return best(
            np.divide(significant, self._costs, out=np.zeros(len(significant)), where=self._costs > 0),
            self._costs,
            self.remaining,
        )

    def select(self, group: int, explained: float) -> None:
        """Record the selection of a group, and its F."""
        self.remaining = self.remaining[self.remaining != group]
        self._selected.append((group, explained, time.process_time() - self._start))

    def path(self) -> LiteralPath:
        """Return the selected groups with their times."""
        order, explained, seconds = zip(*self._selected, strict=True)
        return LiteralPath(np.array(order, dtype=np.intp), np.array(explained), np.array(seconds))
