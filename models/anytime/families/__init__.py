"""Families of generalised linear models: E[y|x] = grad phi(W x) (appendix B of the paper).

A family is its convex phi. What is minimised is the mean of phi(eta) - y'eta over the rows, with eta = W x and an
intercept that is not penalised, plus alpha/2 |W|^2. To add a family, write one file like `poisson.py`, give it a name
in `anytime.manifest.FamilyName` and an entry here.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from anytime.arrays import Float
from anytime.families.binomial import Binomial
from anytime.families.gaussian import Gaussian
from anytime.families.multinomial import Multinomial
from anytime.families.poisson import Poisson
from anytime.manifest import FamilyName, Link

__all__ = ["FAMILIES", "Family", "deviances"]


class Family(Protocol):
    """phi with its derivatives.

    A row has P responses y and Q free predictors eta; Q is P but for the multinomial, whose P predictors sum to 0.
    """

    name: FamilyName
    link: Link

    def predictors(self, responses: int) -> int:
        """Q, for P responses."""

    def start(self, mean: Float) -> Float:
        """Predictors (Q,) of the base rate: the link of the mean responses (P,)."""

    def saturated(self, Y: Float) -> Float:
        """The least loss (rows,) that responses Y (rows, P) allow: their own, when they are fitted perfectly."""

    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        """phi(eta) - y'eta (rows,), and its negative gradient in eta, y - grad phi (rows, Q)."""

    def hessian(self, eta: Float) -> Float:
        """Second derivatives of phi, (rows, Q, Q), positive semi-definite."""

    def bend(self, eta: Float, direction: Float) -> Float:
        """The second derivatives times a direction (rows, Q), row by row."""

    def scores(self, eta: Float) -> Float:
        """The predictors (rows, P) of the responses from the free ones (rows, Q); linear."""

    def mean(self, scores: Float) -> Float:
        """E[y|x] (rows, P) of scores (rows, P): the inverse link."""


FAMILIES: dict[FamilyName, Family] = {
    "gaussian": Gaussian(),
    "binomial": Binomial(),
    "multinomial": Multinomial(),
    "poisson": Poisson(),
}
"""Every family by its name."""


def deviances(family: Family, scores: Float, Y: Float) -> Float:
    """The deviance 2 (loss - saturated loss) of each row, from scores and responses (rows, P)."""
    basis = family.scores(np.eye(family.predictors(scores.shape[1])))
    # The basis is orthonormal, so its transpose takes scores back to the free predictors.
    with np.errstate(over="ignore", invalid="ignore"):
        loss, _ = family.loss(scores @ basis.T, Y)
    found: Float = 2.0 * (loss - family.saturated(Y))
    return found
