"""Selection methods: how the next group is chosen, and the score of a group before division by its cost (section 2).

A method is one class. Everything that depends on the method is an attribute or a method of its class, and all other
code uses these: the checks of options, the searches, the guarantee, the command line and the guides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import ClassVar, Self

import numpy as np

from anytime._linalg import NULL_EIGENVALUE, RANK_TOLERANCE, factorise
from anytime.errors import TrainingError
from anytime.groups import FeatureGroups
from anytime.moments.moments import Gram
from anytime.types import Float, Index, Method

TIE = 1e-9
"""Scores that differ by less than this share are equal."""

BORDER = 1e8
"""Diagonal of the border of a block, larger than any |L^-1 b|^2 in standard units."""


def best(scores: Float, costs: Float, among: Index) -> int:
    """Return the group with the best score; ties by cost, then by the order of the groups file. `among` is nonempty."""
    # A score divided by a cost near 0 may overflow.
    bounded = np.minimum(scores[among], np.finfo(np.float64).max)
    top = bounded.max()
    tied = among[bounded >= top - TIE * abs(top)]
    return int(tied[np.argmin(costs[tied])])


@dataclass
class SizeClass:
    """The remaining groups with the same number of columns, stacked: indices (k,), rows (k, d) and blocks (k, d, d).

    The blocks are the conditional covariances, or empty where the criterion does not need them. The block of a group
    selected since the last flush is the identity, and its gradient is zero.
    """

    groups: Index
    rows: Index
    blocks: Float


class SelectionState:
    """The remaining groups given the selection.

    Attributes
    ----------
    b : Float
        (D, P) gradient.
    reference : Float
        (D,) diagonal of C, with which pivots are compared.
    ridge : Float | None
        (D,) part of it that is no covariance: the penalty, and 1 more for a constant column.
    noise
        Variance of the residuals, summed over the responses, divided by the number of rows. A column of unit variance
        without effect has b b' of this size. It is 0 where the criterion needs no blocks.
    columns : array of shape (D,)
        Index of each row of b among all columns.
    """

    def __init__(
        self, slices: Sequence[slice], b: Float, reference: Float, ridge: Float | None = None, C: Float | None = None
    ) -> None:
        self.b, self.reference = b, reference
        self.ridge = np.zeros(len(b)) if ridge is None else ridge
        self.noise = 0.0
        self.columns = np.arange(len(b))
        self.sizes = np.array([s.stop - s.start for s in slices], dtype=np.intp)
        self.starts = np.array([s.start for s in slices], dtype=np.intp)
        self.selected = np.zeros(len(slices), dtype=np.bool_)
        self.stack(C)

    def rows(self, group: int) -> Index:
        return np.arange(self.starts[group], self.starts[group] + self.sizes[group])

    def stack(self, C: Float | None = None) -> None:
        """Sort the remaining groups into classes of one size, with their blocks of C, if it is given."""
        remaining = ~self.selected & (self.sizes > 0)
        self.remaining_groups: Index = np.flatnonzero(remaining)
        self.classes: list[SizeClass] = []
        for size in np.unique(self.sizes[remaining]):
            groups = np.flatnonzero(remaining & (self.sizes == size))
            rows = self.starts[groups, np.newaxis] + np.arange(size)
            blocks = np.empty(0) if C is None else C[rows[:, :, np.newaxis], rows[:, np.newaxis, :]]
            self.classes.append(SizeClass(groups, rows, blocks))

    def conditional(self, rows: Index) -> Float:
        """Return the conditional covariance of some rows given the selection, (d, d)."""
        raise RuntimeError(f"gradients alone have no covariance of {rows}")


class SelectionMethod(ABC):
    """A way to order groups: a `Criterion`, which scores the next group, or a `PathMethod`, which states all.

    A method of your own is a class with a name of its own. Options accept an object of it: `method=Mine()`.
    """

    name: ClassVar[Method]
    """The name on the command line, in estimators and in model files."""
    doubling: ClassVar[bool] = True
    """Whether the method supports doubling, which restricts the next step."""
    epsilon: ClassVar[bool] = True
    """Whether the method supports a precision at which the search stops."""
    likelihoods: ClassVar[bool] = True
    """Whether the method supports families other than least squares."""
    pairs: ClassVar[bool] = True
    """Whether the method supports products of pairs of columns."""
    doubling_theorem: ClassVar[bool] = False
    """Whether Theorem 4.3, the bound with doubling, is proved for the method."""

    def whitening_share(self, shares: Float) -> float | None:  # noqa: ARG002
        """Return nu of Theorem 3.2, or None if the theorem does not cover the method.

        `shares` are s/(s + alpha) over the non-zero eigenvalues s of all groups' covariances.
        """
        return None


class Criterion(SelectionMethod):
    """Scores of groups, given the selection of a search. The best score divided by the cost is selected."""

    needs_blocks: ClassVar[bool] = False
    """Whether `scores` reads the blocks of `SelectionState`, the conditional covariances of the remaining groups."""

    def on(self, gram: Gram) -> Self:  # noqa: ARG002
        """Return the criterion for one problem; one that stores something about the problem returns a new object."""
        return self

    @abstractmethod
    def scores(self, state: SelectionState) -> Float:
        """Return the score of every group, (groups,); 0 for groups without columns, undefined for selected groups."""

    @abstractmethod
    def union_score(self, state: SelectionState, rows: Index) -> float:
        """Return the score of the union of some groups, given their rows of the search's matrix."""

    def lengths(self, scores: Float) -> Float:
        """Return the length of the residual's projection on each group, in response deviations, given the scores.

        For orthonormal groups the length of "omp", sqrt(tr(b_g' S_g^+ b_g)), is |X_g'r|_2.
        """
        return np.sqrt(np.maximum(scores, 0.0))


