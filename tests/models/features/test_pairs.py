"""Products of pairs of columns: their terms, and the descriptions that are refused.

Screening finds the pairs whose interaction explains most of a residual, as a literal search over cuts does.
"""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from anytime.errors import GroupsError
from anytime.features import screening
from anytime.features.expansion import Expansion
from anytime.features.learning import Sample, learned_groups
from anytime.features.screening import MIN_SHARE, Screen
from anytime.groups import ColumnBasis, FeatureGroups, Pair, PairSide, load_groups
from anytime.types import Bool, Float

GROUPS: dict[str, Any] = {
    "groups": [
        {"name": "g", "features": ["age", "port"], "cost": 1.0},
        {"name": "h", "features": ["fare", "deck"], "cost": 2.0},
    ]
}
BASES = {
    "fare": ColumnBasis(basis="hinge:1", knots=(2.0,), levels=(), range=(0.0, 4.0), missing=True),
    "port": ColumnBasis(basis="categories", levels=("Oslo", "Rome"), other=True),
    "deck": ColumnBasis(basis="categories", levels=("A", "B"), other=False),
}
AGE = PairSide(column="age", knots=(10.0, 40.0, 45.0))
FARE = PairSide(column="fare", knots=(1.0, 9.0))
PORT = PairSide(column="port", levels=("Rome",))
DECK = PairSide(column="deck", levels=("A",))


def screened_pairs(expansion: Expansion, X: Float, R: Float, w: Float, count: int) -> list[tuple[Pair, float]]:
    screen = Screen.of(expansion, X)
    return [(screen.pair(places), gain) for places, gain in screen.ranked(R, w, count)]


def test_terms_are_products_of_the_factors_of_clamped_values() -> None:
    expansion = Expansion.of(load_groups(GROUPS).with_bases(BASES).with_pairs([(FARE, AGE), (DECK, PORT), (AGE, PORT)]))
    nan = np.nan
    X = np.array([[50, 1, 9, 0], [20, -1, 3, 1], [nan, 1, 2, -1], [45, 1, nan, 0], [45, nan, 0, 0]], dtype=float)
    names = ["age>10 * port=Rome", "age>40 * port=Rome", "age>10 * fare>1", "age>40 * fare>1", "port=Rome * deck=A"]
    assert list(expansion.terms.features[-5:]) == names
    expected = [
        [35, 5, 105, 15, 1],  # 50 counts as 45, the last knot, and the fare moves to 4, the end of its range
        [0, 0, 20, 0, 0],
        [nan, nan, nan, nan, nan],  # a deck that was never seen counts as missing
        [35, 5, nan, nan, 1],
        [nan, nan, 0, 0, nan],
    ]
    np.testing.assert_array_equal(expansion.expand(X)[:, -5:], expected)
    assert [group.name for group in expansion.terms.groups] == ["g", "h", "g * g", "g * h"]
    assert [group.requires for group in expansion.terms.groups] == [(), (), ("g",), ("g", "h")]


def test_pairs_remain_only_where_both_columns_do() -> None:
    groups = load_groups(GROUPS).with_bases(BASES).with_pairs([(AGE, PORT), (AGE, FARE)])
    assert groups.only([0]).pairs == ((AGE, PORT),)
    assert groups.without(["port"]).pairs == ((AGE, FARE),)
    assert groups.with_costs(load_groups(GROUPS)).pairs == groups.pairs


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        (((AGE, AGE),), "a pair has 'age' and 'age'; expected two different columns of groups"),
        (
            ((AGE, PairSide(column="shoe", knots=(1.0, 2.0))),),
            "a pair has 'age' and 'shoe'; expected two different columns",
        ),
        (((AGE, PairSide(column="fare")),), "lacks factors; expected levels, or two knots or more"),
        (
            ((AGE, PairSide(column="fare", knots=tuple(map(float, range(18))))),),
            "the pair of 'age' and 'fare' has 17 factors of one column; expected at most 16",
        ),
        *(
            (
                ((AGE, PairSide(column="fare", knots=knots)),),
                f"the pair of 'age' and 'fare' has knots {list(knots)}; expected different numbers in ascending order",
            )
            for knots in ((2.0, 1.0), (1.0, 1.0), (1.0, 3.0, 2.0))
        ),
        (((FARE, AGE),), "the pairs are not in the order of the groups"),
        (((AGE, FARE), (AGE, FARE)), "or one occurs twice"),
        (((AGE, PairSide(column="fare", levels=("Oslo",))),), "column 'fare' of a pair has levels; expected knots"),
        (((AGE, PairSide(column="port", levels=("Bonn",))),), "column 'port' of a pair has other levels than its"),
        (((AGE, PairSide(column="port", knots=(1.0, 2.0))),), "column 'port' of a pair has other levels than its"),
    ],
)
def test_a_wrong_pair_is_one_clear_error(pairs: tuple[Pair, ...], why: str) -> None:
    groups = load_groups(GROUPS).with_bases(BASES)
    content = groups.model_dump(mode="json") | {"pairs": [[s.model_dump(mode="json") for s in p] for p in pairs]}
    with pytest.raises((GroupsError, ValueError), match=re.escape(why)):
        Expansion.of(type(groups).model_validate_json(json.dumps(content)))


