"""What extractors take, by a clock that the tests set."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pandas as pd
import pytest

from anytime.costs.profiling import TableInputs, inputs_of, measurements, profile, required_first
from anytime.data.formats import Batch, open_table
from anytime.errors import ExtractorError
from anytime.groups import FeatureGroups, load_groups
from models.refusals import assert_refused
from models.unreadable import Unreadable
from waiting import WAIT_S


class Clock:
    """A clock that stands still unless an extractor moves it, but for what looking at it takes."""

    def __init__(self, look_ns: int = 0) -> None:
        self.now = 0
        self.look_ns = look_ns

    def __call__(self) -> int:
        self.now += self.look_ns
        return self.now

    def after(self, ms: float) -> None:
        self.now += round(ms * 1e6)


def groups(**requires: list[str]) -> FeatureGroups:
    entries = [
        {"name": name, "features": features, "cost": 1.0, "requires": requires.get(name, [])}
        for name, features in {"late": ["l0"], "early": ["e0", "e1"], "visit": []}.items()
    ]
    return load_groups({"cost_unit": "ms", "groups": entries})


def slow(clock: Clock, ms: Callable[[Any], float], width: int, called: list[str] | None = None, name: str = "") -> Any:
    def extract(x: Any) -> Any:
        if called is not None:
            called.append(name)
        clock.after(ms(x))
        return np.zeros(width)

    return extract


def test_every_input_is_measured_as_often_as_asked_and_samples_stay_paired() -> None:
    clock, inputs = Clock(), (1.0, 2.0, 3.0)
    extractors = {"late": slow(clock, lambda x: x, 1), "early": slow(clock, lambda x: 10 * x, 2)}
    progressed: list[int] = []
    found = profile(groups(), extractors, inputs, repeats=2, clock=clock, progress=progressed.append)
    assert found.times["late"].tolist() == [1.0, 2.0, 3.0] * 2
    assert found.times["early"].tolist() == [10.0, 20.0, 30.0] * 2
    assert (found.timer_ms, found.groups["late"].scaling) == (0, None)
    assert len(progressed) == measurements(inputs, (), 2) == 6


def test_groups_are_computed_after_those_that_they_require_and_first_for_nothing() -> None:
    clock, called = Clock(), list[str]()
    extractors = {
        "late": slow(clock, lambda _: 1.0, 1, called, "late"),
        "early": slow(clock, lambda _: 1.0, 2, called, "early"),
    }
    needy = groups(late=["early", "visit"])
    assert required_first(needy, ["early", "late"]) == ["early", "late"]
    assert required_first(groups(), ["early", "late"]) == ["late", "early"]
    profile(needy, extractors, (0, 0), warm_up=3, repeats=1, clock=clock)
    assert called == ["early", "late"] * (3 + 2)


def test_a_group_without_features_is_measured_once_for_those_that_use_its_result() -> None:
    clock, called = Clock(), list[str]()
    visit = slow(clock, lambda _: 7.0, 3, called, "visit")

    def late(x: Any, result: Any) -> Any:
        assert result.shape == (3,)
        clock.after(1.0)
        return [0.0]

    extractors = {"late": late, "early": slow(clock, lambda _: 2.0, 2), "visit": visit}
    found = profile(groups(late=["visit"]), extractors, (0, 0), warm_up=1, repeats=1, clock=clock)
    assert list(found.groups) == ["visit", "late", "early"]
    assert {name: times.tolist() for name, times in found.times.items()} == {
        "visit": [7.0, 7.0],
        "late": [1.0, 1.0],
        "early": [2.0, 2.0],
    }
    assert called == ["visit"] * 3


def broken(_: Any) -> Any:
    raise RuntimeError("no light\non the sensor")


def test_groups_may_be_measured_side_by_side() -> None:
    both = Barrier(2, timeout=WAIT_S)

    def meeting(width: int) -> Callable[[Any], Any]:
        return lambda _: (both.wait(), np.zeros(width))[1]

    found = profile(groups(), {"late": meeting(1), "early": meeting(2)}, (0, 0), parallel=2, repeats=3)
    assert {name: len(times) for name, times in found.times.items()} == {"late": 6, "early": 6}
    assert_refused(
        lambda: profile(groups(), {"late": broken, "early": lambda _: [0.0, 0.0]}, (0,), parallel=2),
        "the extractor of group 'late' failed ",
        "no light",
        error=ExtractorError,
    )


def test_what_looking_at_the_clock_takes_is_told() -> None:
    clock = Clock(look_ns=2000)
    extractors = {"late": slow(clock, lambda _: 0.0, 1), "early": slow(clock, lambda _: 0.0, 2)}
    found = profile(groups(), extractors, (0,), clock=clock)
    assert found.timer_ms == pytest.approx(0.002)
    assert found.times["late"] == pytest.approx(0.002)


def table() -> TableInputs:
    return TableInputs(Batch(0, {"n": np.arange(5), "w": np.array([None, "a", "b", "c", "d"], dtype=object)}).columns)


def test_a_row_of_a_table_is_a_dict_of_pythons_own_values_and_a_batch_one_of_arrays() -> None:
    inputs = table()
    assert inputs[0] == {"n": 0, "w": None}
    assert type(inputs[3]["n"]) is int
    assert inputs[0] is not inputs[0]
    batch = inputs.together([4, 0])
    assert batch["n"].tolist() == [4, 0]
    assert batch["w"].tolist() == ["d", None]


def test_calls_of_several_rows_tell_what_a_call_and_what_a_row_takes() -> None:
    clock, sizes = Clock(), set()

    def extract(width: int) -> Any:
        def extractor(x: Any) -> Any:
            rows = len(x["n"])
            sizes.add(rows)
            clock.after(3.0 + 0.25 * rows)
            return np.zeros((rows, width))

        return extractor

    found = profile(
        groups(), {"late": extract(1), "early": extract(2)}, table(), rows=(1, 8, 64), repeats=2, clock=clock
    )
    late = found.groups["late"]
    assert late.scaling is not None
    assert (late.scaling.fixed, late.scaling.per_row) == pytest.approx((3.0, 0.25))
    assert late.cost(0.9).of_call(100) == pytest.approx(3.0 + 0.25 * 100)
    assert (sizes, list(late.times), found.rows) == ({1, 8, 64}, [1, 8, 64], 64)
    assert found.times["late"] == pytest.approx(3.0 + 0.25 * 64)
    assert late.per_row == pytest.approx(3.0 / 64 + 0.25)
    assert len(found.times["late"]) == 2 * 10, "ten batches at the least"
    assert measurements(table(), (1, 8, 64), 2) == 2 * 30


def test_several_inputs_of_a_module_are_a_list_from_the_first_again_after_the_last() -> None:
    one = load_groups({"cost_unit": "ms", "groups": [{"name": "a", "features": ["a"], "cost": 1}]})
    calls = Mock(return_value=np.zeros((2, 1)))
    profile(one, {"a": calls}, (1, 2, 3), rows=(2,), warm_up=2, repeats=0)
    assert calls.mock_calls == [call([1, 2]), call([3, 1])]
    assert inputs_of(lambda: iter(range(9)), 4, "m:make") == (0, 1, 2, 3)
    for given, why in (
        (3, "is int; expected an iterable of inputs"),
        ({"a": 1}, "is dict; expected"),
        ([], "has no in"),
        (
            lambda: iter([1 // 0]),
            "failed (ZeroDivisionError: integer division or modulo by zero); expected an iterable",
        ),
        ((1 // n for n in (1, 0)), "failed (ZeroDivisionError"),
    ):
        assert_refused(partial(inputs_of, given, 4, "m:make"), f"m:make {why}", error=ExtractorError)


@pytest.mark.parametrize(("limit", "count"), [(10, 10), (4, 4), (3, 3), (100, 40)])
def test_rows_are_collected_from_as_many_row_groups_as_needed(limit: int, count: int, tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": np.arange(40), "s": ["a", None, "b", "c"] * 10})
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=4)
    found = TableInputs.of(open_table(tmp_path / "t.parquet"), limit)
    assert len(found) == count
    assert found.columns["n"].tolist() == list(range(count))
    assert found[count - 1] == {"n": count - 1, "s": ["a", None, "b", "c"][(count - 1) % 4]}


@pytest.mark.parametrize(
    ("extractor", "why"),
    [
        (broken, "the extractor of group 'late' failed (RuntimeError: no light on the sensor)"),
        (lambda _: np.zeros(3), "the extractor of group 'late' returned 3; expected 1 values"),
        (lambda _: [[1.0], [2.0, 3.0]], "the extractor of group 'late' returned no array; expected 1 values"),
        (lambda _: 1.0, "the extractor of group 'late' returned no array"),
        (
            lambda _: Unreadable(),
            "group 'late' returned values that are not an array (RuntimeError: not without a gradient)",
        ),
    ],
)
def test_an_extractor_that_fails_is_named_in_a_line(extractor: Any, why: str) -> None:
    extractors = {"late": extractor, "early": lambda _: [0.0, 0.0]}
    assert_refused(lambda: profile(groups(), extractors, (0,)), why, error=ExtractorError)


def test_extractors_that_do_not_fit_the_groups_are_refused() -> None:
    for names, why in (
        (["late"], "no extractor for 'early'"),
        (["late", "early", "earli"], "there is no group 'earli'"),
    ):
        assert_refused(partial(profile, groups(), dict.fromkeys(names, broken), (0,)), why, error=ExtractorError)


def test_the_first_call_of_each_input_is_cold() -> None:
    clock, seen = Clock(), set[float]()

    def extractor(x: Any) -> Any:
        clock.after(1.0 if x in seen else 10.0 + x)
        seen.add(x)
        return [x]

    one = load_groups({"cost_unit": "ms", "groups": [{"name": "a", "features": ["x"], "cost": 1}]})
    found = profile(one, {"a": extractor}, (1, 2, 3), warm_up=2, repeats=4, clock=clock).groups["a"]
    assert found.first == pytest.approx([11.0, 12.0, 13.0]), "in the warm-up or in the measurement"
    assert found.cold == pytest.approx(12.0)
    assert float(np.median(found.per_row)) == pytest.approx(1.0)