class PathMethod(SelectionMethod):
    """An order of all groups that does not depend on the penalty, for least squares."""

    doubling = epsilon = likelihoods = pairs = False

    @abstractmethod
    def steps(self, gram: Gram, groups: FeatureGroups, *, cost_blind: bool) -> tuple[tuple[int, ...], ...]:
        """Return the groups that each step adds, in order of computation; together they add every group once."""


class StackedCriterion(Criterion):
    """Scores of all groups of one size at once, from their own columns."""

    @abstractmethod
    def stacked(self, state: SelectionState, C: Float, rows: Index) -> Float:
        """Return the scores (k,) of groups from their rows (k, d), and their blocks C (k, d, d) if it needs them."""

    def scores(self, state: SelectionState) -> Float:
        scores = np.zeros(len(state.sizes))
        for each in state.classes:
            scores[each.groups] = self.stacked(state, each.blocks, each.rows)
        return scores

    def union_score(self, state: SelectionState, rows: Index) -> float:
        return float(self.stacked(state, state.conditional(rows)[np.newaxis], rows[np.newaxis])[0])


def gains(C: Float, b: Float, reference: Float) -> Float:
    """Return the gains (k,) of stacked blocks C (k, d, d) with gradients b (k, d, P) and references (k, d)."""
    if C.shape[1] == 1:
        pivot = C[:, :, 0]
        squares = np.square(b[:, 0, :]).sum(axis=1, keepdims=True)
        positive = pivot > RANK_TOLERANCE * reference
        return np.asarray(0.5 * np.divide(squares, pivot, out=np.zeros_like(pivot), where=positive)[:, 0])
    z = forward(C, b, reference).reshape(len(C), -1)
    return np.asarray(0.5 * np.einsum("kz,kz->k", z, z))


def gains_and_freedom(C: Float, b: Float, reference: Float, ridge: Float) -> tuple[Float, Float]:
    """Return the gains (k,) of stacked blocks, and their effective degrees of freedom tr(C^-1 (C - diag(ridge))), (k,).

    `ridge` (k, d) is the part of C's diagonal that is no covariance.
    """
    P = b.shape[2]
    own = np.broadcast_to(np.eye(C.shape[1]), C.shape)
    solved = forward(C, np.concatenate([b, own], axis=2), reference).transpose(0, 2, 1)
    inverse = np.square(solved[:, :, P:]).sum(axis=1)  # the diagonal of C^-1, 0 in dropped columns
    freedom = np.where(inverse > 0, 1.0 - ridge * inverse, 0.0).sum(axis=1)
    return 0.5 * np.square(solved[:, :, :P]).sum(axis=(1, 2)), freedom


