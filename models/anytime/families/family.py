"""What a family of generalised linear models is: E[y|x] is the inverse link of W x (appendix B of the paper).

A family is defined by a loss that is convex in eta = W x. Training minimises its mean over the rows, with an
unpenalised intercept, plus alpha/2 |W|^2. For the paper's families the loss is phi(eta) - y'eta, whose gradient is the
mean less y.

Everything that depends on the family is a method or an attribute of its class, and all other code uses these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from anytime.errors import TrainingError
from anytime.types import Bool, FamilyName, Float, Task


@dataclass(frozen=True)
class Link:
    """A link function: its name in files and exports, what the score is in words, and the inverse in C.

    `code` sets `output`, the predictions of one row, from its `scores`. `${NAME}` begins the model's constants.
    """

    name: str
    score: str
    code: str


class Family(ABC):
    """A family: its loss with derivatives, its responses, its predictions and its words.

    A row has P responses y and Q free predictors eta. Q is P except for the multinomial, whose P predictors sum to 0.
    The loss is linear in the responses, as that of every exponential family, so its mean over rows of equal eta is that
    of their mean response.
    """

    name: ClassVar[FamilyName]
    """The name on the command line, in estimators and in model files."""
    tasks: ClassVar[tuple[Task, ...]]
    """The tasks that it fits; a family of one task determines the task of a target."""
    link: ClassVar[Link]

    least_squares: ClassVar[bool] = False
    """Whether moments determine the fit; otherwise it reads the rows again."""
    by_class: ClassVar[bool] = False
    """Whether folds have equal shares of the classes."""
    one_column: ClassVar[bool] = True
    """Whether a target has one column only."""
    known_variance: ClassVar[bool] = True
    """Whether the mean determines the variance of a response; otherwise the mean deviance estimates its factor."""
    extrapolates: ClassVar[bool] = True
    """Whether lines may go on beyond the training range: there, means grow as the scores, not faster."""
    even_score: ClassVar[float] = 0.0
    """The score at which two classes are equally likely."""
    shares: ClassVar[bool] = False
    """Whether the means p of a row sum to 1: its second derivatives in the scores are then diag p - p p'."""

    least: ClassVar[float] = -np.inf
    """The lower bound of the responses."""
    noun: ClassVar[str] = "response"
    expected: ClassVar[str] = "numbers"
    """What responses are, in error messages."""
    explained: ClassVar[str] = "deviance explained"
    """The measure of a prefix, as a share: 1 - deviance/null deviance."""
    error: ClassVar[str] = "deviance"
    """The measure of the errors of cross-validation."""

    @classmethod
    def of(cls, parameter: str | None) -> Self:
        """Return the family that a name with a parameter, as `name:parameter`, states; most have no parameter."""
        if parameter is not None:
            raise TrainingError(f"family is {f'{cls.name}:{parameter}'!r}; expected {cls.name!r} without a parameter")
        return cls()

    @cached_property
    def label(self) -> FamilyName:
        """The name with its parameter, as model files store it."""
        return self.name

    def predictors(self, responses: int) -> int:
        """Return Q for P responses."""
        return responses

    def valid(self, Y: Float) -> Bool:
        """Return whether each response is possible, in the shape of Y."""
        return np.asarray(self.least <= Y)

    @abstractmethod
    def start(self, mean: Float) -> Float:
        """Return the predictors (Q,) of the base rate, the link of the mean responses (P,); not finite without one."""

    @np.errstate(divide="ignore", invalid="ignore")
    def has_base_rate(self, mean: Float) -> bool:
        """Return whether the base rate of some mean responses (P,) has finite predictors."""
        return bool(np.isfinite(self.start(mean)).all())

    @abstractmethod
    def saturated(self, Y: Float) -> Float:
        """Return the smallest possible loss (rows,) of responses Y (rows, P): that of a perfect fit."""

    @abstractmethod
    def loss(self, eta: Float, Y: Float) -> tuple[Float, Float]:
        """Return the loss (rows,) of predictors eta and responses Y (rows, P), and its negative gradient (rows, Q)."""

    @abstractmethod
    def curvature(self, eta: Float, Y: Float) -> Float:
        """Return the second derivatives p of the loss in the scores, (rows, P), or the means if they are `shares`."""

    def contrasts(self, predictors: int) -> Float:
        """Return B (Q, P) with orthonormal rows; the scores of the responses are eta B."""
        return np.eye(predictors)

    def scores(self, eta: Float) -> Float:
        """Return the predictors (rows, P) of the responses from the free ones (rows, Q)."""
        return np.asarray(eta @ self.contrasts(eta.shape[1]))

    def hessian(self, eta: Float, Y: Float) -> Float:
        """Return the second derivatives of the loss in eta, (rows, Q, Q), positive semi-definite: B diag(p) B'.

        Of `shares` they are B (diag p - p p') B'. Responses are rows here and below: sums over a few classes take a
        tenth of the time.
        """
        B, p = self.contrasts(eta.shape[1]).astype(eta.dtype), self.curvature(eta, Y).T
        squares = (B[:, np.newaxis] * B).reshape(-1, B.shape[1])
        h = (squares @ p).reshape(len(B), len(B), -1)
        if self.shares:
            mean = B @ p
            h -= mean[:, np.newaxis] * mean
        return np.asarray(h.transpose(2, 0, 1))

    def diagonal(self, eta: Float, Y: Float) -> Float:
        """Return the second derivatives in each score alone, (rows, P); their sum is the trace of the Hessian."""
        p = self.curvature(eta, Y)
        return p * (1.0 - p) if self.shares else p

    def hessian_product(self, eta: Float, Y: Float) -> Callable[[Float], Float]:
        """Return the product of the second derivatives with directions (rows, Q), row by row."""
        B, p = self.contrasts(eta.shape[1]).astype(eta.dtype), self.curvature(eta, Y).T

        def product(direction: Float) -> Float:
            s = B.T @ direction.T
            if self.shares:
                s -= np.einsum("ki,ki->i", p, s)
            return np.asarray((B @ (p * s)).T)

        return product

    @abstractmethod
    def mean(self, scores: Float) -> Float:
        """Return E[y|x] (rows, P) from scores (rows, P): the inverse link."""

    @np.errstate(invalid="ignore", under="ignore")  # overflowed scores give NaN, which those who send answers check for
    def probabilities(self, scores: Float) -> Float:
        """Return class probabilities (rows, classes); a single score is that of the second of two classes."""
        mean = self.mean(scores)
        return np.hstack([1.0 - mean, mean]) if mean.shape[1] == 1 else mean

    def deviation(self, mean: Float, scale: Float) -> Float:  # noqa: ARG002
        """Return the unit of calibrated intervals, which broadcasts to the means (rows, P): a standard deviation.

        `scale` (P,) are the standard deviations of the training responses.
        """
        return scale

    @np.errstate(over="ignore", invalid="ignore", under="ignore")
    def deviances(self, scores: Float, Y: Float) -> Float:
        """Return the deviance 2 (loss - saturated loss) of each row, from scores and responses (rows, P)."""
        basis = self.contrasts(self.predictors(scores.shape[1]))
        # The basis is orthonormal, so its transpose maps scores to the free predictors.
        loss, _ = self.loss(scores @ basis.T, Y)
        return 2.0 * (loss - self.saturated(Y))

    def output_code(self, classes: bool, scores: int) -> str:  # noqa: ARG002
        """Return the C code of the predictions from the `scores` of a row, as `Link.code`."""
        return self.link.code
