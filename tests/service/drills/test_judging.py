"""The judges of the drills detect faults: wrong and late answers, leaks, and refusals without a reason."""

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
from anytime_service.client.errors import OVERLOADED
from benchmarks.load.predictions import REFUSED, STALLED, LoadPrediction, faults
from drills.clients import ClientReport
from drills.cluster import Footprint, leaks, pause, watching_stalls
from drills.drill import broken_promises, client_leaks, inconclusive, too_few, unexpected
from drills.judging import (
    AnswerRecord,
    Bounds,
    Call,
    Figures,
    Oracle,
    Outcome,
    Served,
    Stalls,
    Trial,
    faults_of,
    figures,
    inputs,
    outcome,
    recovery_s,
    unexpected_replies,
)
from drills.load import trend
from service.serving import small_model
from waiting import until

NOTE = "no answer arrived before the deadline; this is the base rate, since no update arrived"


def right_answer(model: Model, number: int, groups: list[str]) -> AnswerRecord:
    """Return the right answer from these groups."""
    prediction = Prediction(model, 1)
    for group in groups:
        prediction.add(group, inputs(model, number)[group])
    return msgspec.convert(prediction.answer(reason="deadline"), AnswerRecord, from_attributes=True, strict=False)


def call(
    model: Model,
    *,
    groups: tuple[str, ...] = ("speed", "hog"),
    late_ms: float = -1.0,
    answered: dict[str, Any] | None = None,
    **changed: Any,
) -> Call:
    """Return a call answered a millisecond before its deadline, with changes to it and its answer."""
    answer = msgspec.structs.replace(right_answer(model, 7, list(groups)), **(answered or {}))
    record = Call("client", "websocket", 7, 100.0, 100.020 + late_ms / 1e3, 20.0, ["speed", "hog"], replica=1)
    return msgspec.structs.replace(record, **({"answer": answer} | changed))


@pytest.fixture
def oracle(model: Model) -> Oracle:
    return Oracle([Served(model)])


@pytest.mark.parametrize(
    ("answered", "words"),
    [
        ({"prediction": 10.0000001}, "the library returns"),
        ({"prefix": 1}, "prefix 1"),
        ({"cost": 4.0}, "cost 4.0"),
        ({"complete": True}, "complete True"),
        ({"groups": ["speed", "hog", "lab"]}, "never sent"),
        ({"groups": ["speed"]}, "the library returns"),
        ({"version": "v2"}, "never served"),
    ],
)
def test_a_wrong_answer_is_found_and_a_right_one_has_no_fault(
    model: Model, oracle: Oracle, answered: dict[str, Any], words: str
) -> None:
    assert words in (oracle.fault(call(model, answered=answered)) or "")
    assert not any(oracle.fault(call(model, groups=groups)) for groups in ((), ("speed",), ("speed", "hog")))
    assert oracle.fault(call(model, answer=right_answer(model, 8, ["speed", "hog"]))), "the answer to another call"


def test_an_answer_without_a_deadline_uses_all_groups(model: Model, oracle: Oracle) -> None:
    for changed in ({"accepted": True}, {"answered": {"reason": "end"}}):
        assert oracle.fault(call(model, groups=("speed",), **changed)) is not None
        assert oracle.fault(call(model, **changed)) is None


def test_a_version_answers_only_while_it_is_served(model: Model) -> None:
    old = Oracle([Served(model, until=99.5)])
    early, updated = call(model, opened=99.0), call(model, groups=(), answered={"note": NOTE})
    assert Oracle([Served(model, since=100.5)]).fault(call(model)) is not None
    found = [old.fault(each) is None for each in (call(model), early, updated)]
    assert found == [False, True, True], "a client's last update may be older"


def test_the_note_tells_server_answers_from_fallbacks(model: Model) -> None:
    refused, broken = (call(model, answer=None, **why) for why in ({"status": 503}, {"error": "it broke"}))
    outcomes = [outcome(each) for each in (call(model), call(model, answered={"note": NOTE}), refused, broken)]
    assert outcomes == [Outcome.SERVER, Outcome.FALLBACK, Outcome.REFUSED, Outcome.BROKEN]


def test_late_answers_are_counted_unless_a_stall_explains_them(model: Model, oracle: Oracle) -> None:
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


