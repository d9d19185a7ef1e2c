"""Answers of many rows: their time is when they are sent, on every binding; what would be late is refused."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from anytime.inference.deadline import Durations
from anytime.inference.prediction import Settled
from anytime_service.clock import now_ms
from anytime_service.core import service as core
from anytime_service.core.service import BYTES_A_NUMBER
from anytime_service.errors import OverloadedError
from anytime_service.limits.admission import Admission
from anytime_service.limits.memory import Account
from anytime_service.schemas.codecs import JSON, MSGPACK
from anytime_service.settings import Settings
from anytime_service.telemetry import metrics
from service.in_session import begin, post_groups, wait
from service.inferring import binary, post
from service.serving import LINES, Gate, Running, Stream, lines_of, packed, run_service, small_model
from waiting import until

ROWS = 3_000
VALUES = {"speed": np.ones((ROWS, 1)), "hog": np.ones((ROWS, 2)), "lab": np.ones((ROWS, 1))}
LONG_MS = 60_000
"""Deadlines of the tests are longer than they take, and what the clock is moved by is longer still."""
LIMITS: dict[str, Any] = {
    "port": 0,
    "max_deadline_ms": LONG_MS,
    "max_body_bytes": 1_000_000,
    "max_json_values": 100_000,
    "max_lateness_ms": 5_000,
}
SETTINGS = Settings(**LIMITS)


MOVED_MS = 90_000.0


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The worker's answers wait; when they go on, the clock of predictions has moved by a minute and a half."""
    gate = Gate(monkeypatch, Settled, "make_arrays")
    monkeypatch.setattr(core, "now_ms", lambda: now_ms() + MOVED_MS * gate.opened.is_set())
    yield gate
    gate.opened.set()


def test_the_time_of_an_answer_is_when_it_is_sent(service: Running, stopped: Gate) -> None:
    content = lines_of({name: each.tolist() for name, each in VALUES.items()})
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(service.post_to, "/predict", content=content, headers={"content-type": LINES})
        stopped.open()
        assert asked.result(60).json()["elapsed_ms"] - MOVED_MS > 0


@pytest.mark.parametrize("form", [JSON, MSGPACK])
def test_the_time_of_answers_and_updates_of_a_stream_is_when_they_are_sent(
    service: Running, stopped: Gate, form: Any
) -> None:
    with service.stream(form) as stream:
        stream.say("begin", 1, rows=ROWS, updates=True)
        values = {"values": VALUES["speed"].tolist()} if form is JSON else packed(VALUES["speed"])
        stream.say("group", 1, group="speed", **values)
        stopped.open()
        update = stream.hear()
        assert (update["type"], update["elapsed_ms"] - MOVED_MS > 0) == ("update", True)
        stream.say("end", 1)
        while (answer := stream.hear())["type"] == "update":
            pass
        assert answer["elapsed_ms"] - MOVED_MS > 0


@pytest.mark.parametrize("reason", ["deadline", "complete"])
def test_the_lateness_of_an_answer_includes_the_wait_for_the_worker(stopped: Gate, reason: str) -> None:
    """An answer that was settled before its deadline is late too, if it is sent after it."""
    name = "anytime_deadline_lateness_seconds"
    with run_service([small_model()], SETTINGS) as service, service.stream(MSGPACK) as stream:
        deadline_ms = 200 if reason == "deadline" else LONG_MS - 1
        stream.say("begin", 1, rows=ROWS, deadline_ms=deadline_ms)
        for group in ("speed",) if reason == "deadline" else VALUES:
            stream.say("group", 1, group=group, **packed(VALUES[group]))
        stopped.open()
        answer = stream.answer(1)
        assert answer["reason"] == reason
        assert answer["elapsed_ms"] - deadline_ms - 20_000 > 0
        until(lambda: service.metric(f"{name}_bucket", le="+Inf") == 1)
        assert service.metric(f"{name}_bucket", le="0.1") == 0, "it was later than that"


