"""Joint fits: the optima of a penalised likelihood on the rows outside each fold, penalty after penalty.

The fits advance together, so that a pass is one product of the rows with the coefficients of all folds. Their second
derivatives are those at the mean of their coefficients, from one pass; a fit that is slow gets its own. Each corrects
them by the gradients that it meets, as limited-memory BFGS does (Nocedal and Wright, "Numerical Optimization",
algorithm 7.4), and ends as soon as its next step would change the deviance on its fold by little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from anytime._linalg import factorise_penalised
from anytime.errors import TrainingError
from anytime.glm.design import Design, FoldSums, View
from anytime.glm.newton import MIN_DECREMENT, ROUGH, optimum
from anytime.types import Bool, Float, Index

CHANGE = 0.05
"""A fit ends where its next step changes its deviance by this share of the standard error between folds. The change to
second order is added to the deviance, so what remains is a fraction of it."""

DECREMENT = 0.1
"""It also ends where it predicts this share of the decrease of the loss at which a fit on its own ends."""

SINGLE = 1e-7
"""Least penalty for which single precision suffices to compare deviances."""

PRECISE = 1e-3
"""Share of both at which a fit ends whose deviance is reported and not only compared."""

ABSURD = 1e100
"""A mean deviance from which the prediction of an extreme row is without bound: its fit ends by its loss alone."""

PASSES, SLOW = 40, 8
"""Number of passes after which a fit goes on alone, and of those after which it gets its own second derivatives."""

MEMORY = 16
"""Number of steps whose gradients correct the second derivatives."""

SUFFICIENT, SHORTEST, ROUNDING = 1e-4, 0.1, 1e-6
"""Share of the predicted decrease that a step must reach, least share to which a step that does not is shortened, and
rounding of the loss in single precision."""


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
        precise: bool = False,
    ) -> None:
        self._trains, self._weights, self._scale, self._columns = trains, weights, scale, columns
        self._views = [design.single.view(columns), design.view(columns)]
        self._held = [train.held_rows for train in trains]
        ridges = np.array([np.append(1.0, train.ridge[columns]) for train in trains])
        self._varies: Bool = (ridges > 0)[:, :, np.newaxis]
        self._units: Float = np.sqrt(np.where(ridges > 0, ridges, 1.0))[:, :, np.newaxis]
        grown = ridges.shape[1] - thetas.shape[1]
        self._x = np.where(self._varies, np.pad(thetas, ((0, 0), (0, grown), (0, 0))) * self._units, 0.0)
        self._ridge = np.append(0.0, np.ones(len(columns)))[:, np.newaxis]
        self._share = PRECISE if precise else 1.0
        self._sums: FoldSums | None = None
        self._near: list[Float] = []
        self._memory = _Memory(self._x.shape)
        self._alpha = 0.0

    @property
    def thetas(self) -> Float:
        return np.where(self._varies, self._x / self._units, 0.0)

    def copy(self) -> JointFits:
        """Return the same fits, to continue in another direction."""
        other = object.__new__(JointFits)
        other.__dict__.update(self.__dict__, _x=self._x.copy(), _near=list(self._near), _memory=self._memory.copy())
        return other

    def deviances(self, alpha: float) -> Float:
        """Move the fits to a penalty; return their mean deviances (F,), infinite where a fit fails."""
        single = alpha >= SINGLE and self._share == 1.0
        view, ridge, x = self._views[0 if single else 1], alpha * self._ridge, self._x
        everything = np.arange(len(x))
        sums = FoldSums(*(each.copy() for each in self._sums or self._evaluated(view, everything, x)))
        if not self._near:
            self._near = self._alike(view)
        self._memory.shift(alpha - self._alpha)
        self._alpha = alpha
        solver = self._solver(alpha)
        loss, score, found, held = sums
        gradient = ridge * x - score
        value = loss + 0.5 * np.sum(ridge * x**2, axis=(1, 2))
        direction, slope, length = np.zeros_like(x), np.zeros(len(x)), np.ones(len(x))
        measured, usable = found.copy(), everything[np.isfinite(gradient).all(axis=(1, 2)) & np.isfinite(value)]
        active = moved = usable
        for passed in range(1, PASSES + 1):
            direction[moved] = -self._memory.product(moved, gradient[moved], solver)
            slope[moved], length[moved] = np.sum(gradient[moved] * direction[moved], axis=(1, 2)), 1.0
            change = -2.0 / self._weights[moved] * np.sum(held[moved] * direction[moved], axis=(1, 2)) - slope[moved]
            decrement = -0.5 * slope[moved]
            done = np.abs(change) + 2.0 * decrement <= self._share * CHANGE * _standard_error(found[usable])
            done &= found[moved] < ABSURD
            done |= decrement <= max(self._share * DECREMENT * ROUGH.decrement, MIN_DECREMENT) * np.abs(value[moved])
            ended = moved[done]
            measured[ended] = found[ended] + change[done]
            active = np.setdiff1d(active, ended)
            if not len(active):
                break
            trial = x[active] + length[active, np.newaxis, np.newaxis] * direction[active]
            new = self._evaluated(view, active, trial)
            with np.errstate(over="ignore", invalid="ignore"):
                values = new.losses + 0.5 * np.sum(ridge * trial**2, axis=(1, 2))
                gradients = ridge * trial - new.scores
                enough = value[active] + SUFFICIENT * length[active] * slope[active] + ROUNDING * np.abs(value[active])
                lower = np.isfinite(gradients).all(axis=(1, 2)) & (values <= enough)
            moved, back = active[lower], active[~lower]
            with np.errstate(over="ignore", invalid="ignore"):  # to where the slope is about 0
                steeper = np.sum(gradients[~lower] * direction[back], axis=(1, 2)) - slope[back]
                shares = np.nan_to_num(-slope[back] / steeper, nan=SHORTEST)
            length[back] *= np.clip(shares, SHORTEST, 0.5)
            self._memory.add(moved, trial[lower] - x[moved], gradients[lower] - gradient[moved])
            x[moved], gradient[moved], value[moved] = trial[lower], gradients[lower], values[lower]
            loss[moved], score[moved], found[moved], held[moved] = (each[lower] for each in new)
            if passed % SLOW == 0:
                for f in active:
                    self._near[f] = self._own(f, single)
                self._memory.forget(active)
                solver = self._solver(alpha)
        self._sums = sums
        for f in [*np.setdiff1d(everything, usable).tolist(), *active.tolist()]:
            measured[f] = self._alone(f, alpha)
            self._sums = None
        return self._without_overflow(measured) if single else measured

    def _without_overflow(self, measured: Float) -> Float:
        """Measure the deviances again that may have exceeded single precision only."""
        for f in np.flatnonzero(~(measured < ABSURD)).tolist():
            measured[f] = self._held_deviance(f, self.thetas[f])
        return measured

    def _evaluated(self, view: View, fits: Index, x: Float) -> FoldSums:
        """Return the sums at some coefficients, in the units of the folds; deviances are means."""
        units, varies = self._units[fits], self._varies[fits]
        found = view.evaluate_folds(np.where(varies, x / units, 0.0), [self._held[f] for f in fits])
        scores, held = (np.where(varies, each / units, 0.0) for each in (found.scores, found.held))
        # The second order of a deviance without bound says nothing, and overflows.
        held[~(found.deviances < ABSURD)] = 0.0
        return FoldSums(found.losses, scores, found.deviances / self._weights[fits], held)

    def _alike(self, view: View) -> list[Float]:
        """Return the Gram matrices of the rows outside each fold, all at the mean of the coefficients."""
        *inside, total = view.fold_grams(self.thetas.mean(axis=0), self._held)
        return [self._in_units(f, (total - own) / self._held[f].weight) for f, own in enumerate(inside)]

    def _own(self, f: int, single: bool) -> Float:
        train = self._trains[f].single if single else self._trains[f]
        view = train.view(self._columns)
        return self._in_units(f, view.weighted_gram(view.predictors(self.thetas[f])))

    def _in_units(self, f: int, gram: Float) -> Float:
        shares = np.where(self._varies[f], 1.0 / self._units[f], 0.0)
        return np.nan_to_num(gram * shares * shares.T)

    def _solver(self, alpha: float) -> Callable[[Index, Float], Float]:
        factors = [factorise_penalised(near, alpha * self._ridge[:, 0]) for near in self._near]

        def solve(fits: Index, g: Float) -> Float:
            return np.array([factors[f].solve(own) for f, own in zip(fits.tolist(), g, strict=True)])

        return solve

    def _alone(self, f: int, alpha: float) -> float:
        """Return the deviance of the optimum on one fold, infinite without an optimum."""
        train, varies = self._trains[f], self._varies[f, :, 0]
        view = train.view(self._columns[varies[1:]])
        theta = np.nan_to_num(self.thetas[f], posinf=0.0, neginf=0.0)
        try:
            theta[varies] = optimum(view, alpha, theta[varies], self._scale, stop=ROUGH).theta
        except TrainingError:
            return np.inf
        finally:
            self._x[f] = theta * self._units[f]
        return self._held_deviance(f, theta)

    def _held_deviance(self, f: int, theta: Float) -> float:
        """Return the mean deviance on one fold, in double precision."""
        varies = self._varies[f, :, 0]
        view = self._trains[f].view(self._columns[varies[1:]])
        return view.held_deviance(theta[varies]) / float(self._weights[f])


def _standard_error(deviances: Float) -> float:
    """Return the standard error of the mean of some folds' deviances, without absurd ones."""
    known = deviances[deviances < ABSURD]
    return float(np.std(known) / np.sqrt(max(len(deviances) - 1, 1))) if len(known) else 0.0