def test_calls_are_lost_only_with_their_own_replica_and_wrong_answers_always_count(
    model: Model, oracle: Oracle
) -> None:
    error = call(model, answer=None, error="reset")
    failed = {1: (100.01, 101.0)}
    assert figures([error], oracle, Stalls(), failed).lost == 1
    for changed in (
        {"replica": 2},
        {"replica": None},
        {"started": 101.5, "received": 101.6},
        {"started": 99.0, "received": 100.0},
    ):
        other = msgspec.structs.replace(error, **changed)
        found = figures([other], oracle, Stalls(), failed)
        assert (found.lost, found.by[Outcome.BROKEN]) == (0, 1)
        assert unexpected([other], {}, failed, "during", Stalls())
    assert not unexpected([error], {}, failed, "during", Stalls())
    wrong = call(model, late_ms=500.0, answered={"prediction": 0.0})
    assert figures([wrong], oracle, Stalls(), failed).wrong == 1


def test_figures_break_promises() -> None:
    fine = Figures(requests=1000)
    assert not broken_promises(replace(fine, late=1, excused=20), "after")
    assert [bool(inconclusive(replace(fine, excused=excused), "after")) for excused in (20, 21)] == [False, True]
    bad: list[dict[str, Any]] = [{"wrong": 1}, {"late": 2}, {"requests": 0}, {"requests": 100, "late": 1}]
    assert all(broken_promises(replace(fine, **changed), "after") for changed in bad)


def test_an_expected_refusal_is_allowed_if_it_has_a_reason(model: Model) -> None:
    allowed = {"session": frozenset({Outcome.REFUSED})}
    clear = call(model, answer=None, kind="session", status=503, detail="it is gone")
    for changed in ({}, {"detail": None}, {"status": 500}, {"kind": "post"}):
        found = unexpected([msgspec.structs.replace(clear, **changed)], allowed, {}, "during", Stalls())
        assert bool(found) == bool(changed)
    assert unexpected([clear], {}, {}, "after", Stalls())


def test_a_few_calls_may_be_shed_and_no_more(model: Model) -> None:
    shed = call(model, answer=None, status=503, type=OVERLOADED, detail="too busy")
    for calls, harm in (([shed] * 5, False), ([shed] * 20, True), ([msgspec.structs.replace(shed, detail=None)], True)):
        assert bool(unexpected([*[call(model)] * 495, *calls], {}, {}, "during", Stalls())) == harm


def test_a_refusal_during_a_stall_counts_as_shed(model: Model) -> None:
    refused = call(model, answer=None, kind="session", status=503, detail="no answer within 20 ms")
    stalled, failed = Stalls([(refused.started, refused.received)]), msgspec.structs.replace(refused, status=500)
    for calls, stalls, harm in (
        ([refused], Stalls(), True),
        ([refused], stalled, False),
        ([refused] * 20, stalled, True),
        ([failed], stalled, True),
    ):
        assert bool(unexpected([*[call(model)] * 495, *calls], {}, {}, "during", stalls)) == harm


def test_a_session_that_a_balancer_routed_to_a_failed_replica_is_lost(model: Model) -> None:
    hung = call(model, answer=None, kind="session", error="TimeoutError", replica=None, started=100.0, received=101.2)
    assert figures([hung], Oracle([Served(model)]), Stalls(), {1: (100.01, 110.0)}).lost == 1
    for failed in ({}, {1: (98.0, 110.0)}, {1: (101.5, 110.0)}):
        assert figures([hung], Oracle([Served(model)]), Stalls(), failed).lost == 0
        assert unexpected([hung], {}, failed, "during", Stalls())


def test_recovery_counts_until_the_server_answers_as_before(model: Model) -> None:
    def calls(broken_until: float) -> Iterator[Call]:
        for started in np.arange(10.0, 14.0, 0.05).tolist():
            record = call(model, started=started, received=started + 0.01)
            yield record if started >= broken_until else msgspec.structs.replace(record, answer=None, error="reset")

    found = [recovery_s(calls(broken_until), 10.0, 1.0, 14.0) for broken_until in (10.0, 11.1, 13.9)]
    assert [*found, recovery_s([], 10.0, 1.0, 14.0)] == [0.0, pytest.approx(1.25), None, None]
    stalled = Stalls([(call.started, call.received) for call in calls(11.1) if call.answer is None])
    assert recovery_s(calls(11.1), 10.0, 1.0, 14.0, stalled) == 0.0


def test_leaks_are_found() -> None:
    before = [Footprint(1, 100.0, 20, 5), Footprint(2, 100.0, 20, 5)]
    assert not leaks(before, before)
    assert not leaks(before, [Footprint(3, 900.0, 900, 900)]), "another process"
    for grown in ({"mib": 140.0}, {"descriptors": 40}, {"threads": 20}):
        assert len(leaks(before, [before[0], replace(before[1], **grown)])) == 1
    for tasks, threads, calls in ((5, 9, 0), (6, 9, 0), (5, 10, 0), (5, 9, 1)):
        found = client_leaks(ClientReport([], (5, tasks), (9, threads), calls))
        assert len(found) == int((tasks, threads, calls) != (5, 9, 0))


