"""The judges of the drills condemn what is wrong: answers, lateness, leaks, refusals without a reason."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from benchmarks.load.asked import Asked, faults
from drills.calls import OVERLOADED, Call, Told, inputs
from drills.clients import Left
from drills.drilling import broken_by, client_leaks, unforeseen, unshown_by
from drills.flatness import trend
from drills.judging import Figures, Oracle, Outcome, Served, Stalls, figures, outcome, recovery_s
from drills.machine import Footprint, Watch, leaks, pause
from drills.networks import too_few
from drills.trials import Bounds, Trial, faults_of, unseemly
from service.serving import small_model, until

NOTE = "no answer arrived before the deadline; this is the base rate, since no update arrived"


def told(model: Model, number: int, groups: list[str]) -> Told:
    """What a right answer from these groups is."""
    prediction = Prediction(model, 1)
    for group in groups:
        prediction.add(group, inputs(model, number)[group])
    return msgspec.convert(prediction.answer(reason="deadline"), Told, from_attributes=True, strict=False)


def call(
    model: Model,
    *,
    groups: tuple[str, ...] = ("speed", "hog"),
    late_ms: float = -1.0,
    answered: dict[str, Any] | None = None,
    **changed: Any,
) -> Call:
    """A call that was answered a millisecond before its deadline, and what is changed in it and in its answer."""
    answer = msgspec.structs.replace(told(model, 7, list(groups)), **(answered or {}))
    made = Call("client", "websocket", 7, 100.0, 100.020 + late_ms / 1e3, 20.0, ["speed", "hog"], replica=1)
    return msgspec.structs.replace(made, **({"answer": answer} | changed))


@pytest.fixture
def oracle(model: Model) -> Oracle:
    return Oracle([Served(model)])


def test_a_right_answer_has_no_fault(model: Model, oracle: Oracle) -> None:
    for groups in ((), ("speed",), ("speed", "hog")):
        assert oracle.fault(call(model, groups=groups)) is None


@pytest.mark.parametrize(
    ("answered", "words"),
    [
        ({"prediction": 10.0000001}, "the library's is"),
        ({"prefix": 1}, "prefix 1"),
        ({"cost": 4.0}, "cost 4.0"),
        ({"complete": True}, "complete True"),
        ({"groups": ["speed", "hog", "lab"]}, "never sent"),
        ({"groups": ["speed"]}, "the library's is"),
        ({"version": "v2"}, "never served"),
    ],
)
def test_a_wrong_answer_is_found(model: Model, oracle: Oracle, answered: dict[str, Any], words: str) -> None:
    assert words in (oracle.fault(call(model, answered=answered)) or "")


def test_an_answer_to_another_call_is_found(model: Model, oracle: Oracle) -> None:
    assert oracle.fault(call(model, answer=told(model, 8, ["speed", "hog"]))) is not None


def test_groups_that_nothing_interrupted_must_all_be_in_the_answer(model: Model, oracle: Oracle) -> None:
    assert oracle.fault(call(model, groups=("speed",))) is None
    for changed in ({"taken": True}, {"answered": {"reason": "end"}}):
        assert oracle.fault(call(model, groups=("speed",), **changed)) is not None
        assert oracle.fault(call(model, **changed)) is None


def test_a_version_answers_in_its_time_alone(model: Model) -> None:
    assert Oracle([Served(model, since=100.5)]).fault(call(model)) is not None
    assert Oracle([Served(model, until=99.5)]).fault(call(model)) is not None
    assert Oracle([Served(model, until=99.5)]).fault(call(model, opened=99.0)) is None
    marked = call(model, groups=(), answered={"note": NOTE})
    assert Oracle([Served(model, until=99.5)]).fault(marked) is None, "what a client remembers may be older"


def test_who_answered_is_told_by_the_note(model: Model) -> None:
    assert outcome(call(model)) is Outcome.SERVER
    assert outcome(call(model, answered={"note": NOTE})) is Outcome.FALLBACK
    assert outcome(call(model, answer=None, status=503)) is Outcome.REFUSED
    assert outcome(call(model, answer=None, broke="it broke")) is Outcome.BROKEN


def test_late_answers_are_counted_and_only_a_stall_as_long_excuses_them(model: Model, oracle: Oracle) -> None:
    late = call(model, late_ms=30.0)
    for stalls, expected in (
        ([], (1, 0)),
        ([(100.0, 100.026)], (0, 1)),
        ([(100.0, 100.013), (100.005, 100.013), (100.02, 100.033)], (0, 1)),
        ([(100.0, 100.02)], (1, 0)),
        ([(99.0, 99.5), (101.0, 102.0)], (1, 0)),
    ):
        found = figures([late, call(model)], oracle, Stalls(stalls), {})
        assert (found.late, found.excused) == expected
    assert figures([call(model, late_ms=4.0)], oracle, Stalls(), {}).late == 0


def test_calls_are_lost_only_with_their_own_replica_and_never_excused_from_being_right(
    model: Model, oracle: Oracle
) -> None:
    broke = call(model, answer=None, broke="reset")
    struck = {1: (100.01, 101.0)}
    assert figures([broke], oracle, Stalls(), struck).lost == 1
    for changed in ({"replica": 2}, {"replica": None}, {"begun": 101.5, "came": 101.6}, {"begun": 99.0, "came": 100.0}):
        other = msgspec.structs.replace(broke, **changed)
        found = figures([other], oracle, Stalls(), struck)
        assert (found.lost, found.by[Outcome.BROKEN]) == (0, 1)
        assert unforeseen([other], {}, struck, "during", Stalls())
    assert not unforeseen([broke], {}, struck, "during", Stalls())
    wrong = call(model, late_ms=500.0, answered={"prediction": 0.0})
    assert figures([wrong], oracle, Stalls(), struck).wrong == 1


def test_figures_break_promises() -> None:
    fine = Figures(asked=1000)
    assert not broken_by(replace(fine, late=1, excused=20), "after")
    assert not unshown_by(replace(fine, excused=20), "after")
    assert unshown_by(replace(fine, excused=21), "after")
    bad: list[dict[str, Any]] = [{"wrong": 1}, {"late": 2}, {"asked": 0}, {"asked": 100, "late": 1}]
    for changed in bad:
        assert broken_by(replace(fine, **changed), "after")


def test_a_refusal_is_allowed_where_it_is_expected_and_clear(model: Model) -> None:
    allowed = {"session": frozenset({Outcome.REFUSED})}
    clear = call(model, answer=None, kind="session", status=503, why="it is gone")
    assert not unforeseen([clear], allowed, {}, "during", Stalls())
    for changed in ({"why": None}, {"status": 500}, {"kind": "post"}):
        assert unforeseen([msgspec.structs.replace(clear, **changed)], allowed, {}, "during", Stalls())
    assert unforeseen([clear], {}, {}, "after", Stalls())


def test_a_few_calls_may_be_shed_and_no_more(model: Model) -> None:
    fine = [call(model)] * 495
    shed = call(model, answer=None, status=503, type=OVERLOADED, why="too busy")
    assert not unforeseen([*fine, *[shed] * 5], {}, {}, "during", Stalls())
    assert unforeseen([*fine, *[shed] * 20], {}, {}, "during", Stalls())
    assert unforeseen([msgspec.structs.replace(shed, why=None)], {}, {}, "during", Stalls()), "without a reason"


def test_what_is_refused_while_the_machine_stood_still_counts_as_shed(model: Model) -> None:
    fine = [call(model)] * 495
    refused = call(model, answer=None, kind="session", status=503, why="no answer within 20 ms")
    stood = Stalls([(refused.begun, refused.came)])
    assert unforeseen([*fine, refused], {}, {}, "during", Stalls())
    assert not unforeseen([*fine, refused], {}, {}, "during", stood)
    assert unforeseen([*fine, *[refused] * 20], {}, {}, "during", stood)
    assert unforeseen([msgspec.structs.replace(refused, status=500)], {}, {}, "during", stood)


def test_a_session_is_lost_that_a_balancer_gave_to_a_replica_which_was_struck(model: Model) -> None:
    hung = call(model, answer=None, kind="session", broke="TimeoutError", replica=None, begun=100.0, came=101.2)
    assert figures([hung], Oracle([Served(model)]), Stalls(), {1: (100.01, 110.0)}).lost == 1
    for struck in ({}, {1: (98.0, 110.0)}, {1: (101.5, 110.0)}):
        assert figures([hung], Oracle([Served(model)]), Stalls(), struck).lost == 0
        assert unforeseen([hung], {}, struck, "during", Stalls())


def test_recovery_counts_until_the_server_answers_as_before(model: Model) -> None:
    def calls(broken_until: float) -> Iterator[Call]:
        for begun in np.arange(10.0, 14.0, 0.05).tolist():
            made = call(model, begun=begun, came=begun + 0.01)
            yield made if begun >= broken_until else msgspec.structs.replace(made, answer=None, broke="reset")

    assert recovery_s(calls(10.0), 10.0, 1.0, 14.0) == 0.0
    assert recovery_s(calls(11.1), 10.0, 1.0, 14.0) == pytest.approx(1.25)
    assert recovery_s(calls(13.9), 10.0, 1.0, 14.0) is None
    assert recovery_s([], 10.0, 1.0, 14.0) is None
    stood = Stalls([(call.begun, call.came) for call in calls(11.1) if call.answer is None])
    assert recovery_s(calls(11.1), 10.0, 1.0, 14.0, stood) == 0.0


def test_leaks_are_found() -> None:
    before = [Footprint(1, 100.0, 20, 5), Footprint(2, 100.0, 20, 5)]
    assert not leaks(before, before)
    assert not leaks(before, [Footprint(3, 900.0, 900, 900)]), "another process"
    for held in ({"mib": 140.0}, {"descriptors": 40}, {"threads": 20}):
        assert len(leaks(before, [before[0], replace(before[1], **held)])) == 1
    assert not client_leaks(Left([], (5, 5), (9, 9), 0))
    for left in (Left([], (5, 6), (9, 9), 0), Left([], (5, 5), (9, 10), 0), Left([], (5, 5), (9, 9), 1)):
        assert len(client_leaks(left)) == 1


def test_memory_that_grows_is_not_flat() -> None:
    times = np.arange(0.0, 600.0, 5.0)
    noise = np.random.default_rng(0).normal(0.0, 0.5, len(times))
    assert trend(times.tolist(), (100.0 + noise).tolist()).flat
    assert not trend(times.tolist(), (100.0 + noise + times / 60.0).tolist()).flat, "a mebibyte a minute"
    spike = 100.0 + noise
    spike[50] = 120.0
    assert not trend(times.tolist(), spike.tolist()).flat
    assert not trend([0.0, 5.0], [100.0, 100.0]).flat, "of two samples nothing can be said"
    assert not trend([], []).flat


def test_answers_faster_than_the_network_are_not_believed() -> None:
    by = dict.fromkeys(Outcome, 0)
    assert not too_few(Figures(asked=10, by={**by, Outcome.FALLBACK: 10}), 0.0, 20.0, "far")
    assert too_few(Figures(asked=10, by={**by, Outcome.FALLBACK: 9, Outcome.SERVER: 1}), 0.0, 20.0, "far")
    assert too_few(Figures(asked=10, by={**by, Outcome.FALLBACK: 5, Outcome.SERVER: 5}), 0.8, 500.0, "far")


def trial(**changed: Any) -> Trial:
    fine = Trial("an attack", 1, Counter(["problem 400", "FIN"]), 100.0, 110.0, 150.0, 2.0, 20.0, 50, [0.01])
    return replace(fine, **changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"lives": False},
        {"times": 0, "failed": "refused"},
        {"came": Counter(["plain 400"])},
        {"came": Counter(["problem 500"])},
        {"came": Counter(["RST"])},
        {"came": Counter(["open"])},
        {"came": Counter(["close 1011"])},
        {"came": Counter(["bare error 400"])},
        {"came": Counter(["ANSWERED WHAT WAS HIDDEN"])},
        {"came": Counter(["took it all"])},
        {"worst_mib": 151.0},
        {"others_ms": 21.0},
        {"others_ms": math.nan},
        {"asked": 0},
        {"shed": 6},
        {"probes_s": [0.01, math.inf]},
        {"probes_s": []},
        {"open": 1.0},
        {"others": ["an answer was wrong"]},
        {"log": ["Traceback (most recent call last):"]},
    ],
    ids=str,
)
def test_an_attack_that_does_harm_is_told(changed: dict[str, Any]) -> None:
    assert not faults_of(trial())
    assert len(faults_of(trial(**changed))) == 1


def test_what_is_torn_or_left_open_is_allowed_only_where_it_is_said() -> None:
    assert not unseemly(Counter(["RST"]), resets=True, stays=False)
    assert not unseemly(Counter(["open"]), resets=False, stays=True)
    assert not unseemly(Counter(["200", "101", "problem 503", "error 422", "close 1009"]), resets=False, stays=False)


def test_bounds_grow_with_connections_and_are_never_those_of_everything() -> None:
    bounds = Bounds(held_mib=64, connection_mib=0.04, sending_mib=4, slack_mib=48)
    assert bounds.most_mib(100.0, 1) == pytest.approx(216.04)
    assert bounds.most_mib(100.0, 10_000) == pytest.approx(1012.0)


def test_a_watch_notes_when_nothing_could_run() -> None:
    before = sys.getswitchinterval()
    with Watch() as watch:
        pause(0.01)
        try:
            sys.setswitchinterval(0.2)
            begun = time.perf_counter()
            while time.perf_counter() - begun < 0.1:
                pass
        finally:
            sys.setswitchinterval(before)
        until(lambda: Stalls(watch.stalls).within_ms(begun, begun + 0.1) > 50.0)


def test_other_models_of_the_same_groups_have_the_same_inputs() -> None:
    assert inputs(small_model(), 3) == inputs(small_model("another"), 3) != inputs(small_model(), 4)


@pytest.mark.parametrize(
    ("stalls", "excused"),
    [
        ([], False),
        ([(80_000.0, 80_010.0)], False),
        ([(99_900.0, 99_950.0)], True),
        ([(100_010.0, 100_020.0)], False),
        ([(99_780.0, 99_810.0)], True),
        ([(99_640.0, 99_670.0)], False),
        ([(99_640.0, 99_670.0), (99_600.0, 99_630.0)], True),
    ],
)
def test_a_refusal_under_steady_load_is_the_machines_only_beside_a_stall(
    stalls: list[tuple[float, float]], excused: bool
) -> None:
    asked = Asked(1, 20.0, "prefix", [], None, begun=100.0)
    asked.answer(100.005, {"type": OVERLOADED, "status": 503, "detail": "too much"})
    found = faults(small_model(), asked, stalls)
    assert found == (["stalled"] if excused else ["no answer: 503 too much"])
    asked.answers[0][1]["type"] = "about:blank"
    assert faults(small_model(), asked, stalls) == ["no answer: 503 too much"]
