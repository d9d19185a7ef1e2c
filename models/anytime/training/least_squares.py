"""Training by least squares: from the moments of the folds, without another pass over the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from anytime._linalg import factorise, factorise_into, single_blas_thread
from anytime.model.prefixes import PrefixModels, explained_variances, prefix_models, staircase, staircases
from anytime.moments.moments import Gram, HeldOutMoments, Moments
from anytime.selection import FactoredOrder, GroupOrder, sequencer, swept
from anytime.selection.kernels import Kernels, kernel_sequencer, rotated_rows, rows_are_fewer
from anytime.training.model_selection import Choice, Learned, Problem, with_rows
from anytime.types import Float, Index

MIN_PARALLEL_COLUMNS = 400
"""Number of columns from which threads share out orders and folds: they wait for each other between small products."""


@dataclass(frozen=True)
class Fold:
    """A held-out fold for least squares: the problem of the others, and its second moments in their standard units."""

    train: Gram
    held: HeldOutMoments

    @property
    def weight(self) -> float:
        return self.held.weight

    def errors(
        self, columns: Index, ends: Index, alphas: Sequence[float], longest: Sequence[int] | None = None
    ) -> Float:
        """Return mean squared errors, (alphas, steps + 1); one Cholesky factorisation per penalty."""
        C, q = self.train.penalised(0.0, columns)
        S = self.held.S.take(columns, axis=0).take(columns, axis=1)
        held_q = self.held.q[columns]
        errors = np.full((len(alphas), len(ends), len(self.held.yy)), np.inf)
        for alpha, steps, of_alpha in zip(alphas, longest or [len(ends) - 1] * len(alphas), errors, strict=True):
            width = ends[steps]
            L = C[:width, :width].copy(order="F")
            diagonal = np.einsum("ii->i", L)
            diagonal += alpha
            factor = factorise_into(L, diagonal.copy())
            of_alpha[: steps + 1] = self.held.yy
            for at, W in staircases(factor, factor.forward(q[:width]), ends[: steps + 1]):
                d = W.shape[2]
                slope = (W.reshape(-1, d) @ S[:d, :d]).reshape(W.shape) - 2 * held_q[:d].T
                of_alpha[at] += np.einsum("kpd,kpd->kp", W, slope)  # sum_p (yy - 2 q'w + w'S w)
        # A mean of squares is negative only by rounding.
        return np.asarray((np.maximum(errors, 0.0) * np.square(self.train.y_scale)).mean(axis=2))


class KernelFold(Fold):
    """A held-out fold with fewer rows than columns: one Cholesky factorisation of a kernel per penalty and prefix."""

    @cached_property
    def _rows(self) -> tuple[Kernels, Float]:
        return Kernels.of(self.train), rotated_rows(self.held.S)[0]

    def errors(
        self, columns: Index, ends: Index, alphas: Sequence[float], longest: Sequence[int] | None = None
    ) -> Float:
        """Return mean squared errors, (alphas, steps + 1); penalties are at least 1e-9."""
        kernels, held = self._rows
        A, B, q = kernels.A[:, columns], held[:, columns], self.held.q[columns]
        last = np.array(longest or [len(ends) - 1] * len(alphas))
        errors = np.full((len(alphas), len(ends), len(self.held.yy)), np.inf)
        errors[:, 0] = self.held.yy
        K = np.zeros((len(A), len(A)))
        for prefix, (start, end) in enumerate(pairwise(ends.tolist()), start=1):
            if start < end:
                K += kernels.of_columns(columns[start:end])
            for i in np.flatnonzero(last >= prefix).tolist():
                if start == end:
                    errors[i, prefix] = errors[i, prefix - 1]
                    continue
                w = np.dot(A[:, :end].T, kernels.factor(K, alphas[i]).solve(kernels.y))
                errors[i, prefix] = (
                    self.held.yy + np.sum((B[:, :end] @ w) ** 2, axis=0) - 2 * np.sum(q[:end] * w, axis=0)
                )
        return np.asarray((np.maximum(errors, 0.0) * np.square(self.train.y_scale)).mean(axis=2))


def split(parts: Sequence[Moments], kind: type[Fold] = Fold, held: Sequence[Moments] | None = None) -> list[Fold]:
    """Hold out each of the parts in turn, skip parts without rows; `held` are their moments as new rows have them."""
    full = with_rows(parts)
    folds = []
    for f in full:
        train = Gram.of(Moments.merged([parts[g] for g in full if g != f]))
        folds.append(kind(train, train.held_out_moments((held or parts)[f])))
    return folds


@dataclass(frozen=True, eq=False)
class LearnedSquares(Learned):
    """Least squares as a model file stores it: the moments, which every other set of groups is solved from."""

    moments: Moments
    gram: Gram
    prefixes: PrefixModels
    deviance = no_guarantee = None

    @cached_property
    def r2(self) -> Float | None:
        held = self.gram.own
        with single_blas_thread():
            return held.r2(explained_variances(self.prefixes, held))

    def stored(self, columns: Index) -> dict[str, Any]:
        return {"moments": self.moments.restricted(columns)}


@dataclass(frozen=True, eq=False)
class LeastSquares(Problem[Gram, FactoredOrder]):
    """Least squares: the moments are sufficient."""

    @property
    def data(self) -> Gram:
        return self.terms.gram

    @property
    def n_jobs(self) -> int | None:
        return self.options.n_jobs if len(self.groups.features) >= MIN_PARALLEL_COLUMNS else 1

    @cached_property
    def _by_kernels(self) -> bool:
        sizes = self.terms.moments.rows, len(self.groups.features), len(self.groups)
        return self.options.rule.scores_gains and rows_are_fewer(*sizes) and self.options.alpha == "cv"

    @cached_property
    def folds(self) -> list[Fold]:
        if len(self.terms.parts) == 1:
            return []
        return split(self.terms.parts, KernelFold if self._by_kernels else Fold, self.terms.held)

    def orders(self, data: Gram) -> Callable[[float], GroupOrder]:
        learn = kernel_sequencer if self._by_kernels else sequencer
        return learn(data, self.groups, self.options.rule)

    def solved(self, choice: Choice[Any]) -> Choice[FactoredOrder]:
        if not self._by_kernels:
            return choice
        return replace(choice, sequence=swept(self.data, self.groups, choice.sequence, choice.alpha))

    def prefixes(self, choice: Choice[FactoredOrder]) -> PrefixModels:
        """Return the coefficients of each prefix; the order's own penalty reuses its Cholesky factor."""
        gram, order = self.data, choice.sequence
        W = staircase(order.state.factor, order.state.z, order.ends)
        for alpha in np.unique(choice.alphas[choice.alphas != choice.alpha]):
            at: Index = np.flatnonzero(choice.alphas == alpha)
            C, q = gram.penalised(float(alpha), order.columns)
            factor = factorise(C, np.diagonal(C))
            W[at] = staircase(factor, factor.forward(q), order.ends[at])
        return prefix_models(gram, order.columns, order.ends, W)

    def learned(self, choice: Choice[FactoredOrder], prefixes: PrefixModels) -> Learned:  # noqa: ARG002
        return LearnedSquares(self.terms.moments, self.data, prefixes)
