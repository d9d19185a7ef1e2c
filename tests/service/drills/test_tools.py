"""The tools of the drills: the judge of the load, and the parser of replies."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from typing import Any

import pytest

from anytime.model.model import Model
from benchmarks.deadlines import Result
from benchmarks.harness import conclude
from benchmarks.load.child import Child
from benchmarks.load.predictions import REFUSED, STALLED
from drills.attacks.frames import messages
from drills.attacks.wire import replies
from drills.load import Sample, SteadyLoad, judge


def test_replies_are_classified() -> None:
    problem = b'{"detail": "why"}'
    head = b"HTTP/1.1 %d X\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
    problem_response = head % (413, b"application/problem+json", len(problem)) + problem
    for sent, classes in (
        (head % (413, b"text/plain", 3) + b"why", ["plain 413"]),
        (head % (413, b"application/problem+json", 2) + b"{}", ["plain 413"]),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + head % (200, b"text/plain", 0), ["100", "200"]),
        (problem_response * 2 + b"what?", ["problem 413", "problem 413", "nonsense"]),
    ):
        assert list(replies(sent)) == classes
    error = b'{"type": "error", "problem": {"status": 422, "detail": %b}}'
    frames = [error % b'"why"', error % b'""', b'{"type": "answer"}']
    content = b"".join(bytes([0x81, len(each)]) + each for each in frames)
    assert list(messages(content + b"\x88\x02\x03\xf3")) == ["error 422", "bare error 422", "answer", "close 1011"]


SAMPLE: Sample = {"at_s": 0.0, "load_p99": 0.1, "mib": 100.0, "descriptors": 30, "own_descriptors": 20}


def steady_load(model: Model, **changed: Any) -> SteadyLoad:
    """Return a load of ten minutes without faults, with changes."""
    load = SteadyLoad(model, Child(os.getpid(), 0), 100.0)
    load.samples = [SAMPLE | {"at_s": 5.0 * i} for i in range(120)]
    load.requests = load.answered = 12_000
    for late_ms in (load.sent_ms, load.sent_bare_ms, load.received_bare_ms, load.received_ms["websocket"]):
        late_ms.extend([0.1] * 1000)
    for name, value in changed.items():
        setattr(load, name, value)
    return load


def test_the_judge_of_a_steady_load_detects_faults(model: Model) -> None:
    assert not judge(steady_load(model), 180.0)
    warming = [SAMPLE | {"at_s": 5.0 * i, "mib": 100.0 + min(i, 30)} for i in range(120)]
    assert not judge(steady_load(model, samples=warming), 180.0), "growth during warm-up is not a leak"
    wrong: list[dict[str, Any]] = [
        {"samples": [SAMPLE | {"at_s": 5.0 * i, "mib": 100.0 + i / 10} for i in range(120)]},
        {"samples": [SAMPLE | {"at_s": 5.0 * i, "descriptors": 30 + i} for i in range(120)]},
        {"samples": [SAMPLE | {"at_s": 5.0 * i, "load_p99": 5.0} for i in range(120)]},
        {"found": Counter({"prediction 1, the library's is 2": 1})},
        {"found": Counter({"stalled": 100})},
        {"sent_ms": steady_load(model).sent_ms + array("d", [2.0] * 100)},
    ]
    for changed in wrong:
        assert len(judge(steady_load(model, **changed), 180.0)) == 1, changed
    assert all(judge(steady_load(model, **{name: none}), 180.0) for name, none in (("samples", []), ("answered", 0)))


@pytest.mark.parametrize(
    ("found", "load_ms", "kept", "wrong"),
    [
        ({}, 0.2, True, False),
        ({STALLED: 5}, 0.2, True, False),
        ({STALLED: 6}, 0.2, False, False),
        ({REFUSED: 1}, 0.2, False, True),
        ({REFUSED: 1}, 4.0, False, False),
        ({REFUSED: 1, "2 answers": 1}, 4.0, False, True),
    ],
)
def test_a_load_that_came_too_late_does_not_count_refusals(
    found: dict[str, int], load_ms: float, kept: bool, wrong: bool
) -> None:
    late = dict.fromkeys(("sent", "sent_bare", "received", "received_bare", "busy", "stall", "gc"), 0.0)
    result = Result(name="load", predictions=1000, load=load_ms, faults=Counter(found), **late)
    assert (result.kept, result.wrong) == (kept, wrong)


@pytest.mark.parametrize(
    ("broken", "ran", "said", "code"),
    [
        ([], True, "every promise was kept", 0),
        (["late"], True, "late", 1),
        ([], False, "nothing was tried: no name has the word of --only", 1),
    ],
)
def test_a_drill_that_tries_nothing_keeps_no_promise(
    broken: list[str], ran: bool, said: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        conclude(broken, ran=ran)
    assert (capsys.readouterr().out, ended.value.code) == (f"\n{said}\n", code)
