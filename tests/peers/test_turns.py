"""Measures in turns: ratios are within a round, failures are told, long ones are repeated less."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.peers.turns import FailedError, Spread, Taken, digits, in_turns, ratios


def test_a_spread_is_the_median_and_the_quartiles() -> None:
    assert Spread.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(3.0, 2.0, 4.0, 5)


def test_of_few_values_the_least_and_the_largest_are_told() -> None:
    assert Spread.of([3.0, 1.0]) == Spread(2.0, 1.0, 3.0, 2)
    assert str(Spread.of([3.0])) == "3.0"


def test_nothing_has_no_spread() -> None:
    with pytest.raises(ValueError, match="expected at least one"):
        Spread.of([])


def test_a_mood_that_strikes_both_sides_of_a_round_leaves_the_ratio() -> None:
    assert ratios([1.0, 10.0, 2.0], [2.0, 20.0, 4.0]) == Spread(0.5, 0.5, 0.5, 3)


def test_ratios_are_of_the_rounds_that_both_have() -> None:
    assert ratios([1.0, 1.0, 9.0], [2.0, 4.0]).count == 2


def test_digits_are_two_where_it_is_small() -> None:
    assert [digits(value) for value in (0.0123, 0.5, 9.94, 12.3, 1234.5)] == ["0.012", "0.50", "9.9", "12", "1,234"]


def counted(calls: list[str], name: str, value: float) -> Callable[[], float]:
    def measure() -> float:
        calls.append(name)
        return value

    return measure


def test_measures_take_turns_and_the_first_turn_warms_up() -> None:
    calls: list[str] = []
    taken = in_turns({name: counted(calls, name, 1.0) for name in "ab"}, 2)
    assert calls == ["a", "b"] * 3
    assert taken == Taken({"a": [1.0, 1.0], "b": [1.0, 1.0]}, {})


def test_what_takes_long_is_measured_in_fewer_rounds() -> None:
    calls: list[str] = []
    measures = {"long": counted(calls, "long", 9.0), "short": counted(calls, "short", 1.0)}
    taken = in_turns(measures, 5, long=5.0, few=2)
    assert [len(taken.values[name]) for name in measures] == [2, 5]
    assert taken.ratio("short", "long") == Spread(1 / 9, 1 / 9, 1 / 9, 2)


def test_what_fails_is_left_out_from_then_on_and_says_why() -> None:
    def fails() -> float:
        calls.append("fails")
        raise FailedError("no luck")

    calls: list[str] = []
    taken = in_turns({"fails": fails, "works": counted(calls, "works", 1.0)}, 3)
    assert taken.failed == {"fails": "no luck"}
    assert calls.count("fails") == 1
    assert taken.spread("fails") is None
    assert taken.ratio("works", "fails") is None
