"""Prefix models: the coefficients of every prefix of a sequence, centred and in raw units.

A prefix of k steps has the scores

    intercept + (x - mean)[columns[:ends[k]]] @ coef(k).

Prefix 0 is the base rate, the intercept alone. For least squares, scores are predictions and all prefixes share the
intercept, the mean response. In other families each prefix has its own intercept, and the inverse link turns scores
into predictions. Each prefix stores coefficients of its own columns only, so J prefixes of D columns take about
J D P / 2 numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from anytime._linalg import Factor, row_scores, solve_leading
from anytime.features.expansion import Expansion
from anytime.moments.moments import Gram, HeldOutMoments
from anytime.types import Float, Index

BATCH = 128
"""Right-hand sides solved at once; a batch needs no rows beyond its longest prefix."""


@dataclass(frozen=True)
class PrefixModels:
    """Linear models of the prefixes of one sequence.

    Attributes
    ----------
    mean : Float
        (D,) training means of the features, in the order of the groups file.
    scale : Float
        (D,) training deviations, 1 where a column is constant.
    intercept : Float
        (P,) scores of the base rate: the training means of the responses for least squares.
    response_scale : Float
        (P,) training deviations of the responses; 1 where constant, and in families other than Gaussian.
    columns : Index
        The features in the order in which the sequence computes them, all D or those of its steps.
    ends : Index
        (steps + 1,) number of `columns` that each prefix uses; `ends[0]` is 0.
    packed : Float
        (sum of ends, P) the coefficients, prefix after prefix.
    own_intercepts : Float | None
        (steps + 1, P) the intercept of each prefix; None where all share `intercept`.
    expansion : Expansion | None
        The raw columns, which the features are terms of; None if each column is its own term.
    """

    mean: Float
    scale: Float
    intercept: Float
    response_scale: Float
    columns: Index
    ends: Index
    packed: Float
    own_intercepts: Float | None = None
    expansion: Expansion | None = None

    @property
    def steps(self) -> int:
        return len(self.ends) - 1

    @property
    def scores(self) -> int:
        """Return the number of scores of all prefixes for one row."""
        return (self.steps + 1) * len(self.intercept)

    @cached_property
    def offsets(self) -> Index:
        """Return the row of `packed` where each prefix begins, (steps + 2,)."""
        return np.concatenate([[0], np.cumsum(self.ends)]).astype(np.intp)

    def coef(self, prefix: int) -> Float:
        """Return the coefficients of a prefix, (ends[prefix], P), for `columns[:ends[prefix]]` less their means."""
        return self.packed[self.offsets[prefix] : self.offsets[prefix + 1]]

    def intercept_of(self, prefix: int) -> Float:
        return self.intercept if self.own_intercepts is None else self.own_intercepts[prefix]

    def centred(self, X: Float, prefix: int) -> Float:
        """Return the terms (rows, ends[prefix]) of X (rows, columns), less their means; 0 where missing."""
        used = self.columns[: self.ends[prefix]]
        terms = (X if self.expansion is None else self.expansion.expand(X))[:, used] - self.mean[used]
        terms[np.isnan(terms)] = 0.0
        return terms

    def predict(self, X: Float, prefix: int) -> Float:
        """Return the scores (rows, P) of one prefix for X (rows, columns), columns as in the groups file."""
        return row_scores(self.centred(X, prefix).T, self.coef(prefix), self.intercept_of(prefix))

    def predict_all(self, X: Float) -> Float:
        """Return the scores (steps + 1, rows, P) of every prefix for X (rows, columns), in one product."""
        P = len(self.intercept)
        W = np.zeros((len(self.columns), self.steps + 1, P))
        for prefix, end in enumerate(self.ends):
            W[:end, prefix] = self.coef(prefix)
        scores = self.centred(X, self.steps) @ W.reshape(len(self.columns), -1)
        intercepts = self.intercept if self.own_intercepts is None else self.own_intercepts[:, np.newaxis]
        return intercepts + scores.reshape(len(X), self.steps + 1, P).transpose(1, 0, 2)

    def predict_each(self, X: Float) -> Float:
        """Return the same scores as `predict_all`, bit for bit those of `predict`: equal rows tie, at more cost."""
        terms = np.ascontiguousarray(self.centred(X, self.steps).T)
        return np.stack(
            [row_scores(terms[:end], self.coef(k), self.intercept_of(k)) for k, end in enumerate(self.ends.tolist())]
        )

    def upto(self, steps: int) -> PrefixModels:
        return replace(
            self,
            columns=self.columns[: self.ends[steps]],
            ends=self.ends[: steps + 1],
            packed=self.packed[: self.offsets[steps + 1]],
            own_intercepts=None if self.own_intercepts is None else self.own_intercepts[: steps + 1],
        )


def staircases(factor: Factor, z: Float, ends: Index) -> Iterator[tuple[slice, Float]]:
    """Yield the coefficients of some prefixes of one factored C at a time, in standard units: W (prefixes, P, longest).

    w(G_k) = L_k^-T z_k, where L_k is the leading block of L: one triangular solve with z truncated at the end of each
    prefix. L^T is upper triangular, so the truncated entries stay zero. Empty prefixes may be left out.
    """
    batch = max(1, BATCH // z.shape[1])
    for start in range(0, len(ends), batch):
        stops = ends[start : start + batch]
        longest = int(stops.max(initial=0))
        if longest == 0:
            continue
        cut = np.arange(longest) < stops[:, np.newaxis]  # (batch, longest)
        W = np.ascontiguousarray(np.where(cut[:, np.newaxis], z.T[:, :longest], 0.0))  # rows, as BLAS wants them
        solve_leading(factor, W.reshape(-1, longest))
        yield slice(start, start + len(stops)), W


def staircase(factor: Factor, z: Float, ends: Index) -> Float:
    """Return the coefficients of every prefix of one factored C, W (steps + 1, D, P), zero-padded."""
    D, P = z.shape
    W = np.zeros((len(ends), P, D))
    for at, part in staircases(factor, z, ends):
        W[at, :, : part.shape[2]] = part
    return W.transpose(0, 2, 1)


def prefix_models(gram: Gram, columns: Index, ends: Index, W: Float) -> PrefixModels:
    """Return prefix models in raw units from W (steps + 1, D, P) in standard units, columns in selection order."""
    unit = gram.y_scale / gram.x_scale[columns, np.newaxis]
    return PrefixModels(
        mean=gram.x_mean,
        scale=gram.x_scale,
        intercept=gram.y_mean,
        response_scale=gram.y_scale,
        columns=columns,
        ends=ends,
        packed=np.concatenate([W[k, :end] * unit[:end] for k, end in enumerate(ends.tolist())]),
    )


def explained_variances(models: PrefixModels, held: HeldOutMoments) -> Float:
    """Return q'w - 1/2 w'S w (steps + 1, P) of the coefficients w of least-squares models, in training scales.

    It is the explained variance on a table without penalty: half of the reduction of the mean squared error below that
    of the base rate.
    """
    columns, P = models.columns, len(models.intercept)
    S, q = held.S[np.ix_(columns, columns)], held.q[columns]
    unit = models.scale[columns, np.newaxis] / models.response_scale
    found = np.zeros((len(models.ends), P))
    batch = max(1, BATCH // P)
    for start in range(0, len(models.ends), batch):
        ends = models.ends[start : start + batch].tolist()
        longest = ends[-1]
        W = np.zeros((longest, len(ends), P))
        for k, end in enumerate(ends):
            W[:end, k] = models.coef(start + k) * unit[:end]
        fitted = (S[:longest, :longest] @ W.reshape(longest, len(ends) * P)).reshape(W.shape)
        found[start : start + len(ends)] = np.sum(W * (q[:longest, np.newaxis] - 0.5 * fitted), axis=0)
    return found
