"""What the experiments run on where there are no real data sets: scikit-learn's bundled ones, and a synthetic one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anytime.arrays import Float, Index
from anytime.groups import FeatureGroup, FeatureGroups

__all__ = ["boston_stand_in", "detection_stand_in", "ranking_stand_in", "small_ranking_stand_in"]

COSTS = (1.0, 5.0, 20.0, 50.0, 100.0, 150.0, 200.0)
"""The costs of Yahoo's features (section 5.1)."""

PARTS = 5


def detection_stand_in(seed: int) -> tuple[FeatureGroups, Float, Float, Index]:
    """Breast cancer: ten quantities of cell nuclei, each with mean, error and worst; two classes."""
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415

    loaded = load_breast_cancer()
    quantities = len(loaded.feature_names) // 3
    order = [quantity + kind * quantities for quantity in range(quantities) for kind in range(3)]
    names = [str(loaded.feature_names[column]) for column in order]
    rng = np.random.default_rng(seed)
    made = [
        FeatureGroup(name=names[at].removeprefix("mean "), features=tuple(names[at : at + 3]), cost=float(cost))
        for at, cost in zip(range(0, len(names), 3), rng.integers(1, 20, quantities), strict=True)
    ]
    groups = FeatureGroups(groups=tuple(made))
    return groups, loaded.data[:, order], loaded.target.astype(np.float64), rng.integers(0, PARTS, len(loaded.target))


def ranking_stand_in(seed: int) -> tuple[FeatureGroups, Float, Float, NDArray[np.generic], Index]:
    """Relevances 0 to 4 by a few of 200 features, which come in correlated families."""
    rng = np.random.default_rng(seed)
    rows, families, members = 4000, 40, 5
    common = rng.normal(size=(rows, families))
    X = np.repeat(common, members, axis=1) * 0.7 + rng.normal(size=(rows, families * members))
    weights = np.where(rng.random(X.shape[1]) < 0.3, rng.normal(size=X.shape[1]), 0.0)
    latent = X @ weights
    latent += rng.normal(size=rows) * latent.std()
    y = np.searchsorted(np.quantile(latent, [0.3, 0.65, 0.85, 0.95]), latent).astype(np.float64)
    query = np.arange(rows) // 16
    costs = rng.choice(COSTS, X.shape[1])
    return _each_its_own(costs), X, y, query, (query % PARTS == PARTS - 1).astype(np.intp)


def small_ranking_stand_in(seed: int) -> tuple[FeatureGroups, Float, Float, Index]:
    """Diabetes with squares and products of its ten quantities: 65 features, each its own group."""
    from sklearn.datasets import load_diabetes  # noqa: PLC0415
    from sklearn.preprocessing import PolynomialFeatures, scale  # noqa: PLC0415

    loaded = load_diabetes()
    X = PolynomialFeatures(2, include_bias=False).fit_transform(scale(loaded.data))
    rng = np.random.default_rng(seed)
    return _each_its_own(rng.choice(COSTS, X.shape[1])), X, loaded.target, rng.integers(0, PARTS, len(X))


def boston_stand_in() -> tuple[FeatureGroups, Float, Float]:
    """Diabetes, its ten quantities at cost 1."""
    from sklearn.datasets import load_diabetes  # noqa: PLC0415

    loaded = load_diabetes()
    return _each_its_own(np.ones(loaded.data.shape[1])), loaded.data, loaded.target


def _each_its_own(costs: Float) -> FeatureGroups:
    made = [FeatureGroup(name=f"f{j}", features=(f"f{j}",), cost=float(cost)) for j, cost in enumerate(costs)]
    return FeatureGroups(groups=tuple(made))
