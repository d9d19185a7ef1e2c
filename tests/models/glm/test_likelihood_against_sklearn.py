"""Every prefix of a generalised linear model is scikit-learn's model on the same standardised columns.

scikit-learn is asked for more than it promises, and its answer is accepted only where its gradient is as good as zero.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor

from anytime import AnytimeClassifier, AnytimeRegressor
from anytime.groups import FeatureGroups, load_groups
from anytime.types import Float
from models import literal
from models.likelihood_problems import OPTIMUM
from models.literal_likelihood import Family, means, residuals
from models.problems import grouped, imputing

pytestmark = pytest.mark.usefixtures("linear_by_default")

GROUPS = grouped([2, 1, 3, 1], [2.0, 0.5, 1.0, 0.0])
KINDS: tuple[Family, ...] = ("binomial", "multinomial", "poisson", "gamma")
OF_NUMBERS: Any = {"poisson": PoissonRegressor, "gamma": GammaRegressor}


def table(family: Family, rows: int = 150, seed: int = 0) -> tuple[Float, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 7)) * [1, 10, 0.1, 1, 1, 3, 1] + [0, 5, 0, 0, 100, 0, 0]
    eta = literal.standardise(X, np.zeros(rows))[0] @ (0.7 * rng.normal(size=(7, 3)))
    if family == "poisson":
        return X, rng.poisson(np.exp(eta[:, 0])).astype(np.float64)
    if family == "gamma":
        return X, rng.gamma(2.0, np.exp(eta[:, 0]) / 2.0)
    K = 2 if family == "binomial" else 3
    return X, np.array(["ash", "elm", "oak"])[(eta[:, :K] + rng.gumbel(size=(rows, K))).argmax(axis=1)]


def fitted(family: Family, X: Any, y: Any, groups: FeatureGroups = GROUPS, weights: Any = None, **options: Any) -> Any:
    kind = AnytimeRegressor if family in OF_NUMBERS else AnytimeClassifier
    return kind(groups, family=family, **options).fit(X, y, sample_weight=weights)


def responses(family: Family, y: Any) -> Float:
    """The count; or the indicator of each class, of two that of the second."""
    found = y[:, np.newaxis] if family in OF_NUMBERS else y[:, np.newaxis] == np.unique(y)
    return np.asarray(found[:, 1:] if family == "binomial" else found, dtype=np.float64)


def by_sklearn(family: Family, Z: Float, y: Any, alpha: float, weights: Float | None = None) -> tuple[Float, Float]:
    """Coefficients (d, P) and intercepts (P,), with the gradient of the penalised mean loss there all but zero."""
    w = np.ones(len(Z)) if weights is None else weights
    how: dict[str, Any] = {"solver": "newton-cholesky", "tol": 1e-11, "max_iter": 1000}
    if family in OF_NUMBERS:
        model = OF_NUMBERS[family](alpha=alpha, **how).fit(Z, y, sample_weight=w)
    else:
        model = LogisticRegression(C=1 / (w.sum() * alpha), **how).fit(Z, y, sample_weight=w)
    W, intercept = np.atleast_2d(model.coef_).T, np.atleast_1d(model.intercept_)
    residual = residuals(family, intercept + Z @ W, responses(family, y))
    assert np.abs(alpha * W - Z.T @ (w[:, np.newaxis] * residual) / w.sum()).max() < 1e-10
    assert np.abs(w @ residual / w.sum()).max() < 1e-10
    return W, intercept


def check_every_prefix(estimator: Any, family: Family, X: Float, y: Any, weights: Float | None = None) -> None:
    """Standardise the table by hand, with the training means in the gaps, and compare prefix after prefix."""
    Z, _ = literal.standardise(X, np.zeros(len(X)), weights)
    models = estimator.fit_.prefixes
    for prefix, end in enumerate(models.ends):
        used, intercept = models.columns[:end], models.intercept_of(prefix)
        if end == 0:
            shares = np.average(responses(family, y), axis=0, weights=weights)
            np.testing.assert_allclose(means(family, np.atleast_2d(intercept))[0], shares, atol=1e-12)
            continue
        W, wanted = by_sklearn(family, Z[:, used], y, float(estimator.fit_.alphas[prefix]), weights)
        scale = 1 + np.abs(W).max()
        np.testing.assert_allclose(
            models.coef(prefix) * models.scale[used, np.newaxis], W, rtol=0, atol=OPTIMUM * scale
        )
        # Both sum to 0 over the classes in the coefficients; scikit-learn centres its intercepts, too.
        np.testing.assert_allclose(intercept, wanted, rtol=0, atol=OPTIMUM * (1 + np.abs(wanted).max()))


@pytest.mark.parametrize("alpha", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("family", KINDS)
def test_every_prefix_is_the_model_of_scikit_learn(family: Family, alpha: float) -> None:
    X, y = table(family)
    check_every_prefix(fitted(family, X, y, alpha=alpha), family, X, y)


@pytest.mark.parametrize("layout", [sparse.csr_array, sparse.csc_array])
@pytest.mark.parametrize("family", KINDS)
def test_on_sparse_tables(family: Family, layout: Any) -> None:
    X, y = table(family)
    X = np.where(np.abs(X) > 0.8, X, 0.0)
    estimator = fitted(family, layout(X), y, alpha=1e-4)
    check_every_prefix(estimator, family, X, y)
    predict = estimator.predict_proba if family not in OF_NUMBERS else estimator.predict
    np.testing.assert_allclose(predict(layout(X)), predict(X), rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("family", KINDS)
def test_what_is_missing_is_the_training_mean(family: Family, weighted: bool) -> None:
    X, y = table(family)
    rng = np.random.default_rng(2)
    X[rng.random(X.shape) < 0.1] = np.nan
    weights = rng.uniform(0.1, 3.0, len(X)) if weighted else None
    check_every_prefix(fitted(family, X, y, weights=weights, alpha=1e-4), family, X, y, weights)


@pytest.mark.parametrize("family", KINDS)
def test_each_prefix_at_the_penalty_that_was_chosen_for_it(family: Family) -> None:
    X, y = table(family, rows=90)
    estimator = fitted(family, X, y, alpha="cv", cv=3)
    assert len(set(estimator.fit_.alphas.tolist())) > 1
    check_every_prefix(estimator, family, X, y)


@pytest.mark.parametrize(
    ("family", "table", "target", "alpha"),
    [
        ("binomial", "heart_cleveland/data", "disease", 1e-4),
        ("multinomial", "mfeat/train", "digit", 1e-3),
        ("poisson", "mq2008/data", "relevance", 1e-4),
    ],
)
def test_real_tables(shared_data: Path, family: Family, table: str, target: str, alpha: float) -> None:
    """Heart disease; ten handwritten digits, of each group of features the first few; relevance as a count."""
    frame = pd.read_parquet(shared_data / f"{table}.parquet")
    groups = imputing(load_groups((shared_data / table).with_name("groups.json")))
    y = frame[target].to_numpy(dtype=np.float64)
    if family == "binomial":
        y = y > 0
    if family == "multinomial":
        frame, y = frame[:600], y[:600]
        some = (g.model_copy(update={"features": g.features[:4]}) for g in groups.groups if g.features)
        groups = FeatureGroups(groups=tuple(some))
    X = frame[list(groups.features)].to_numpy(dtype=np.float64)
    check_every_prefix(fitted(family, X, y, groups, alpha=alpha), family, X, y)
