"""Descent to the optimum at one penalty: exact block updates, and Newton's steps on the groups that are not zero.

Block coordinate descent finds out which groups are zero; where columns are nearly collinear it then takes thousands of
cycles for the last digits. But where no group is zero the objective is smooth, and its second derivatives are at hand.
So cycles and Newton's steps, each with an exact line search, take turns: a handful of either from the last penalty's
optimum. Moments make the gradient b of *all* groups cheap, so that no rule has to guess which may be left out: a cycle
goes over the groups that are not zero or violate |b_g| <= k_g, and every duality gap is taken over all groups.
"""

from __future__ import annotations

import numpy as np

from anytime.arrays import Float, Index
from anytime.group_lasso.block import Block
from anytime.group_lasso.line import Line
from anytime.group_lasso.newton import Curved
from anytime.group_lasso.problem import Problem

__all__ = ["Descent"]


SHARP = 1e-6
"""Share of its penalty up to which a group's gradient may be off."""

POLISH = 10
"""Rounds spent, once the gap is reached, on groups that are off: where the penalty is small, a group may be there that
should be zero, and the gap hardly tell. More than rounding allows is not asked for."""


class Descent:
    """Coefficients w (d, P) of one problem and their gradient b = q - S w, kept from one penalty to the next."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.w, self.b = np.zeros_like(problem.q), problem.q.copy()
        ends = problem.starts + problem.sizes
        self._slices = [slice(int(a), int(e)) for a, e in zip(problem.starts, ends, strict=True)]
        self._columns = [problem.S[:, rows] for rows in self._slices]
        self._blocks = [Block(problem.S[rows, rows]) for rows in self._slices]
        self._owner = np.repeat(np.arange(len(problem.sizes)), problem.sizes)

    def start(self, w: Float) -> None:
        """Begin at some coefficients."""
        self.w = w.copy()
        self._refresh()

    def solve(self, mu: float, target: float, rounds: int) -> float:
        """Descend until the gap is at most `target`, or for so many rounds; returns the gap reached."""
        k = mu * self.problem.weights
        gap = self.problem.gap(self.w, self.b, mu)
        polishing = 0
        for _ in range(rounds):
            if gap <= target:
                if polishing == POLISH or self._is_sharp(k):
                    break
                polishing += 1
            norms = self.problem.norms(self.w)
            self._cycle(np.flatnonzero((norms > 0) | (self.problem.norms(self.b) > k)), k, norms)
            self._newton(k)
            self._refresh()
            gap = self.problem.gap(self.w, self.b, mu)
        return gap

    def _is_sharp(self, k: Float) -> bool:
        """Whether each group by itself fulfils the conditions of an optimum: b_g = k_g u_g, or |b_g| <= k_g at 0."""
        norms = self.problem.norms(self.w)
        unit = self.w / np.where(norms > 0, norms, 1.0)[self._owner, np.newaxis]
        off = self.problem.norms(self.b - k[self._owner, np.newaxis] * unit)
        return bool((off <= np.where(norms > 0, SHARP, 1.0 + SHARP) * k).all())

    def _refresh(self) -> None:
        """The gradient from the coefficients: what updates have left of rounding goes."""
        nonzero = np.flatnonzero(self.w.any(axis=1))
        self.b = self.problem.q - self.problem.S[:, nonzero] @ self.w[nonzero]

    def _cycle(self, groups: Index, k: Float, norms: Float) -> None:
        """Each of some groups to its optimum given the others, once."""
        w, b = self.w, self.b
        for g in groups.tolist():
            rows, block = self._slices[g], self._blocks[g]
            after = block.optimum(b[rows] + block.S @ w[rows], float(k[g]), float(norms[g]))
            b -= self._columns[g] @ (after - w[rows])
            w[rows] = after

    def _newton(self, k: Float) -> None:
        """A step on the groups that are not zero; where it ends at a kink, that group is 0 and the others go on."""
        problem = self.problem
        for _ in range(len(k)):
            norms = problem.norms(self.w)
            rows = np.flatnonzero(norms[self._owner] > 0)
            if len(rows) == 0:
                return
            owner = self._owner[rows]
            unit = self.w[rows] / norms[owner, np.newaxis]
            columns = problem.S[:, rows]
            curved = Curved(columns[rows], owner, unit, k[owner] / norms[owner])
            direction = curved.direction(self.b[rows] - k[owner, np.newaxis] * unit)
            if direction is None:
                return
            d, Sd = np.zeros_like(self.w), columns @ direction
            d[rows] = direction
            line = Line.of(
                float(np.sum(self.b * d)),
                float(np.sum(d * Sd)),
                k,
                *(problem.sums(product) for product in (self.w * self.w, self.w * d, d * d)),
            )
            step, kinks = line.step()
            self.w += step * d
            self.w[kinks[self._owner]] = 0.0
            self.b -= step * Sd
            if not kinks.any():
                return
