"""Equal rows have equal scores, wherever they stand and however many there are, and ties keep the order of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anytime import AnytimeClassifier, AnytimeRegressor
from anytime._linalg import row_scores
from anytime.types import Float

ROWS = (1, 2, 3, 5, 7, 8, 13, 50, 101)


@pytest.mark.parametrize("terms", [0, 1, 2, 7, 16, 33, 500])
@pytest.mark.parametrize("scores", [1, 2, 5, 9, 64])
def test_a_score_depends_on_its_row_alone(terms: int, scores: int) -> None:
    rng = np.random.default_rng(terms)
    x, coef, intercept = rng.normal(size=terms), rng.normal(size=(terms, scores)), rng.normal(size=scores)
    alone = row_scores(x[:, np.newaxis], coef, intercept)
    assert alone[0] == pytest.approx(intercept + x @ coef, rel=1e-9, abs=1e-9)
    for rows in ROWS:
        page = rng.normal(size=(terms, rows))
        page[:, rows // 2] = x
        for stored in (page, np.asfortranarray(page), np.repeat(page, 2, axis=1)[:, ::2]):
            for weights in (coef, np.asfortranarray(coef)):
                found = row_scores(stored, weights, intercept)
                assert (found[rows // 2] == alone).all()
                assert found.flags.c_contiguous  # so that what is summed along the responses is equal, too


@pytest.mark.parametrize("policy", ["prefix", "arrived"])
@pytest.mark.parametrize("kind", ["linear", "hinge", "poly", "poisson", "binary", "multinomial", "indicators"])
def test_equal_rows_of_a_page_tie_and_equal_one_row_alone(kind: str, policy: Any) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 12))
    score = X @ rng.normal(size=12)
    groups = {
        "groups": [
            {"name": g, "features": [f"x{4 * i + j}" for j in range(4)], "cost": 1.0} for i, g in enumerate("abc")
        ]
    }
    model = _fitted(kind, groups, X, score).model_
    x = rng.normal(size=12)

    def answer(rows: int) -> Any:
        prediction = model.open(rows)
        for i, group in enumerate("abc"):
            if policy == "prefix" or group != model.groups.names[0]:
                prediction.add(group, np.tile(x[4 * i : 4 * i + 4], (rows, 1)))
        return prediction.answer(policy=policy, ranking=kind not in ("multinomial", "indicators"))

    one = answer(1)
    for rows in ROWS[1:]:
        page = answer(rows)
        assert page.prediction == [one.prediction] * rows
        assert page.probabilities is None or page.probabilities == [one.probabilities] * rows
        assert page.ranking in (None, list(range(rows)))


def _fitted(kind: str, groups: Any, X: Float, score: Float) -> Any:
    match kind:
        case "poisson":
            return AnytimeRegressor(groups=groups, family="poisson", alpha=1.0).fit(X, np.floor(np.abs(score)))
        case "binary":
            return AnytimeClassifier(groups=groups, alpha=1.0).fit(X, score > 0)
        case "multinomial" | "indicators":
            family: Any = "multinomial" if kind == "multinomial" else "gaussian"
            codes = np.digitize(score, np.quantile(score, np.arange(1, 10) / 10))
            return AnytimeClassifier(groups=groups, family=family, alpha=1.0).fit(X, codes)
        case _:
            return AnytimeRegressor(groups=groups, basis=kind, alpha=1.0).fit(X, score)
