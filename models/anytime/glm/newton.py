"""Newton's method, safeguarded: the optimum of a penalised likelihood on some columns.

A step solves (H + R) step = -gradient, where R is the penalty (none on the intercept). The line search works on the
predictors of the rows, without a pass over the table. While the gradient falls fast, the factor of H is reused and a
step costs two light passes. Where H, of predictors times columns squared, would be large, the step comes from conjugate
gradients on products with H, preconditioned by its blocks of each score: with those, 40 classes of 1,200 rows and 45
terms take 11 products for a step, and 125 with one mean block for all.

Where the penalty is far above rounding, steps in single precision come near the optimum in half the time. Steps in
double precision, with the same second derivatives, finish there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from anytime._linalg import conjugate_gradients, factorise_penalised
from anytime.errors import TrainingError
from anytime.glm.design import Derivatives, Predictors, View
from anytime.types import Float

ITERATIONS = 200
"""Maximum number of Newton steps; well-posed problems need 5 to 15."""

DENSE_ONE, DENSE_MANY = 6000, 1000
"""Maximum number of coefficients for which H is formed, for one predictor and for several."""

MIN_DECREMENT = 1e-14
"""Predicted decreases of the loss below this share of it are rounding."""

LOSS_ROUNDING = 1e-15
"""Rounding of the mean loss, whose terms are of the size of the predictors."""

FAR, DAMPING = 10.0, 1e-6
"""Steps over this multiple of the largest coefficient leave the quadratic model and are damped, from this ridge up."""

FAST = 0.5
"""If a step leaves less than this share of the slope along it, the factor of H is reused: H takes many times the work
of a step (cross-validation takes two thirds of the time with 0.1)."""


@dataclass(frozen=True)
class Stop:
    """Stopping criterion of the optimisation.

    `gradient` is its largest component, as a share of that of the base rate; `step` the largest component of the next
    Newton step, as a share of the largest coefficient or of 1; `decrement` the decrease of the loss predicted for that
    step, as a share of the loss, and sufficient by itself.
    """

    gradient: float = 1e-8
    step: float = 1e-7
    decrement: float = 0.0


EXACT = Stop()

ROUGH = Stop(gradient=1e-5, step=1e-3, decrement=3e-6)
"""For fits that only compare orders and penalties: held-out deviances have three digits. Single precision suffices."""

SINGLE = 1e-5
"""Least penalty, as a share of the largest second derivative or of 1, for which single precision suffices: 20 times its
rounding, so the steps are Newton's to a few percent."""


class SeparatedError(TrainingError):
    """The likelihood has no finite optimum: it grows without bound in some direction."""


Solver: TypeAlias = Callable[[Float], Float]
"""The solution x (d + 1, Q) of (H + R) x = g, given g."""

FORCING = 0.3
"""Relative residual at which conjugate gradients end: a more precise step would leave as much to the next (digits of
mfeat: a tolerance that falls with the gradient takes 1.5 to 2.5 times as many products)."""


def forms_hessian(width: int, predictors: int) -> bool:
    """Return whether a fit of coefficients (width, predictors) forms second derivatives."""
    return width * predictors <= (DENSE_ONE if predictors == 1 else DENSE_MANY)


@dataclass(frozen=True)
class Optimum:
    """Coefficients (d + 1, Q) in the units of the design, and the mean loss there, without and with the penalty.

    `solver` solves with second derivatives close to the optimum, or preconditions where they are not formed.
    """

    theta: Float
    loss: float
    objective: float
    iterations: int = 0
    solver: Solver | None = None