class _Memory:
    """Steps and changes of the gradient of each fit, newest last."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._pairs: list[tuple[Float, Float, Float]] = []

    def copy(self) -> _Memory:
        other = _Memory(self._shape)
        other._pairs = [(s, y, curvature.copy()) for s, y, curvature in self._pairs]
        return other

    def add(self, moved: Index, steps: Float, changes: Float) -> None:
        s, y, curvature = np.zeros(self._shape), np.zeros(self._shape), np.zeros(self._shape[0])
        s[moved], y[moved] = steps, changes
        products = np.sum(steps * changes, axis=(1, 2))
        sizes = np.sqrt(np.sum(steps**2, axis=(1, 2)) * np.sum(changes**2, axis=(1, 2)))
        curvature[moved] = np.where(products > 1e-6 * sizes, products, 0.0)
        self._pairs = [*self._pairs, (s, y, curvature)][-MEMORY:]

    def shift(self, change: float) -> None:
        """Change the penalty."""
        shifted = []
        for s, y, curvature in self._pairs:
            more = np.append(0.0, np.full(self._shape[1] - 1, change))[:, np.newaxis] * s
            bent = np.where(curvature > 0, curvature + np.sum(more * s, axis=(1, 2)), 0.0)
            shifted.append((s, y + more, np.maximum(bent, 0.0)))
        self._pairs = shifted

    def forget(self, fits: Index) -> None:
        for _, _, curvature in self._pairs:
            curvature[fits] = 0.0

    def product(self, moved: Index, r: Float, solve: Callable[[Index, Float], Float]) -> Float:
        """Return the corrected inverse times the gradients of some fits."""
        if not len(moved):
            return r
        shares = []
        for s, y, curvature in reversed(self._pairs):
            share = _ratio(np.sum(s[moved] * r, axis=(1, 2)), curvature[moved])
            r = r - share * y[moved]
            shares.append(share)
        r = solve(moved, r)
        for (s, y, curvature), share in zip(self._pairs, reversed(shares), strict=True):
            r = r + (share - _ratio(np.sum(y[moved] * r, axis=(1, 2)), curvature[moved])) * s[moved]
        return r


def _ratio(a: Float, b: Float) -> Float:
    """Return a / b (F, 1, 1), 0 where b is 0."""
    ratio: Float = np.divide(a, b, out=np.zeros_like(a), where=b > 0)[:, np.newaxis, np.newaxis]
    return ratio
