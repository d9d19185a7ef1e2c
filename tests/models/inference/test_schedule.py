"""States of groups in a schedule, on a clock that the tests move."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from anytime.inference.deadline import UNMEASURED_REFUSALS
from anytime.inference.extraction import Task
from anytime.inference.schedule import LOG_SECONDS, MAX_FAILURES, Failure, Schedule

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