@np.errstate(all="ignore")  # the line search refuses what is not finite
def optimum(
    view: View, alpha: float, start: Float, scale: float, *, known: Derivatives | None = None, stop: Stop = EXACT
) -> Optimum:
    """Minimise mean loss + alpha/2 |theta|^2 (without the intercept's) over theta (d + 1, Q).

    Raise SeparatedError if the coefficients grow without bound at alpha 0, and TrainingError without convergence.

    Parameters
    ----------
    start : Float
        Initial coefficients.
    known : Derivatives | None
        The evaluation there, if available.
    scale : float
        Reference size of the gradient, that of the base rate.
    """
    solver: Solver | None = None
    if alpha >= SINGLE:
        with suppress(TrainingError):  # values may be so extreme that steps in single precision end in rounding
            single = view.design.single.view(view.columns)
            rough = _descent(single, alpha, start, scale, known=known, solver=None, stop=ROUGH)
            if stop == ROUGH:
                return replace(rough, solver=None)
            start, known, solver = rough.theta, None, rough.solver
    # The solver may take more memory than the rows, and pickle refuses a closure.
    return replace(_descent(view, alpha, start, scale, known=known, solver=solver, stop=stop), solver=None)


def _descent(
    view: View,
    alpha: float,
    start: Float,
    scale: float,
    *,
    known: Derivatives | None,
    solver: Solver | None,
    stop: Stop,
) -> Optimum:
    """Take Newton steps in the precision of the view until the criterion is met."""
    ridge = np.concatenate([[0.0], alpha * view.ridge])[:, np.newaxis]
    theta = start.copy()
    etas = view.predictors(theta)
    now = known or view.evaluate(etas)
    dense = forms_hessian(*theta.shape)
    preconditioner = None if dense else solver or by_scores(view, view.weighted_grams(etas), ridge[:, 0])
    solver_at: Callable[[Predictors, Derivatives, Float], tuple[Derivatives, Solver]] = partial(_factored_at, view)
    if preconditioner is not None:  # second derivatives of classes are at most 1/2, those of counts without bound
        exact = theta.shape[1] == 1 or alpha < SINGLE
        products = view if exact else view.design.single.view(view.columns)
        solver, solver_at = None, partial(_conjugate_at, products, preconditioner)
    adrift, before = 0, np.inf
    for iteration in range(ITERATIONS):
        value = now.loss + 0.5 * float(np.sum(ridge * theta**2))
        gradient = ridge * theta - now.score
        fresh = solver is None
        if solver is None:
            now, solver = solver_at(etas, now, ridge)
        reached = float(np.abs(gradient).max()) <= stop.gradient * scale
        step = -solver(gradient)
        damping = DAMPING
        while float(np.abs(step).max()) > FAR * max(1.0, float(np.abs(theta).max())) and damping < 1.0:
            now, solver = solver_at(etas, now, ridge + damping)
            step = -solver(gradient)
            damping *= 10.0
        predicted = -0.5 * float(np.sum(gradient * step))
        small = float(np.abs(step).max()) <= stop.step * max(1.0, float(np.abs(theta).max()))
        done = (reached and small) or predicted <= max(stop.decrement, MIN_DECREMENT) * abs(value)
        if done and (alpha > 0 or small or not reached):
            # The last step needs no pass: the loss there follows from the predicted decrease and the penalty.
            theta, objective = theta + step, value - predicted
            penalty = 0.5 * float(np.sum(ridge * theta**2))
            return Optimum(theta, objective - penalty, objective, iteration, preconditioner or solver)
        adrift += reached
        if alpha == 0 and adrift > 3:
            break
        found = _searched(view, theta, etas, step, ridge, value, predicted)
        if found is None:
            if fresh:
                if reached:  # the remaining gain is rounding
                    return Optimum(theta, now.loss, value, iteration, preconditioner or solver)
                break
            solver = None
            continue
        t, etas, slope_share, there = found
        theta = theta + t * step
        # An old factor may leave little of the slope along each of its steps and still make no progress.
        if not (dense and damping == DAMPING and t == 1.0 and slope_share < FAST and predicted < 0.5 * before):
            solver = None
        now, before = there or view.evaluate(etas, hessian=solver is None and dense), predicted
    if alpha == 0:  # nearly separated: rounding ended the steps
        raise SeparatedError("the likelihood has no optimum at alpha 0")
    raise TrainingError(
        "the likelihood fit did not converge; scale or drop features with extreme values, or choose a larger alpha"
    )


