"""Sessions as a client sees them."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from anytime.model.model import Model
from anytime_service.core.open_prediction import OpenPrediction
from anytime_service.schemas.codecs import MSGPACK
from anytime_service.settings import Settings
from service.in_session import begin, post_groups, wait
from service.redis_server import RedisServer
from service.serving import (
    LIMITS,
    PLAIN,
    VALUES,
    Running,
    chunk,
    expected,
    logged,
    packed,
    problem_in,
    run_service,
    timeless,
)
from waiting import until

LONG_MS = 20_000
PATIENT = {"session_store_timeout_ms": 5_000, "max_deadline_ms": LONG_MS}
"""Requests and metrics of several clients take a second or two on a busy machine."""


@pytest.fixture(scope="module", params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> Callable[[int], str]:
    """Where sessions live: in the process, or in a Redis, for which databases by number."""
    if request.param == "memory":
        return lambda _: "memory"
    server: RedisServer = request.getfixturevalue("shared_redis")
    return server.url


@pytest.fixture(scope="module")
def settings(store: Callable[[int], str]) -> Settings:
    return LIMITS.model_copy(update={"session_store": store(0), **PATIENT})


BEFORE_THE_STORE = pytest.mark.parametrize("store", ["memory"], indirect=True)
"""Invalid requests are refused before the store is used, so one store is enough."""


def test_a_session_from_its_begin_to_its_end(service: Running, model: Model, settings: Settings) -> None:
    created = service.post_to("/sessions")
    assert created.status_code == 201
    session = created.json().pop("id")
    assert created.json() == {"id": session, "model": "brake", "version": "v1", "expires_in_s": settings.session_ttl_s}
    assert created.headers["location"] == f"/sessions/{session}"
    assert timeless(service.get(f"/sessions/{session}/predict").json()) == expected(model, {})
    given: dict[str, Any] = {}
    for name, prefix in (("hog", 0), ("speed", 2), ("lab", 3)):
        took = post_groups(service, session, {name: VALUES[name]})
        assert (took.status_code, took.json()) == (200, {"prefix": prefix, "steps": 3, "replaced": []})
        given[name] = VALUES[name]
        for budget in (math.inf, 0.0, 1.0, 5.0, 10.0):
            options = {"budget": budget} if budget < math.inf else {}
            answer = service.get(f"/sessions/{session}/predict", **options).json()
            assert timeless(answer) == expected(model, given, budget=budget)
            complete = "complete" if budget >= 10.0 else "budget"
            assert answer["reason"] == ("end" if answer["missing"] else complete)
    ended = service.delete(f"/sessions/{session}")
    assert (ended.status_code, ended.content, "content-type" in ended.headers) == (204, b"", False)


def test_a_session_can_be_named_in_the_query(service: Running) -> None:
    session = begin(service)
    post_groups(service, session, {"speed": [2.0]})
    by_query = service.get("/predict", session=session, budget=1).json()
    assert timeless(by_query) == timeless(service.get(f"/sessions/{session}/predict", budget=1).json())
    missing = problem_in(service.get("/predict"), 422)
    assert (missing["field"], "POST the groups" in missing["detail"]) == ("session", True)
    assert problem_in(service.get("/predict", session=""), 422)["field"] == "session"
    assert problem_in(service.get("/predict", session="none"), 404)["field"] == "session"


@pytest.mark.parametrize("path", ["/predict", "/groups", ""])
def test_an_unknown_session_is_404_and_an_ended_one_410(service: Running, path: str) -> None:
    session = begin(service)
    assert service.delete(f"/sessions/{session}").status_code == 204
    request = {"/predict": service.get, "/groups": service.post_to, "": service.delete}[path]
    for name, status in ((session, 410), ("none", 404), ("%00", 404), ("x" * 5_000, 404)):
        problem = problem_in(request(f"/sessions/{name}{path}"), status)
        assert problem["field"] == "session"
        assert len(problem["detail"]) < 300
    assert problem_in(service.get("/predict", session=session), 410)


def test_a_refused_group_leaves_the_session_as_it_was(service: Running, model: Model) -> None:
    session = begin(service)
    post_groups(service, session, {"speed": [2.0]})
    for groups, field in (
        ({"speed": [3.0], "hog": [1.0]}, "groups.hog"),
        ({"speed": [3.0], "none": [1.0]}, "groups.none"),
        ({"speed": [3.0], "hog": "text"}, "groups.hog"),
        ({"speed": [3.0], "hog": [1.0, {}]}, "groups.hog[1]"),
        ({"hog": [1.0, 1e200]}, "groups.hog"),
        ({"speed": [[3.0]] * 51}, "rows"),
    ):
        assert problem_in(post_groups(service, session, groups), 422)["field"] == field
    assert timeless(service.get(f"/sessions/{session}/predict").json()) == expected(model, {"speed": [2.0]})


@BEFORE_THE_STORE
@pytest.mark.parametrize(
    ("path", "content", "status", "field"),
    [
        ("/sessions", b"[]", 400, None),
        ("/sessions", b"{", 400, None),
        ("/sessions", b'{"rows": 0}', 400, "rows"),
        ("/sessions", b'{"rows": 51}', 422, "rows"),
        ("/sessions", b'{"rows": 1.5}', 400, "rows"),
        ("/sessions", b'{"model": "break"}', 404, "model"),
        ("/sessions", b'{"modell": "brake"}', 400, None),
        ("/sessions/{}/groups", b"", 400, None),
        ("/sessions/{}/groups", b"[]", 400, None),
        ("/sessions/{}/groups", b'{"speed": [1], "hog": [1,', 400, None),
        ("/sessions/{}/groups", b"[" * 20_000, 400, None),
        ("/sessions/{}/groups", b'{"speed": ' + b"[" * 9_000 + b"]" * 9_000 + b"}", 400, None),
        ("/sessions/{}/groups", b" " * 100_001, 413, None),
    ],
)
def test_an_invalid_body_names_the_place(
    service: Running, path: str, content: bytes, status: int, field: str | None
) -> None:
    session = begin(service)
    assert problem_in(service.post_to(path.format(session), content=content), status).get("field") == field
    assert post_groups(service, session, VALUES).status_code == 200


@BEFORE_THE_STORE
@pytest.mark.parametrize(
    ("parameter", "value"), [("budget", "-1"), ("deadline_ms", "inf"), ("model", "brake"), ("rows", "1")]
)
def test_an_invalid_parameter_is_named(service: Running, parameter: str, value: str) -> None:
    response = service.get(f"/sessions/{begin(service)}/predict", **{parameter: value})
    assert problem_in(response, 422)["field"] == parameter


def test_a_session_speaks_messagepack(service: Running, model: Model) -> None:
    created = service.post_packed("/sessions", {"rows": 3}, MSGPACK.media_type)
    assert (created.status_code, created.headers["content-type"]) == (201, MSGPACK.media_type)
    path = f"/sessions/{msgspec.msgpack.decode(created.content)['id']}"
    values = {"speed": np.array([[1.0], [2.0], [3.0]]), "hog": np.array([[1.0, 2.0], [np.nan, 4.0], [5.0, 6.0]])}
    groups = {name: packed(each) for name, each in values.items()}
    took = service.post_packed(f"{path}/groups", groups, MSGPACK.media_type)
    assert msgspec.msgpack.decode(took.content) == {"prefix": 2, "steps": 3, "replaced": []}
    answer = httpx.get(f"{service.url}{path}/predict", headers={"accept": MSGPACK.media_type}, verify=PLAIN)
    assert answer.headers["content-type"] == MSGPACK.media_type
    assert timeless(msgspec.msgpack.decode(answer.content)) == expected(model, values, rows=3)


def test_a_get_is_answered_at_its_deadline_or_at_once_if_it_has_nothing_to_wait_for(
    service: Running, model: Model
) -> None:
    session = begin(service)
    post_groups(service, session, {"speed": [2.0]})
    answer = service.get(f"/sessions/{session}/predict", deadline_ms=100).json()
    assert (answer["reason"], timeless(answer)) == ("deadline", expected(model, {"speed": [2.0]}))
    at_once: list[tuple[dict[str, Any], str]] = [
        ({"deadline_ms": 0}, "deadline"),
        ({}, "end"),
        ({"deadline_ms": LONG_MS, "budget": 1}, "budget"),  # nothing to wait for
    ]
    for options, reason in at_once:
        assert service.get(f"/sessions/{session}/predict", **options).json()["reason"] == reason


def test_deleting_a_session_answers_its_waiting_predictions(
    service: Running, model: Model, threads: ThreadPoolExecutor
) -> None:
    session = begin(service)
    post_groups(service, session, {"speed": [2.0]})
    waiting = [wait(threads, service, session, deadline_ms=LONG_MS) for _ in range(3)]
    assert service.delete(f"/sessions/{session}").status_code == 204
    for answer in (each.result(60).json() for each in waiting):
        assert (answer["reason"], timeless(answer)) == ("end", expected(model, {"speed": [2.0]}))
    problem_in(service.delete(f"/sessions/{session}"), 410)


def test_several_predictions_wait_at_once_with_their_own_options(
    service: Running, model: Model, threads: ThreadPoolExecutor
) -> None:
    session = begin(service)
    cheap, whole, short = (
        wait(threads, service, session, **options)
        for options in ({"deadline_ms": LONG_MS, "budget": 1}, {"deadline_ms": LONG_MS}, {"deadline_ms": 30})
    )
    assert short.result(60).json()["groups"] == []
    post_groups(service, session, {"speed": VALUES["speed"]})
    assert timeless(cheap.result(60).json()) == expected(model, {"speed": VALUES["speed"]}, 1)
    post_groups(service, session, VALUES)
    answer = whole.result(60).json()
    assert (answer["reason"], timeless(answer)) == ("complete", expected(model, VALUES) | {"replaced": ["speed"]})


@pytest.mark.parametrize("body", ["none", "above the limit"])
def test_a_client_that_disconnects_or_sends_too_much_leaves_nothing_open(service: Running, body: str) -> None:
    session = begin(service)
    with service.connect() as connection:
        framing = "" if body == "none" else "Transfer-Encoding: chunked\r\n"
        target = f"/sessions/{session}/predict?deadline_ms={LONG_MS}"
        connection.send(f"GET {target} HTTP/1.1\r\nHost: test\r\n{framing}\r\n".encode())
        if body == "none":
            until(lambda: service.metric("anytime_open_predictions") == 1)
        else:
            connection.send(chunk(b" " * 100_001))
            assert connection.response()[0] == 413
    until(lambda: service.metric("anytime_open_predictions") == 0)
    assert post_groups(service, session, VALUES).status_code == 200


def test_a_client_that_disconnects_before_its_body_begins_no_session(service: Running) -> None:
    before = service.metric("anytime_sessions")
    with service.connect() as connection:
        connection.send(b"POST /sessions HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\n")
    until(lambda: service.metric("anytime_connections") <= 1)
    assert service.metric("anytime_sessions") == before


def test_a_session_that_is_not_used_expires(model: Model, store: Callable[[int], str]) -> None:
    limits = Settings(port=0, max_sessions=2, session_ttl_s=1.0, session_store=store(1), session_store_timeout_ms=5_000)
    with run_service([model], limits) as service:
        session = begin(service)
        assert service.post_to("/sessions").json()["expires_in_s"] == 1.0
        waited = service.get(f"/sessions/{session}/predict", deadline_ms=1_500).json()
        assert waited["reason"] == "deadline", "it does not expire while someone waits"
        sleep(1.1)
        problem_in(post_groups(service, session, VALUES), 410)
        assert begin(service) != begin(service), "expired sessions are not among the two that may be open"


def test_the_number_of_sessions_is_bounded(model: Model, store: Callable[[int], str]) -> None:
    limits = Settings(port=0, max_sessions=2, session_store=store(2), session_store_timeout_ms=5_000)
    with run_service([model], limits) as service:
        first, second = begin(service), begin(service)
        response = service.post_to("/sessions")
        assert (problem_in(response, 503)["status"], response.headers["retry-after"]) == (503, "1")
        service.delete(f"/sessions/{first}")
        begin(service)
        assert post_groups(service, second, VALUES).status_code == 200


def test_with_several_models_a_session_names_one(several: Running) -> None:
    assert problem_in(several.post_to("/sessions"), 422)["field"] == "model"
    created = several.post_to("/sessions", {"model": "lens@lens-0"}).json()
    assert (created["model"], created["version"]) == ("lens", "lens-0")
    problem_in(several.post_to("/sessions", {"model": "lens@none"}), 404)


def test_a_failed_waiting_prediction_does_not_fail_the_post(
    service: Running, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the secret of the house")

    session = begin(service)
    waiting = wait(threads, service, session, deadline_ms=LONG_MS)
    with logged() as records, monkeypatch.context() as patched:
        patched.setattr(OpenPrediction, "took", fail)
        assert post_groups(service, session, VALUES).status_code == 200
        problem = problem_in(waiting.result(60), 500)  # who waits may hear of them after who posted
    assert "secret" not in problem["detail"]
    assert records
    assert service.get(f"/sessions/{session}/predict").json()["prefix"] == 3
