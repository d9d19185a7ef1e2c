"""Clamps: their ends, the selection by cross-validation, and what lies beyond the rows that they are learned from."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from sklearn.metrics import r2_score

from anytime import AnytimeRegressor
from anytime.features import learning
from anytime.features.bases import ColumnSample
from anytime.features.learning import Sample, learned_groups, sample_of
from anytime.groups import load_groups
from anytime.types import Float
from models.present import present

AUTO: dict[str, Any] = {"basis": "auto", "clamp": "auto"}


def literal_ends(x: Float) -> tuple[float, float] | None:
    """The range with a quantile for each end that is an outlier; None if neither is."""
    q1, q99 = float(np.quantile(x, 0.01, method="higher")), float(np.quantile(x, 0.99, method="lower"))
    far = 2 * (q99 - q1)
    ends = q1 if q1 - min(x) > far > 0 else min(x), q99 if max(x) - q99 > far > 0 else max(x)
    return None if ends == (min(x), max(x)) else ends


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=400), st.sampled_from([1e3, 1e5, 1e6]))
def test_an_end_without_outliers_is_a_quantile_where_the_extreme_is_far_beyond_it(
    values: list[float], far: float
) -> None:
    for extra in ([], [far], [-far, far]):
        x = np.array([*values, *extra])
        assert ColumnSample(x, len(x)).ends("outliers") == literal_ends(x)


def lognormal(n: int, seed: int, law: Callable[[Float], Float], options: list[dict[str, Any]]) -> list[float]:
    """R² on new rows, at least -1, with each of some options, on columns with a heavy tail."""
    rng = np.random.default_rng(seed)
    X, w = rng.lognormal(0, 2, (n + 2000, 4)), rng.normal(size=4)
    y = law(X) @ w
    y += 0.4 * y[:n].std() * rng.normal(size=len(y))
    fits = (AnytimeRegressor(**each).fit(X[:n], y[:n]) for each in options)
    return [max(-1.0, float(r2_score(y[n:], each.predict(X[n:])))) for each in fits]


@pytest.mark.filterwarnings("ignore::anytime.AnytimeWarning")
@pytest.mark.parametrize(("rows", "most"), [(100, 0.15), (200, 0.05)])
def test_auto_loses_little_where_heavy_tails_are_linear(rows: int, most: float) -> None:
    linear: dict[str, Any] = {"basis": "linear", "clamp": "off"}
    losses = np.subtract(*np.array([lognormal(rows, seed, np.asarray, [linear, AUTO]) for seed in range(12)]).T)
    assert np.median(losses) <= 0.01
    assert losses.max() <= most


@pytest.mark.filterwarnings("ignore::anytime.AnytimeWarning")
def test_auto_clamps_where_heavy_tails_are_curved() -> None:
    clamped: dict[str, Any] = {"basis": "auto", "clamp": 0.0}
    losses = np.subtract(*np.array([lognormal(300, seed, np.sqrt, [clamped, AUTO]) for seed in range(8)]).T)
    assert losses.mean() <= 0.05


@pytest.mark.filterwarnings("ignore::anytime.AnytimeWarning")
@pytest.mark.parametrize(
    ("options", "rows", "cells"),
    [
        *(({"family": family}, rows, [5000.0]) for family in ("gaussian", "poisson") for rows in (100, 400)),
        *((AUTO, 600, [size, -size, size]) for size in (1e3, 1e4, 1e6)),
    ],
    ids=str,
)
def test_wild_cells_change_the_predictions_of_clean_rows_little(
    options: dict[str, Any], rows: int, cells: list[float]
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows + 1000, 4))
    eta = 0.5 + X @ [0.5, 0.3, -0.2, 0.0]
    noisy = eta + 0.5 * rng.normal(size=len(X))
    y = rng.poisson(np.exp(eta)).astype(float) if options.get("family") == "poisson" else noisy
    wild = X.copy()
    for column, cell in enumerate(cells):
        wild[rows // 2 + column, column] = cell
    train, test = slice(rows), slice(rows, None)
    clean, dirty = (AnytimeRegressor(**options).fit(each[train], y[train]).predict(X[test]) for each in (X, wild))
    errors = [float(np.mean((y[test] - each) ** 2)) for each in (clean, dirty)]
    assert errors[1] <= errors[0] + 0.02 * np.var(y[test])


def test_the_manifest_says_which_terms_were_selected_and_why() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = np.abs(X[:, 0]) + 0.1 * rng.normal(size=300)
    selected = present(AnytimeRegressor(**AUTO).fit(X, y).model_.manifest.selected)
    assert selected.hinges in (1, 3, 7)
    assert selected.error < 0.99 * min(each.error for each in selected.candidates if each.hinges == 0)
    assert {(each.hinges, each.clamp) for each in selected.candidates} >= {(0, "off"), (7, "range")}
    assert AnytimeRegressor(basis="linear", clamp="off").fit(X, y).model_.manifest.selected is None


def test_a_range_in_the_groups_file_is_kept() -> None:
    X = np.random.default_rng(0).lognormal(0, 2, (200, 2))
    stated = {"groups": [{"name": "a", "features": ["x0", "x1"], "cost": 1}], "bases": {"x0": {"range": [0.0, 2.0]}}}
    assert AnytimeRegressor(stated, **AUTO).fit(X, X[:, 0]).fit_.expansion.columns[0].range == (0.0, 2.0)


# A line without a clamp has the coefficients of values that no clamp moves, whatever the sample says of the range.


def test_a_sample_is_whole_only_if_it_has_all_rows() -> None:
    rows = [Sample({"x": np.arange(100.0)})] * 10
    assert [sample_of(rows, limit).is_whole for limit in (1000, 999, 100)] == [True, False, False]
    assert not sample_of([Sample({"x": np.arange(1000.0)})], 100).is_whole


@pytest.mark.parametrize("chunks", [(100, 100, 210), (100, 101, 209), (410,)], ids=str)
def test_a_line_is_that_of_all_rows_where_its_range_is_that_of_a_sample(
    chunks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "SAMPLE_ROWS", 200)
    rng = np.random.default_rng(0)
    x = np.append(rng.uniform(0, 1, 407), [20.0, 21.0, 22.0])  # the last rows are far from all others
    X, y = x[:, np.newaxis], 2 * x + 0.1 * rng.normal(size=410)
    model = AnytimeRegressor(alpha=1e-6, random_state=0)
    for start, stop in pairwise([0, *np.cumsum(chunks).tolist()]):
        model.partial_fit(X[start:stop], y[start:stop])
    assert float(model.predict([[20.0]]).item()) == pytest.approx(40.0, abs=1.0)
    fitted = AnytimeRegressor(alpha=1e-6, random_state=0).fit(X, y)
    assert float(fitted.predict([[20.0]]).item()) == pytest.approx(40.0, abs=1.0)


def test_the_range_of_rows_with_fractional_weights_is_that_of_all() -> None:
    rng = np.random.default_rng(10)
    x, weights = rng.lognormal(0, 2, 50), rng.uniform(0.1, 3, 50)
    assert ColumnSample(x, 50, weights / weights.mean()).ends(0.0) == (x.min(), x.max())


def test_groups_for_other_tables_have_a_line_of_their_own() -> None:
    groups, sample = load_groups({"groups": {"a": ["x"]}}), Sample({"x": np.arange(50.0)})
    lines = [learned_groups(groups, sample, "auto", complete=each).bases["x"].model_extra for each in (False, True)]
    assert lines == [{"line": "same"}, {"line": "own"}]


@pytest.mark.parametrize("clamp", ["auto", None])
@pytest.mark.parametrize("family", ["poisson", "gamma", "gaussian"])
def test_a_clamp_of_lines_with_a_log_link_is_that_of_curves(family: Any, clamp: Any) -> None:
    rng = np.random.default_rng(5)
    X = pd.DataFrame(rng.normal(size=(200, 2)), columns=["a", "b"])
    X.loc[3, "b"] = 400.0
    y = rng.poisson(np.exp(0.5 * X["a"])) + 1.0
    bases = {}
    for basis in ("linear", "hinge:1"):
        fitted = AnytimeRegressor(family=family, basis=basis, clamp=clamp, alpha=0.01).fit(X, y)
        bases[basis] = {name: each.range for name, each in fitted.model_.groups.bases.items()}
    clamps = clamp == "auto" and family != "gaussian"
    assert bases["linear"] == (bases["hinge:1"] if clamps else dict.fromkeys(bases["linear"]))