MS, FAR_MS = 0.1, 10_000_000
"""What a number takes, as far as the server knows: an answer of 3,000 rows takes 300 ms. And a far deadline."""


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A server that may be 5 ms late; the load of this machine refuses nothing."""
    monkeypatch.setattr(metrics, "MS_PER_NUMBER", MS)
    monkeypatch.setattr(Admission, "admits", lambda *_: True)
    settings = Settings(**LIMITS | {"max_lateness_ms": 5, "max_deadline_ms": FAR_MS})
    with run_service([small_model()], settings) as running:
        yield running


@pytest.mark.parametrize("given", [True, False])
def test_as_many_answers_begin_as_the_worker_makes_in_the_second_half_of_their_time(
    slow: Running, monkeypatch: pytest.MonkeyPatch, *, given: bool
) -> None:
    """In half of 10,000 s, 33 answers of 150 s are made; without `rows`, the 34th is refused with its values."""
    monkeypatch.setattr(Durations, "expected_ms", lambda *_: 500 * MS)
    with slow.stream(MSGPACK) as stream:
        for name in range(34):
            stream.say("begin", name, deadline_ms=FAR_MS, **({"rows": ROWS} if given else {}))
            if not given:
                stream.say("group", name, group="speed", **packed(VALUES["speed"]))
        problem = stream.problem()
        assert (problem["id"], problem["status"]) == (33, 503)
        assert "many rows" in problem["detail"]
        assert stream.ask("few", deadline_ms=0)["prefix"] == 0, "an answer of few rows does not wait for the worker"
        for name in range(33):
            stream.say("end", name)
        for _ in range(33):
            assert stream.hear()["type"] == "answer"
        assert slow.metric("anytime_shed_total", how="refused", why="lateness") == 1
        stream.say("begin", "again", deadline_ms=FAR_MS, rows=ROWS)
        assert stream.end("again")["prefix"] == 0


def test_an_answer_that_the_queue_would_delay_is_refused(slow: Running, stopped: Gate) -> None:
    """One answer is being made: by what the server knows it takes 300 ms, and another that is due now would be late."""
    path = f"/sessions/{begin(slow, rows=ROWS)}/predict"
    with slow.stream() as stream:
        stream.say("begin", 1, rows=ROWS, deadline_ms=0)
        assert stopped.reached.wait(60)
        for reply in (slow.post({"groups": {}}, rows=ROWS, deadline_ms=0), slow.get(path, deadline_ms=0)):
            assert reply.status_code == 503
        stopped.open()
        assert stream.answer(1)["prefix"] == 0
    assert slow.get(path, deadline_ms=0).status_code == 200


# A begun prediction is answered: its memory is reserved when it begins, or when its groups arrive.


ROWS = 3_000
ANSWER = ROWS * BYTES_A_NUMBER
COLUMN = ROWS * 8
SPEED = np.ones((ROWS, 1))
DEADLINE_MS = 1_000


def served(most: int) -> AbstractContextManager[Running]:
    limits: dict[str, Any] = {"max_deadline_ms": 20_000, "max_lateness_ms": 5_000, "max_body_bytes": 200_000}
    return run_service([small_model()], Settings(port=0, max_held_bytes=most, **limits))


@pytest.fixture(scope="module")
def tight() -> Iterator[Running]:
    """A server with memory for the values of five columns, and for one answer, which is made of them."""
    with served(ANSWER + 5 * COLUMN + COLUMN // 2) as service:
        yield service


@pytest.fixture(scope="module")
def tiny() -> Iterator[Running]:
    """A server with memory for values, and for none of the answers."""
    with served(ANSWER - 1) as service:
        yield service


@pytest.fixture(autouse=True)
def _nothing_is_left(tight: Running, tiny: Running) -> Iterator[None]:
    yield
    until(lambda: tight.metric("anytime_held_bytes") + tiny.metric("anytime_held_bytes") == 0)


def ends(stream: Stream, count: int) -> tuple[set[Any], set[Any]]:
    """Return the ids that were refused, and those that were answered; both may be."""
    refused, answered = set[Any](), set[Any]()
    while len(answered) < count:
        message = stream.hear()
        assert message["id"] not in answered
        assert message.get("problem", {"status": 503})["status"] == 503
        (answered if message["type"] == "answer" else refused).add(message["id"])
    return refused, answered


def test_an_account_reserves_the_largest_of_its_answers() -> None:
    total = Account(100)
    one, other = Account(100, total=total), Account(100, total=total)
    for account, size, before, held in (
        (one, 40, 0, 40),
        (one, 60, 0, 60),
        (one, 60, 0, 60),
        (other, 10, 0, 70),
        (one, 0, 60, 70),
        (one, 70, 40, 80),
        (one, 0, 70, 70),
        (one, 0, 60, 10),
        (other, 0, 10, 0),
    ):
        account.reserve_answer(size, before=before)
        assert (total.bytes, one.bytes + other.bytes) == (held, held)
    other.reserve_answer(10)
    one.reserve_answer(60)
    one.check_answer(60, more=30)
    for size, more in ((91, 0), (60, 31)):
        with pytest.raises(OverloadedError):
            one.check_answer(size, more)


@pytest.mark.parametrize("given", [True, False])
def test_every_begun_prediction_of_a_stream_is_answered_at_its_deadline(tight: Running, *, given: bool) -> None:
    with tight.stream() as stream:
        for name in range(6):
            stream.say("begin", name, deadline_ms=DEADLINE_MS, **({"rows": ROWS} if given else {}))
            stream.say("group", name, group="speed", values=SPEED.tolist())
        refused, answered = ends(stream, 6)
    assert answered == set(range(6)), "those whose group was refused get the base rate"
    assert refused, "not all of them fit"
    assert 0 not in refused, "only messages that are being read take memory before it, and all of them leave enough"


def test_the_end_of_several_at_once_answers_them_all(tight: Running) -> None:
    with tight.stream(MSGPACK) as stream:
        for name in range(4):
            stream.say("begin", name, rows=ROWS)
            stream.say("group", name, group="speed", **packed(SPEED))
        for name in range(4):
            stream.say("end", name)
        assert ends(stream, 4) == (set(), set(range(4)))


def test_an_answer_for_which_there_is_no_memory_is_refused_before_it_begins(tiny: Running) -> None:
    """What a client states before its values is refused at the begin, and what its values state with them."""
    few = [[1.0]]
    with tiny.stream(MSGPACK) as stream:
        for options in ({"rows": ROWS}, {"rows": ROWS // 4, "explain": True}):  # contributions need memory too
            stream.say("begin", 1, deadline_ms=0, **options)
            assert stream.problem()["status"] == 503
        assert stream.ask(1, rows=ROWS // 4, deadline_ms=0)["prefix"] == 0
        stream.say("begin", 2, deadline_ms=DEADLINE_MS)
        stream.say("group", 2, group="speed", **packed(SPEED))
        assert stream.problem()["status"] == 503
        stream.say("group", 2, group="speed", values=few)
        assert stream.answer(2)["groups"] == ["speed"], "the prediction has no rows yet, as before the refusal"
    lines = {"content": lines_of({"speed": SPEED.tolist()}), "headers": {"content-type": LINES}}
    for reply in (
        tiny.post_packed("/predict", {"groups": {"speed": packed(SPEED)}}),
        tiny.post_to("/predict", **lines),
        post(tiny, *binary({"speed": SPEED})),
    ):
        assert reply.status_code == 503
    assert tiny.get("/metrics").status_code == 200
    assert tiny.post({"groups": {"speed": few}}, rows=1).status_code == 200


def test_a_session_refuses_the_groups_whose_answer_would_not_fit(tiny: Running) -> None:
    session = begin(tiny)
    with ThreadPoolExecutor(1) as thread:
        waiting = wait(thread, tiny, session, deadline_ms=20_000)
        assert tiny.post_packed(f"/sessions/{session}/groups", {"speed": packed(SPEED)}).status_code == 503
        assert post_groups(tiny, session, {"speed": [[1.0]]}).status_code == 200
        tiny.delete(f"/sessions/{session}")
        answer = waiting.result(60)
    assert (answer.status_code, answer.json()["groups"]) == (200, ["speed"])


def test_a_partial_message_that_does_not_fit_waits_until_begun_predictions_are_answered(tight: Running) -> None:
    """Groups as bytes arrive in pieces: the connection of the begun predictions is not closed for them."""
    with tight.stream(MSGPACK) as stream:
        for name in range(12):
            stream.say("begin", name, deadline_ms=DEADLINE_MS, rows=ROWS)
            stream.say("group", name, group="speed", **packed(SPEED))
        ended: dict[Any, str] = {}
        while len(ended) < 12:
            message = stream.hear()
            if message["type"] == "answer" or message["problem"].get("field") is None:  # or its begin was refused
                assert message["id"] not in ended
                ended[message["id"]] = message["type"]
    assert list(ended.values()).count("answer") >= 5
