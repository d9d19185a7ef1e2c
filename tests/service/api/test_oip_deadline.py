"""Open Inference Protocol v2: bodies that come in pieces, late or never. The bounds are wide: machines are busy."""

from __future__ import annotations

import json
from time import sleep
from typing import Any

import pytest

from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry
from anytime_service.settings import Settings
from service.inferring import JSON_BYTES, MODELS, TWO_ROWS, assert_reported, binary, half_sent, output, tensors
from service.serving import BASE_RATE, VALUES, Running, expected, running, small_model, trained_model
from waiting import until


@pytest.mark.parametrize(
    ("query", "headers"),
    [("deadline_ms=50", {}), ("", {"Request_Timeout_Ms": "50"}), ("deadline_ms=1900", {"grpc_timeout": "50m"})],
)
def test_an_unfinished_body_is_answered_with_the_base_rate(service: Running, query: str, headers: Any) -> None:
    content = json.dumps({"id": "7", "inputs": tensors(TWO_ROWS)}).encode()
    with half_sent(service, content, len(content) // 2, query=f"{query}&rows=2", **headers) as connection:
        status, reported, reply = connection.response()
        connection.send(content[len(content) // 2 :])
    assert (status, reported["content-type"]) == (200, "application/json")
    assert output(reply).tolist() == [[BASE_RATE]] * 2
    assert (reply["parameters"]["reason"], reply["parameters"]["complete"]) == ("deadline", False)


@pytest.mark.parametrize("parameters", [{"deadline_ms": 400}, {"timeout": 400_000}, {"timeout": 0, "deadline_ms": 400}])
def test_the_deadline_in_the_json_holds_while_tensors_come_and_those_that_came_count(
    service: Running, parameters: Any
) -> None:
    content, headers = binary(TWO_ROWS, parameters=parameters, id="7")
    sent = int(headers[JSON_BYTES]) + 16 + 31  # speed, and all but a byte of hog
    with half_sent(service, content, sent, **{JSON_BYTES: headers[JSON_BYTES]}) as connection:
        _, _, reply = connection.response()
    assert_reported(reply, expected(MODELS["brake"], {"speed": TWO_ROWS["speed"]}, rows=2))
    assert (reply["id"], reply["parameters"]["reason"]) == ("7", "deadline")


def test_a_tensor_counts_when_it_has_come_however_the_body_is_cut(service: Running) -> None:
    content, headers = binary(TWO_ROWS, parameters={"budget": 5})
    at = int(headers[JSON_BYTES])
    for sent in (at + 16 + 32, at + 16 + 33):  # what the budget buys is there before the body has ended
        with half_sent(service, content, sent, **{JSON_BYTES: str(at)}) as connection:
            reply = connection.response()[2]
        assert_reported(reply, expected(MODELS["brake"], TWO_ROWS, 5, rows=2))
        assert reply["parameters"]["reason"] == "budget"
    for cut in (1, at - 1, at, at + 1, at + 17, len(content) - 1):
        with half_sent(service, content, cut, **{JSON_BYTES: str(at)}) as connection:
            sleep(0.01)
            connection.send(content[cut:])
            assert_reported(connection.response()[2], expected(MODELS["brake"], TWO_ROWS, 5, rows=2))


def test_a_request_keeps_the_model_that_it_began_with(settings: Settings) -> None:
    app = create_app(ModelRegistry.of([small_model()]), settings)
    content = json.dumps({"inputs": tensors(VALUES)}).encode()
    with running(app, settings) as service, half_sent(service, content, 10) as connection:
        until(lambda: app.state.service.active)
        app.state.service.registry = ModelRegistry.of([trained_model("brake", width=3)])
        connection.send(content[10:])
        assert_reported(connection.response()[2], expected(small_model(), VALUES))