def _searched(
    view: View, theta: Float, etas: Predictors, step: Float, ridge: Float, value: float, predicted: float
) -> tuple[float, Predictors, float, Derivatives | None] | None:
    """Return the step length, the predictors there, the remaining share of the slope, and the evaluation if known.

    The loss is convex along the line, so its slope rises from -2 `predicted` through 0 at the optimum. The full step is
    accepted if it lowers the loss and leaves at most half of the slope; it nearly always is, so it is evaluated.
    Otherwise the search continues by false position, or further along the line. Return None if no length works.
    """
    directions = view.predictors(step)
    curvature, pull = float(np.sum(ridge * step**2)), float(np.sum(ridge * theta * step))
    rest = value - 0.5 * float(np.sum(ridge * theta**2))

    def at(t: float) -> tuple[float, float, Predictors, Derivatives | None]:
        there, full = view.moved(etas, t, directions), None
        if t == 1.0:
            full = view.evaluate(there)
            loss, slope = full.loss, -float(np.sum(full.score * step))
        else:
            loss, slope = view.slope(there, directions)
        penalty = t * pull + 0.5 * t * t * curvature
        return loss - rest + penalty, (slope + pull + t * curvature) / (2 * predicted), there, full

    low, high, slope_low, slope_high = 0.0, np.inf, -1.0, np.inf
    t = 1.0
    best: tuple[float, Predictors, float, Derivatives | None] | None = None
    for _ in range(30):
        change, slope, there, full = at(t)
        if np.isfinite(change) and change <= LOSS_ROUNDING * (1.0 + abs(value)):
            best = t, there, abs(slope), full
            if abs(slope) <= 0.5:
                return best
        if slope > 0 or not np.isfinite(change):
            high, slope_high = t, slope
        else:
            low, slope_low = t, slope
        t = _next(low, high, slope_low, slope_high)  # halves the distance at least, while every trial overshoots
        if t > 16.0 or high - low < 1e-6 * high:
            break
    return best


def _next(low: float, high: float, slope_low: float, slope_high: float) -> float:
    """Return the next position to test for the zero of the slope: further out, or between by guarded false position."""
    if not np.isfinite(high):
        return 2.0 * max(low, 0.5)
    if not np.isfinite(slope_high):
        return 0.5 * (low + high)
    share = slope_low / (slope_low - slope_high)
    return low + min(max(share, 0.1), 0.9 if low > 0 else 0.5) * (high - low)


def _factored_at(view: View, etas: Predictors, now: Derivatives, ridge: Float) -> tuple[Derivatives, Solver]:
    """Return the evaluation at a point, with second derivatives, and the solver there.

    It solves by Cholesky; columns that add nothing get a zero step. Raise TrainingError where single precision is too
    rough.
    """
    if now.hessian is None:
        now = view.evaluate(etas, hessian=True)
    H = now.hessian
    assert H is not None  # noqa: S101
    single = H.dtype == np.float32
    rough = single and ridge[1:].min(initial=np.inf) < SINGLE * np.diagonal(H).max()
    factor = None if rough else factorise_penalised(H.astype(np.float64, copy=False), ridge.repeat(now.score.shape[1]))
    if factor is None or (single and factor.dropped.any()):
        raise TrainingError("single precision is too rough for the second derivatives")
    return now, factor.solve


def by_scores(view: View, grams: Float, ridge: Float) -> Solver:
    """Return the solver with the second derivatives in each score alone, given their `weighted_grams` and a ridge."""
    B = view.design.family.contrasts(view.design.predictors)
    # An inverse takes a third of the time of its factor.
    inverses = np.array([factorise_penalised(gram, ridge).solve(np.eye(len(ridge))) for gram in grams])
    if len(grams) == 1:
        return partial(np.matmul, inverses[0])
    return lambda g: (inverses @ (g @ B).T[:, :, np.newaxis])[:, :, 0].T @ B.T


def _conjugate_at(
    view: View, preconditioner: Solver, etas: Predictors, now: Derivatives, ridge: Float
) -> tuple[Derivatives, Solver]:
    """Return the evaluation, and the solver by conjugate gradients on products with H, one pass each."""
    product = view.hessian_product(etas)
    return now, lambda g: conjugate_gradients(
        lambda p: product(p) + ridge * p, preconditioner, g, tolerance=FORCING, max_steps=10 * g.size
    )
