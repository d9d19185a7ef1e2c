"""Costs learned from a real service: what is late counts too, and what is learned changes the sequence."""

from __future__ import annotations

import json
from pathlib import Path
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
from anytime_service.schemas.options import PredictionOptions
from anytime_service.settings import Settings
from models.commands import Capture, ran, refusal
from service.serving import EXTRACTORS, GROUPS, VALUES, Running, rows_of, run_service, small_model
from service.slowness import SLOW_S, slow
from waiting import until

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


def test_a_late_group_without_values_tells_what_it_took_and_with_none_of_both_it_counts_as_late(fresh: Running) -> None:
    with fresh.stream() as stream:
        stream.ask(1, deadline_ms=0)
        stream.say("group", 1, group="hog", values=[], took_ms=7)
        until(lambda: counted(fresh, "hog") == 1)
        stream.say("group", 1, group="nobody", values=[], took_ms=7)
        stream.say("group", 1, group="hog", values=[])
        until(lambda: fresh.metric("anytime_groups_late_total", model="brake") == 1)
        stream.say("begin", 2)
        stream.say("group", 2, group="hog", values=[], took_ms=7)
        assert "hog" in stream.problem()["detail"], "before the answer, values are needed"
    assert counted(fresh, "hog", "sum") >= 0.007


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
    """From the port of metrics; `test_pages.py` learns from the main one."""
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
