"""The judges of the drills detect faults: wrong and late answers, leaks, and refusals without a reason."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from anytime.inference.prediction import Prediction
from anytime_service.client.errors import OVERLOADED
from benchmarks.load.predictions import REFUSED, STALLED, LoadPrediction, faults
from drills.clients import ClientReport
from drills.cluster import Footprint, leaks
from drills.drill import broken_promises, client_leaks, inconclusive, too_few, unexpected
from drills.judging import (
    AnswerRecord,
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

NOTE = "no answer arrived before the deadline; this is the base rate, since no update arrived"


MODEL = small_model()
ORACLE = Oracle([Served(MODEL)])


def right_answer(number: int, groups: list[str]) -> AnswerRecord:
    """Return the right answer from these groups."""
    prediction = Prediction(MODEL, 1)
    for group in groups:
        prediction.add(group, inputs(MODEL, number)[group])
    return msgspec.convert(prediction.answer(reason="deadline"), AnswerRecord, from_attributes=True, strict=False)


def call(
    *,
    groups: tuple[str, ...] = ("speed", "hog"),
    late_ms: float = -1.0,
    answered: dict[str, Any] | None = None,
    **changed: Any,
) -> Call:
    """Return a call answered a millisecond before its deadline, with changes to it and its answer."""
    answer = msgspec.structs.replace(right_answer(7, list(groups)), **(answered or {}))
    record = Call("client", "websocket", 7, 100.0, 100.020 + late_ms / 1e3, 20.0, ["speed", "hog"], replica=1)
    return msgspec.structs.replace(record, **({"answer": answer} | changed))


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
def test_a_wrong_answer_is_found_and_a_right_one_has_no_fault(answered: dict[str, Any], words: str) -> None:
    assert words in (ORACLE.fault(call(answered=answered)) or "")
    assert not any(ORACLE.fault(call(groups=groups)) for groups in ((), ("speed",), ("speed", "hog")))
    assert ORACLE.fault(call(answer=right_answer(8, ["speed", "hog"]))), "the answer to another call"


def test_an_answer_without_a_deadline_uses_all_groups() -> None:
    for changed in ({"accepted": True}, {"answered": {"reason": "end"}}):
        assert ORACLE.fault(call(groups=("speed",), **changed)) is not None
        assert ORACLE.fault(call(**changed)) is None


def test_a_version_answers_only_while_it_is_served() -> None:
    old = Oracle([Served(MODEL, until=99.5)])
    assert Oracle([Served(MODEL, since=100.5)]).fault(call()) is not None
    calls = (call(), call(opened=99.0), call(groups=(), answered={"note": NOTE}))
    assert [old.fault(each) is None for each in calls] == [False, True, True], "a client's last update may be older"


def test_the_note_tells_server_answers_from_fallbacks() -> None:
    refused, broken = (call(answer=None, **why) for why in ({"status": 503}, {"error": "it broke"}))
    outcomes = [outcome(each) for each in (call(), call(answered={"note": NOTE}), refused, broken)]
    assert outcomes == [Outcome.SERVER, Outcome.FALLBACK, Outcome.REFUSED, Outcome.BROKEN]


FAILED = {1: (100.01, 101.0)}
"""Outages by replica."""
LATE = call(late_ms=30.0)
ERROR = call(answer=None, error="reset")
HUNG = call(answer=None, kind="session", error="TimeoutError", replica=None, started=100.0, received=101.2)
ELSEWHERE: list[dict[str, Any]] = [
    {"replica": 2},
    {"replica": None},
    {"started": 101.5, "received": 101.6},
    {"started": 99.0, "received": 100.0},
]
"""Calls that an outage does not explain: of another replica, of none, after it and before it."""


FIGURES: list[tuple[Any, ...]] = [
    (LATE, [], {}, "late"),
    (LATE, [(100.0, 100.026)], {}, "excused"),
    (LATE, [(100.0, 100.013), (100.005, 100.013), (100.02, 100.033)], {}, "excused"),
    (LATE, [(100.0, 100.02)], {}, "late"),
    (LATE, [(99.0, 99.5), (101.0, 102.0)], {}, "late"),
    (call(late_ms=4.0), [], {}, None),
    (ERROR, [], FAILED, "lost"),
    *((msgspec.structs.replace(ERROR, **changed), [], FAILED, None) for changed in ELSEWHERE[:2]),
    *((msgspec.structs.replace(ERROR, **changed), [], FAILED, "late") for changed in ELSEWHERE[2:]),
    (HUNG, [], {1: (100.01, 110.0)}, "lost"),  # a balancer routed it to the failed replica
    *((HUNG, [], failed, "late") for failed in ({}, {1: (98.0, 110.0)}, {1: (101.5, 110.0)})),
    (call(answered={"prediction": 0.0}), [], FAILED, "wrong"),
]


@pytest.mark.parametrize(("made", "stalls", "failed", "figure"), FIGURES, ids=range(len(FIGURES)))
def test_calls_that_break_a_promise_are_counted_unless_a_stall_or_an_outage_explains_them(
    made: Call, stalls: list[tuple[float, float]], failed: dict[int, tuple[float, float]], figure: str | None
) -> None:
    found = figures([made, call()], ORACLE, Stalls(stalls), failed)
    names = ("late", "excused", "lost", "wrong")
    assert {name: getattr(found, name) for name in names} == {name: int(name == figure) for name in names}


CLEAR = call(answer=None, kind="session", status=503, detail="it is gone")
SHED = call(answer=None, status=503, type=OVERLOADED, detail="too busy")
REFUSAL = call(answer=None, kind="session", status=503, detail="no answer within 20 ms")
STALL = [(REFUSAL.started, REFUSAL.received)]
ALLOWED = {"session": frozenset({Outcome.REFUSED})}


OUTCOMES: list[tuple[Any, ...]] = [
    ([ERROR], {}, {}, [], False),
    *(([ERROR], changed, {}, [], True) for changed in ELSEWHERE),
    ([CLEAR], {}, ALLOWED, [], False),
    *(([CLEAR], each, ALLOWED, [], True) for each in ({"detail": None}, {"status": 500}, {"kind": "post"})),
    ([CLEAR], {}, {}, [], True),
    ([SHED] * 5, {}, {}, [], False),
    ([SHED] * 20, {}, {}, [], True),
    ([SHED], {"detail": None}, {}, [], True),
    ([REFUSAL], {}, {}, [], True),
    ([REFUSAL], {}, {}, STALL, False),
    ([REFUSAL] * 20, {}, {}, STALL, True),
    ([REFUSAL], {"status": 500}, {}, STALL, True),
]


@pytest.mark.parametrize(("calls", "changed", "allowed", "stalls", "harm"), OUTCOMES, ids=range(len(OUTCOMES)))
def test_an_outcome_is_harm_unless_it_is_allowed_clear_and_rare(
    calls: list[Call],
    changed: dict[str, Any],
    allowed: dict[str, frozenset[Outcome]],
    stalls: list[tuple[float, float]],
    harm: bool,
) -> None:
    made = [msgspec.structs.replace(each, **changed) for each in calls]
    failed = FAILED if calls == [ERROR] else {}
    assert bool(unexpected([call()] * 495 + made, allowed, failed, "during", Stalls(stalls))) == harm


def test_figures_break_promises() -> None:
    fine = Figures(requests=1000)
    assert not broken_promises(replace(fine, late=1, excused=20), "after")
    assert [bool(inconclusive(replace(fine, excused=excused), "after")) for excused in (20, 21)] == [False, True]
    bad: list[dict[str, Any]] = [{"wrong": 1}, {"late": 2}, {"requests": 0}, {"requests": 100, "late": 1}]
    assert all(broken_promises(replace(fine, **changed), "after") for changed in bad)


def test_recovery_counts_until_the_server_answers_as_before() -> None:
    def calls(broken_until: float) -> Iterator[Call]:
        for started in np.arange(10.0, 14.0, 0.05).tolist():
            record = call(started=started, received=started + 0.01)
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
    assert faults(MODEL, prediction, stalls) == [STALLED if excused else REFUSED]
    prediction.answers[0][1]["type"] = "about:blank"
    assert faults(MODEL, prediction, stalls) == ["no answer: 503 too much"]
