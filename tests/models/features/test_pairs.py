"""Products of pairs of columns: their terms, and the descriptions that are refused."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from anytime.errors import GroupsError
from anytime.features.expansion import Expansion
from anytime.groups import ColumnBasis, Pair, PairSide, load_groups

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


def test_terms_are_products_of_the_factors_of_clamped_values() -> None:
    groups = load_groups(GROUPS).with_bases(BASES).with_pairs([(FARE, AGE), (DECK, PORT), (AGE, PORT)])
    expansion = Expansion.of(groups)
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


def test_a_groups_file_with_pairs_is_refused() -> None:
    with pytest.raises(GroupsError, match="has 'pairs'; expected none: training selects pairs by pairs"):
        load_groups(GROUPS | {"pairs": [["age", "fare"]]})


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
