"""Joint fits: the optima of a penalised likelihood on the rows outside each fold, penalty after penalty.

The fits advance together, so that a pass is one product of the rows with the coefficients of all folds. Their second
derivatives are those at the mean of their coefficients, from one pass; a fit that is slow gets its own. Each corrects
them by the gradients that it meets, as limited-memory BFGS does (Nocedal and Wright, "Numerical Optimization",
algorithm 7.4), and ends as soon as its next step would change the deviance on its fold by little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.linalg.lapack import dtrtrs

from anytime._linalg import factorise_penalised
from anytime.errors import TrainingError
from anytime.glm.design import Design, FoldSums, View
from anytime.glm.newton import EXACT, MIN_DECREMENT, ROUGH, Solver, by_scores, forms_hessian, optimum
from anytime.types import Bool, Float, Index

SLOWEST = 0.9
"""Largest ratio of two changes of a deviance, one after the other, with which those to come are predicted."""

SINGLE = 1e-7
"""Least penalty for which single precision suffices to compare deviances."""


@dataclass(frozen=True)
class Ending:
    """When a fit ends: before steps that change the deviance on its fold by little.

    Attributes
    ----------
    change : float
        All steps to come change it by this share of the standard error between folds: the next step, to second order,
        and those after it, which fall as fast as the last two did, or by a tenth at least. The change by the next is
        added to the deviance, so what remains is a fraction of it.
    unsettled : float
        It does not end while it predicts a larger share of the loss as decrease: the deviance may cross its limit.
    decrement : float
        It also ends where it predicts this share of the decrease of the loss at which a fit on its own ends. That alone
        says little of an extreme row, whose deviance may then still change by several standard errors.
    precise : bool
        Whether all passes are in double precision, and the last step counts like the next if it changed the deviance
        more: one alone may be small by chance.
    """

    change: float
    unsettled: float
    decrement: float
    precise: bool


SCREENED = Ending(0.2, 1e-2, 1.0, precise=False)
"""That of deviances that are compared between penalties far apart, on average over prefixes."""

COMPARED = Ending(0.05, 1e-3, 0.1, precise=False)
"""That of deviances that are compared between penalties."""

REPORTED = Ending(0.01, 1e-4, 1e-4, precise=True)
"""That of the deviances at the penalties chosen: within .014 standard errors of exact fits on kddcup99 and mfeat."""

STATED = Ending(2e-5, 1e-4, 1e-4, precise=True)
"""That of deviances at penalties that are stated."""

ABSURD = 1e100
"""A mean deviance from which the prediction of an extreme row is without bound: its fit ends by its loss alone."""

PASSES, SLOW = 100, 16
"""Number of passes after which a fit goes on alone, and of those after which it gets new second derivatives, which
forgets the gradients met: with 100, 16 the digits of mfeat take .7 of the time with 40, 8."""

MEMORY = 16
"""Number of steps whose gradients correct the second derivatives."""

LEAST_CURVATURE = 1e-6
"""Least cosine of a step and its change of the gradient."""

SUFFICIENT, SHORTEST, ROUNDING, STOPPED = 1e-4, 0.1, 1e-6, 0.01
"""Share of the predicted decrease that a step must reach, least share to which a step that does not is shortened,
rounding of the loss in single precision, and length of a step at which rounding of the gradient stops it there."""

COUPLED = 500
"""Largest number of coefficients of several predictors that begin with all second derivatives of each fold. Without
those across predictors, fits of classes that lines nearly separate end too early, where the deviance is lower than at
the optimum. Of more coefficients, all are computed where a fit is slow, up to the number that Newton's method forms:
to begin with them takes up to twice the time."""


class JointFits:
    """The fits of some columns on the rows outside each fold, and the deviances on the folds.

    Coefficients are (F, d + 1, Q), those of fits at another penalty or on fewer columns to start from. The arithmetic
    is in the units of each fold, in which all have the same penalty. A column that is constant outside a fold has the
    coefficient 0 there.
    """

    def __init__(
        self,
        design: Design,
        trains: Sequence[Design],
        weights: Float,
        columns: Index,
        thetas: Float,
        scale: float,
        *,
        ending: Ending = REPORTED,
    ) -> None:
        self._trains, self._weights, self._scale, self._columns = trains, weights, scale, columns
        self._views = [design.single.view(columns), design.view(columns)]
        self._held = [train.held_rows for train in trains]
        ridges = np.array([np.append(1.0, train.ridge[columns]) for train in trains])
        self._varies: Bool = (ridges > 0)[:, :, np.newaxis]
        self._units: Float = np.sqrt(np.where(ridges > 0, ridges, 1.0))[:, :, np.newaxis]
        grown = np.pad(thetas, ((0, 0), (0, ridges.shape[1] - thetas.shape[1]), (0, 0)))
        self._x = np.where(self._varies, grown * self._units, 0.0)
        self._ridge = np.append(0.0, np.ones(len(columns)))[:, np.newaxis]
        self._ending = ending
        self._sums: FoldSums | None = None
        self._near: list[Callable[[Float], Solver]] = []
        self._memories = [_Memory(self._x[0].shape) for _ in trains]
        self._alpha = 0.0

    @property
    def thetas(self) -> Float:
        return np.where(self._varies, self._x / self._units, 0.0)

    def copy(self, thetas: Float | None = None, ending: Ending | None = None) -> JointFits:
        """Return the same fits, to continue in another direction; from other coefficients, if they are given.

        These are near enough for the same second derivatives, or with another ending have those there.
        """
        other = copy(self)
        other._x, other._near, other._memories = self._x.copy(), list(self._near), deepcopy(self._memories)
        if thetas is not None:
            other._x, other._sums = thetas * self._units, None
        if ending is not None:
            other._ending = ending
            other._renew(np.arange(len(self._x)), single=True)
        return other

    @np.errstate(all="ignore")  # a fit without a finite loss goes on alone
    def deviances(self, alpha: float) -> Float:
        """Move the fits to a penalty; return their mean deviances (F,), infinite where a fit fails.

        Fits that rounding stops in single precision go on in double precision, and then each alone.
        """
        single = alpha >= SINGLE and not self._ending.precise
        views, ridge, fits = self._views[0 if single else 1 :], alpha * self._ridge, np.arange(len(self._x))
        sums = FoldSums(*(each.copy() for each in self._sums or self._evaluated(views[0], fits, self._x)))
        if not self._near:
            self._near = self._alike(views[0])
        for memory in self._memories:
            memory.shift((alpha - self._alpha) * self._ridge)
        self._alpha, self._sums = alpha, sums
        solvers, measured = self._solvers(ridge), np.empty(len(fits))
        for view in views:
            if view is not views[0] and len(fits):
                for each, precise in zip(sums, self._evaluated(view, fits, self._x[fits]), strict=True):
                    each[fits] = precise
            fits = self._descent(view, fits, ridge, solvers, sums, measured)
        for f in fits.tolist():
            measured[f] = self._alone(f, alpha)
            self._sums = None
        absurd = np.flatnonzero(~(measured < ABSURD))
        if single and len(absurd):  # some may have exceeded single precision only
            measured[absurd] = self._evaluated(self._views[1], absurd, self._x[absurd]).deviances
        return measured

    def _descent(
        self, view: View, fits: Index, ridge: Float, solvers: list[Solver], sums: FoldSums, measured: Float
    ) -> Index:
        """Take steps of some fits in the precision of a view, and set their mean deviances; return those without end.

        The solvers and the sums are those of all fits, and are updated.
        """
        x, (loss, score, found, held) = self._x, sums
        gradient, value = ridge * x - score, loss + 0.5 * _products(ridge * x, x)
        direction, slope, length, before = np.zeros_like(x), np.zeros(len(x)), np.ones(len(x)), np.full(len(x), np.inf)
        measured[fits], single, fresh = found[fits], view is self._views[0], np.zeros(len(x), dtype=np.bool_)
        active = moved = fits[np.isfinite(gradient[fits]).all(axis=(1, 2)) & np.isfinite(value[fits])]
        for passed in range(1, PASSES + 1):
            direction[moved] = self._directions(moved, gradient, solvers)
            slope[moved], length[moved] = _products(gradient[moved], direction[moved]), 1.0
            change = -2.0 / self._weights[moved] * _products(held[moved], direction[moved]) - slope[moved]
            decrement = -0.5 * slope[moved]
            size = np.maximum(np.abs(change), np.finfo(np.float64).tiny)
            error = np.where(found[moved] < ABSURD, _standard_error(found), 0.0)
            done = self._settled(size, before[moved], error, decrement, np.abs(value[moved]))
            before[moved] = size
            ended = moved[done]
            measured[ended], length[ended] = found[ended] + change[done], 0.0
            active = active[length[active] > 0]
            if not len(active):
                break
            trial = x[active] + length[active, np.newaxis, np.newaxis] * direction[active]
            new = self._evaluated(view, active, trial)
            values = new.losses + 0.5 * _products(ridge * trial, trial)
            gradients = ridge * trial - new.scores
            enough = value[active] + SUFFICIENT * length[active] * slope[active] + ROUNDING * np.abs(value[active])
            lower = np.isfinite(gradients).all(axis=(1, 2)) & (values <= enough)
            moved, back = active[lower], active[~lower]
            steeper = _products(gradients[~lower], direction[back]) - slope[back]  # to where the slope is about 0
            shares = np.nan_to_num(-slope[back] / steeper, nan=SHORTEST)
            length[back] *= np.clip(shares, SHORTEST, 0.5)
            stuck = back[length[back] <= STOPPED]
            if single:
                active = np.setdiff1d(active, stuck[fresh[stuck]])
            stuck = stuck[~fresh[stuck]]
            for f, there, down in zip(moved.tolist(), trial[lower], gradients[lower], strict=True):
                self._memories[f].add(there - x[f], down - gradient[f])
            x[moved], gradient[moved], value[moved] = trial[lower], gradients[lower], values[lower]
            loss[moved], score[moved], found[moved], held[moved] = (each[lower] for each in new)
            fresh[moved] = False
            slow = np.union1d(stuck, active) if passed % SLOW == 0 else stuck
            if len(slow):
                self._renew(slow, single=single)
                solvers[:], fresh[slow] = self._solvers(ridge), True
            moved = np.union1d(moved, stuck)
        return fits[length[fits] > 0]

    def _solvers(self, ridge: Float) -> list[Solver]:
        """Return the solver with the second derivatives of each fit, the same of those that are."""
        made = {near: near(ridge[:, 0]) for near in {*self._near}}
        return [made[near] for near in self._near]

    def _directions(self, fits: Index, gradient: Float, solvers: list[Solver]) -> Float:
        """Return the steps of some fits (fits, d + 1, Q)."""
        steps = np.zeros_like(gradient[fits])
        for i, f in enumerate(fits.tolist()):
            p, reduced = self._memories[f].reduced(gradient[f])
            steps[i] = self._memories[f].corrected(p, solvers[f](reduced))
        return np.where(self._varies[fits], -steps, 0.0)

    def _settled(self, size: Float, before: Float, error: Float, decrement: Float, loss: Float) -> Bool:
        """Return which fits end, given the change of the deviance by this step and the last, and its standard error."""
        rate = np.minimum(size / before, SLOWEST)
        size = np.maximum(size, before) if self._ending.precise else size
        settled = size / (1 - rate) + 2.0 * decrement <= self._ending.change * error
        least = max(self._ending.decrement * ROUGH.decrement, MIN_DECREMENT)
        return np.asarray(settled & (decrement <= self._ending.unsettled * loss) | (decrement <= least * loss))

    def _evaluated(self, view: View, fits: Index, x: Float) -> FoldSums:
        """Return the sums at some coefficients, in the units of the folds; deviances are means."""
        units, varies = self._units[fits], self._varies[fits]
        found = view.evaluate_folds(np.where(varies, x / units, 0.0), [self._held[f] for f in fits])
        scores, held = (np.where(varies, each / units, 0.0) for each in (found.scores, found.held))
        # The second order of a deviance without bound says nothing, and overflows.
        held[~(found.deviances < ABSURD)] = 0.0
        return FoldSums(found.losses, scores, found.deviances / self._weights[fits], held)

    @np.errstate(all="ignore")  # infinite where an extreme row is predicted without bound
    def _alike(self, view: View) -> list[Callable[[Float], Solver]]:
        """Return solvers, given a ridge, with second derivatives outside each fold, at the mean of the coefficients.

        Of many coefficients of several predictors, those in each score alone of all rows serve all folds.
        """
        theta = self.thetas.mean(axis=0)
        if theta.shape[1] > 1 and theta.size > COUPLED:
            grams, varies = view.weighted_grams(view.predictors(theta)), np.asarray(self._varies.any(axis=0))
            return [partial(by_scores, view, _in_units(grams, self._units.mean(axis=0), varies))] * len(self._held)
        *inside, total = view.fold_hessians(theta, self._held)
        means = [(total - own) / held.weight for held, own in zip(self._held, inside, strict=True)]
        return [partial(_dense, _in_units(*each)) for each in zip(means, self._units, self._varies, strict=True)]

    def _own(self, f: int, single: bool) -> Callable[[Float], Solver]:
        """Return the same at the coefficients of one fit."""
        view = (self._trains[f].single if single else self._trains[f]).view(self._columns)
        hessian = view.evaluate(view.predictors(self.thetas[f]), hessian=True).hessian
        assert hessian is not None  # noqa: S101
        return partial(_dense, _in_units(hessian.astype(np.float64, copy=False), self._units[f], self._varies[f]))

    def _renew(self, fits: Index, *, single: bool) -> None:
        """Give some fits second derivatives at their coefficients, without those that their steps corrected."""
        width, predictors = self._x.shape[1:]
        own = predictors == 1 or forms_hessian(width, predictors)
        shared = [] if own else self._alike(self._views[0 if single else 1])
        for f in fits.tolist():
            self._near[f] = self._own(f, single) if own else shared[f]
            self._memories[f].forget()

    def _alone(self, f: int, alpha: float) -> float:
        """Return the deviance of the optimum on one fold, infinite without an optimum."""
        train, varies = self._trains[f], self._varies[f, :, 0]
        view = train.view(self._columns[varies[1:]])
        theta, decrement = np.nan_to_num(self.thetas[f], posinf=0.0, neginf=0.0), self._ending.decrement
        stop = replace(EXACT, decrement=decrement * ROUGH.decrement) if self._ending.precise else ROUGH
        try:
            theta[varies] = optimum(view, alpha, theta[varies], self._scale, stop=stop).theta
        except TrainingError:
            return np.inf
        finally:
            self._x[f] = theta * self._units[f]
        return float(self._evaluated(self._views[1], np.array([f]), self._x[[f]]).deviances[0])


def _dense(hessian: Float, ridge: Float) -> Solver:
    return factorise_penalised(hessian, np.repeat(ridge, len(hessian) // len(ridge))).solve


def _in_units(curvature: Float, units: Float, varies: Bool) -> Float:
    """Return second derivatives in the units of a fold (d + 1, 1), 0 where a column does not vary."""
    shares: Float = np.repeat(np.where(varies, 1.0 / units, 0.0), curvature.shape[-1] // len(units), axis=0)
    return np.nan_to_num(curvature * shares * shares.T, posinf=0.0, neginf=0.0)


def _products(a: Float, b: Float) -> Float:
    """Return the inner products (F,) of arrays (F, d + 1, Q)."""
    return np.asarray(np.einsum("fdq,fdq->f", a, b))


def _standard_error(deviances: Float) -> float:
    """Return the standard error of the mean of some folds' deviances, without absurd ones."""
    known = deviances[deviances < ABSURD]
    return float(np.std(known) / np.sqrt(max(len(deviances) - 1, 1))) if len(known) else 0.0


