"""A begun prediction is answered: the memory of its answer is reserved when it begins, or when its groups arrive."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from anytime_service.core.service import BYTES_A_NUMBER
from anytime_service.errors import OverloadedError
from anytime_service.limits.memory import Account
from anytime_service.schemas.codecs import MSGPACK
from anytime_service.settings import Settings
from service.in_session import begin, post_groups, wait
from service.inferring import binary, post
from service.serving import LINES, Running, Stream, lines_of, packed, run_service, small_model
from waiting import until

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
