"""How far to go along a line on which the Group Lasso is convex, and has kinks where groups pass through zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anytime.arrays import Bool, Float

__all__ = ["Line"]

STRAIGHT = 1e-14
"""A group that passes 0 at less than the root of this share of its norm passes through it."""

FALLEN = 0.5
"""The whole step is taken where it leaves the slope no steeper, up or down, than this share of what it was."""

FARTHEST = 2.0**20
"""Longest step, where the slope still falls: the objective is bounded, but rounding may not know it."""

BISECTIONS = 40
"""Halvings of the step; what is left of it, 1e-12, the next step mends."""


@dataclass(frozen=True, eq=False)
class Line:
    """The objective's slope at t, with |w_g + t d_g|^2 = f (t - t_g)^2 + c: nothing cancels; where c = 0 it jumps.

    Attributes
    ----------
    linear, curvature : <b, d> and <d, S d>.
    pull, nearest, f, c : (groups,) k_g f, t_g, f and c of the groups that move from a place other than 0; else 0.
    """

    linear: float
    curvature: float
    pull: Float
    nearest: Float
    f: Float
    c: Float

    @staticmethod
    def of(linear: float, curvature: float, k: Float, ww: Float, wd: Float, dd: Float) -> Line:
        """From the groups' penalties k and inner products |w_g|^2, <w_g, d_g>, |d_g|^2."""
        moving = (dd > 0) & (ww > 0)
        nearest = np.where(moving, -wd / np.where(moving, dd, 1.0), 0.0)
        c = np.where(moving, ww + nearest * wd, 0.0)
        c[c <= STRAIGHT * ww] = 0.0
        f = np.where(moving, dd, 0.0)
        return Line(linear, curvature, k * f, nearest, f, c)

    def slope(self, t: float) -> float:
        """Derivative at t; at a kink the middle of its jump."""
        past = t - self.nearest
        norms = np.sqrt(self.f * past * past + self.c)
        return self.curvature * t - self.linear + float(np.sum(self.pull * past / np.where(norms > 0, norms, 1.0)))

    def step(self) -> tuple[float, Bool]:
        """A step that lowers the objective, and which groups (groups,) it takes to their kink, if any.

        It is 1 where the slope has fallen enough there, else where the slope is zero, or jumps over zero.
        """
        nowhere, before = np.zeros(len(self.f), dtype=np.bool_), self.slope(0.0)
        if before >= 0:
            return 0.0, nowhere
        if abs(self.slope(1.0)) <= -FALLEN * before:
            return 1.0, nowhere
        low, high = 0.0, 1.0
        while self.slope(high) < 0 and high < FARTHEST:
            low, high = high, 2.0 * high
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.slope(middle) < 0 else (low, middle)
        kinks = (self.f > 0) & (self.c == 0) & (low <= self.nearest) & (self.nearest <= high)
        return (float(self.nearest[kinks][0]) if kinks.any() else low), kinks