class _Memory:
    """Steps s and changes y of the gradient of one fit, newest last: limited-memory BFGS in compact form."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._s, self._y = np.zeros((2, MEMORY, *shape))
        self._products = np.zeros((MEMORY, MEMORY), order="F")  # s_i'y_j
        self._count = 0

    @property
    def _pairs(self) -> tuple[Float, Float, Float]:
        """Return steps and changes (count, (d + 1) Q), and their products."""
        count = self._count
        s, y = (each[:count].reshape(count, each[0].size) for each in (self._s, self._y))
        return s, y, self._products[:count, :count]

    def add(self, s: Float, y: Float) -> None:
        """Add a step (d + 1, Q), unless the loss is not curved along it."""
        if not np.vdot(s, y) > LEAST_CURVATURE * np.sqrt(np.vdot(s, s) * np.vdot(y, y)):
            return
        if self._count == MEMORY:  # forget the oldest fourth
            oldest = MEMORY // 4
            self._count -= oldest
            for each in (self._s, self._y):
                each[: self._count] = each[oldest:].copy()
            self._products[: self._count, : self._count] = self._products[oldest:, oldest:].copy()
        self._s[self._count], self._y[self._count] = s, y
        self._count += 1
        steps, changes, products = self._pairs
        products[:, -1] = steps @ changes[-1]  # those above the diagonal suffice

    def shift(self, changes: Float) -> None:
        """Change the penalty of each row of coefficients, (d + 1, 1)."""
        self._y[: self._count] += changes * self._s[: self._count]
        steps, moved, products = self._pairs
        products[:] = steps @ moved.T
        if not (np.diagonal(products) > 0).all():
            self.forget()

    def forget(self) -> None:
        self._count = 0

    def reduced(self, gradient: Float) -> tuple[Float, Float]:
        """Return the share of each step, and the gradient (d + 1, Q) that an uncorrected solver then is applied to."""
        if not self._count:
            return np.empty(0), gradient
        s, y, products = self._pairs
        p = dtrtrs(products, s @ gradient.ravel())[0]
        return p, gradient - (p @ y).reshape(gradient.shape)

    def corrected(self, p: Float, q: Float) -> Float:
        """Return the corrected inverse times the gradient, from the result of `reduced` and its solution."""
        if not self._count:
            return q
        s, y, products = self._pairs
        c = dtrtrs(products, np.diagonal(products) * p - y @ q.ravel(), trans=1)[0]
        return np.asarray(q + (c @ s).reshape(q.shape))
