"""The greedy search of a generalised linear model: Algorithm 3 of the paper (appendix B), and its forward regression.

After each step the prefix is fitted to its optimum. One more pass gives the gradients of the remaining groups. For "fr"
the pass also gives the weighted moments at the fit, and the gain of a group g is that of its score test,

    1/2 b_g' H_{g|S}^-1 b_g,

the growth of the likelihood's second-order model: a sweep over these moments, as in least squares. Where classes times
columns are too many to store H, Boehning's bound H <= 1/2 I (x) X'X/n replaces it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from anytime._linalg import factorise, factorise_penalised, single_blas_thread
from anytime.errors import TrainingError
from anytime.glm.design import Design, Evaluation
from anytime.glm.newton import SINGLE, Curvature, Optimum, SeparatedError, optimum
from anytime.groups import FeatureGroups
from anytime.moments.moments import Gram
from anytime.selection.criteria import CRITERIA
from anytime.selection.greedy import Candidates, Sequence, greedy
from anytime.selection.sweep import SelectionState, Sweep
from anytime.types import Float, Index, Method

MAX_VALUES = 2**22
"""Maximum number of values in the second-order models of one model: 32 MiB."""


def on_all_columns(theta: Float, columns: Index, width: int) -> Float:
    """Return coefficients (d + 1, Q) of some columns as those of all, (width + 1, Q), zero in the others."""
    padded = np.zeros((width + 1, theta.shape[1]))
    padded[0] = theta[0]
    padded[columns + 1] = theta[1:]
    return padded


def with_more_columns(theta: Float, columns: int) -> Float:
    """Return coefficients (d + 1, Q) padded with zeros to (columns + 1, Q)."""
    return np.pad(theta, ((0, columns + 1 - len(theta)), (0, 0)))


@dataclass(frozen=True, eq=False)
class QuadraticModel:
    """Normal equations of all columns at one fit, in standard units, intercepts first.

    H ((D + 1) Q, same) are the second derivatives, r ((D + 1) Q,) is H theta + u, and `predictors` is Q. H is as
    precise as that of the evaluation; a fit of one predictor stores it, and has double precision.
    """

    H: Float
    r: Float
    predictors: int
    single: bool = False

    @staticmethod
    def at(theta: Float, evaluation: Evaluation) -> QuadraticModel:
        """Return the model at coefficients theta (D + 1, Q), which are zero in unselected columns."""
        assert evaluation.hessian is not None  # noqa: S101
        flat = theta.ravel()
        r = evaluation.hessian @ flat + evaluation.score.ravel()
        return QuadraticModel(evaluation.hessian, r, theta.shape[1], evaluation.single)

    def places(self, columns: Index) -> Index:
        """Return the rows of H of the intercepts and of some columns."""
        Q = self.predictors
        rows = (columns[:, np.newaxis] + 1) * Q + np.arange(Q)
        return np.concatenate([np.arange(Q), rows.ravel()])

    def restricted(self, columns: Index) -> QuadraticModel:
        """Return the same problem for some of the columns; the fit must be zero in the others."""
        at = self.places(columns)
        if len(at) == len(self.r):
            return self
        return QuadraticModel(self.H[np.ix_(at, at)], self.r[at], self.predictors)

    def evaluation(self, theta: Float, columns: Index, loss: float) -> Evaluation:
        """Return the evaluation at theta (D + 1, Q), restricted to some columns."""
        at = self.places(columns)
        score = (self.r - self.H @ theta.ravel())[at]
        return Evaluation(loss, score.reshape(-1, self.predictors), self.H[np.ix_(at, at)], self.single)

    def newton(self, columns: Index, alpha: float) -> Float:
        """Return one Newton step from this fit to the optimum on some columns, (d + 1, Q)."""
        at = self.places(columns)
        ridge = np.where(np.arange(len(at)) < self.predictors, 0.0, alpha)
        factor = factorise_penalised(self.H[np.ix_(at, at)], ridge)
        return factor.solve(self.r[at, np.newaxis]).reshape(-1, self.predictors)

    def gram(self, like: Gram) -> Gram:
        """Return the same problem given the intercepts, as normal equations of D Q columns and one response."""
        Q = self.predictors
        H00 = factorise(self.H[:Q, :Q], np.diagonal(self.H)[:Q])
        V = H00.forward(self.H[:Q, Q:])
        S = self.H[Q:, Q:] - V.T @ V
        q = self.r[Q:] - V.T @ H00.forward(self.r[:Q, np.newaxis])[:, 0]
        constant = np.repeat(like.constant, Q)
        S[constant] = 0.0
        S[:, constant] = 0.0
        q[constant] = 0.0
        return replace(like, S=S, q=q[:, np.newaxis], constant=constant)


@dataclass(frozen=True, eq=False)
class QuadraticModels:
    """Second-order models at some prefixes (m,) of a sequence, ascending, for one predictor, as they are stored.

    `packed` (m, (D + 1)(D + 2)/2) are the lower triangles of H, row by row; r is (m, D + 1).
    """

    prefixes: Index
    packed: Float
    r: Float

    @staticmethod
    def stored_prefixes(ends: Index) -> Index:
        """Return all prefixes or, beyond the limit, the last and others evenly spaced by their numbers of columns."""
        width = int(ends[-1]) + 1
        count = max(1, MAX_VALUES // (width * (width + 1) // 2))
        if count >= len(ends):
            return np.arange(len(ends))
        targets = np.linspace(ends[-1], 0, count)
        return np.unique([int(np.abs(ends - at).argmin()) for at in targets]).astype(np.intp)

    @staticmethod
    def packed_from(prefixes: Index, found: list[QuadraticModel]) -> QuadraticModels:
        lower = np.tril_indices(len(found[0].r))
        return QuadraticModels(prefixes, np.array([c.H[lower] for c in found]), np.array([c.r for c in found]))

    def at(self, index: int, columns: Index | None = None) -> QuadraticModel:
        """Return the model at the prefix of that index, for all or some columns; reads d^2 of the D^2 numbers."""
        rows = np.arange(self.r.shape[1]) if columns is None else np.concatenate([[0], columns + 1])
        low, high = np.minimum.outer(rows, rows), np.maximum.outer(rows, rows)
        return QuadraticModel(self.packed[index, high * (high + 1) // 2 + low], self.r[index, rows], 1)


MAX_HESSIAN = 3000
"""Maximum of columns times predictors for which second derivatives are stored: 72 MB."""

BOUND = 0.5
"""Boehning (1992): the Hessian of log sum exp is at most 1/2 of the identity on the vectors that sum to 0."""


@dataclass(frozen=True, eq=False)
class LikelihoodSequence(Sequence):
    """A sequence of a generalised linear model, with the optimum of each prefix at the penalty that ordered the groups.

    theta of an optimum is (ends + 1, Q), intercept first. `curvatures` are second-order models at the optima, by
    prefix, if the search needed them and they are small.
    """

    optima: tuple[Optimum, ...]
    curvatures: dict[int, QuadraticModel]

    def upto(self, steps: int) -> Self:
        curvatures = {prefix: found for prefix, found in self.curvatures.items() if prefix <= steps}
        return replace(super().upto(steps), optima=self.optima[: steps + 1], curvatures=curvatures)


def likelihood_sequence(
    design: Design,
    groups: FeatureGroups,
    method: Method = "fr",
    alpha: float = 1e-5,
    *,
    cost_blind: bool = False,
    doubling: bool = False,
    epsilon: float | None = None,
    first: Many[int] = (),
) -> LikelihoodSequence:
    """Order the groups so that each prefix lowers the loss as much as its cost allows; options as in `sequence`.

    F of a prefix is the reduction of its penalised mean loss below that of the base rate. Raise TrainingError if there
    is no finite optimum at alpha 0, because the groups separate the classes.
    """
    with single_blas_thread():
        search = _Fitted(design, groups, method, alpha, cost_blind)
        found = greedy(search, groups, doubling=doubling, epsilon=epsilon, first=first)
    return LikelihoodSequence(
        found.steps,
        found.doubling_until,
        found.columns,
        found.ends,
        tuple(search.optima),
        search.curvatures,
        longest=found.longest,
    )


def base_rate(design: Design) -> Optimum:
    """Return the optimum of the empty prefix, (1, Q): the link of the mean responses."""
    theta = design.family.start(design.gram.y_mean)[np.newaxis]
    view = design.view(np.empty(0, dtype=np.intp))
    loss = view.evaluate(view.predictors(theta)).loss
    return Optimum(theta, loss, loss)


def separated(groups: FeatureGroups, adds: tuple[int, ...]) -> TrainingError:
    """Return the error for a prefix without a finite optimum."""
    name = groups.names[adds[-1]]
    return TrainingError(
        f"at alpha 0 the groups up to {name!r} separate the responses, so the coefficients grow without bound; "
        "choose an alpha above 0, or 'cv'"
    )


class _Fitted:
    """Greedy search by likelihood: each prefix is fitted to its optimum."""

    def __init__(self, design: Design, groups: FeatureGroups, method: Method, alpha: float, cost_blind: bool) -> None:
        self._design, self._groups, self._alpha, self._cost_blind = design, groups, alpha, cost_blind
        self._criterion = CRITERIA[method](design.gram)
        self._all_columns = design.view(np.arange(len(design.gram.x_mean)))
        self.columns: list[int] = []
        self.optima = [base_rate(design)]
        self._order: list[int] = []
        exact = design.predictors * len(design.gram.x_mean) <= MAX_HESSIAN
        self._curved = self._criterion.needs_blocks and exact
        self._bound = None if exact or not self._criterion.needs_blocks else _bounded(design, groups, alpha)
        self._curvature: QuadraticModel | None = None
        self.curvatures: dict[int, QuadraticModel] = {}
        values = (len(groups) + 1) * self._all_columns.width * (self._all_columns.width + 1) // 2
        self._store_curvatures = design.predictors == 1 and values <= MAX_VALUES
        # A model stores the second derivatives of one predictor; those of several are at most 1/2.
        self._single = design.predictors > 1 and alpha > BOUND * SINGLE
        self._near_values = 0
        self._scale = 0.0
        self.candidates = self._candidates()

    def select(self, adds: tuple[int, ...]) -> float:
        """Fit the next prefix; return its F."""
        new = [j for g in adds for j in range(self._groups.slices[g].start, self._groups.slices[g].stop)]
        self._order += adds
        self.columns += new
        self.optima.append(self._fitted(adds) if new else self.optima[-1])
        if len(self._order) < len(self._groups):
            self.candidates = self._candidates()
        else:
            self.candidates.state.selected[:] = True
        return self.optima[0].objective - self.optima[-1].objective

    def _fitted(self, adds: tuple[int, ...]) -> Optimum:
        """Return the optimum of the current columns, started from the previous prefix's optimum."""
        columns = np.array(self.columns, dtype=np.intp)
        last = self.optima[-1]
        start = with_more_columns(last.theta, len(columns))
        known = None
        if self._curvature is not None:
            known = self._curvature.evaluation(self._padded(), columns, last.loss)
        try:
            found = optimum(self._design.view(columns), self._alpha, start, self._scale, known=known)
        except SeparatedError:
            raise separated(self._groups, adds) from None
        return replace(found, near=None, solver=None)  # which would fill the memory

    def _padded(self) -> Float:
        """Return the last optimum on all columns, (D + 1, Q)."""
        return on_all_columns(self.optima[-1].theta, self._fitted_columns(), self._all_columns.width - 1)

    def _fitted_columns(self) -> Index:
        return np.array(self.columns[: len(self.optima[-1].theta) - 1], dtype=np.intp)

    def _candidates(self) -> Candidates:
        return Candidates(self._groups, self._state(), self._criterion, self._cost_blind)

    def _state(self) -> SelectionState:
        """Return the remaining groups, with their gradients at the last optimum."""
        theta = self._padded()
        etas = self._design.view(self._fitted_columns()).predictors(self.optima[-1].theta)
        at = self._all_columns.evaluate(etas, hessian=self._curved, single=self._single)
        self._scale = self._scale or float(np.abs(at.score).max())
        if self._curved:
            self._curvature = QuadraticModel.at(theta, at)
            if self._store_curvatures:
                self.curvatures[len(self.optima) - 1] = self._curvature
            self._store_near(self._curvature)
            return self._swept(self._curvature)
        if self._bound is not None:
            return self._under_bound(self._bound, at.score[1:])
        b = at.score[1:].copy()
        b[np.array(self.columns, dtype=np.intp)] = 0.0
        state = SelectionState(self._groups.slices, b, np.ones(len(theta) - 1))
        state.selected[self._order] = True
        state.stack()
        return state

    def _store_near(self, curvature: QuadraticModel) -> None:
        """Store the second derivatives of the last prefix, from which its fits on folds start, if there is memory."""
        at = curvature.places(self._fitted_columns())
        self._near_values += len(at) ** 2
        if self._near_values <= MAX_VALUES:
            near = Curvature(curvature.H[np.ix_(at, at)].astype(np.float32), single=True)
            self.optima[-1] = replace(self.optima[-1], near=near)

    def _swept(self, curvature: QuadraticModel) -> Sweep:
        Q = curvature.predictors
        slices = [slice(s.start * Q, s.stop * Q) for s in self._groups.slices]
        sweep = Sweep(curvature.gram(self._design.gram), slices, self._alpha, blocks=True)
        for group in self._order:
            sweep.select(group)
        return sweep

    def _under_bound(self, sweep: Sweep, score: Float) -> Sweep:
        for group in self._order:
            if not sweep.selected[group]:
                sweep.select(group)
        for group in np.flatnonzero(~sweep.selected).tolist():
            rows = sweep.rows(group)
            sweep.b[rows] = score[sweep.columns[rows]]
        return sweep


def _bounded(design: Design, groups: FeatureGroups, alpha: float) -> Sweep:
    """Return a sweep over Boehning's bound of the Hessian; the caller sets its gradients."""
    gram = design.gram
    q = np.zeros((len(gram.S), design.predictors))
    return Sweep(replace(gram, S=BOUND * gram.S, q=q), groups.slices, alpha, blocks=True)
