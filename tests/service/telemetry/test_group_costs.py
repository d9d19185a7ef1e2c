"""Times of groups, as the service records them on each binding, and the costs that are learned from them."""

from __future__ import annotations

import json
from pathlib import Path
from time import sleep
from typing import Any

import msgspec
import numpy as np
import pytest

from anytime.cli.main import main
from anytime.estimators import AnytimeRegressor
from anytime.groups import load_groups
from anytime.inference.prediction import Prediction
from anytime.loaded import load
from anytime_service.client import Client
from anytime_service.client.engine import Call, Connection
from anytime_service.client.messages import encode_values
from anytime_service.client.transport import Network
from anytime_service.models.registry import load_registry
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from anytime_service.schemas.options import PredictionOptions
from anytime_service.settings import Settings
from models.commands import Capture, ran, refusal
from service.in_session import begin, post_groups
from service.inferring import infer, tensors
from service.serving import (
    EXTRACTORS,
    GROUPS,
    LINES,
    VALUES,
    Running,
    chunk,
    lines_of,
    rows_of,
    run_service,
    small_model,
)
from service.slowness import SLOW_S, slow
from waiting import WAIT_S, until

SETTINGS = Settings(port=0)


def counted(service: Running, group: str, what: str = "count") -> float:
    return service.metric(f"anytime_group_seconds_{what}", model="brake", group=group)


def ask_until(
    service: Running, client: Client, extractors: Any, count: int, worker: Any = "thread", budget: float | None = None
) -> None:
    """Ask for answers that hog is too slow for, until so many of it have been measured all the same.

    On a busy machine a prediction may be over before hog is even begun.
    """

    def enough() -> bool:
        assert "hog" not in client.run(extractors, VALUES, SLOW_S * 1e3 / 2, worker=worker, budget=budget).groups
        return counted(service, "hog") >= count

    until(enough)


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_a_group_that_no_answer_waited_for_teaches_what_it_took_to_its_end(fresh: Running, worker: Any) -> None:
    extractors = EXTRACTORS | {"hog": slow}
    with Client(fresh.url) as client:
        client.warm_up(extractors, worker=worker)
        ask_until(fresh, client, extractors, 1, worker)
    assert counted(fresh, "hog", "sum") >= SLOW_S * 0.9 * counted(fresh, "hog")
    assert counted(fresh, "lab") == 0, "nothing is begun after the answer"


def saved(path: Path) -> None:
    """A model of the groups of these tests, in which hog is thought to be as cheap as speed."""
    repriced = json.loads(json.dumps(GROUPS))
    repriced["groups"][1]["cost"] = 1.0
    X, y = rows_of(repriced, 0)
    estimator = AnytimeRegressor(repriced, alpha=0.01, basis="linear")
    estimator.fit(X, X @ np.array([0.5, 2.0, 2.0, 1.0]) + 0.1 * y).save(path, name="brake")


def test_costs_are_learned_from_a_service_and_the_model_is_put_in_order_and_loaded_again(
    tmp_path: Path, capsys: Capture
) -> None:
    """From the port of metrics; `test_control.py` learns from the main one."""
    path, learned, kept = tmp_path / "brake.safetensors", tmp_path / "learned.yaml", tmp_path / "kept.txt"
    saved(path)
    extractors = EXTRACTORS | {"hog": slow}
    assert load(path).manifest.steps[0].group == "hog"
    settings = Settings(port=0, metrics_port=0)
    with run_service(load_registry((path,)), settings) as service, Client(service.url) as client:
        client.warm_up(extractors)
        ask_until(service, client, extractors, 2, budget=1.0)  # hog alone
        url = f"http://127.0.0.1:{service.metrics_port}/metrics"
        call = ["costs", "--from", url, "--model", str(path), "--least", "2", "--check"]
        out = ran(capsys, *call, "--out", str(learned), "--keep", str(kept), code=3).out
        assert "unchanged: fewer than 2 values were measured" in out
        groups = load_groups(learned)
        cost = dict(zip(groups.names, groups.costs.tolist(), strict=True))
        assert SLOW_S * 1e3 * 0.9 <= cost["hog"] < SLOW_S * 1e3 * 20
        assert (cost["speed"], cost["lab"], cost["blood"]) == (1.0, 3.0, 2.0)
        assert main(["resequence", str(path), "--costs", str(learned), "--out", str(path)]) == 0
        assert load(path).manifest.steps[-1].group == "hog"
        assert service.post_to("/models/brake/reload").status_code == 200
        # The client hears of the new order from an answer of the new version.
        until(lambda: client.run(extractors, VALUES, 1_000, budget=6.5).groups == ("lab", "speed"))
        assert main([*call, "--since", str(kept), "--least", "1000"]) == 0, "too little has come since"


