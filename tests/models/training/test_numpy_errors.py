"""A fit neither warns of rounding, underflow and overflow nor ends where a program makes these errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from anytime import AnytimeClassifier, AnytimeRegressor
from anytime.errors import TrainingError
from models.properties import quick

FAMILIES = [
    *("gaussian", "poisson", "multinomial", "separable"),
    *(pytest.param(family, marks=pytest.mark.heavy) for family in ("gamma", "negative-binomial", "binomial")),
]


def small_table(seed: int, rows: int) -> pd.DataFrame:
    """Levels that folds lack, gaps, and columns that are constant, rare, heavy-tailed, tiny or huge."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(size=(rows, 3)), columns=list("abc"))
    table["level"] = [f"l{i}" for i in rng.integers(0, 2 + seed % 4, rows)]
    if seed % 2:
        table["scaled"] = table["b"] * 10.0 ** rng.integers(-140, 98)
        table.loc[rng.random(rows) < 0.2, "a"] = np.nan
    else:
        table["constant"], table["rare"] = 3.0, (np.arange(rows) == 0) * 1.0
        table["heavy"] = np.exp(5 * rng.normal(size=rows))
    return table


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore::anytime.errors.AnytimeWarning")
def test_a_fit_works_where_numpy_raises_every_error(family: str) -> None:
    @quick(max_examples=12)
    @given(st.integers(0, 2**32 - 1), st.integers(10, 40))
    def check(seed: int, rows: int) -> None:
        rng, table = np.random.default_rng(seed), small_table(seed, rows)
        eta = np.clip(table["b"] + (table["level"] == "l0") + 0.5 * rng.normal(size=rows), -3, 3)
        counts = 1 + rng.poisson(np.exp(eta))
        target = {"gaussian": eta, "gamma": np.exp(eta), "binomial": eta > 0.5, "multinomial": np.digitize(eta, [0, 1])}
        y: Any = table["b"] > 0 if family == "separable" else target.get(family, counts)
        classes = family in ("binomial", "multinomial", "separable")
        options: dict[str, Any] = {} if family == "separable" else {"family": family}
        estimator = (AnytimeClassifier if classes else AnytimeRegressor)(cv=2, **options)
        with np.errstate(all="raise"):
            try:
                model = estimator.fit(table, y)
            except TrainingError:  # too few rows of a class
                return
            assert np.isfinite(model.predict_proba(table) if classes else model.predict(table)).all()

    check()
