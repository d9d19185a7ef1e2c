"""Generalised linear models as the paper's appendix B writes them, on the rows: slow, literal, and independent.

X is standardised, the responses are as they come, n is the sum of the weights, and

    r(W) = 1/n sum_i w_i (phi(W x_i) - y_i'W x_i) + alpha/2 |W|^2        Eq. 21, the intercept not penalised
    F(G) = min r over the intercept alone - min r over the intercept and the columns of G
    b_g  = 1/n sum_i w_i (y_i - grad phi(W x_i)) x_ig                     Eq. 22, at the optimum of G

For gamma and the negative binomial with their log link, the negative log-likelihood of a row is in the place of
phi(W x_i) - y_i'W x_i, and its negative derivative in that of y_i - grad phi(W x_i).

Every optimum begins at nothing and is found by damped Newton steps with explicit second derivatives. The multinomial
keeps its K classes side by side: what is common to all of them costs nothing in the intercepts, and is left alone by
the pseudo-inverse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from scipy.special import expit, logsumexp, softmax

from anytime.types import Float

__all__ = ["Family", "LikelihoodRows", "Minimum", "hessians", "losses", "means", "residuals"]

Family = Literal["gaussian", "binomial", "multinomial", "poisson", "gamma", "negative-binomial:0.5"]

SIZE = 2.0
"""The negative binomial's number of failures, 1/dispersion."""

NULL = 1e-13
"""Share of the largest eigenvalue under which one is zero."""


# The families: phi(eta) - y'eta, grad phi and its second derivatives, row by row.


def losses(family: Family, eta: Float, Y: Float) -> Float:
    """phi(eta) - y'eta of each row, or the negative log-likelihood without what does not depend on eta."""
    if family == "gamma":
        return np.asarray((eta + Y / np.exp(eta)).sum(axis=1))
    if family == "negative-binomial:0.5":
        p = SIZE / (SIZE + np.exp(eta))  # of a failure
        return np.asarray(-(SIZE * np.log(p) + Y * np.log(SIZE * np.exp(eta) / (SIZE + np.exp(eta)))).sum(axis=1))
    phi: dict[str, Callable[[], Any]] = {
        "gaussian": lambda: (eta**2).sum(axis=1) / 2,
        "binomial": lambda: np.logaddexp(0, eta).sum(axis=1),
        "multinomial": lambda: logsumexp(eta, axis=1),
        "poisson": lambda: np.exp(eta).sum(axis=1),
    }
    return np.asarray(phi[family]() - (Y * eta).sum(axis=1))


def means(family: Family, eta: Float) -> Float:
    """The expected responses."""
    if family == "gaussian":
        return eta
    if family == "multinomial":
        return np.asarray(softmax(eta, axis=1))
    return np.asarray(expit(eta) if family == "binomial" else np.exp(eta))


def residuals(family: Family, eta: Float, Y: Float) -> Float:
    """The negative derivative of the loss: y - grad phi, times the derivative of phi's argument if that is not eta."""
    mean = means(family, eta)
    return np.asarray((Y - mean) / {"gamma": mean, "negative-binomial:0.5": 1 + mean / SIZE}.get(family, 1.0))


def hessians(family: Family, eta: Float, Y: Float) -> Float:
    """Second derivatives of the loss, (rows, P, P)."""
    p = means(family, eta)
    if family == "multinomial":
        return np.array([np.diag(own) - np.outer(own, own) for own in p])
    curved: dict[str, Callable[[], Float]] = {
        "gaussian": lambda: np.ones_like(p),
        "binomial": lambda: expit(eta) * expit(-eta),
        "poisson": lambda: p,
        "gamma": lambda: Y / p,
        "negative-binomial:0.5": lambda: (Y + SIZE) * SIZE * p / (SIZE + p) ** 2,
    }
    return np.asarray(curved[family]()[:, :, np.newaxis] * np.eye(p.shape[1]))


# The optimum.


@dataclass(frozen=True, eq=False)
class Minimum:
    """Coefficients (columns + 1, P), the intercepts first, and the penalised mean loss there."""

    theta: Float
    objective: float


