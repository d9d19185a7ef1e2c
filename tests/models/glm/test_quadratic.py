"""Second-order models of a likelihood: what is packed comes back, and a step from an optimum stays there."""

from __future__ import annotations

import numpy as np
import pytest

from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.glm import search as curvature
from anytime.model.model import Model
from models.present import present

ALPHA = 0.02
GROUPS = {
    "groups": [
        {"name": "a", "features": ["a0", "a1"], "cost": 1.0},
        {"name": "b", "features": ["b0"], "cost": 0.5},
        {"name": "c", "features": ["c0", "c1", "c2"], "cost": 2.0},
    ]
}


def trained(family: str) -> Model:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(300, 6)) @ rng.normal(size=(6, 6)) + 2.0
    eta = (X - X.mean(axis=0)) @ rng.normal(size=6) * 0.2
    if family == "poisson":
        return AnytimeRegressor(GROUPS, family="poisson", alpha=ALPHA).fit(X, rng.poisson(np.exp(eta))).model_
    return AnytimeClassifier(GROUPS, alpha=ALPHA).fit(X, eta + rng.logistic(size=300) > 0).model_


@pytest.fixture(params=["binomial", "poisson"])
def model(request: pytest.FixtureRequest) -> Model:
    return trained(request.param)


def test_some_columns_are_a_part_of_all_columns(model: Model) -> None:
    kept = present(model.curvatures)
    for columns in (np.arange(6), np.array([4]), np.array([5, 0, 3]), np.empty(0, dtype=np.intp)):
        rows = np.concatenate([[0], columns + 1])
        for index in range(len(kept.prefixes)):
            whole, part = kept.at(index), kept.at(index, columns)
            np.testing.assert_array_equal(whole.H, whole.H.T)
            np.testing.assert_array_equal(part.H, whole.H[np.ix_(rows, rows)])
            np.testing.assert_array_equal(part.r, whole.r[rows])
            np.testing.assert_array_equal(part.newton(np.arange(len(columns)), ALPHA), whole.newton(columns, ALPHA))


def test_a_step_from_the_optimum_of_a_prefix_to_itself_goes_nowhere(model: Model) -> None:
    kept, models = present(model.curvatures), model.prefixes
    assert kept.prefixes.tolist() == [0, 1, 2, 3]
    for prefix in kept.prefixes:
        columns = models.columns[: models.ends[prefix]]
        theta = kept.at(prefix, columns).newton(np.arange(len(columns)), ALPHA)
        np.testing.assert_allclose(theta[0], models.intercept_of(prefix), atol=1e-6)
        np.testing.assert_allclose(theta[1:] / models.scale[columns, np.newaxis], models.coef(prefix), atol=1e-6)


def test_the_curvature_of_the_base_rate_is_a_multiple_of_the_correlations(model: Model) -> None:
    H = present(model.curvatures).at(0).H
    np.testing.assert_allclose(H[0, 1:], 0.0, atol=1e-12)
    np.testing.assert_allclose(np.diagonal(H)[1:], H[0, 0])


def test_as_many_are_kept_as_there_is_room_for_the_base_rate_and_the_last_among_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(curvature, "MAX_VALUES", 2 * 28)  # numbers of two triangles of 7 rows
    assert present(trained("binomial").curvatures).prefixes.tolist() == [0, 3]
