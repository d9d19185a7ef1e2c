"""Training by least squares: from the moments of the folds, without another pass over the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from operator import call
from typing import Any

import numpy as np

from anytime._linalg import factorise, factorise_into
from anytime.model.prefixes import PrefixModels, prefix_models, staircase, staircases
from anytime.moments.accumulate import in_threads
from anytime.moments.moments import Gram, HeldOutMoments, Moments
from anytime.selection import FactoredOrder, GroupOrder, sequencer, swept
from anytime.selection.kernels import Kernels, kernel_sequencer, rotated_rows
from anytime.training.model_selection import Choice, Problem, Request, others, with_rows
from anytime.types import Float, Index


@dataclass(frozen=True)
class Fold:
    """A held-out fold for least squares: the problem of the others, and its second moments in their standard units."""

    train: Gram
    held: HeldOutMoments
    weight: float

    def errors(
        self, columns: Index, ends: Index, alphas: Sequence[float], longest: Sequence[int] | None = None
    ) -> Float:
        """Return mean squared errors, (alphas, steps + 1); one Cholesky factorisation for each penalty."""
        S = self.held.S.take(columns, axis=0).take(columns, axis=1)
        held_q = self.held.q[columns]
        errors = np.full((len(alphas), len(ends), len(self.held.yy)), np.inf)
        C, q = self.train.penalised(0.0, columns)
        for of_alpha, alpha, steps in zip(errors, alphas, longest or [len(ends) - 1] * len(alphas), strict=True):
            used = ends[: steps + 1]
            width = int(used[-1])
            L = C[:width, :width].copy(order="F")
            diagonal = np.einsum("ii->i", L)
            diagonal += alpha
            factor = factorise_into(L, diagonal.copy())
            of_alpha[: steps + 1] = self.held.yy
            for at, W in staircases(factor, factor.forward(q[:width]), used):
                d = W.shape[2]
                slope = (W.reshape(-1, d) @ S[:d, :d]).reshape(W.shape) - 2 * held_q[:d].T
                of_alpha[at] += np.einsum("kpd,kpd->kp", W, slope)  # sum_p (yy - 2 q'w + w'S w)
        # A mean of squares is negative only by rounding.
        return np.asarray((np.maximum(errors, 0.0) * np.square(self.train.y_scale)).mean(axis=2))


@dataclass(frozen=True, eq=False)
class KernelFold:
    """A held-out fold of fewer rows than columns: the kernels of the others, and its rows as `rotated_rows`."""

    train: Kernels
    held: Float
    _known: dict[bytes, Float] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        return float(self.held[0, 0] ** 2)

    @cached_property
    def _rows(self) -> tuple[Float, Float]:
        """Return the columns and the responses of the held-out rows in the units of the others."""
        return self.train.held_out(self.held)

    def _across(self, columns: Index) -> Float:
        """Return the products of the held-out rows with the others over some columns, (held, r)."""
        key = columns.tobytes()
        if key not in self._known:
            self._known[key] = self._rows[0][:, columns] @ self.train.A[:, columns].T
        return self._known[key]

    def errors(
        self, columns: Index, ends: Index, alphas: Sequence[float], longest: Sequence[int] | None = None
    ) -> Float:
        """Return mean squared errors, (alphas, steps + 1); penalties are at least 1e-9.

        One Cholesky factorisation per penalty and prefix, of its kernel or of its second moments.
        """
        (X, y), kernels = self._rows, self.train
        last = np.array(longest or [len(ends) - 1] * len(alphas))
        errors = np.full((len(alphas), len(ends), y.shape[1]), np.inf)
        errors[:, 0] = np.square(y).sum(axis=0)
        r = len(kernels.A)
        K, across, memory = np.zeros((r, r)), np.zeros((len(X), r)), np.empty((r, r), order="F")
        for prefix, (start, end) in enumerate(pairwise(ends.tolist()), start=1):
            measured = np.flatnonzero(last >= prefix).tolist()
            if start == end:
                errors[measured, prefix] = errors[measured, prefix - 1]
                continue
            K += kernels.of_columns(columns[start:end])
            across += self._across(columns[start:end])
            used = columns[:end]
            few = len(measured) * (r**3 - end**3) > 3 * r * end**2
            penalties, rows = [alphas[i] for i in measured], X[:, used] if few else across
            solve = kernels.coefficients if few else partial(kernels.solutions, K, memory)
            for i, solution in zip(measured, solve(used, penalties), strict=True):
                errors[i, prefix] = np.square(y - rows @ solution).sum(axis=0)
        return np.asarray((errors * np.square(kernels.scale[len(kernels.A.T) :])).mean(axis=2))


def split(parts: Sequence[Moments]) -> list[Fold]:
    """Hold out each of the parts in turn; skip parts without rows."""
    held = [parts[f] for f in with_rows(parts)]
    trains = zip(map(Gram.of, others(held)), held, strict=True)
    return [Fold(train, train.held_out_moments(part), part.weight) for train, part in trains]


def rows_are_fewer(rows: int, columns: int, groups: int) -> bool:
    """Return whether kernels of so many rows take less time, and no more memory, than the moments of the columns."""
    return groups * rows**2 <= 3 * columns**2 and groups**2 * rows**3 <= 10 * columns**3


@dataclass(frozen=True, eq=False)
class LeastSquares(Problem[Gram | Kernels, FactoredOrder]):
    """Least squares: the moments are sufficient."""

    @property
    def data(self) -> Gram | Kernels:
        return Kernels.of([*self._rows.values()], self.terms.moments) if self.by_kernels else self.terms.gram

    @cached_property
    def by_kernels(self) -> bool:
        """Return whether rows are so few that the folds are measured on them, rather than on moments."""
        sizes = self.terms.moments.rows, len(self.groups.features), len(self.groups)
        return self.options.scores_gains and rows_are_fewer(*sizes) and self.options.alpha == "cv"

    @cached_property
    def _rows(self) -> dict[int, Float]:
        """Return the rotated rows of each fold with rows."""
        parts, like = self.terms.parts, self.terms.moments
        return {f: rotated_rows(parts[f].with_indicators(like.missing).refilled(like.fill)) for f in with_rows(parts)}

    @cached_property
    def folds(self) -> Sequence[Fold | KernelFold]:
        if len(self.terms.parts) == 1:
            return []
        if not self.by_kernels:
            return split(self.terms.parts)
        rows, like = self._rows, self.terms.moments
        return [KernelFold(Kernels.of([rows[g] for g in rows if g != f], like), held) for f, held in rows.items()]

    def orders(self, data: Gram | Kernels) -> Callable[[float], GroupOrder]:
        if isinstance(data, Kernels):
            return kernel_sequencer(data, self.groups, self.options)
        return sequencer(data, self.groups, self.options)

    def errors(self, requests: Sequence[Request]) -> Iterator[Float]:
        tasks = [
            partial(fold.errors, order.columns, order.ends, alphas, longest)
            for order, alphas, longest in requests
            for fold in self.folds
        ]
        errors = in_threads(call, tasks, self.n_jobs)
        for _ in requests:
            yield np.array([next(errors) for _ in self.folds])

    def solved(self, choice: Choice[Any]) -> Choice[FactoredOrder]:
        if not self.by_kernels:
            return choice
        self.__dict__.pop("folds", None)  # of much memory, and made again when they are needed
        return replace(choice, sequence=swept(self.terms.gram, self.groups, choice.sequence, choice.alpha))

    def prefixes(self, choice: Choice[FactoredOrder]) -> PrefixModels:
        """Return the coefficients of each prefix; the order's own penalty reuses its Cholesky factor."""
        gram, order = self.terms.gram, choice.sequence
        W = staircase(order.state.factor, order.state.z, order.ends)
        for alpha in np.unique(choice.alphas[choice.alphas != choice.alpha]):
            at: Index = np.flatnonzero(choice.alphas == alpha)
            C, q = gram.penalised(float(alpha), order.columns)
            factor = factorise(C, np.diagonal(C))
            W[at] = staircase(factor, factor.forward(q), order.ends[at])
        return prefix_models(gram, order.columns, order.ends, W)
