"""Replicas, each a process of its own, that share their sessions in Redis."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from anytime import load
from anytime.model.model import Model
from service.commands import Command, commands
from service.in_session import begin, post_groups, wait
from service.redis_server import RedisServer
from service.serving import VALUES, Running, expected, timeless

DATABASE = 4


@pytest.fixture(scope="module")
def model(model_file: Path) -> Model:
    return load(model_file)


@pytest.fixture(scope="module")
def processes(model_file: Path, shared_redis: RedisServer) -> Iterator[list[tuple[Command, Running]]]:
    with commands(
        3, model_file, ANYTIME_SESSION_STORE=shared_redis.url(DATABASE), ANYTIME_SESSION_STORE_TIMEOUT_MS="5000"
    ) as served:
        yield served


@pytest.fixture(scope="module")
def replicas(processes: list[tuple[Command, Running]]) -> list[Running]:
    return [replica for _, replica in processes]


def test_concurrent_posts_have_the_same_order_on_every_replica(
    replicas: list[Running], model: Model, threads: ThreadPoolExecutor
) -> None:
    session = begin(replicas[0])
    waiting = wait(threads, replicas[0], session, deadline_ms=9_000)
    values = [float(number) for number in range(24)]
    posted = [
        threads.submit(post_groups, replicas[number % 3], session, {"speed": [value]})
        for number, value in enumerate(values)
    ]
    assert sum(each.result(20).json()["replaced"] == [] for each in posted) == 1, "one was the first"
    answers = [timeless(replica.get(f"/sessions/{session}/predict").json()) for replica in replicas]
    possible = [expected(model, {"speed": [value]}) | {"replaced": ["speed"]} for value in values]
    assert answers[0] in possible
    assert answers[1:] == answers[:1] * 2
    replicas[1].delete(f"/sessions/{session}")
    assert timeless(waiting.result(20).json()) == answers[0], (
        "the prediction that received the posts one by one has the same answer"
    )


def test_no_group_is_lost_when_a_replica_dies(
    processes: list[tuple[Command, Running]], model: Model, threads: ThreadPoolExecutor
) -> None:
    (dying, taker), (_, b), (_, c) = processes
    session = begin(taker)
    post_groups(taker, session, {"speed": VALUES["speed"]})
    waiting = wait(threads, b, session, deadline_ms=9_000)
    post_groups(taker, session, {"hog": VALUES["hog"]})
    dying.process.kill()
    dying.stopped()
    assert timeless(c.get(f"/sessions/{session}/predict").json()) == expected(
        model, {"speed": VALUES["speed"], "hog": VALUES["hog"]}
    )
    post_groups(c, session, {"lab": VALUES["lab"]})
    answer = waiting.result(20).json()
    assert (answer["reason"], timeless(answer)) == ("complete", expected(model, VALUES))


def test_a_replica_that_stops_answers_its_predictions_and_the_others_continue(
    processes: list[tuple[Command, Running]], model: Model, threads: ThreadPoolExecutor
) -> None:
    _, (_, b), (stopping, c) = processes
    session = begin(c)
    at_c, at_b = (wait(threads, each, session, deadline_ms=9_000) for each in (c, b))
    post_groups(b, session, {"speed": VALUES["speed"]})
    stopping.process.send_signal(signal.SIGTERM)
    answer = at_c.result(20).json()
    assert (answer["reason"], answer["groups"]) in (("draining", ["speed"]), ("draining", []))
    assert "ERROR" not in stopping.stopped()
    post_groups(b, session, VALUES)
    assert at_b.result(20).json()["reason"] == "complete"