def test_a_key_is_taken_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    path = tmp_path / "brake.safetensors"
    saved(path)
    settings = Settings(port=0, api_keys="a-key-that-predicts-only,admin:a-key-that-reads-metrics")
    with run_service(load_registry((path,)), settings) as service:
        for key, words in {
            "": "returned 401 Unauthorized; set ANYTIME_KEY to a key of scope admin",
            "a-key-that-predicts-only": "returned 403",
            "a-key-that-reads-metrics": "no group of any model was timed yet",
        }.items():
            monkeypatch.setenv("ANYTIME_KEY", key)
            assert words in refusal(capsys, "costs", "--from", service.url, "--model", str(path))


@pytest.mark.parametrize(("answered", "expected"), [(True, []), (False, [1.0, 2.0])])
async def test_values_are_sent_late_only_where_the_prediction_may_be_open_on_the_server(
    answered: bool, expected: Any
) -> None:
    connection = Connection(Network("http://127.0.0.1:9", None, 1.0))
    call = Call(connection, PredictionOptions(), 0.0)
    call.close()
    call.send_late("hog", encode_values("hog", [1.0, 2.0]), 8.5)
    assert connection._unsent.empty(), "the prediction never began"
    connection._socket = call.socket = object()  # type: ignore[assignment]
    call.id, call.result = 7, Prediction(small_model()).answer() if answered else None
    call.send_late("hog", encode_values("hog", [1.0, 2.0]), 8.5)
    frame = msgspec.msgpack.decode(connection._unsent.get_nowait())
    assert frame == {"type": "group", "id": 7, "group": "hog", "values": expected, "took_ms": 8.5}


# What the service records on each binding.


SPEED = {"speed": VALUES["speed"]}
PAUSE_S = 0.1
"""A thousand of them are more than the longest wait: a time in another unit would be found."""


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_the_reported_time_counts_and_else_the_time_since_the_previous_event(fresh: Running, form: Form) -> None:
    with fresh.stream(form) as stream:
        stream.say("begin", 1)
        until(lambda: fresh.metric("anytime_open_predictions") == 1)
        sleep(PAUSE_S)
        stream.say("group", 1, group="speed", values=VALUES["speed"])
        stream.say("group", 1, group="hog", values=VALUES["hog"], took_ms=7.5)
        until(lambda: counted(fresh, "hog") == 1)
        sleep(PAUSE_S)
        stream.say("group", 1, group="lab", values=VALUES["lab"])
        stream.answer(1)
    assert [counted(fresh, name) for name in VALUES] == [1, 1, 1]
    assert counted(fresh, "hog", "sum") == pytest.approx(0.0075)
    for name in ("speed", "lab"):
        assert PAUSE_S * 0.9 < counted(fresh, name, "sum") < WAIT_S
    assert fresh.metric("anytime_group_seconds_bucket", model="brake", group="hog", le="0.01") == 1
    assert fresh.metric("anytime_group_seconds_bucket", model="brake", group="hog", le="0.005") == 0


