"""Interleaved measurements: ratios within a round, reported failures, fewer rounds of slow ones."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.peers.measurements import FailedError, Measurements, Spread, digits, interleave, ratios


def test_a_spread_is_the_median_and_the_quartiles_or_the_ends_of_few_values() -> None:
    assert Spread.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert Spread.of([3.0, 1.0]) == Spread(2.0, 1.0, 3.0, 2)
    assert str(Spread.of([3.0])) == "3.0"


def test_ratios_are_those_of_the_rounds_that_both_have() -> None:
    assert ratios([1.0, 10.0, 2.0, 7.0], [2.0, 20.0, 4.0]) == Spread(0.5, 0.5, 0.5, 3)


def test_small_numbers_have_two_digits() -> None:
    assert [digits(value) for value in (0.0123, 0.5, 9.94, 12.3, 1234.5)] == ["0.012", "0.50", "9.9", "12", "1,234"]


def counted(calls: list[str], name: str, value: float) -> Callable[[], float]:
    def measure() -> float:
        calls.append(name)
        return value

    return measure


def test_measurements_are_interleaved_after_a_warm_up() -> None:
    calls: list[str] = []
    results = interleave({name: counted(calls, name, 1.0) for name in "ab"}, 2)
    assert calls == ["a", "b"] * 3
    assert results == Measurements({"a": [1.0, 1.0], "b": [1.0, 1.0]}, {})


def test_slow_measurements_have_fewer_rounds() -> None:
    calls: list[str] = []
    measures = {"long": counted(calls, "long", 9.0), "short": counted(calls, "short", 1.0)}
    results = interleave(measures, 5, long=5.0, few=2)
    assert [len(results.values[name]) for name in measures] == [2, 5]
    assert results.ratio("short", "long") == Spread(1 / 9, 1 / 9, 1 / 9, 2)


def test_a_failed_measurement_is_skipped_from_then_on_with_its_reason() -> None:
    def fails() -> float:
        calls.append("fails")
        raise FailedError("no luck")

    calls: list[str] = []
    results = interleave({"fails": fails, "works": counted(calls, "works", 1.0)}, 3)
    assert results.failed == {"fails": "no luck"}
    assert calls.count("fails") == 1
    assert results.spread("fails") is None
    assert results.ratio("works", "fails") is None
