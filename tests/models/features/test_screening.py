"""Screening finds the pairs whose interaction explains most of a residual, as a literal search over cuts does."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from anytime.features import screening
from anytime.features.expansion import Expansion
from anytime.features.learning import Sample, learned_groups
from anytime.features.screening import MIN_SHARE, screened_pairs
from anytime.groups import FeatureGroups, load_groups
from anytime.types import Bool, Float

ROWS = 600


def table(seed: int) -> tuple[Expansion, Float]:
    """Numbers, with gaps and with few values, and categories with an indicator of others."""
    rng = np.random.default_rng(seed)
    raw: dict[str, Any] = {
        "a": rng.normal(size=ROWS),
        "b": rng.integers(0, 3, ROWS).astype(float),
        "c": rng.choice(np.array(["x", "y", "z"], dtype=object), ROWS, p=[0.5, 0.3, 0.2]),
        "d": np.where(rng.random(ROWS) < 0.1, np.nan, rng.lognormal(size=ROWS)),
        "same": np.ones(ROWS),
    }
    given = load_groups({"groups": [{"name": name, "features": [name], "cost": 1.0} for name in raw]})
    expansion = Expansion.of(learned_groups(given, Sample(raw)))
    coded = [expansion.readers[j].coded(raw[c]) if c == "c" else raw[c] for j, c in enumerate(given.features)]
    return expansion, np.column_stack(coded)


def literal_cuts(name: str, x: Float) -> list[Bool]:
    """Each level on its own, or the values above each octile; a missing value counts as the median."""
    if name == "c":
        return [x == level for level in range(3)]
    present = x[~np.isnan(x)]
    filled = np.where(np.isnan(x), np.median(present), x)
    return [filled > end for end in {np.quantile(present, k / 8) for k in range(1, 8)} if end < present.max()]


def literal_gain(one: Bool, other: Bool, R: Float, w: Float) -> float:
    """The drop of the weighted sum of squares when an interaction joins the effects of both cuts, by least squares."""
    if min(w[(one == i) & (other == j)].sum() for i in (0, 1) for j in (0, 1)) < MIN_SHARE * w.sum():
        return 0.0
    root = np.sqrt(w)[:, np.newaxis]
    apart = np.column_stack([np.ones(len(w)), one, other])
    squares = [
        np.square(root * R - root * A @ np.linalg.lstsq(root * A, root * R, rcond=None)[0]).sum(axis=0)
        for A in (apart, np.column_stack([apart, one & other]))
    ]
    mean = w @ R / w.sum()
    return float(((squares[0] - squares[1]) / (w @ np.square(R - mean) / w.sum())).sum())


@pytest.mark.parametrize("seed", range(3))
def test_gains_are_those_of_the_best_cuts(seed: int) -> None:
    expansion, X = table(seed)
    rng = np.random.default_rng(seed + 10)
    w = rng.uniform(0.5, 2.0, ROWS)
    w /= w.mean()
    R = rng.normal(size=(ROWS, 2)) + np.nan_to_num(X[:, :1] * X[:, 3:4])
    found = screened_pairs(expansion, X, R, w, 99)
    names = expansion.groups.features
    expected = {
        (names[i], names[j]): max(
            literal_gain(one, other, R, w)
            for one in literal_cuts(names[i], X[:, i])
            for other in literal_cuts(names[j], X[:, j])
        )
        for i, j in combinations(range(4), 2)
    }
    assert {tuple(side.column for side in each.pair): each.gain for each in found} == pytest.approx(expected, rel=1e-3)
    assert [each.gain for each in found] == sorted((each.gain for each in found), reverse=True)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_column_of_mostly_its_largest_or_least_value_is_cut_there(sign: float) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 3))
    X[:, 0] = sign * np.where(rng.random(2000) < 0.9, 0.0, rng.exponential(size=2000))
    R = (X[:, :1] != 0) * np.sign(X[:, 1:2]) + 0.1 * rng.normal(size=(2000, 1))
    (best,) = screened_pairs(Expansion.of(wide(3)), X, R, np.ones(2000), 1)
    assert tuple(side.column for side in best.pair) == ("x0", "x1")


@pytest.mark.parametrize("size", [1e-45, 1e45])
def test_only_the_ratios_of_weights_count(size: float) -> None:
    expansion, X = table(0)
    w = np.random.default_rng(1).uniform(0.5, 2.0, ROWS)
    R = np.nan_to_num(X[:, :1] * X[:, 3:4])
    found, scaled = (screened_pairs(expansion, X, R, weights, 99) for weights in (w, size * w))
    assert [each.pair for each in scaled] == [each.pair for each in found]
    assert [each.gain for each in scaled] == pytest.approx([each.gain for each in found], rel=1e-3)


def test_columns_that_do_not_vary_have_no_pairs() -> None:
    expansion, X = table(0)
    X[:, 1:] = 1.0
    assert screened_pairs(expansion, X, X[:, :1], np.ones(ROWS), 99) == []


def wide(columns: int) -> FeatureGroups:
    return load_groups({"groups": [{"name": "g", "features": [f"x{j}" for j in range(columns)], "cost": 1.0}]})


def test_quartiles_keep_the_best_pairs_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 30))
    R = X[:, :1] * X[:, 20:21] + np.abs(X[:, 3:4]) * X[:, 4:5] + rng.normal(size=(2000, 1))
    expansion = Expansion.of(wide(30))
    exact = screened_pairs(expansion, X, R, np.ones(2000), 3)
    monkeypatch.setattr(screening, "REFINED", 20)
    monkeypatch.setattr(screening, "BLOCK", 10)
    found = screened_pairs(expansion, X, R, np.ones(2000), 3)
    assert [each.pair for each in found] == [each.pair for each in exact]
    assert [each.gain for each in found] == pytest.approx([each.gain for each in exact], rel=1e-4)
    assert {tuple(side.column for side in each.pair) for each in exact[:2]} == {("x0", "x20"), ("x3", "x4")}


def test_the_factors_of_a_column_are_few_and_not_constant() -> None:
    expansion, X = table(0)
    found = screened_pairs(expansion, X, np.nan_to_num(X[:, :1] * X[:, 1:2]), np.ones(ROWS), 99)
    for each in found:
        for side in each.pair:
            x = X[:, expansion.groups.features.index(side.column)]
            assert 2 <= len(side.knots or side.levels) <= 4
            if side.column == "c":
                assert side.levels == ("x", "y")  # the third is the complement
            else:
                assert np.nanmin(x) <= min(side.knots) < max(side.knots) <= np.nanmax(x)
