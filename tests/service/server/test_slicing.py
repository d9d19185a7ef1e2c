"""Long reads are parsed in slices: nothing is lost or out of order, and other clients are served meanwhile."""

from __future__ import annotations

import json
from threading import Thread
from typing import Any

import pytest

from anytime.model.model import Model
from anytime_service.server.connections import READ
from service.raw_stream import raw, read_frame, text
from service.serving import LIMITS, Running, expected, logged, run_service, timeless
from waiting import until

SIZES = [2_000, READ - 200, READ - 1, READ, READ + 1, 99_000]


@pytest.mark.parametrize("size", SIZES)
def test_a_message_of_any_size_is_one_message(service: Running, size: int) -> None:
    frame = text(json.dumps({"type": "begin", "id": "p", "deadline_ms": 0}).encode().ljust(size))
    with raw(service) as connection:
        for _ in range(3):
            connection.send(frame)
            assert json.loads(read_frame(connection)[1])["id"] == "p"


def test_many_messages_in_one_read_are_handled_in_order(service: Running, model: Model) -> None:
    count = 5_000
    groups = [{"type": "group", "id": "p", "group": "speed", "values": [float(i)]} for i in range(count)]
    log: list[dict[str, Any]] = [{"type": "begin", "id": "p"}, *groups, {"type": "end", "id": "p"}]
    log += [{"type": "begin", "id": i, "deadline_ms": 0} for i in range(500)]
    with raw(service) as connection:
        connection.send(b"".join(text(message) for message in log))
        answer = json.loads(read_frame(connection)[1])
        assert timeless(answer) == expected(model, {"speed": [count - 1.0]}) | {"replaced": ["speed"]}
        assert [json.loads(read_frame(connection)[1])["id"] for _ in range(500)] == list(range(500))


def test_thousands_of_pipelined_requests_after_a_large_body_are_answered(service: Running) -> None:
    """A read of 65,536 bytes has 2,000 of them."""
    count = 10_000
    with service.connect() as connection:
        for _ in range(2):
            connection.send(
                b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n{" + b" " * 89_998 + b"}"
            )
            assert connection.response()[0] in (400, 422)
        sender = Thread(target=connection.send, args=(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n" * count,))
        sender.start()
        assert [connection.response()[0] for _ in range(count)] == [200] * count
        sender.join()


def test_a_client_that_disconnects_with_a_backlog_leaves_nothing_open(model: Model) -> None:
    settings = LIMITS.model_copy(update={"max_deadline_ms": 3_600_000.0})
    with run_service([model], settings) as service, logged() as records:
        for _ in range(3):
            with raw(service) as connection:
                connection.send(b"".join(text({"type": "begin", "id": i}) for i in range(900)))
            with service.connect() as plain:
                plain.head()
                plain.send(b"1\r\n \r\n" * 20_000)
        until(lambda: service.metric("anytime_open_predictions") == 0)
    assert not records
