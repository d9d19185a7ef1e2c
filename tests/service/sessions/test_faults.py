"""What becomes of requests when Redis is away, hangs, or comes back without what it had."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from anytime import load
from anytime.model.model import Model
from anytime_service.schemas.problem import MEDIA_TYPE
from anytime_service.sessions.redis_store import BEHIND, LOST
from anytime_service.settings import Settings
from service.commands import Command, commands
from service.in_session import begin, post_groups, wait
from service.redis_server import RedisServer, redis_server
from service.serving import VALUES, Running, changed, expected, logged, run_service, timeless
from waiting import WAIT_S, until

TIMEOUT_MS = 300
SPEED = {"speed": VALUES["speed"]}


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@contextmanager
def replicas(model: Model, redis: RedisServer, count: int = 1, user: str = "") -> Iterator[list[Running]]:
    """Services that share their sessions, in threads."""
    settings = Settings(port=0, session_store=redis.url(user=user), session_store_timeout_ms=TIMEOUT_MS)
    with ExitStack() as stack:
        yield [stack.enter_context(run_service([model], settings)) for _ in range(count)]


def requests(replica: Running, session: str) -> list[Callable[[], httpx.Response]]:
    """Every request that is about a session."""
    return [
        lambda: replica.post_to("/sessions"),
        lambda: post_groups(replica, session, VALUES),
        lambda: replica.get(f"/sessions/{session}/predict"),
        lambda: replica.get(f"/sessions/{session}/predict", deadline_ms=5_000),
        lambda: replica.delete(f"/sessions/{session}"),
    ]


def refused(response: httpx.Response) -> str:
    headers = (response.headers["content-type"], response.headers["retry-after"])
    assert (response.status_code, *headers) == (503, MEDIA_TYPE, "1"), response.text
    assert response.json()["type"].endswith("sessions-unreachable")
    detail: str = response.json()["detail"]
    assert re.match("the session store is unavailable: .*retry", detail)
    return detail


def all_else_is_well(replica: Running, model: Model) -> None:
    assert timeless(replica.post({"groups": VALUES}).json()) == expected(model, VALUES)
    with replica.stream() as stream:
        assert timeless(stream.ask(1, VALUES)) == expected(model, VALUES)


def well(replica: Running) -> bool:
    return bool(replica.get("/readyz").json() == {"status": "ok", "sessions": "redis"})


def test_a_replica_starts_without_redis_and_connects_later(model: Model, capfd: pytest.CaptureFixture[str]) -> None:
    redis = RedisServer()
    try:
        with replicas(model, redis) as (replica,):
            ready, required = replica.get("/readyz"), replica.get("/readyz", sessions="required")
            away = {"status": "degraded", "sessions": "unreachable: there is no connection to it"}
            assert (ready.status_code, ready.json()) == (200, away)
            assert (required.status_code, required.headers["content-type"]) == (503, MEDIA_TYPE)
            assert replica.metric("anytime_session_store_up") == 0
            for request in requests(replica, "x" * 22):
                refused(request())
            all_else_is_well(replica, model)
            redis.start()
            until(lambda: well(replica))
            assert replica.get("/readyz", sessions="required").status_code == 200
            assert replica.metric("anytime_session_store_up") == 1
            assert post_groups(replica, begin(replica), VALUES).json()["prefix"] == 3
            lost, again = [line for line in capfd.readouterr().err.splitlines() if "session" in line]
            assert f"unavailable at redis://127.0.0.1:{redis.port}/0: there is no connection" in lost
            assert "is available again" in again
    finally:
        redis.close()


def test_when_redis_dies_waiting_predictions_are_answered_at_their_deadlines_from_the_received_groups(
    model: Model, redis: RedisServer, threads: ThreadPoolExecutor
) -> None:
    with replicas(model, redis, 2) as (a, b), a.stream() as stream, logged() as records:
        session = begin(a)
        post_groups(b, session, SPEED)
        waiting = [wait(threads, each, session, deadline_ms=1_500) for each in (a, b)]
        stream.say("begin", "open", deadline_ms=1_500)
        stream.groups("open", SPEED)
        redis.kill()
        for request in requests(b, session):
            refused(request())
        all_else_is_well(a, model)
        for each in waiting:
            answer = each.result(60).json()
            assert (answer["reason"], answer["note"]) == ("deadline", BEHIND)
            assert timeless(answer) | {"note": None} == expected(model, SPEED)
        by_stream = stream.answer("open")
        assert (by_stream["reason"], timeless(by_stream)) == ("deadline", expected(model, SPEED))
        assert a.get("/readyz").json()["status"] == "degraded"
        said = ["the session store is unavailable" in record.getMessage() for record in records]
        assert said == [True, True], "one line of each replica"


def test_when_redis_restarts_empty_old_sessions_are_unknown_and_new_ones_work(
    model: Model, redis: RedisServer, threads: ThreadPoolExecutor
) -> None:
    with replicas(model, redis, 2) as (a, b):
        session = begin(a)
        post_groups(b, session, SPEED)
        waiting = wait(threads, b, session, deadline_ms=9_000)
        redis.kill()
        redis.start()
        until(lambda: well(a) and well(b))
        answer = waiting.result(60).json()
        assert (answer["reason"], answer["note"]) == ("end", LOST)
        assert timeless(answer) | {"note": None} == expected(model, SPEED), "nothing more could have come"
        for request in requests(a, session)[1:]:
            response = request()
            assert (response.status_code, response.json()["field"]) == (404, "session")
        session = begin(b)
        waiting = wait(threads, a, session, deadline_ms=9_000)
        post_groups(b, session, VALUES)
        assert timeless(waiting.result(60).json()) == expected(model, VALUES)


def test_when_redis_hangs_requests_end_in_time_and_nothing_else_waits(
    model: Model, redis: RedisServer, threads: ThreadPoolExecutor
) -> None:
    with replicas(model, redis, 2) as (a, b), a.stream() as stream:
        session = begin(a)
        post_groups(b, session, SPEED)
        waiting = wait(threads, b, session, deadline_ms=9_000)
        redis.hang()
        pending = [threads.submit(request) for request in requests(a, session)]
        for name in range(5):  # while those wait for Redis
            assert stream.ask(name, deadline_ms=40)["reason"] == "deadline"
        for each in pending:
            refused(each.result(WAIT_S))
        until(lambda: a.get("/readyz").json()["status"] == "degraded")
        assert f"no answer within {TIMEOUT_MS} ms" in refused(post_groups(a, session, VALUES))
        all_else_is_well(a, model)
        redis.go_on()
        until(lambda: well(a) and well(b))
        post_groups(a, session, VALUES)
        answer = waiting.result(60).json()
        assert (answer["reason"], answer["note"]) == ("complete", None), "all was read again"
        assert answer["prediction"] == expected(model, VALUES)["prediction"]


def test_a_full_redis_refuses_groups_and_predictions_are_still_answered(model: Model, redis: RedisServer) -> None:
    with replicas(model, redis) as (replica,), logged() as records:
        session, other = begin(replica), begin(replica)
        post_groups(replica, session, SPEED)
        redis.execute("CONFIG", "SET", "maxmemory", "1")
        for request in requests(replica, session)[:2]:
            assert "it is out of memory" in refused(request())
        assert any("it is out of memory" in record.getMessage() for record in records)
        assert timeless(replica.get(f"/sessions/{session}/predict").json()) == expected(model, SPEED)
        waited = replica.get(f"/sessions/{session}/predict", deadline_ms=100).json()
        assert (waited["reason"], timeless(waited)) == ("deadline", expected(model, SPEED))
        assert replica.delete(f"/sessions/{other}").status_code == 204
        redis.execute("CONFIG", "SET", "maxmemory", "0")
        assert post_groups(replica, session, VALUES).json()["replaced"] == ["speed"], "as before"
        assert replica.get(f"/sessions/{other}/predict").status_code == 410


def test_a_read_only_redis_is_unavailable(model: Model, redis: RedisServer) -> None:
    with replicas(model, redis) as (replica,):
        session = begin(replica)
        redis.execute("REPLICAOF", "127.0.0.1", "1")
        until(lambda: replica.get("/readyz").json()["status"] == "degraded")
        assert "it is a read-only copy" in refused(post_groups(replica, session, VALUES))
        redis.execute("REPLICAOF", "NO", "ONE")
        until(lambda: well(replica))
        assert post_groups(replica, session, VALUES).json()["prefix"] == 3


def test_a_password_is_used_and_never_shown(model: Model, capfd: pytest.CaptureFixture[str]) -> None:
    with redis_server("--requirepass", "hunter2") as redis:
        with replicas(model, redis, user=":hunter2@") as (replica,):
            assert well(replica)
            assert begin(replica)
        for wrong in ("", ":hunter3@"):
            with replicas(model, redis, user=wrong) as (replica,):
                ready = replica.get("/readyz").json()
                assert ready["sessions"] == "unreachable: it refuses the user or the password"
                assert "refuses" in refused(replica.post_to("/sessions"))
        output = capfd.readouterr().err
        assert (output.count("it refuses the user or the password"), "hunter" in output) == (2, False)


def test_the_documented_redis_user_has_all_permissions_needed(
    model: Model, redis: RedisServer, threads: ThreadPoolExecutor
) -> None:
    page = (Path(__file__).parents[3] / "deploy" / "README.md").read_text(encoding="utf-8")
    (rights,) = re.findall(r"^user (anytime on >.*)$", page, re.MULTILINE)
    redis.execute("ACL", "SETUSER", *rights.split())
    redis.execute("SCRIPT", "FLUSH")
    with replicas(model, redis, 2, user="anytime:PASSWORD@") as (a, b):
        session, other = begin(a), begin(b)
        waiting = wait(threads, a, session, deadline_ms=9_000)
        assert post_groups(b, session, VALUES).json()["prefix"] == 3
        assert waiting.result(60).json()["reason"] == "complete"
        assert a.delete(f"/sessions/{other}").status_code == 204
        assert a.get(f"/sessions/{other}/predict").status_code == 410
        assert well(a)


def test_redis_can_be_reached_over_a_unix_socket(model: Model, tmp_path: Any) -> None:
    with redis_server("--unixsocket", str(tmp_path / "redis.sock")) as redis:
        with run_service([model], Settings(port=0, session_store=f"unix://{tmp_path}/redis.sock?db=5")) as replica:
            assert post_groups(replica, begin(replica), VALUES).json()["prefix"] == 3
        assert redis.execute("DBSIZE", database=5)


def test_during_a_rollout_a_replica_without_the_version_reports_it(model: Model, shared_redis: RedisServer) -> None:
    newer = changed(model, version="v2")
    with replicas(model, shared_redis) as (old,), replicas(newer, shared_redis) as (new,):
        session = begin(old)
        post_groups(old, session, SPEED)
        for response in (
            new.get(f"/sessions/{session}/predict"),
            new.get(f"/sessions/{session}/predict", deadline_ms=500),
            post_groups(new, session, VALUES),
        ):
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert response.json()["type"].endswith("missing-version")
            assert "'brake' in version 'v1'" in response.json()["detail"]
        assert timeless(old.get(f"/sessions/{session}/predict").json()) == expected(model, SPEED)
        assert new.delete(f"/sessions/{session}").status_code == 204


# Replicas, each a process of its own.


DATABASE = 4


@pytest.fixture(scope="module")
def saved_model(model_file: Path) -> Model:
    return load(model_file)


@pytest.fixture(scope="module")
def processes(model_file: Path, shared_redis: RedisServer) -> Iterator[list[tuple[Command, Running]]]:
    with commands(
        3, model_file, ANYTIME_SESSION_STORE=shared_redis.url(DATABASE), ANYTIME_SESSION_STORE_TIMEOUT_MS="5000"
    ) as served:
        yield served


@pytest.fixture(scope="module")
def running_replicas(processes: list[tuple[Command, Running]]) -> list[Running]:
    return [replica for _, replica in processes]


def test_concurrent_posts_have_the_same_order_on_every_replica(
    running_replicas: list[Running], saved_model: Model, threads: ThreadPoolExecutor
) -> None:
    session = begin(running_replicas[0])
    waiting = wait(threads, running_replicas[0], session, deadline_ms=9_000)
    values = [float(number) for number in range(24)]
    posted = [
        threads.submit(post_groups, running_replicas[number % 3], session, {"speed": [value]})
        for number, value in enumerate(values)
    ]
    assert sum(each.result(60).json()["replaced"] == [] for each in posted) == 1, "one was the first"
    answers = [timeless(replica.get(f"/sessions/{session}/predict").json()) for replica in running_replicas]
    possible = [expected(saved_model, {"speed": [value]}) | {"replaced": ["speed"]} for value in values]
    assert answers[0] in possible
    assert answers[1:] == answers[:1] * 2
    running_replicas[1].delete(f"/sessions/{session}")
    assert timeless(waiting.result(60).json()) == answers[0], (
        "the prediction that received the posts one by one has the same answer"
    )


def test_no_group_is_lost_when_a_replica_dies(
    processes: list[tuple[Command, Running]], saved_model: Model, threads: ThreadPoolExecutor
) -> None:
    (dying, taker), (_, b), (_, c) = processes
    session = begin(taker)
    post_groups(taker, session, {"speed": VALUES["speed"]})
    waiting = wait(threads, b, session, deadline_ms=9_000)
    post_groups(taker, session, {"hog": VALUES["hog"]})
    dying.process.kill()
    dying.stopped()
    assert timeless(c.get(f"/sessions/{session}/predict").json()) == expected(
        saved_model, {"speed": VALUES["speed"], "hog": VALUES["hog"]}
    )
    post_groups(c, session, {"lab": VALUES["lab"]})
    answer = waiting.result(60).json()
    assert (answer["reason"], timeless(answer)) == ("complete", expected(saved_model, VALUES))


def test_a_replica_that_stops_answers_its_predictions_and_the_others_continue(
    processes: list[tuple[Command, Running]], saved_model: Model, threads: ThreadPoolExecutor
) -> None:
    _, (_, b), (stopping, c) = processes
    session = begin(c)
    at_c, at_b = (wait(threads, each, session, deadline_ms=9_000) for each in (c, b))
    post_groups(b, session, {"speed": VALUES["speed"]})
    stopping.process.send_signal(signal.SIGTERM)
    answer = at_c.result(60).json()
    assert (answer["reason"], answer["groups"]) in (("draining", ["speed"]), ("draining", []))
    assert "ERROR" not in stopping.stopped()
    post_groups(b, session, VALUES)
    assert at_b.result(60).json()["reason"] == "complete"