def forward(C: Float, b: Float, reference: Float) -> Float:
    """Return (L^-1 b)' (k, P, d) of stacked blocks, in one call where no column is dropped.

    The factor of the bordered block  [[C, b], [b', M]]  has (L^-1 b)' in its last P rows for any sufficiently large M.
    One call therefore gives pivots and solution.
    """
    k, d, P = b.shape
    bordered = np.zeros((k, d + P, d + P))
    bordered[:, :d, :d] = C
    bordered[:, d:, :d] = b.transpose(0, 2, 1)
    bordered[:, range(d, d + P), range(d, d + P)] = BORDER
    try:
        L = np.linalg.cholesky(bordered)
    except np.linalg.LinAlgError:
        return _one_by_one(C, b, reference)
    pivots = np.square(np.diagonal(L[:, :d, :d], axis1=1, axis2=2))
    independent = (pivots > RANK_TOLERANCE * reference).all()
    return np.asarray(L[:, d:, :d]) if independent else _one_by_one(C, b, reference)


def _one_by_one(C: Float, b: Float, reference: Float) -> Float:
    return np.array([factorise(*block).forward(own).T for *block, own in zip(C, reference, b, strict=True)])


class ForwardRegression(StackedCriterion):
    """Forward regression (CS-G-FR): the exact gain in explained variance, 1/2 tr(b_g' C_{g|G}^-1 b_g).

    With C the covariance of a block of columns given the selection (Eq. 3) and b its gradient, the gain F(G + g) - F(G)
    is what the block adds to the explained variance. Columns whose pivot falls to rounding of their `reference`, the
    diagonal of the unconditional C, are *dropped*: they add nothing.
    """

    name = "fr"
    needs_blocks = True
    doubling_theorem = True

    def whitening_share(self, shares: Float) -> float:  # noqa: ARG002
        """Return nu of Theorem 3.2, which is 1."""
        return 1.0

    def stacked(self, state: SelectionState, C: Float, rows: Index) -> Float:
        return gains(C, state.b[rows], state.reference[rows])

    def lengths(self, scores: Float) -> Float:
        """Return the lengths of the projections, sqrt(tr(b_g' C_{g|G}^-1 b_g)): a gain is half of the square."""
        return np.sqrt(2.0 * scores)


class MallowsCp(StackedCriterion):
    """The expected gain on new rows, by Mallows' Cp: the gain less the degrees of freedom times a gradient's noise.

    The gain of forward regression is measured on the rows that chose it. A group of many columns without effect has a
    gain, too: in the mean 1/2 tr(C_{g|G}^-1 S_{g|G}) sigma^2/n, and its coefficients lower the explained variance of
    new rows by as much. The score is therefore

        1/2 tr(b_g' C_{g|G}^-1 b_g) - tr(C_{g|G}^-1 S_{g|G}) sigma^2/n,

    where S_{g|G} is C_{g|G} without the penalty of the group itself, so that the trace is its effective degrees of
    freedom, and sigma^2 is the variance of the residuals of the current model, summed over the responses: the decrease
    of Mallows' Cp (1973), or of the AIC, at each step. The sizes of groups are left open in the outlook of Group-OMP
    (Lozano, Swirszcz and Abe, NIPS 2009, section 5). The theorems on forward regression do not cover this score.

    A score is negative where a group is expected to do harm. Divided by the cost, the least harm per cost goes first,
    which is the order with the largest area under the expected curve.
    """

    name = "cp"
    needs_blocks = True

    def stacked(self, state: SelectionState, C: Float, rows: Index) -> Float:
        gain, freedom = gains_and_freedom(C, state.b[rows], state.reference[rows], state.ridge[rows])
        return gain - freedom * state.noise

    def lengths(self, scores: Float) -> Float:
        """Return the lengths of the projections beyond the noise: sqrt(2 score), or 0 where the score is negative."""
        return np.sqrt(2.0 * np.maximum(scores, 0.0))


def whitening(S: Float) -> Float:
    """Return T (..., d, d) with T T' = S^+ for stacked covariances S (..., d, d); null directions are zero columns."""
    values, vectors = np.linalg.eigh(S)
    positive = values > NULL_EIGENVALUE * np.maximum(values[..., -1:], 0.0)
    root = np.where(positive, 1.0 / np.sqrt(np.where(positive, values, 1.0)), 0.0)
    return np.asarray(vectors * root[..., np.newaxis, :])


