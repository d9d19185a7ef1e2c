"""Times of groups, as the service records them on each binding."""

from __future__ import annotations

from time import sleep

import pytest

from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from anytime_service.settings import Settings
from service.in_session import begin, post_groups
from service.inferring import infer, tensors
from service.serving import LINES, VALUES, Running, chunk, lines_of
from waiting import WAIT_S, until

SETTINGS = Settings(port=0)
SPEED = {"speed": VALUES["speed"]}
PAUSE_S = 0.1
"""A thousand of them are more than the longest wait: a time in another unit would be found."""


def count(service: Running, group: str = "speed") -> float:
    return service.metric("anytime_group_seconds_count", model="brake", group=group)


def seconds(service: Running, group: str = "speed") -> float:
    return service.metric("anytime_group_seconds_sum", model="brake", group=group)


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_the_reported_time_counts_and_else_the_time_since_the_previous_event(fresh: Running, form: Form) -> None:
    with fresh.stream(form) as stream:
        stream.say("begin", 1)
        until(lambda: fresh.metric("anytime_open_predictions") == 1)
        sleep(PAUSE_S)
        stream.say("group", 1, group="speed", values=VALUES["speed"])
        stream.say("group", 1, group="hog", values=VALUES["hog"], took_ms=7.5)
        until(lambda: count(fresh, "hog") == 1)
        sleep(PAUSE_S)
        stream.say("group", 1, group="lab", values=VALUES["lab"])
        stream.answer(1)
    assert [count(fresh, name) for name in VALUES] == [1, 1, 1]
    assert seconds(fresh, "hog") == pytest.approx(0.0075)
    for name in ("speed", "lab"):
        assert PAUSE_S * 0.9 < seconds(fresh, name) < WAIT_S
    assert fresh.metric("anytime_group_seconds_bucket", model="brake", group="hog", le="0.01") == 1
    assert fresh.metric("anytime_group_seconds_bucket", model="brake", group="hog", le="0.005") == 0


def test_late_groups_are_timed_too(fresh: Running) -> None:
    with fresh.stream() as stream:
        stream.ask(1, deadline_ms=1)
        stream.say("group", 1, group="speed", values=VALUES["speed"], took_ms=40)
        until(lambda: count(fresh) == 1)
        sleep(PAUSE_S)
        stream.say("group", 1, group="hog", values=VALUES["hog"])
        stream.say("begin", 2, budget=1)
        stream.say("group", 2, group="speed", values=VALUES["speed"], took_ms=2)
        stream.answer(2)
        stream.say("group", 2, group="lab", values=VALUES["lab"], took_ms=3)
        stream.ask(3, deadline_ms=0)
    assert [count(fresh, name) for name in VALUES] == [2, 1, 1]
    assert seconds(fresh) == pytest.approx(0.042)
    assert seconds(fresh, "hog") >= PAUSE_S * 0.9
    assert fresh.metric("anytime_groups_late_total", model="brake") == 3


def test_a_group_that_is_sent_twice_is_timed_only_by_the_client_and_a_refused_one_is_not(fresh: Running) -> None:
    with fresh.stream() as stream:
        stream.say("begin", 1)
        for values, took_ms in ([1.0, 2.0], 4), ([1.0], -4):
            stream.say("group", 1, group="speed", values=values, took_ms=took_ms)
            stream.problem()
        stream.say("group", 1, group="speed", values=[1.0], took_ms=4)
        stream.say("group", 1, group="speed", values=[2.0])
        stream.say("group", 1, group="speed", values=[3.0], took_ms=6)
        stream.end(1)
    assert count(fresh) == 2
    assert seconds(fresh) == pytest.approx(0.01)


def test_lines_are_timed_also_after_the_answer(fresh: Running) -> None:
    with fresh.connect() as connection:
        connection.head("budget=1", content_type=LINES)
        content = lines_of(SPEED, took_ms=2) + lines_of({"hog": VALUES["hog"]}, took_ms=9)
        connection.send(chunk(content[:-5]))
        assert connection.response()[2]["reason"] == "budget"
        connection.send(chunk(content[-5:] + lines_of({"lab": VALUES["lab"]}, took_ms=5)[:-1]) + b"0\r\n\r\n")
        until(lambda: count(fresh, "lab") == 1)
        connection.head("deadline_ms=1", content_type=LINES)
        connection.send(chunk(lines_of(SPEED)[:9]))
        assert connection.response()[2]["reason"] == "deadline"
        sleep(PAUSE_S)
        connection.send(chunk(lines_of(SPEED)[9:] + b"nonsense\n") + b"0\r\n\r\n")
        until(lambda: count(fresh) == 2)
    assert [seconds(fresh, name) for name in ("hog", "lab")] == pytest.approx([0.009, 0.005])
    assert seconds(fresh) >= 0.002 + PAUSE_S * 0.9
    assert fresh.metric("anytime_groups_late_total", model="brake") == 3


def test_at_most_as_many_late_lines_are_timed_as_the_model_has_groups(fresh: Running) -> None:
    content = lines_of(SPEED, took_ms=1) * 2_000
    with fresh.connect() as connection:
        connection.head("deadline_ms=0", content_type=LINES)
        assert connection.response()[0] == 200
        connection.send(chunk(content) + b"0\r\n\r\n")
        connection.head("deadline_ms=0", 0)
        assert connection.response()[0] == 200
    assert count(fresh) == len(VALUES)


def test_groups_of_a_session_are_timed_if_they_arrive_one_at_a_time(fresh: Running) -> None:
    session = begin(fresh)
    sleep(PAUSE_S)
    for _ in range(2):
        assert post_groups(fresh, session, SPEED).status_code == 200
    assert count(fresh) == 1, "sent again, it may not have been computed again"
    assert seconds(fresh) >= PAUSE_S * 0.9
    assert post_groups(fresh, session, {name: VALUES[name] for name in ("hog", "lab")}).status_code == 200
    assert (count(fresh, "hog"), count(fresh, "lab")) == (0, 0), "the single times of groups in one request are unknown"
    fresh.delete(f"/sessions/{session}")
    assert post_groups(fresh, session, {"hog": VALUES["hog"]}).status_code == 410
    assert count(fresh, "hog") == 0


def test_groups_in_a_complete_body_are_not_timed(fresh: Running) -> None:
    assert fresh.post({"groups": SPEED}).status_code == 200
    infer(fresh, tensors({"hog": VALUES["hog"]}))
    assert [count(fresh, name) for name in VALUES] == [0, 0, 0]
