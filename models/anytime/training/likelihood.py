"""Training of a generalised linear model from the rows: order, penalties and the optimum of every prefix.

The choices are those of least squares, on deviances instead of squares. Orders are learned at every fourth penalty of
the grid, from the middle towards smaller areas under the curve of cross-validated deviance, until the area rises. The
order with the smallest area is chosen. Each prefix then gets the penalty with its own smallest deviance. The fits on
the folds advance together (`anytime.glm.joint`), from those of the penalty before, or of the prefix before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from anytime.errors import TrainingError, refuse
from anytime.families import Family
from anytime.features.expansion import Expansion
from anytime.glm.design import Design
from anytime.glm.joint import COMPARED, REPORTED, SCREENED, STATED, Ending, JointFits
from anytime.glm.newton import EXACT, ROUGH
from anytime.glm.row_blocks import BlockDesign, row_blocks_of, with_sparse
from anytime.glm.search import (
    LikelihoodOrder,
    QuadraticModel,
    QuadraticModels,
    base_rate,
    fitted,
    likelihood_sequence,
    on_all_columns,
)
from anytime.model.prefixes import PrefixModels
from anytime.moments.accumulate import Block
from anytime.moments.moments import Gram, Moments
from anytime.selection import GroupOrder
from anytime.target import Target, class_shares
from anytime.training.model_selection import (
    HINGES_GAIN,
    SMALL,
    Choice,
    Errors,
    Learned,
    Problem,
    Request,
    Terms,
    others,
    pick,
    with_rows,
)
from anytime.types import Float, Index

RISEN, FEW = 2, 20
"""Number of rises of the held-out deviance, from one penalty to the next, after which the rest is skipped, and rows of
a class in a fold below which it is one more: of a rare class the deviance is not smooth."""

CLEAR = 0.1
"""Rise in standard errors that ends a search by itself, unless a class is rare."""

EXHAUSTIVE = 200
"""Number of coefficients up to which few rows are measured at every penalty; fits of more take long, and their search
begins at the penalty of a prefix that was."""

GROWTH = 1.4
"""Ratio of the numbers of steps at which the curve of an order is measured to compare penalties."""


class Observations(Protocol):
    """Rows to fit a likelihood on."""

    @property
    def target(self) -> Target: ...

    def design(self, gram: Gram, family: Family, weight: float, expansion: Expansion | None = None) -> Design:
        """Return the terms of the rows in the units of their normal equations, ready for passes."""


@dataclass(frozen=True, eq=False)
class Observed:
    """Rows received block by block, read once for each set of terms and stored in this process."""

    blocks: Iterable[Block]
    target: Target
    n_jobs: int | None = None

    def design(self, gram: Gram, family: Family, weight: float, expansion: Expansion | None = None) -> Design:
        blocks, places = with_sparse(row_blocks_of(self.blocks, gram, expansion), gram)
        return BlockDesign(
            gram, family, weight, np.ones(len(gram.x_mean)), row_blocks=blocks, places=places, n_jobs=self.n_jobs
        )


@dataclass(frozen=True, eq=False)
class _HeldOut:
    """A held-out fold: the design of the other folds, and its deviances."""

    train: Design
    weight: float

    def errors(
        self,
        columns: Index,
        ends: Index,
        alphas: Sequence[float],
        longest: Sequence[int] | None = None,  # noqa: ARG002
    ) -> Float:
        """Return mean deviances, (alphas, steps + 1)."""
        return np.asarray(_fold_errors(self.train, [self], columns, ends, alphas, ending=STATED).folds[0])


def _fold_errors(
    design: Design,
    folds: Sequence[_HeldOut],
    columns: Index,
    ends: Index,
    alphas: Sequence[float],
    *,
    one_se: bool = True,
    ending: Ending = COMPARED,
    coarse: bool = False,
) -> Errors:
    """Return the mean deviances of all prefixes of an order on each fold, (folds, alphas, steps + 1).

    The search over the penalties begins with the best of the prefix before, and at its coefficients. On either side it
    ends after the mean deviance has risen `RISEN` times and, with `one_se`, on that of larger penalties not within a
    standard error of the smallest. The deviances of the remaining penalties are infinite. One fold, and up to
    `EXHAUSTIVE` coefficients in up to `SMALL` rows, are measured at every penalty. `coarse` errors are those of ever
    larger prefixes, interpolated linearly between them; without it, those at the penalty that each prefix chooses are
    measured again, to be reported.
    """
    weights, one_se = np.array([fold.weight for fold in folds]), one_se and len(folds) > 1
    base = base_rate(design).theta
    scale, design = _scale(design, base), design.in_order(columns)
    trains = [fold.train.stored_as(design) for fold in folds]
    rising = np.argsort(alphas)
    errors = np.empty((len(alphas), len(ends), len(folds)))
    best, thetas = len(rising) - 1, np.tile(base, (len(folds), 1, 1))
    prefixes = _growing(len(ends)) if coarse else np.arange(len(ends))
    for prefix in prefixes.tolist():
        used = columns[: ends[prefix]]
        if len(used) == 0:
            thetas = np.stack([base_rate(train).theta for train in trains])
            held = [train.held_rows for train in trains]
            errors[:, prefix] = design.view(used).evaluate_folds(thetas, held).deviances / weights
            continue
        rises = _rises(design, len(folds), thetas.shape[2] * (len(used) + 1))
        begin = JointFits(design, trains, weights, used, thetas, scale, ending=ending)
        found = {best: begin.deviances(float(alphas[rising[best]]))}  # by the penalty's rank
        reached = {best: begin.thetas}
        for ranks in (range(best - 1, -1, -1), range(best + 1, len(rising))):
            fits, risen = begin.copy(), 0
            for rank in ranks:
                found[rank] = fits.deviances(float(alphas[rising[rank]]))
                reached[rank] = fits.thetas
                measured = Errors(np.stack(list(found.values()), axis=1), weights)
                last, least = measured.mean[-1], int(measured.mean.argmin())  # both infinite of an extreme row
                lowest = measured.mean[least]
                risen = risen + 1 if last > lowest else 0
                if risen < rises and not (rises == RISEN and last > lowest + CLEAR * measured.standard_error[least]):
                    continue
                if rank < best or not one_se or last > lowest + measured.standard_error[least]:
                    break
        reported: set[int] = set()
        fits = begin
        while True:
            known = sorted(found)
            best = known[int(pick(Errors(np.stack([found[rank] for rank in known], axis=1), weights), one_se))]
            if coarse or ending is not COMPARED:
                break
            near = [rank for rank in (best - 1, best + 1) if 0 <= rank < len(rising) and rank not in found]
            new = near[:1] if best in reported else [best]
            if not new:
                break
            rank = new[0]
            fits = fits.copy(reached.get(rank, fits.thetas)) if reported else begin.copy(reached[rank], REPORTED)
            found[rank], reached[rank] = fits.deviances(float(alphas[rising[rank]])), fits.thetas
            reported.add(rank)
        thetas = reached[best]
        for rank, place in enumerate(rising):
            errors[place, prefix] = found.get(rank, np.inf)
    for prefix, after in pairwise(prefixes.tolist()):
        share = np.arange(1, after - prefix)[:, np.newaxis] / (after - prefix)
        errors[:, prefix + 1 : after] = (1 - share) * errors[:, [prefix]] + share * errors[:, [after]]
    return Errors(errors.transpose(2, 0, 1), weights)


def _growing(count: int) -> Index:
    """Return numbers from 0 to count - 1: all up to 3, and then each about `GROWTH` times the one before."""
    grown = GROWTH ** np.arange(1, 1 + np.log(count) / np.log(GROWTH))
    return np.unique(np.append([0, min(1, count - 1), count - 1], grown[grown < count - 1].round())).astype(np.intp)


def _rises(design: Design, folds: int, coefficients: int) -> float:
    """Return the number of rises that end a search: one more where a fold has few rows of a class.

    No number ends that of one fold, or of few coefficients in few rows: their deviance may have several minima.
    """
    if folds == 1 or (design.totals.rows <= SMALL and coefficients <= EXHAUSTIVE):
        return np.inf
    rows, counts = design.totals.rows, design.totals.responses
    fewest = min(counts.min(), rows - counts.sum()) if len(counts) == 1 and rows > counts.sum() else counts.min()
    return RISEN if fewest >= FEW * folds else RISEN + 1


@dataclass(frozen=True, eq=False)
class Likelihood(Problem[Design, LikelihoodOrder]):
    """A likelihood of some rows.

    Raises TrainingError if the responses do not fit the family, or there is no finite optimum. The caller limits BLAS
    to one thread.
    """

    observed: Observations
    one_by_one = True

    @cached_property
    def data(self) -> Design:
        terms, target = self.terms, self.observed.target
        weight = sum(part.weight for part in terms.parts)
        design = self.observed.design(terms.gram, self.options.fitted_family, weight, terms.expansion)
        _check(design, target)
        return design

    @cached_property
    def folds(self) -> list[_HeldOut]:
        parts = self.terms.parts
        return [] if len(parts) == 1 else _folds(self.data, parts, self.observed.target)

    @property
    def _compared(self) -> bool:
        """Whether penalties are compared; the fits of the search are exact otherwise."""
        return len(self.folds) > 0 and len(self.options.grid) > 1

    def orders(self, data: Design) -> Callable[[float], LikelihoodOrder]:
        stop = ROUGH if self._compared else EXACT
        return lambda alpha: likelihood_sequence(data, self.groups, self.options, alpha, stop=stop)

    def errors(self, requests: Sequence[Request]) -> Iterator[Float]:
        for order, alphas, _ in requests:
            coarse = self._compared and self.options.epsilon is None and len(alphas) == 1
            few = self.data.totals.rows <= SMALL
            yield _fold_errors(
                self.data,
                self.folds,
                order.columns,
                order.ends,
                alphas,
                one_se=self.options.one_se,
                ending=SCREENED if coarse else STATED if not self._compared else REPORTED if few else COMPARED,
                coarse=coarse,
            ).folds

    def needed(self, nested: Sequence[Terms]) -> int:
        """Return the index of the first of some sets of terms, each with the one before, that needs no more terms.

        Further terms must clearly reduce the deviance of all groups on held-out rows, each set at its best penalty.
        """
        if len(nested) == 1:
            return 0
        sets = [{*each.places(self.terms).tolist()} for each in nested]
        blocks = [sorted(own - earlier) for earlier, own in pairwise([set[int](), *sets])]
        columns, ends = np.concatenate(blocks).astype(np.intp), np.cumsum([0, *map(len, blocks)])
        alphas = self.options.grid[::4]
        errors = _fold_errors(self.data, self.folds, columns, ends, alphas, one_se=False, ending=SCREENED).at_least()
        best, *others = (Errors(errors.folds[:, k], errors.weights) for k in range(1, len(ends)))
        needed = 0
        for k, each in enumerate(others, start=1):
            if each.is_clearly_less(best, HINGES_GAIN):
                best, needed = each, k
        return needed

    @property
    def rough(self) -> Callable[[float], GroupOrder] | None:
        """Return least squares, at the same penalty compared with the loss's curvature at the base rate."""
        if self.options.epsilon is not None:
            return None
        squares, variance = self.squares(), float(np.mean(self.terms.gram.y_scale**2))
        return lambda alpha: squares(alpha / variance)

    def solved(self, choice: Choice[Any]) -> Choice[LikelihoodOrder]:
        """Refit each prefix at its own penalty."""
        if not self._compared:
            return choice
        sequence: LikelihoodOrder = choice.sequence
        optima = list(sequence.state)
        scale = _scale(self.data, optima[0].theta)
        for prefix, end in enumerate(sequence.ends):
            if end > 0:
                view, last = (
                    self.data.view(sequence.columns[:end]),
                    self.groups.names[sequence.steps[prefix - 1].adds[-1]],
                )
                optima[prefix] = fitted(view, last, float(choice.alphas[prefix]), optima[prefix].theta, scale)
        return replace(choice, sequence=replace(sequence, state=tuple(optima)))

    def prefixes(self, choice: Choice[LikelihoodOrder]) -> PrefixModels:
        gram, sequence = self.data.gram, choice.sequence
        scores = [self.data.family.scores(optimum.theta) for optimum in sequence.state]
        coef = [W[1:] / gram.x_scale[sequence.columns[: len(W) - 1], np.newaxis] for W in scores]
        intercepts = np.array([W[0] for W in scores])
        return PrefixModels(
            mean=gram.x_mean,
            scale=gram.x_scale,
            intercept=intercepts[0],
            response_scale=np.ones_like(gram.y_scale),
            columns=sequence.columns,
            ends=sequence.ends,
            packed=np.concatenate(coef),
            own_intercepts=intercepts,
        )

    def learned(self, choice: Choice[LikelihoodOrder]) -> Learned:
        design, sequence = self.data, choice.sequence
        least = design.totals.saturated / design.weight
        deviance = np.array([2 * (at.loss - least) for at in sequence.state[: len(sequence.ends)]])
        return Learned(deviance, _curvatures(design, sequence))


