"""Deadlines on a raw socket, where a test decides when each byte leaves."""

from __future__ import annotations

import json

import pytest

from anytime_service.clock import now_ms
from anytime_service.core.service import PredictionService
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.options import PredictionOptions
from anytime_service.settings import Settings
from service.serving import BASE_RATE, LIMITS, VALUES, Collecting, Running, chunk, run_service, small_model
from waiting import until_async

SETTINGS = LIMITS.model_copy(update={"max_deadline_ms": 3_600_000})
BODY = json.dumps({"groups": VALUES}).encode()
HALF = len(BODY) // 2


def test_the_deadline_in_the_middle_of_a_body_brings_the_base_rate(service: Running) -> None:
    with service.connect() as connection:
        connection.head("deadline_ms=100", len(BODY))
        connection.send(BODY[:HALF])
        status, headers, answer = connection.response()
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert (answer["prediction"], answer["prefix"], answer["groups"]) == (BASE_RATE, 0, [])
    assert (answer["reason"], answer["complete"]) == ("deadline", False)
    assert answer["missing"] == ["speed", "hog", "lab"]


def test_a_body_that_ends_after_its_answer_leaves_the_connection_in_use(service: Running) -> None:
    with service.connect() as connection:
        for _ in range(3):
            connection.head("deadline_ms=30", len(BODY))
            connection.send(BODY[:HALF])
            assert connection.response()[2]["reason"] == "deadline"
            connection.send(BODY[HALF:])
        connection.head("", len(BODY))
        connection.send(BODY)
        assert connection.response()[2]["reason"] == "complete"


def test_a_flood_after_the_answer_is_cut(service: Running) -> None:
    with service.connect() as connection:
        connection.head("deadline_ms=10")
        status, _, answer = connection.response()
        assert (status, answer["reason"]) == (200, "deadline")
        with pytest.raises(OSError):  # noqa: PT012
            for _ in range(800):  # 50 MB
                connection.send(chunk(b" " * 65_536))


def test_deadline_zero_does_not_wait_for_a_body(service: Running) -> None:
    with service.connect() as connection:
        connection.head("deadline_ms=0", 50_000)
        assert connection.response()[2]["prediction"] == BASE_RATE
    answer = service.post({"groups": VALUES}, deadline_ms=0).json()
    assert (answer["prediction"], answer["prefix"], answer["reason"]) == (BASE_RATE, 0, "deadline")
    assert service.post({"groups": VALUES}, deadline_ms=0, rows=2).json()["prediction"] == [BASE_RATE] * 2


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("deadline_ms=3e6", {"Request_Timeout_Ms": "40"}),
        ("deadline_ms=40", {"Request_Timeout_Ms": "3e6"}),
        ("", {"Request_Timeout_Ms": "40"}),
        ("", {"grpc_timeout": "40m"}),
        ("", {"grpc_timeout": "40M", "Request_Timeout_Ms": "40.5"}),
        ("", {"grpc_timeout": "40m", "Request_Timeout_Ms": "3e6"}),
    ],
)
def test_the_smallest_of_several_deadlines_counts(service: Running, query: str, headers: dict[str, str]) -> None:
    with service.connect() as connection:
        connection.head(query, len(BODY), **headers)
        assert connection.response()[2]["reason"] == "deadline", "before this connection times out"


@pytest.mark.parametrize("query", ["", "deadline_ms=1e9"])
def test_no_deadline_is_longer_than_the_servers(query: str) -> None:
    settings = LIMITS.model_copy(update={"max_deadline_ms": 100})
    with run_service([small_model()], settings) as service, service.connect() as connection:
        connection.head(query, len(BODY))
        assert connection.response()[2]["reason"] == "deadline"


async def test_the_deadline_of_the_server_counts_from_the_begin_of_a_request_that_is_opened_later() -> None:
    core = PredictionService(ModelRegistry.of([small_model()]), Settings(max_deadline_ms=3_600_000))
    sink = Collecting()
    core.open(PredictionOptions(), now_ms() - 3_600_000, sink)
    await until_async(lambda: sink.answers)
    assert sink.answers[0].reason == "deadline"
