"""Problems with likelihoods: tables with classes or counts, small and as unpleasant as real ones are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from anytime.families import family_of
from anytime.glm.row_blocks import BlockDesign, row_blocks_of
from anytime.groups import FeatureGroups
from anytime.moments.accumulate import Block, moments_of
from anytime.moments.moments import Gram
from anytime.target import Target
from anytime.training.fit import Fit, fit
from anytime.training.likelihood import Observed
from anytime.training.options import Options
from anytime.types import Float
from models import literal
from models.literal import Method
from models.literal_likelihood import Family, LikelihoodRows
from models.problems import any_groups, grouped, messy_table, weighted_by

__all__ = [
    "KINDS",
    "METHODS",
    "NUMBERS",
    "OPTIMUM",
    "Case",
    "cases",
    "clean",
    "coefficients",
    "design_of",
    "order_of",
    "responses",
]

METHODS: tuple[Method, ...] = ("omp", "fr", "single", "no-whiten")
NUMBERS: tuple[Family, ...] = ("poisson", "gamma", "negative-binomial:0.5")
"""The families of one response that is no class."""

KINDS: tuple[Family, ...] = ("binomial", "multinomial", *NUMBERS)

OPTIMUM = 1e-5
"""Tolerance of coefficients, as a share of 1 and the largest.

`anytime.glm.newton` stops when the next step promises 1e-14 of the loss. Coefficients are the root of that, 1e-7, from
the optimum, divided by the root of the least curvature. That is no rounding, and is the same under every kernel.
"""


@dataclass(frozen=True, eq=False)
class Case:
    """A table with responses (rows, P) of a family: a class as its indicators, of two classes that of the second."""

    family: Family
    X: Float = field(repr=False)
    Y: Float = field(repr=False)
    weights: Float | None = field(repr=False)
    groups: FeatureGroups
    alpha: float

    def rows(self, kind: type[LikelihoodRows] = LikelihoodRows) -> LikelihoodRows:
        X, _ = literal.standardise(self.X, self.Y, self.weights)
        return kind(X, self.Y, self.family, self.alpha, self.weights)

    def learned(self, method: Any, **others: Any) -> Fit:
        options = Options(method=method, alpha=self.alpha, family=self.family, **others)
        observed = Observed([Block(self.X, self.Y, self.weights)], self.target)
        return fit([moments_of(self.X, self.Y, self.weights)], self.groups, options, observed)

    def design(self, **options: Any) -> BlockDesign:
        return design_of(self.family, self.X, self.Y, self.weights, **options)

    @property
    def target(self) -> Target:
        if self.family in NUMBERS:
            return Target("regression" if self.family == "gamma" else "count", ("y",))
        classes = tuple(range(max(2, self.Y.shape[1])))
        return Target("binary" if len(classes) == 2 else "multiclass", ("y",), classes)


def design_of(family: Family, X: Float, Y: Float, weights: Float | None = None, **options: Any) -> BlockDesign:
    """The rows, as a likelihood passes over them."""
    moments = moments_of(X, Y, weights)
    gram = Gram.of(moments)
    parts = row_blocks_of([Block(X, Y, weights)], gram, **options)
    return BlockDesign(gram, family_of(family), moments.weight, np.ones(X.shape[1]), row_blocks=parts)


def responses(family: Family, signal: Float, rng: np.random.Generator) -> Float:
    """Responses (rows, P) with these predictors (rows, K); every class has rows, amounts and some counts are not 0."""
    if family == "gamma":
        return rng.gamma(2.0, np.exp(np.clip(signal[:, :1], -3, 4)) / 2.0)
    if family in NUMBERS:
        counts = rng.poisson(np.exp(np.clip(signal[:, :1], -3, 4))).astype(np.float64)
        counts[:2] += 1
        return counts
    K = 2 if family == "binomial" else signal.shape[1]
    codes = (signal[:, :K] + rng.gumbel(size=(len(signal), K))).argmax(axis=1)
    codes[: 2 * K] = np.tile(np.arange(K), 2)
    one_hot: Float = (codes[:, np.newaxis] == np.arange(K)).astype(np.float64)
    return one_hot[:, 1:] if K == 2 else one_hot


@st.composite
def cases(
    draw: st.DrawFn,
    families: Sequence[Family] = KINDS,
    groups: st.SearchStrategy[FeatureGroups] = any_groups,
    alphas: Sequence[float] = (1e-3, 1e-5, 1e-7),
    messy: bool = True,
    rows: tuple[int, int] = (20, 80),
) -> Case:
    """Tables over some groups; messy ones have copies, sums, constants, missing cells."""
    family, chosen, alpha = draw(st.sampled_from(families)), draw(groups), draw(st.sampled_from(alphas))
    width, n = len(chosen.features), draw(st.integers(*rows))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    mess = draw(st.sampled_from((0.0, 0.3, 0.7))) if messy else 0.0
    missing = draw(st.sampled_from((0.0, 0.1))) if messy else 0.0
    X = messy_table(rng, n, width, ("fresh", "copy", "negated", "constant", "binary", "sum"), mess, missing)
    K = draw(st.integers(3, 4))
    strength = draw(st.sampled_from((0.0, 0.3, 1.5)))
    standard, _ = literal.standardise(X, np.zeros(n))
    Y = responses(family, standard @ (strength * rng.normal(size=(width, K))), rng)
    weights = weighted_by(draw(st.sampled_from(("none", "positive", "counts"))), rng, n)
    if weights is not None:
        weights[: 2 * K] = np.maximum(weights[: 2 * K], 1.0)
    return Case(family, X, Y, weights, chosen, alpha)


def order_of(fitted: Fit) -> list[tuple[int, ...]]:
    return [step.adds for step in fitted.sequence.steps]


def coefficients(fitted: Fit, prefix: int) -> Float:
    """(columns + 1, P) of a prefix in standard units, the intercepts first, columns in selection order."""
    models = fitted.prefixes
    used = models.columns[: models.ends[prefix]]
    return np.vstack([models.intercept_of(prefix), models.coef(prefix) * models.scale[used, np.newaxis]])


def clean(family: Family, strength: float, seed: int, rows: int = 300, groups: FeatureGroups | None = None) -> Case:
    """Normal features, some of which tell something of the response."""
    rng = np.random.default_rng(seed)
    chosen = groups or grouped([1, 2, 3, 1, 2], [1.0, 2.0, 3.0, 1.0, 2.0])
    width = len(chosen.features)
    X = rng.normal(size=(rows, width)) + 0.5 * rng.normal(size=(rows, 1))
    K = 3 if family == "multinomial" else 1
    signal = X @ (strength * rng.normal(size=(width, K)))
    if family == "binomial":
        signal = np.column_stack([np.zeros(rows), signal])
    return Case(family, X, responses(family, signal, rng), None, chosen, 1e-4)