def test_groups_may_have_the_names_of_products() -> None:
    features = {"g": "a", "h": "b", "g * h": "c", "i": "d", "h * i": "e"}
    given = {"groups": [{"name": name, "features": [feature], "cost": 1.0} for name, feature in features.items()]}
    ramps = {name: PairSide(column=name, knots=(0.0, 1.0)) for name in "abcde"}
    pairs = [(ramps[x], ramps[y]) for x, y in ("ab", "cd", "ae")]  # "g * h", "g * h * i" and "g * h * i"
    groups = load_groups(given).with_pairs(pairs)
    terms = Expansion.of(groups).terms
    assert len({group.name for group in terms.groups}) == len(groups) + 3
    assert [group.requires for group in terms.groups[5:]] == [("g", "h"), ("g", "h * i"), ("g * h", "i")]


def test_two_terms_with_the_same_name_are_one_clear_error() -> None:
    given = {"groups": [{"name": "g", "features": ["age", "age>2"], "cost": 1.0}]}
    hinge = ColumnBasis(basis="hinge:1", knots=(2.0,), levels=(), range=(0.0, 4.0))
    with pytest.raises(GroupsError, match="two terms have the same name, so rename a column: feature 'age>2' is twice"):
        _ = Expansion.of(load_groups(given).with_bases({"age": hinge})).terms


# Screening.

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
    assert {tuple(side.column for side in pair): gain for pair, gain in found} == pytest.approx(expected, rel=1e-3)
    assert [gain for _, gain in found] == sorted((gain for _, gain in found), reverse=True)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_column_of_mostly_its_largest_or_least_value_is_cut_there(sign: float) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 3))
    X[:, 0] = sign * np.where(rng.random(2000) < 0.9, 0.0, rng.exponential(size=2000))
    R = (X[:, :1] != 0) * np.sign(X[:, 1:2]) + 0.1 * rng.normal(size=(2000, 1))
    ((best, _),) = screened_pairs(Expansion.of(wide(3)), X, R, np.ones(2000), 1)
    assert tuple(side.column for side in best) == ("x0", "x1")


@pytest.mark.parametrize("size", [1e-45, 1e45])
def test_only_the_ratios_of_weights_count(size: float) -> None:
    expansion, X = table(0)
    w = np.random.default_rng(1).uniform(0.5, 2.0, ROWS)
    R = np.nan_to_num(X[:, :1] * X[:, 3:4])
    found, scaled = (screened_pairs(expansion, X, R, weights, 99) for weights in (w, size * w))
    assert [pair for pair, _ in scaled] == [pair for pair, _ in found]
    assert [gain for _, gain in scaled] == pytest.approx([gain for _, gain in found], rel=1e-3)


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
    assert [pair for pair, _ in found] == [pair for pair, _ in exact]
    assert [gain for _, gain in found] == pytest.approx([gain for _, gain in exact], rel=1e-4)
    assert {tuple(side.column for side in pair) for pair, _ in exact[:2]} == {("x0", "x20"), ("x3", "x4")}


def test_the_factors_of_a_column_are_few_and_not_constant() -> None:
    expansion, X = table(0)
    for pair, _ in screened_pairs(expansion, X, np.nan_to_num(X[:, :1] * X[:, 1:2]), np.ones(ROWS), 99):
        for side in pair:
            x = X[:, expansion.groups.features.index(side.column)]
            assert 2 <= len(side.knots or side.levels) <= 4
            if side.column == "c":
                assert side.levels == ("x", "y")  # the third is the complement
            else:
                assert np.nanmin(x) <= min(side.knots) < max(side.knots) <= np.nanmax(x)
