"""Admission control, in a model of an event loop without a clock."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from anytime_service.clock import now_ms
from anytime_service.limits.admission import Admission, measure_cycles
from service.loop_model import POST, STREAM, WAITING, LoopModel, Work
from service.loops import LOOPS
from waiting import until_async

KINDS = {
    "post": (POST, 20.0),
    "waiting": (WAITING, 20.0),
    "stream": (STREAM, 20.0),
    "short": (STREAM, 5.0),
    "long": (STREAM, 100.0),
}

HEAVY = Work(begin=0.12, group=0.085, groups=10, answer=0.2, refuse=0.05)
"""As by WebSocket on a slow core: ten that last 18 ms are 70% of what it can do."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("load", "least"), [(1.1, 0.85), (1.5, 0.9), (3.0, 0.9)])
def test_beyond_capacity_nearly_as_many_are_answered_in_time_as_the_cost_of_refusing_leaves(
    kind: str, load: float, least: float
) -> None:
    work, deadline_ms = KINDS[kind]
    outcome = LoopModel(work, lambda _: load, deadline_ms).run(600 + 6 * deadline_ms)
    begin, end = 250 + 4 * deadline_ms, 600 + 6 * deadline_ms
    share = work.refuse / work.whole
    possible = (1 - load * share) / (1 - share)
    assert outcome.good(begin, end) * work.whole > least * possible
    late = sum(begin <= at < end and late > 2.0 for at, late in outcome.answered)
    assert late < 0.02 * len(outcome.answered)


@pytest.mark.parametrize("load", [1.2, 1.5, 2.0])
def test_a_loop_with_half_a_core_is_not_overloaded_although_it_works_half_the_time(load: float) -> None:
    outcome = LoopModel(STREAM, lambda _: load, core=0.5).run(1_000)
    assert outcome.good(300, 1_000) * STREAM.whole > 0.7
    assert outcome.good(300, 1_000, late_ms=10.0) * STREAM.whole > 0.8


@pytest.mark.parametrize("kind", KINDS)
def test_the_admission_rate_does_not_oscillate(kind: str) -> None:
    work, deadline_ms = KINDS[kind]
    outcome = LoopModel(work, lambda _: 2.0, deadline_ms, seed=1).run(500 + 6 * deadline_ms)
    begin = 200 + 5 * deadline_ms
    for i in range(8):
        assert 0.6 < outcome.good(begin + i * 25.0, begin + (i + 1) * 25.0) * work.whole < 1.1


@pytest.mark.parametrize("kind", KINDS)
def test_load_below_capacity_is_admitted_in_time(kind: str) -> None:
    work, deadline_ms = KINDS[kind]
    outcome = LoopModel(work, lambda _: 0.7, deadline_ms).run(500 + 2 * deadline_ms)
    assert len(outcome.refused) < 0.02 * len(outcome.answered)
    assert all(late <= 2.0 for _, late in outcome.answered)


BURSTS: dict[str, Any] = {"burst_ms": 1.0, "pauses": (50.0, 3.0)}


@pytest.mark.parametrize(
    ("kind", "load", "options", "ms", "most"),
    [
        ("post", 0.7, BURSTS, 2_000, 0.06),
        ("stream", 0.7, BURSTS, 2_000, 0.06),
        ("post", 0.4, {"pauses": (100.0, 10.0)}, 1_000, 0.1),
        ("stream", 0.4, {"pauses": (100.0, 10.0)}, 1_000, 0.1),
        ("few expensive", 0.7, {}, 10_000, 0.02),
        ("few expensive", 0.6, {"pauses": (200.0, 2.0)}, 10_000, 0.02),
    ],
)
def test_bursts_below_capacity_and_pauses_of_the_machine_are_no_overload(
    kind: str, load: float, options: dict[str, Any], ms: float, most: float
) -> None:
    work, deadline_ms = KINDS.get(kind, (HEAVY, 18.0))
    outcome = LoopModel(work, lambda _: load, deadline_ms, **options).run(ms)
    assert len(outcome.refused) < most * len(outcome.answered)


@pytest.mark.parametrize("kind", ["post", "stream"])
def test_a_surge_is_limited_within_50_ms_and_the_limit_ends_within_50_ms(kind: str) -> None:
    work, deadline_ms = KINDS[kind]
    outcome = LoopModel(work, lambda at: 3.0 if 200 <= at < 400 else 0.4, deadline_ms).run(700)
    assert outcome.shed(100, 200) == 0
    assert outcome.shed(250, 400) * work.whole > 1.5
    lateness = [late for at, late in outcome.answered if 250 + deadline_ms <= at < 400]
    assert sum(late > 2.0 for late in lateness) < 0.1 * len(lateness)
    assert outcome.shed(450, 700) * work.whole < 0.01


