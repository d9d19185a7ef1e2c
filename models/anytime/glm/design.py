"""Designs: the rows of a table as a likelihood uses them, wherever they are stored, with as many passes as a fit needs.

Least squares needs the rows once. Other families need two passes for each step of Newton's method: one computes the
linear predictors of all rows, and one the derivatives there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from anytime.families import Family
from anytime.moments.moments import Gram
from anytime.types import Float, Index

DType: TypeAlias = type[np.float32] | type[np.float64]

Predictors: TypeAlias = Any
"""Linear predictors of all rows, in a representation private to the design."""


class Derivatives(NamedTuple):
    """The mean over the rows of phi(eta) - y'eta at some coefficients, without penalty, and its derivatives.

    `score` (d + 1, Q) is the negative gradient, the intercept's first. `hessian` ((d + 1) Q, same) has coefficient
    (j, q) at j Q + q; it is None if not requested.
    """

    loss: float
    score: Float
    hessian: Float | None = None


@dataclass(frozen=True)
class Totals:
    """Sums over all rows, including held-out ones.

    `responses` (P,) are sums without weights. `saturated` is the weighted sum of the smallest possible losses.
    """

    rows: int
    responses: Float
    saturated: float


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """A fold that is held out.

    Attributes
    ----------
    retained : tuple[int, ...]
        Codes of the classes whose rows of the fold are training rows: those without other rows.
    weight : float
        That of the training rows.
    centre : Float
        (D,) the means of the training rows in the units of the whole table; they replace missing values.
    """

    number: int
    retained: tuple[int, ...]
    weight: float
    centre: Float


class FoldSums(NamedTuple):
    """Sums at coefficients (F, d + 1, Q) of a fit for each of some folds.

    `losses` (F,) and `scores` (F, d + 1, Q) are means of the rows outside a fold, and `deviances` and `held` are the
    deviance and the score of the rows in it: sums.
    """

    losses: Float
    scores: Float
    deviances: Float
    held: Float


@dataclass(frozen=True, eq=False)
class Design(ABC):
    """Rows of a table, as one fit uses them.

    Attributes
    ----------
    gram : Gram
        Normal equations of the training rows, in standard units of their own.
    weight : float
        Sum of the weights of the training rows.
    ridge : Float
        (D,) the penalty of each coefficient in the units of the whole table, for alpha 1.
    held : HeldOutRows | None
        The held-out fold, or None.
    dtype : DType
        Of products for second derivatives, and of rows in memory.
    """

    gram: Gram
    family: Family
    weight: float
    ridge: Float
    held: HeldOutRows | None = None
    dtype: DType = np.float64

    @cached_property
    def single(self) -> Self:
        """Return the same rows in single precision."""
        return self if self.dtype == np.float32 else replace(self, dtype=np.float32)

    @property
    def predictors(self) -> int:
        """Return the number Q of free linear predictors of a row."""
        return self.family.predictors(len(self.gram.y_mean))

    def without(self, fold: int, gram: Gram, weight: float, retained: tuple[int, ...] = ()) -> Self:
        """Return the rows of the other folds, and those of `retained` classes; the penalty is in their own units."""
        held = HeldOutRows(fold, retained, weight, (gram.x_mean - self.gram.x_mean) / self.gram.x_scale)
        ridge = np.square(gram.x_scale / self.gram.x_scale)
        return replace(self, held=held, gram=gram, weight=weight, ridge=ridge)

    def in_order(self, columns: Index) -> Self:  # noqa: ARG002  (rows that are not copied stay as they are)
        """Return the rows for views of the first of some columns, which read no other columns between."""
        return self

    def stored_as(self, other: Self) -> Self:  # noqa: ARG002
        """Return the same rows, as another design of the table stores them."""
        return self

    @property
    def held_rows(self) -> HeldOutRows:
        """Return the held-out fold."""
        assert self.held is not None  # noqa: S101
        return self.held

    @property
    @abstractmethod
    def totals(self) -> Totals:
        """Return the sums over all rows."""

    @abstractmethod
    def view(self, columns: Index) -> View:
        """Return the same rows with some columns only, in that order."""


class View(ABC):
    """Some columns of a design, in some order."""

    def __init__(self, design: Design, columns: Index) -> None:
        self.design, self.columns, self.ridge = design, columns, design.ridge[columns]
        self.width = len(columns) + 1  # coefficients of each predictor, including the intercept

    @abstractmethod
    def predictors(self, theta: Float) -> Predictors:
        """Return the linear predictors of all rows at coefficients (d + 1, Q)."""

    @abstractmethod
    def moved(self, etas: Predictors, share: float, directions: Predictors) -> Predictors:
        """Return predictors of this view moved by `share` times the directions."""

    @abstractmethod
    def slope(self, etas: Predictors, directions: Predictors) -> tuple[float, float]:
        """Return the mean loss at some predictors, and its derivative in a direction."""

    @abstractmethod
    def evaluate(self, etas: Predictors, *, hessian: bool = False) -> Derivatives:
        """Return loss and score, and optionally the second derivatives, n (d Q)^2 operations: one pass.

        In single precision the second derivatives are precise to 1e-7 of their diagonal, in half the time.
        """

    @abstractmethod
    def hessian_product(self, etas: Predictors) -> Callable[[Float], Float]:
        """Return the product of the Hessian at some predictors with directions (d + 1, Q): 4 n d Q operations."""

    @abstractmethod
    def weighted_grams(self, etas: Predictors) -> Float:
        """Return Z'hZ/n (P, d + 1, d + 1), h the curvature in each score; of many columns, (1, ...) with its mean."""

    @abstractmethod
    def evaluate_folds(self, thetas: Float, folds: Sequence[HeldOutRows]) -> FoldSums:
        """Return the sums at coefficients `thetas` (F, d + 1, Q) for each of the folds: one pass over all rows."""

    @abstractmethod
    def fold_hessians(self, theta: Float, folds: Sequence[HeldOutRows]) -> Float:
        """Return the second derivatives of the rows of each fold, and last of all rows: sums (F + 1, (d + 1) Q, same).

        All are at the same coefficients theta (d + 1, Q).
        """
