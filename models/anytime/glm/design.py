"""The rows of a table as a likelihood sees them, wherever they are: gone over as often as a fit needs.

Least squares needs the rows once. Other families need passes for each step of Newton's method: one that brings the
linear predictors of all rows, and one that brings the derivatives there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

import numpy as np

from anytime.glm.families import Family
from anytime.moments.gram import Gram
from anytime.types import Float, Index

__all__ = [
    "Design",
    "Evaluation",
    "Predictors",
    "Totals",
    "View",
]

Predictors: TypeAlias = Any
"""Linear predictors of all rows; what holds them is for the design to know."""


@dataclass(frozen=True)
class Evaluation:
    """The mean loss at some coefficients, without penalty, and its derivatives.

    Attributes
    ----------
    loss : mean over the rows of phi(eta) - y'eta.
    score : (d + 1, Q) the negative gradient, the intercept's first.
    hessian : ((d + 1) Q, same) second derivatives, coefficient (j, q) at j Q + q; None where not asked for.
    """

    loss: float
    score: Float
    hessian: Float | None = None


@dataclass(frozen=True)
class Totals:
    """Sums over all rows, those held out among them.

    Attributes
    ----------
    rows : how many.
    responses : (P,) without weights.
    saturated : weight times the loss that no model can undercut.
    """

    rows: int
    responses: Float
    saturated: float


@dataclass(frozen=True, eq=False)
class Design(ABC):
    """Rows of a table, as one fit sees them.

    Attributes
    ----------
    gram : normal equations of the training rows, in standard units of their own.
    family : the likelihood.
    weight : sum of the weights of the training rows.
    ridge : (D,) the penalty of each coefficient in the units of the whole table, for alpha 1.
    held : fold that is left out, or None.
    centre : (D,) the means of the training rows in the units of the whole table, which fill what is missing.
    """

    gram: Gram
    family: Family
    weight: float
    ridge: Float
    held: int | None = None
    centre: Float | None = None

    @property
    def predictors(self) -> int:
        """Free linear predictors Q of a row."""
        return self.family.predictors(len(self.gram.y_mean))

    def without(self, fold: int, gram: Gram, weight: float) -> Self:
        """The rows of the other folds; the penalty is on standard units of their own."""
        ridge = np.square(gram.x_scale / self.gram.x_scale)
        centre = (gram.x_mean - self.gram.x_mean) / self.gram.x_scale
        return replace(self, held=fold, gram=gram, weight=weight, ridge=ridge, centre=centre)

    @property
    @abstractmethod
    def fold_jobs(self) -> int | None:
        """How many passes, for several folds, are best made at once, as joblib counts threads."""

    @property
    @abstractmethod
    def totals(self) -> Totals:
        """Sums over all rows."""

    @abstractmethod
    def view(self, columns: Index) -> View:
        """The same rows with some columns only, in that order."""


class View(ABC):
    """Some columns of a design, in some order."""

    def __init__(self, columns: Index, ridge: Float) -> None:
        self.columns, self.ridge = columns, ridge

    @property
    def width(self) -> int:
        """Coefficients of each predictor, the intercept among them: d + 1."""
        return len(self.columns) + 1

    @abstractmethod
    def predictors(self, theta: Float) -> Predictors:
        """Linear predictors of all rows at coefficients (d + 1, Q)."""

    @abstractmethod
    def moved(self, etas: Predictors, share: float, directions: Predictors) -> Predictors:
        """Predictors a share of the way along others, made by this view as they were."""

    @abstractmethod
    def loss(self, etas: Predictors) -> float:
        """Mean loss at some predictors."""

    @abstractmethod
    def slope(self, etas: Predictors, directions: Predictors) -> tuple[float, float]:
        """Mean loss at some predictors, and its derivative in a direction."""

    @abstractmethod
    def evaluate(self, etas: Predictors, *, hessian: bool = False) -> Evaluation:
        """Loss and score at some predictors, and on demand the second derivatives, n (d Q)^2 operations: one pass."""

    @abstractmethod
    def products(self, etas: Predictors) -> Callable[[Float], Float]:
        """The Hessian at some predictors as a function of a direction (d + 1, Q), one pass of 4 n d Q operations."""

    @abstractmethod
    def weighted_gram(self, etas: Predictors) -> Float:
        """Z'hZ/n (d + 1, d + 1) with the mean curvature h over the predictors, one number a row."""

    @abstractmethod
    def held_deviance(self, theta: Float) -> float:
        """Sum over the rows of the fold held out of weight times deviance."""
