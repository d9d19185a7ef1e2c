"""The rules of time and the states of groups in a schedule, on a clock that the tests move."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from anytime.inference.deadline import (
    FEW,
    FITTING_SHARE,
    MAX_DRAIN_S,
    MEASUREMENTS,
    MEMORY_S,
    QUIET_TURNS,
    REFUSALS,
    STALL_S,
    UNMEASURED_REFUSALS,
    Durations,
    LatenessRecord,
    LateReading,
    early_ms,
)
from anytime.inference.extraction import Task
from anytime.inference.schedule import LOG_SECONDS, MAX_FAILURES, Failure, Schedule


def measured(prior: float | None, *took_ms: float) -> Durations:
    """Durations after some calls."""
    durations = Durations(prior)
    for ms in took_ms:
        durations.add(ms, 0.0)
    return durations


def refused(durations: Durations, times: int) -> list[float]:
    """What was expected before each of some refusals."""
    expected = []
    for _ in range(times):
        expected.append(durations.expected_ms(0.0))
        durations.refuse(0.0)
    return expected


def test_the_margin_settles_where_few_answers_are_late() -> None:
    rng = np.random.default_rng(0)
    record = LatenessRecord()
    wake = rng.exponential(0.1, 20_000)
    late = np.empty_like(wake)
    for i, ms in enumerate(wake):
        late[i] = ms - record.margin_ms
        record.add(late[i])
    assert 0.005 < (late[2000:] > 0).mean() < 0.035
    assert record.summary().count == 20_000
    assert record.summary().max == late[-4096:].max()


def test_the_margin_is_bounded() -> None:
    record = LatenessRecord()
    for _ in range(200):
        record.add(50.0)
    assert record.margin_ms == 1.0
    for _ in range(5000):
        record.add(-1.0)
    assert record.margin_ms == 0.0


def test_answers_that_did_not_wait_count_and_leave_the_margin() -> None:
    record = LatenessRecord()
    before = record.margin_ms
    record.add(-5.0, waited=False)
    assert (record.margin_ms, record.summary().count, record.summary().p50) == (before, 1, -5.0)


@pytest.mark.parametrize(("deadline_ms", "expected"), [(20.0, 0.6), (1.2, 0.6), (1.0, 0.5), (0.0, 0.0)])
def test_the_margin_takes_at_most_half_of_a_deadline(deadline_ms: float, expected: float) -> None:
    assert early_ms(0.6, deadline_ms) == expected


@pytest.mark.parametrize(
    ("late_s", "expected"), [(0.0, 0.0), (STALL_S, 0.0), (0.01, 0.001), (0.5, MAX_DRAIN_S), (9.0, MAX_DRAIN_S)]
)
def test_a_stall_grants_a_tenth_of_itself(late_s: float, expected: float) -> None:
    assert LateReading(late_s, 0.0).remaining(0.0, unread=False) == pytest.approx(expected)


def test_a_caller_that_waits_receives_for_the_granted_time_and_longer_while_a_group_is_being_put() -> None:
    reading = LateReading(0.01, 100.0)
    assert reading.remaining(100.0, unread=False) == pytest.approx(0.001)
    assert reading.remaining(100.0, unread=True) == pytest.approx(MAX_DRAIN_S)
    assert reading.remaining(100.0015, unread=False) < 0 < reading.remaining(100.0015, unread=True)


def test_a_loop_has_turns_until_nothing_new_was_there_for_some_of_them() -> None:
    reading = LateReading(0.01, 100.0)
    quiet = [reading.has_turn(100.0, unread=False) for _ in range(QUIET_TURNS + 2)]
    assert quiet == [True] * (QUIET_TURNS + 1) + [False]
    reading = LateReading(0.01, 100.0)
    for unread in (False, True, True, False):
        assert reading.has_turn(100.0, unread=unread)
    assert [reading.has_turn(100.0, unread=False) for _ in range(QUIET_TURNS)] == [True] * (QUIET_TURNS - 1) + [False]


def test_a_loop_that_always_finds_more_stops_after_the_longest_time() -> None:
    reading = LateReading(0.01, 100.0)
    assert reading.has_turn(100.0 + 0.9 * MAX_DRAIN_S, unread=True)
    assert not reading.has_turn(100.0 + MAX_DRAIN_S, unread=True)


@pytest.mark.parametrize("prior", [None, 0.0, 5.0])
def test_before_a_measurement_the_prior_is_expected(prior: float | None) -> None:
    assert Durations(prior).expected_ms(0.0) == (prior or 0.0)


def test_of_few_measurements_the_shortest_counts_so_that_one_cold_call_excludes_no_group() -> None:
    assert measured(4.0, *[300.0] * (FEW - 1)).expected_ms(0.0) == 4.0
    assert measured(None, 300.0, 2.0).expected_ms(0.0) == 2.0


def test_the_expected_duration_is_the_quantile_of_the_latest_calls() -> None:
    rng, durations, seen = np.random.default_rng(1), Durations(1.0), list[float]()
    for i in range(200):
        seen.append(float(rng.exponential(3.0)))
        durations.add(seen[-1], i / 100)
        if i >= FEW:
            latest = np.array(seen[-MEASUREMENTS:])
            assert durations.expected_ms(i / 100) == np.quantile(latest, FITTING_SHARE, method="lower")


def test_one_slow_call_among_many_changes_little_and_a_lasting_change_is_learned() -> None:
    calls = [2.0] * MEASUREMENTS + [500.0]
    assert measured(2.0, *calls).expected_ms(0.0) == 2.0
    assert measured(2.0, *calls, *[9.0] * (MEASUREMENTS // 2)).expected_ms(0.0) == 9.0


def test_measurements_are_forgotten_so_that_a_slow_phase_ends() -> None:
    durations = Durations(2.0)
    for i in range(5):
        durations.add(50.0, float(i))
    assert durations.expected_ms(4.0 + MEMORY_S) == 2.0
    durations.add(3.0, 30.0)
    assert durations.expected_ms(30.0) == 2.0


def test_a_group_that_was_never_measured_is_tried_after_some_refusals_since_its_prior_may_be_wrong() -> None:
    expected = refused(Durations(1e6), 3 * UNMEASURED_REFUSALS)
    assert [i for i, each in enumerate(expected) if not each] == [UNMEASURED_REFUSALS, 2 * UNMEASURED_REFUSALS]
    assert set(expected) == {0.0, 1e6}


def test_a_group_that_is_refused_counts_as_quick_as_ever_now_and_then_unless_it_held_up_an_answer() -> None:
    durations = measured(1.0, 5.0, 9.0, 9.0, 9.0)
    expected = refused(durations, 3 * REFUSALS)
    assert [i for i, each in enumerate(expected) if each == 5.0] == [REFUSALS, 2 * REFUSALS]
    assert set(expected) == {5.0, 9.0}
    durations.hold_up(0.0)
    durations.refuse(0.0)
    assert set(refused(durations, 3 * REFUSALS)) == {9.0}


def test_a_slow_phase_ends_with_one_quick_call_after_many_refusals() -> None:
    durations = measured(2.0, 2.0, *[30.0] * MEASUREMENTS, 2.0)
    assert durations.expected_ms(0.0) == 30.0, "one quick call among slow ones changes nothing"
    refused(durations, REFUSALS)
    assert durations.expected_ms(0.0) == 2.0
    durations.add(31.0, 0.0)
    assert durations.expected_ms(0.0) == 30.0, "still slow"
    refused(durations, REFUSALS)
    durations.add(2.5, 0.0)
    assert durations.expected_ms(0.0) == 2.0, "the prior again, and one measurement"


def literal_tasks(steps: list[list[str]], ms: dict[str, float], until: float, *, whole: bool) -> dict[str, float]:
    """The latest start of each group, by the definition."""
    starts = {}
    for step in steps:
        for i, name in enumerate(step):
            rest = step[i:] if whole else [name]
            starts[name] = until - sum(ms[each] for each in rest) / 1e3
    return starts


@pytest.mark.parametrize("whole", [True, False])
def test_a_group_may_start_if_it_or_the_rest_of_its_step_can_end_in_time(whole: bool) -> None:
    steps, ms = [["a"], ["p", "q", "b"], ["c"]], {"a": 1.0, "p": 2.0, "q": 0.0, "b": 4.0, "c": 9.0}
    given = [[Task(name) for name in step] for step in steps]
    found = Schedule(ms).tasks(given, (), now=0.0, until=10.0, whole_steps=whole, continues=False)
    assert [task.group for task in found] == ["a", "p", "q", "b", "c"]
    expected = literal_tasks(steps, ms, 10.0, whole=whole)
    assert {task.group: task.start_by for task in found} == pytest.approx(expected, abs=1e-12)


def test_a_hanging_group_is_left_out_for_longer_each_time_up_to_a_minute() -> None:
    schedule, now = Schedule({"a": 1.0}), 0.0
    for pause in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0):
        schedule.failed("a", "it hangs", now, hung=True)
        assert f"tried again in {pause} s" in schedule.left_out({}, now, 1.0)["a"]
        now += pause
        assert schedule.left_out({}, now, 1.0) == {}
    schedule.arrived("a")
    schedule.failed("a", "it hangs", now, hung=True)
    assert "tried again in 1.0 s" in schedule.left_out({}, now, 1.0)["a"]


@pytest.mark.parametrize(
    ("running_s", "expected_ms", "deadline_s", "overdue"),
    [
        (0.05, 5.0, 0.02, True),  # far beyond its usual time and a whole deadline
        (0.05, 20.0, 0.02, False),  # a slow group
        (0.05, 5.0, 1.0, False),  # this run has time to wait
        (0.021, 0.0, 0.02, True),
        (math.inf, 1e6, 1e6, True),
    ],
)
def test_an_abandoned_computation_is_overdue_if_it_exceeds_both_its_time_and_the_deadline(
    running_s: float, expected_ms: float, deadline_s: float, overdue: bool
) -> None:
    assert ("a" in Schedule({"a": expected_ms}).left_out({"a": -running_s}, 0.0, deadline_s)) is overdue


# States of groups in a schedule.

STEPS = [[Task("a")], [Task("p", shared=True), Task("b", uses=("p",), needs=frozenset("p"))], [Task("c")]]


def schedule() -> Schedule:
    return Schedule({"a": 1.0, "p": 2.0, "b": 3.0, "c": None})


@pytest.mark.parametrize(
    ("left_out", "continues", "expected"),
    [
        ([], False, "apbc"),
        (["b"], True, "apc"),
        (["b"], False, "a"),
        (["p"], True, "ac"),
        (["p"], False, "a"),
        (["a"], False, ""),
        (["a", "c"], True, "pb"),
    ],
)
def test_groups_left_out_take_along_what_uses_them(left_out: list[str], continues: bool, expected: str) -> None:
    tasks = schedule().tasks(STEPS, left_out, now=0.0, until=None, whole_steps=True, continues=continues)
    assert "".join(task.group for task in tasks) == expected


def test_tasks_start_by_what_their_groups_took() -> None:
    known = schedule()
    for _ in range(3):
        known.measured("c", 8.0, 0.0)
    starts = {
        task.group: task.start_by
        for task in known.tasks(STEPS, [], now=0.0, until=1.0, whole_steps=True, continues=False)
    }
    assert starts == pytest.approx({"a": 0.999, "p": 0.995, "b": 0.997, "c": 0.992})


def test_an_abandoned_group_is_left_out_once_it_hangs_and_again_for_a_while_afterwards() -> None:
    known = schedule()
    assert known.left_out({"b": 0.0}, 0.015, 0.02) == {}
    (note,) = known.left_out({"b": 0.0}, 0.055, 0.02).values()
    assert note == "group 'b' is left out: it has been running for 55 ms for an earlier input"
    assert known.left_out({}, 0.085, 0.02) == {}, "it was only slow"
    assert not known.failures
    for now in (1.055, 1.085):
        assert known.left_out({"b": 0.0}, now, 0.02).keys() == {"b"}
    assert known.failures == (Failure("b", "it has been running for 1055 ms"),), "once each time"
    assert known.counts(1.1)["b"].hung == 1
    assert "tried again in 0.5 s" in known.left_out({}, 1.555, 0.02)["b"], "its process was killed"
    assert known.left_out({}, 2.06, 0.02) == {}
    known.left_out({"b": 2.07}, 3.2, 0.02)
    assert "tried again in 2.0 s" in known.left_out({}, 3.2, 0.02)["b"]
    known.arrived("b")
    assert known.left_out({}, 4.0, 0.02) == {}


def test_a_group_that_does_not_fit_is_named_and_counted_and_tried_if_it_was_never_measured() -> None:
    known = schedule()
    assert known.skipped([], 0.0) is None
    assert known.skipped(["b", "c"], 0.0) == "not started, since it could not end in time: 'b' (3 ms), 'c' (0 ms)"
    for _ in range(UNMEASURED_REFUSALS - 1):
        known.skipped(["b"], 0.0)
    assert known.counts(0.0)["b"].skipped == UNMEASURED_REFUSALS
    (task,) = known.tasks([[Task("b")]], [], now=0.0, until=1.0, whole_steps=True, continues=True)
    assert task.start_by == 1.0


def test_a_failing_group_is_logged_once_a_minute_with_the_number_of_other_failures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    known = schedule()
    with caplog.at_level(logging.WARNING, "anytime.runner"):
        for i in range(400):
            known.failed("a", "no light", i / 5)
            if i % 2:
                known.arrived("a")
        known.failed("b", "no sound", 80.0)
    lines = [record.getMessage() for record in caplog.records]
    suppressed = int(5 * LOG_SECONDS) - 1
    assert lines == [
        "group 'a' failed: no light",
        f"group 'a' failed: no light ({suppressed} more since the last message)",
        "group 'b' failed: no sound",
    ]
    assert len(known.failures) == MAX_FAILURES
    assert known.counts(80.0)["a"].failed == 400


def test_threads_may_use_a_schedule_at_the_same_time() -> None:
    known = schedule()

    def used(act: Callable[[float], object]) -> None:
        for i in range(3000):
            act(i / 10)

    acts: list[Callable[[float], object]] = [
        lambda now: known.failed("a", "hangs", now, hung=True),
        lambda _: known.arrived("a"),
        lambda now: known.left_out({"b": now - 2.0}, now, 0.02),
        lambda now: known.skipped(["c"], now),
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(acts)) as threads:
            assert list(threads.map(used, acts)) == [None] * len(acts)
    finally:
        sys.setswitchinterval(interval)
    counts = known.counts(0.0)
    assert (counts["a"].computed, counts["a"].failed, counts["c"].skipped) == (3000, 3000, 3000)