def test_predictions_that_become_more_expensive_are_admitted_less_often() -> None:
    model = LoopModel(POST, lambda _: 1.5)
    model.run(200)
    model.work = Work(begin=0.013, group=0.0, groups=0, answer=1.2, refuse=0.013)
    lateness = [late + model.deadline_ms for at, late in model.run(700).answered if at > 300]
    assert len(lateness) > 0.7 * 400 / model.work.whole
    assert max(lateness) < 15.0


def test_waiting_requests_count_by_the_mean_duration_of_a_turn() -> None:
    admission, now = Admission(5.0, lambda: 0), 0.0
    assert admission.admits(now)
    for _ in range(200):  # two at a time, of which the second takes 2 ms
        admission.waiting += 2
        admission.had_turn(now)
        now += 2.0
        admission.had_turn(now)
    admission.record_cycle(now, 0.01, 0.0)
    assert admission.predicted_ms(now) < 0.1
    admission.waiting = 2
    assert 3.5 < admission.predicted_ms(now) <= 4.0
    for waiting, admits, retry_after_s in ((0, True, 1), (2, True, 1), (3, False, 1), (1_000, False, 2)):
        admission.waiting = waiting
        assert (admission.admits(now), admission.retry_after_s()) == (admits, retry_after_s)


def test_a_loop_that_always_works_is_as_busy_as_its_cycles_say_from_the_start() -> None:
    admission = Admission(1_000.0, lambda: 0)
    admission.record_cycle(1.0, 1.0, 1.0)
    admission.record_cycle(21.0, 20.0, 20.0)
    assert admission.busy == pytest.approx(1.0 - 1.0 / 20.0**0.5)  # half of the way to the new cycle, in logarithms


def test_cycles_are_measured_only_while_there_are_requests() -> None:
    woken, opened = list[None](), 0
    admission = Admission(5.0, lambda: opened, lambda: woken.append(None))
    assert admission.predicted_ms(1e6) == 0.0
    admission.admits(0.0)
    admission.admits(1.0)
    assert len(woken) == 1
    assert admission.record_cycle(500.0, 0.01, 0.0)
    opened = 1
    assert admission.record_cycle(5_000.0, 0.01, 0.0), "while something is open"
    opened = 0
    assert not admission.record_cycle(5_002.0, 0.01, 0.0)
    admission.rest()
    assert admission.predicted_ms(1e6) == 0.0
    admission.admits(1e6)
    assert len(woken) == 2


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_cycle_lasts_as_long_as_the_work_in_it(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    laps, worked, most = list[float](), list[float](), 15
    clock = SimpleNamespace(turns=0)
    monkeypatch.setattr("anytime_service.limits.admission.now_ms", lambda: 20.0 * clock.turns)
    monkeypatch.setattr("anytime_service.limits.admission.thread_time", lambda: clock.turns / 64)

    def work() -> None:
        """Take 20 ms; the thread works for 15.625 of these."""
        clock.turns += 1
        if len(laps) < most:
            asyncio.get_running_loop().call_soon(work)

    def record_cycle(_now_ms: float, took_ms: float, worked_ms: float) -> bool:
        laps.append(took_ms)
        worked.append(worked_ms)
        return len(laps) < most

    recording: Any = SimpleNamespace(record_cycle=record_cycle, rest=lambda: None)
    measuring = asyncio.create_task(measure_cycles(recording))
    await until_async(lambda: len(laps) >= 4)
    before = len(laps)
    work()
    await measuring
    assert {*laps[:before], *worked[:before]} == {0.0}
    assert {*laps[before + 1 :]} == {20.0}, "but for one that may have been under way"
    assert len(laps) == most
    assert all(each >= 15.625 and each % 15.625 == 0.0 for each in worked[before + 1 :])


def test_the_cycles_of_another_loop_are_measured_after_the_first_one_has_ended() -> None:
    measuring: list[asyncio.Task[None]] = []
    admission = Admission(5.0, lambda: 0, lambda: measuring.append(asyncio.create_task(measure_cycles(admission))))

    async def main() -> None:
        admission.admits(now_ms())
        await asyncio.sleep(0.01)

    for _ in range(2):
        asyncio.run(main())
    assert len(measuring) == 2


def test_a_single_request_is_admitted_however_long_the_machine_has_paused() -> None:
    opened = 0
    admission = Admission(5.0, lambda: opened)
    assert admission.admits(0.0)
    admission.record_cycle(1.0, 0.1, 0.1)
    admission.record_cycle(80.0, 60.0, 0.1)
    assert admission.predicted_ms(80.0) > 5.0
    assert admission.admits(80.0)
    opened = 40
    assert not admission.admits(80.0)