def _check(design: Design, target: Target) -> None:
    """Raise for responses without a base rate."""
    mean, noun = design.gram.y_mean, design.family.noun
    if target.classes is None:
        why = f"every {noun} with weight is {mean[0]:g}; expected at least one larger {noun}"
        refuse({why: not design.family.has_base_rate(mean)})
        return
    rows, counts = design.totals.rows, design.totals.responses
    counts, shares = (rows * class_shares(counts / rows)).round(), class_shares(mean)
    for label, count, share in zip(target.classes, counts, shares, strict=True):
        needs = "a likelihood needs 1 or more: add rows, or remove the class"
        weightless = f"every row of class {label!r} has weight 0; expected at least one row with positive weight"
        refuse({f"class {label!r} is in no row of {rows}; {needs}": count < 1, weightless: share <= 0})


def _folds(design: Design, parts: Sequence[Moments], target: Target) -> list[_HeldOut]:
    """Hold out each fold in turn; skip folds without weight.

    Rows of a class that no other fold has are not held out: without them the class would have no probability. Nor is a
    fold that has all counts above 0.
    """
    full = with_rows(parts)
    folds = []
    for f, rest in zip(full, others([parts[f] for f in full]), strict=True):
        held, gram, kept, lacking = parts[f], Gram.of(rest), 0.0, list[int]()
        if target.classes is not None:
            own = held.mean[held.features : held.features + held.responses]
            counted = class_shares(gram.y_mean)
            weights = np.where(counted <= 0, held.weight * class_shares(own), 0.0)
            lacking, kept = np.flatnonzero(counted <= 0).tolist(), float(weights.sum())
            if lacking:
                counted = (rest.weight * counted + weights) / (rest.weight + kept)
                gram = replace(gram, y_mean=counted[-len(gram.y_mean) :])
        elif not design.family.has_base_rate(gram.y_mean):  # without the fold, every count is 0
            continue
        if held.weight - kept > 0:
            train = design.without(f, gram, rest.weight + kept, tuple(lacking))
            folds.append(_HeldOut(train, held.weight - kept))
    if len(folds) < 2:
        what = f"{design.family.noun}s above 0" if target.classes is None else "each class"
        raise TrainingError(f"fewer than two folds can be held out; use more rows of {what}, or a fixed alpha")
    return folds


def _scale(design: Design, base: Float) -> float:
    """Return the largest component of the gradient at the base rate."""
    view = design.view(np.arange(len(design.gram.x_mean)))
    etas = design.view(np.empty(0, dtype=np.intp)).predictors(base)
    return float(np.abs(view.evaluate(etas).score).max())


def _curvatures(design: Design, sequence: LikelihoodOrder) -> QuadraticModels | None:
    if design.predictors > 1:
        return None
    selected = np.sort(sequence.columns)
    stored = QuadraticModels.stored_prefixes(sequence.ends)
    models = []
    full = design.view(selected)
    for prefix in stored.tolist():
        used = sequence.columns[: sequence.ends[prefix]]
        theta = on_all_columns(sequence.state[prefix].theta, np.searchsorted(selected, used), len(selected))
        etas = design.view(used).predictors(sequence.state[prefix].theta)
        models.append(QuadraticModel.at(theta, full.evaluate(etas, hessian=True)))
    lower = np.tril_indices(len(models[0].r))
    return QuadraticModels(stored, np.array([c.H[lower] for c in models]), np.array([c.r for c in models]))