def test_memory_that_grows_is_not_flat() -> None:
    times = np.arange(0.0, 600.0, 5.0)
    noise = 100.0 + np.random.default_rng(0).normal(0.0, 0.5, len(times))
    assert trend(times.tolist(), noise.tolist()).flat
    for grown in (noise + times / 60.0, noise + 20.0 * (times == 250.0)):
        assert not trend(times.tolist(), grown.tolist()).flat, "a mebibyte a minute, or a spike"
    assert not any(trend(times[:n].tolist(), noise[:n].tolist()).flat for n in (0, 2)), "two samples are too few"


@pytest.mark.parametrize(
    ("answered", "share", "deadline_ms", "few"), [(0, 0.0, 20.0, False), (1, 0.0, 20.0, True), (5, 0.8, 500.0, True)]
)
def test_answers_faster_than_the_network_are_detected(
    answered: int, share: float, deadline_ms: float, few: bool
) -> None:
    by = dict.fromkeys(Outcome, 0) | {Outcome.FALLBACK: 10 - answered, Outcome.SERVER: answered}
    assert bool(too_few(Figures(requests=10, by=by), share, deadline_ms, "far")) == few


def trial(**changed: Any) -> Trial:
    fine = Trial("an attack", 1, Counter(["problem 400", "FIN"]), 100.0, 110.0, 150.0, 2.0, 20.0, 50, [0.01])
    return replace(fine, **changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"alive": False},
        {"times": 0, "failed": "refused"},
        {"received": Counter(["plain 400"])},
        {"received": Counter(["problem 500"])},
        {"received": Counter(["RST"])},
        {"received": Counter(["open"])},
        {"received": Counter(["close 1011"])},
        {"received": Counter(["bare error 400"])},
        {"received": Counter(["ANSWERED THE HIDDEN REQUEST"])},
        {"received": Counter(["read everything"])},
        {"worst_mib": 151.0},
        {"others_ms": 21.0},
        {"others_ms": math.nan},
        {"requests": 0},
        {"shed": 6},
        {"probes_s": [0.01, math.inf]},
        {"probes_s": []},
        {"open": 1.0},
        {"others": ["an answer was wrong"]},
        {"log": ["Traceback (most recent call last):"]},
    ],
    ids=str,
)
def test_harm_by_an_attack_is_reported(changed: dict[str, Any]) -> None:
    assert not faults_of(trial())
    assert len(faults_of(trial(**changed))) == 1


def test_resets_and_open_connections_are_allowed_only_for_some_attacks() -> None:
    fine = ["200", "101", "problem 503", "error 422", "close 1009"]
    for replies, reset, stay_open in ((["RST"], True, False), (["open"], False, True), (fine, False, False)):
        assert not unexpected_replies(Counter(replies), may_reset=reset, may_stay_open=stay_open)


def test_memory_bounds_grow_with_connections() -> None:
    bounds = Bounds(value_mib=64, connection_mib=0.04, sending_mib=4, slack_mib=48)
    assert [bounds.max_mib(100.0, n) for n in (1, 10_000)] == pytest.approx([216.04, 1012.0])


def test_stalls_are_recorded() -> None:
    before = sys.getswitchinterval()
    with watching_stalls() as stalls:
        pause(0.01)
        try:
            sys.setswitchinterval(0.2)
            started = time.perf_counter()
            while time.perf_counter() - started < 0.1:
                pass
        finally:
            sys.setswitchinterval(before)
        until(lambda: Stalls(stalls).within_ms(started, started + 0.1) > 50.0)


def test_models_with_the_same_groups_have_the_same_inputs() -> None:
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
def test_a_refusal_under_steady_load_is_excused_only_near_a_stall(
    stalls: list[tuple[float, float]], excused: bool
) -> None:
    prediction = LoadPrediction(1, 20.0, "prefix", [], None, started=100.0)
    prediction.answer(100.005, {"type": OVERLOADED, "status": 503, "detail": "too much"})
    found = faults(small_model(), prediction, stalls)
    assert found == [STALLED if excused else REFUSED]
    prediction.answers[0][1]["type"] = "about:blank"
    assert faults(small_model(), prediction, stalls) == ["no answer: 503 too much"]