@dataclass(frozen=True, eq=False, repr=False)
class LikelihoodRows:
    """Standardised rows with responses (rows, P): a `models.literal.Problem`."""

    X: Float
    Y: Float
    family: Family
    alpha: float
    weights: Float | None = None
    _found: dict[tuple[int, ...], Minimum] = field(default_factory=dict)

    @property
    def w(self) -> Float:
        """Share of each row in the mean."""
        w = np.ones(len(self.X)) if self.weights is None else self.weights
        return np.asarray(w / w.sum())

    def minimum(self, columns: Sequence[int]) -> Minimum:
        """The optimum of some columns; asked for again it is not computed again."""
        key = tuple(sorted(columns))
        if key not in self._found:
            self._found[key] = self._minimum(key)
        return self._found[key]

    def coefficients(self, columns: Sequence[int]) -> Float:
        """(columns + 1, P), in the order of the columns."""
        theta = self.minimum(columns).theta
        return np.vstack([theta[:1], theta[1:][np.argsort(np.argsort(columns))]])

    def explained_variance(self, columns: Sequence[int]) -> float:
        """F(G) = R(empty) - R(G)."""
        return self.minimum([]).objective - self.minimum(columns).objective

    def gradient(self, selected: Sequence[int], columns: Sequence[int]) -> Float:
        """b_g at the optimum of the selected columns, (columns, P)."""
        residual = residuals(self.family, self._eta(selected), self.Y)
        return np.asarray(self.X[:, list(columns)].T @ (self.w[:, np.newaxis] * residual))

    def gram(self, columns: Sequence[int]) -> Float:
        """S_g = X_g'X_g/n: the weights are those of the rows, not those of the Hessian."""
        X = self.X[:, list(columns)]
        return np.asarray(X.T @ (self.w[:, np.newaxis] * X))

    def gain(self, selected: Sequence[int], columns: Sequence[int]) -> float:
        """The score test 1/2 b_g' H_{g|S}^-1 b_g, H_{g|S} being the Schur complement of the intercepts and S.

        For several classes H is Boehning's bound 1/2 I (x) X'X/n, which knows no intercepts.
        """
        P = self.Y.shape[1]
        b = self.gradient(selected, columns).ravel()
        if self.family == "multinomial":
            bound = 0.5 * self.gram([*selected, *columns]) + self.alpha * np.eye(len(selected) + len(columns))
            H, end = np.asarray(np.kron(bound, np.eye(P)), dtype=np.float64), len(selected) * P
        else:
            H, end = self._hessian([*selected, *columns], self._eta(selected)), (len(selected) + 1) * P
        S, g = slice(0, end), slice(end, None)
        given = H[g, g] - H[g, S] @ _inverse(H[S, S]) @ H[S, g]
        return float(b @ _inverse(given) @ b) / 2

    def _eta(self, columns: Sequence[int]) -> Float:
        return np.asarray(self._design(columns) @ self.coefficients(columns))

    def _design(self, columns: Sequence[int]) -> Float:
        return np.column_stack([np.ones(len(self.X)), self.X[:, list(columns)]])

    def _hessian(self, columns: Sequence[int], eta: Float) -> Float:
        """Second derivatives of r in all coefficients, that of column j and response p at j P + p."""
        Z, h = self._design(columns), hessians(self.family, eta, self.Y)
        d, P = Z.shape[1], eta.shape[1]
        H = np.einsum("i,ij,ipq,ik->jpkq", self.w, Z, h, Z, optimize=True).reshape(d * P, d * P)
        return np.asarray(H + np.diag(np.repeat([0.0, *[self.alpha] * (d - 1)], P)))

    def _objective(self, columns: Sequence[int], theta: Float) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            loss = float(self.w @ losses(self.family, self._design(columns) @ theta, self.Y))
        return loss + self.alpha / 2 * float(np.sum(theta[1:] ** 2))

    def _minimum(self, columns: Sequence[int]) -> Minimum:
        """Minimise by Newton's method from zero; halve a step that raises the objective."""
        Z = self._design(columns)
        ridge = np.array([0.0, *[self.alpha] * len(columns)])[:, np.newaxis]
        theta = np.zeros((Z.shape[1], self.Y.shape[1]))
        value = self._objective(columns, theta)
        for _ in range(500):
            eta = Z @ theta
            gradient = ridge * theta - Z.T @ (self.w[:, np.newaxis] * residuals(self.family, eta, self.Y))
            step = -(_inverse(self._hessian(columns, eta)) @ gradient.ravel()).reshape(theta.shape)
            promised = -float(np.sum(gradient * step))
            if promised <= 1e-20 * (1 + abs(value)):  # rounding leaves 1e-25; the last step squares the rest
                return Minimum(theta + step, value)
            while not self._objective(columns, theta + step) <= value + 1e-14 * (1 + abs(value)):
                step /= 2
            theta = theta + step
            value = self._objective(columns, theta)
        raise AssertionError(f"the literal optimum was not reached: {gradient}")


def _inverse(H: Float) -> Float:
    return np.asarray(np.linalg.pinv(H, rcond=NULL, hermitian=True), dtype=np.float64)