def test_late_groups_are_timed_too(fresh: Running) -> None:
    with fresh.stream() as stream:
        stream.ask(1, deadline_ms=1)
        stream.say("group", 1, group="speed", values=VALUES["speed"], took_ms=40)
        until(lambda: counted(fresh, "speed") == 1)
        sleep(PAUSE_S)
        stream.say("group", 1, group="hog", values=VALUES["hog"])
        stream.say("begin", 2, budget=1)
        stream.say("group", 2, group="speed", values=VALUES["speed"], took_ms=2)
        stream.answer(2)
        stream.say("group", 2, group="lab", values=[], took_ms=3)
        stream.say("group", 2, group="nobody", values=[], took_ms=7)
        stream.say("group", 2, group="hog", values=[])
        stream.say("begin", 3)
        stream.say("group", 3, group="hog", values=[], took_ms=7)
        assert "hog" in stream.problem()["detail"], "before the answer, values are needed"
    assert [counted(fresh, name) for name in VALUES] == [2, 2, 1]
    assert counted(fresh, "speed", "sum") == pytest.approx(0.042)
    assert counted(fresh, "hog", "sum") >= PAUSE_S * 0.9
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
    assert counted(fresh, "speed") == 2
    assert counted(fresh, "speed", "sum") == pytest.approx(0.01)


def test_lines_are_timed_also_after_the_answer(fresh: Running) -> None:
    with fresh.connect() as connection:
        connection.head("budget=1", content_type=LINES)
        content = lines_of(SPEED, took_ms=2) + lines_of({"hog": VALUES["hog"]}, took_ms=9)
        connection.send(chunk(content[:-5]))
        assert connection.response()[2]["reason"] == "budget"
        connection.send(chunk(content[-5:] + lines_of({"lab": VALUES["lab"]}, took_ms=5)[:-1]) + b"0\r\n\r\n")
        until(lambda: counted(fresh, "lab") == 1)
        connection.head("deadline_ms=1", content_type=LINES)
        connection.send(chunk(lines_of(SPEED)[:9]))
        assert connection.response()[2]["reason"] == "deadline"
        sleep(PAUSE_S)
        connection.send(chunk(lines_of(SPEED)[9:] + b"nonsense\n") + b"0\r\n\r\n")
        until(lambda: counted(fresh, "speed") == 2)
    assert [counted(fresh, name, "sum") for name in ("hog", "lab")] == pytest.approx([0.009, 0.005])
    assert counted(fresh, "speed", "sum") >= 0.002 + PAUSE_S * 0.9
    assert fresh.metric("anytime_groups_late_total", model="brake") == 3


def test_at_most_as_many_late_lines_are_timed_as_the_model_has_groups(fresh: Running) -> None:
    content = lines_of(SPEED, took_ms=1) * 2_000
    with fresh.connect() as connection:
        connection.head("deadline_ms=0", content_type=LINES)
        assert connection.response()[0] == 200
        connection.send(chunk(content) + b"0\r\n\r\n")
        connection.head("deadline_ms=0", 0)
        assert connection.response()[0] == 200
    assert counted(fresh, "speed") == len(VALUES)


def test_groups_of_a_session_are_timed_if_they_arrive_one_at_a_time(fresh: Running) -> None:
    session = begin(fresh)
    sleep(PAUSE_S)
    for _ in range(2):
        assert post_groups(fresh, session, SPEED).status_code == 200
    assert counted(fresh, "speed") == 1, "sent again, it may not have been computed again"
    assert counted(fresh, "speed", "sum") >= PAUSE_S * 0.9
    assert post_groups(fresh, session, {name: VALUES[name] for name in ("hog", "lab")}).status_code == 200
    assert (counted(fresh, "hog"), counted(fresh, "lab")) == (0, 0), (
        "the single times of groups in one request are unknown"
    )
    fresh.delete(f"/sessions/{session}")
    assert post_groups(fresh, session, {"hog": VALUES["hog"]}).status_code == 410
    assert counted(fresh, "hog") == 0


def test_groups_in_a_complete_body_are_not_timed(fresh: Running) -> None:
    assert fresh.post({"groups": SPEED}).status_code == 200
    infer(fresh, tensors({"hog": VALUES["hog"]}))
    assert [counted(fresh, name) for name in VALUES] == [0, 0, 0]