class MatchingPursuit(StackedCriterion):
    """Orthogonal matching pursuit (CS-G-OMP): the whitened gradient, tr(b_g' S_g^+ b_g) (line 5 of Algorithm 1).

    It is the squared norm of the residual's projection onto a group's span, from the gradient only.
    """

    name = "omp"

    def __init__(self, S: Float | None = None) -> None:
        self._S = np.empty((0, 0)) if S is None else S
        self._whitening: dict[int, tuple[Index, Float]] = {}
        self._unions: dict[bytes, Float] = {}  # unions recur between steps

    def on(self, gram: Gram) -> Self:
        return type(self)(gram.S)

    def whitening_share(self, shares: Float) -> float:
        """Return nu of Theorem 3.2: OMP whitens by S_g only, without the penalty."""
        return float(shares.min() / shares.max())

    def stacked(self, state: SelectionState, C: Float, rows: Index) -> Float:  # noqa: ARG002
        """Return the scores (k,) of all remaining groups of one size; the first call whitens these."""
        (count, size), at = rows.shape, state.columns[rows]
        if size not in self._whitening:
            self._whitening[size] = at[:, 0], whitening(self._S[at[:, :, np.newaxis], at[:, np.newaxis, :]])
        firsts, T = self._whitening[size]
        if len(firsts) != count:
            T = T[np.searchsorted(firsts, at[:, 0])]
        whitened = (T.transpose(0, 2, 1) @ state.b[rows]).reshape(count, -1)
        return np.asarray(np.einsum("kz,kz->k", whitened, whitened))

    def union_score(self, state: SelectionState, rows: Index) -> float:
        columns = state.columns[rows]
        key = columns.tobytes()
        if key not in self._unions:
            self._unions[key] = whitening(self._S[np.ix_(columns, columns)])
        return float(np.sum(np.square(self._unions[key].T @ state.b[rows])))


class SingleFeature(Criterion):
    """The squared gradient of a group's best feature, max_d sum_p b_dp^2 (section 5.2).

    It underestimates groups whose features are informative only together.
    """

    name = "single"
    combine: ClassVar[np.ufunc] = np.maximum
    """Combines the squared gradients of a group's features."""

    def scores(self, state: SelectionState) -> Float:
        scores = np.zeros(len(state.sizes))
        remaining = state.remaining_groups
        scores[remaining] = self.combine.reduceat(np.square(state.b).sum(axis=1), state.starts[remaining])
        return scores

    def union_score(self, state: SelectionState, rows: Index) -> float:
        return float(self.combine.reduce(np.square(state.b[rows]).sum(axis=1), initial=0.0))


class GradientNorm(SingleFeature):
    """The squared norm of a group's gradient, |b_g|_F^2 (section 5.2).

    It overestimates groups that repeat a good feature.
    """

    name = "no-whiten"
    combine = np.add


CRITERIA: dict[str, type[Criterion]] = {
    kind.name: kind for kind in (MatchingPursuit, ForwardRegression, MallowsCp, SingleFeature, GradientNorm)
}
"""Every criterion by name."""


@cache
def methods() -> dict[str, type[Criterion] | type[PathMethod]]:
    """Return every selection method by name, also those of other packages: entry points of `anytime.methods`."""
    return {**CRITERIA, **{point.name: point.load() for point in entry_points(group="anytime.methods")}}


def method_of(method: Method | SelectionMethod) -> Criterion | PathMethod:
    """Return the method of a name such as "fr", or the object itself.

    Raises
    ------
    TrainingError
        There is no such method.
    """
    if isinstance(method, Criterion | PathMethod):
        if not getattr(method, "name", ""):
            raise TrainingError(f"method is a {type(method).__name__} without a name; add the attribute `name`")
        return method
    if isinstance(method, type) and issubclass(method, SelectionMethod):
        raise TrainingError(f"method is the class {method.__name__}; expected an object, {method.__name__}()")
    if isinstance(method, str) and (kind := CRITERIA.get(method) or methods().get(method)):
        return kind()
    raise TrainingError(
        f"method is {method!r}; expected one of {', '.join(methods())}"
        + (
            ""
            if TrainingError.names_flags
            else ", or an object of a class that extends anytime.selection.Criterion or PathMethod"
        )
    )
