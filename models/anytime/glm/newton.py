"""Newton's method, safeguarded: the optimum of a penalised likelihood on some columns.

A step solves (H + R) step = -gradient, R being the penalty (none on the intercept). How far to go along it is found on
the predictors of the rows, without a pass over the table. While the gradient falls fast the factor of H serves on, and
a step costs two light passes. Where H, predictors times columns squared, would be large, the step comes from conjugate
gradients on products with H, preconditioned by the factor of one weighted Gram matrix for all predictors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from anytime._linalg import factorise_penalised
from anytime.errors import TrainingError
from anytime.glm.design import Evaluation, Predictors, View
from anytime.types import Float

__all__ = [
    "EXACT",
    "Optimum",
    "SeparatedError",
    "Stop",
    "optimum",
]

ITERATIONS = 200
"""Newton steps after which there is no optimum; well-posed problems need 5 to 15."""

DENSE_ONE, DENSE_MANY = 6000, 1000
"""Coefficients up to which H is formed, for one predictor and for several."""

ROUNDING = 1e-14
"""Share of the loss that is rounding."""

NOISE = 1e-15
"""Rounding of the mean loss, whose terms are of the size of the predictors."""

FAR, DAMPING = 10.0, 1e-6
"""A step to this many times the largest coefficient leaves the quadratic model; it is damped, from this ridge up."""

FAST = 0.1
"""A step that leaves this share of the slope along it was well predicted: H serves on."""


@dataclass(frozen=True)
class Stop:
    """When an optimum is reached.

    Attributes
    ----------
    gradient : largest component of the gradient, as a share of that of the base rate.
    step : largest component of the next Newton step, as a share of the largest coefficient or of 1.
    decrement : the decrease of the loss that the next step promises, as a share of the loss, that alone is enough.
    """

    gradient: float = 1e-8
    step: float = 1e-7
    decrement: float = 0.0


EXACT = Stop()


class SeparatedError(TrainingError):
    """The likelihood has no finite optimum: it grows for ever in some direction."""


@dataclass(frozen=True)
class Optimum:
    """What was found.

    Attributes
    ----------
    theta : coefficients (d + 1, Q) in the units of the design.
    loss, objective : the mean loss there, without and with the penalty.
    iterations : Newton steps that were taken.
    near : the last evaluation with second derivatives, close to the optimum; None where there was none.
    """

    theta: Float
    loss: float
    objective: float
    iterations: int = 0
    near: Evaluation | None = None


def optimum(
    view: View,
    alpha: float,
    start: Float,
    scale: float,
    *,
    known: Evaluation | None = None,
    near: Evaluation | None = None,
    stop: Stop = EXACT,
) -> Optimum:
    """Minimise mean loss + alpha/2 |theta|^2 (less the intercept's) over theta (d + 1, Q).

    Parameters
    ----------
    start : where to begin.  known : the evaluation there, if at hand.
    near : an evaluation with second derivatives close to the start: the first steps are taken with those.
    scale : a gradient to compare with, that of the base rate.

    Raises
    ------
    SeparatedError
        At alpha 0 the coefficients grow without bound.
    TrainingError
        No optimum was reached.
    """
    ridge = np.concatenate([[0.0], alpha * view.ridge])[:, np.newaxis]
    theta = start.copy()
    etas = view.predictors(theta)
    now = known or view.evaluate(etas)
    curved = near
    solver: _Solver | None = None if near is None else _Dense(near, ridge)
    adrift = 0
    for iteration in range(ITERATIONS):
        value = now.loss + 0.5 * float(np.sum(ridge * theta**2))
        gradient = ridge * theta - now.score
        fresh = solver is None
        if solver is None:
            now, solver = _solver(view, etas, now, ridge)
            curved = now if now.hessian is not None else None
        reached = float(np.abs(gradient).max()) <= stop.gradient * scale
        step = -solver.solve(gradient, _forcing(gradient, scale))
        damping = DAMPING
        while float(np.abs(step).max()) > FAR * max(1.0, float(np.abs(theta).max())) and damping < 1.0:
            now, solver = _solver(view, etas, now, ridge + damping)
            step = -solver.solve(gradient, _forcing(gradient, scale))
            damping *= 10.0
        promised = -0.5 * float(np.sum(gradient * step))
        small = float(np.abs(step).max()) <= stop.step * max(1.0, float(np.abs(theta).max()))
        done = (reached and small) or promised <= max(stop.decrement, ROUNDING) * abs(value)
        if done and (alpha > 0 or small or not reached):
            # The last step is taken without a pass: the loss there is what it promises, less the penalty there.
            theta, objective = theta + step, value - promised
            return Optimum(theta, objective - 0.5 * float(np.sum(ridge * theta**2)), objective, iteration, curved)
        adrift += reached
        if alpha == 0 and adrift > 3:
            raise SeparatedError("the likelihood has no optimum at alpha 0")
        found = _searched(view, theta, etas, step, ridge, value, promised)
        if found is None:
            if fresh and reached:  # what is left to gain is rounding
                return Optimum(theta, now.loss, value, iteration, curved)
            if fresh:
                break
            solver = None
            continue
        t, etas, left = found
        theta = theta + t * step
        if not (solver.lasting and damping == DAMPING and t == 1.0 and left < FAST):
            solver = None
        now = view.evaluate(etas, hessian=solver is None and _dense(theta))
    if alpha == 0:  # separated by so little that rounding ended the steps
        raise SeparatedError("the likelihood has no optimum at alpha 0")
    raise TrainingError(
        "no optimum of the likelihood was reached; scale or drop features with extreme values, or give a larger alpha"
    )


def _searched(
    view: View, theta: Float, etas: Predictors, step: Float, ridge: Float, value: float, promised: float
) -> tuple[float, Predictors, float] | None:
    """How far to go along a step, the predictors there, and the share of the slope that is left.

    The loss is convex along the line, so its slope rises from -2 `promised` through 0 at the best place. The whole step
    is taken if that lowers the loss and leaves less than half of the slope; otherwise the zero is looked for by false
    position, or further on.
    """
    directions = view.predictors(step)
    bend, pull = float(np.sum(ridge * step**2)), float(np.sum(ridge * theta * step))
    rest = value - 0.5 * float(np.sum(ridge * theta**2))

    def at(t: float) -> tuple[float, float, Predictors]:
        there = view.moved(etas, t, directions)
        loss, slope = view.slope(there, directions)
        penalty = t * pull + 0.5 * t * t * bend
        return loss - rest + penalty, (slope + pull + t * bend) / (2 * promised), there

    low, high, slope_low, slope_high = 0.0, np.inf, -1.0, np.inf
    t = 1.0
    best: tuple[float, Predictors, float] | None = None
    for _ in range(30):
        change, slope, there = at(t)
        if np.isfinite(change) and change <= NOISE * (1.0 + abs(value)):
            best = t, there, abs(slope)
            if abs(slope) <= 0.5:
                return best
        if slope > 0 or not np.isfinite(change):
            high, slope_high = t, slope
        else:
            low, slope_low = t, slope
        t = _next(low, high, slope_low, slope_high)  # nearer by half at least, while all is beyond the zero
        if t > 16.0 or high - low < 1e-6 * high:
            break
    return best


def _next(low: float, high: float, slope_low: float, slope_high: float) -> float:
    """The next place to look for the zero of the slope: beyond, or between by false position kept from the ends."""
    if not np.isfinite(high):
        return 2.0 * max(low, 0.5)
    if not np.isfinite(slope_high):
        return 0.5 * (low + high)
    share = slope_low / (slope_low - slope_high)
    return low + min(max(share, 0.1), 0.9 if low > 0 else 0.5) * (high - low)


class _Solver(Protocol):
    """Solves (H + R) x = g at one point."""

    lasting: bool
    """Whether it may serve at other points, too."""

    def solve(self, g: Float, tolerance: float) -> Float:
        """The solution (d + 1, Q), to a relative residual where it is not exact."""


def _dense(theta: Float) -> bool:
    return theta.size <= (DENSE_ONE if theta.shape[1] == 1 else DENSE_MANY)


def _solver(view: View, etas: Predictors, now: Evaluation, ridge: Float) -> tuple[Evaluation, _Solver]:
    """A solver at a point, and the evaluation there with what it cost."""
    if not _dense(now.score):
        return now, _Conjugate(view, etas, ridge)
    if now.hessian is None:
        now = view.evaluate(etas, hessian=True)
    return now, _Dense(now, ridge)


class _Dense:
    """By Cholesky; columns that add nothing get no step."""

    lasting = True

    def __init__(self, at: Evaluation, ridge: Float) -> None:
        assert at.hessian is not None  # noqa: S101
        self._factor = factorise_penalised(at.hessian, np.repeat(ridge, at.score.shape[1]))

    def solve(self, g: Float, tolerance: float) -> Float:  # noqa: ARG002
        return self._factor.backward(self._factor.forward(g.reshape(-1, 1))).reshape(g.shape)


class _Conjugate:
    """By conjugate gradients on products with H, a pass each."""

    lasting = False

    def __init__(self, view: View, etas: Predictors, ridge: Float) -> None:
        self._product, self._ridge = view.products(etas), ridge
        self._factor = factorise_penalised(view.weighted_gram(etas), ridge[:, 0])

    def solve(self, g: Float, tolerance: float) -> Float:
        x, r = np.zeros_like(g), g.copy()
        z = self._factor.backward(self._factor.forward(r))
        p, rz = z.copy(), float(np.sum(r * z))
        first = rz
        for _ in range(10 * g.size):
            if rz <= tolerance**2 * first:
                break
            Hp = self._product(p) + self._ridge * p
            curvature = float(np.sum(p * Hp))
            if curvature <= 0.0:
                break
            length = rz / curvature
            x += length * p
            r -= length * Hp
            z = self._factor.backward(self._factor.forward(r))
            rz, last = float(np.sum(r * z)), rz
            p = z + (rz / last) * p
        return x


def _forcing(gradient: Float, scale: float) -> float:
    """How exactly to solve for a step: loosely far from the optimum, so that Newton's convergence stays superlinear."""
    share = float(np.abs(gradient).max()) / scale if scale > 0 else 1.0
    return float(np.clip(np.sqrt(share), 1e-4, 0.1))
