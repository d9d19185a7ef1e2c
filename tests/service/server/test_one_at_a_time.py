"""A connection reads one request at a time: nothing is lost behind it, and the end of its client is noticed.

On both event loops, with and without TLS, which pause and close in different ways.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from websockets.frames import Frame, Opcode

from anytime.inference import deadline
from anytime.model.model import Model
from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry
from anytime_service.server.connections import READ
from anytime_service.settings import Settings
from service.certificates import Certificate
from service.raw_stream import read_frame, shake_hands, text
from service.serving import BASE_RATE, VALUES, Connection, Running, expected, running, small_model, timeless
from waiting import WAIT_S, until

ROWS = 10_000
LIMITS: dict[str, Any] = {
    "port": 0,
    "max_deadline_ms": 60_000,
    "max_lateness_ms": 60_000,
    "max_message_rate": 0,
    "idle_timeout_s": 300,
}
COUNTED = ("open_predictions", "held_bytes", "connections")
PAUSE_MS = 60
MANY, LONG = 100, 8 << 20


class Server(NamedTuple):
    """A server on one of the loops, and how to connect to it."""

    service: Running
    own: Certificate | None

    def connect(self) -> Connection:
        plain = socket.create_connection(("127.0.0.1", self.service.port), timeout=WAIT_S)
        if self.own is None:
            return Connection(plain)
        return Connection(self.own.trusted().wrap_socket(plain, server_hostname="localhost"))

    @property
    def held(self) -> tuple[float, float, float]:
        opened, held, connections = (self.service.metric(f"anytime_{name}") for name in COUNTED)
        return opened, held, connections


@pytest.fixture(scope="module", params=["uvloop", "uvloop TLS", "asyncio", "asyncio TLS"])
def server(request: pytest.FixtureRequest, own: Certificate) -> Iterator[Server]:
    loop, _, encrypted = request.param.partition(" ")
    tls: dict[str, Any] = {"ssl_certfile": own.file, "ssl_keyfile": own.key} if encrypted else {}
    settings = Settings(**LIMITS, **tls, metrics_port=0)
    app = create_app(ModelRegistry.of([small_model()]), settings)

    async def pause() -> None:
        time.sleep(PAUSE_MS / 1000)  # the loop stands still

    app.add_api_route("/pause", pause, include_in_schema=False)
    with running(app, settings, loop="asyncio" if loop == "asyncio" else "auto") as service:
        yield Server(service, own if encrypted else None)


def request(line: str, body: bytes = b"", *fields: str) -> bytes:
    lines = [f"{line} HTTP/1.1", "Host: localhost", *fields, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize("pipelined", [0, 3], ids=["one request", "more behind it"])
def test_clients_that_close_while_they_wait_leave_nothing_open(server: Server, pipelined: int) -> None:
    with server.connect() as connection:
        connection.send(request("POST /sessions"))
        wait = request(f"GET /sessions/{connection.response()[2]['id']}/predict?deadline_ms=59000")
    with ExitStack() as stack:
        for _ in range(MANY):
            stack.enter_context(server.connect()).send(wait + request("GET /livez") * pipelined)
        until(lambda: server.held[0] == MANY)
    until(lambda: server.held == (0, 0, 0))


def test_websockets_that_close_while_they_wait_leave_nothing_open(server: Server) -> None:
    with ExitStack() as stack:
        for number in range(MANY // 10):
            connection = stack.enter_context(server.connect())
            shake_hands(connection)
            begins = [text({"type": "begin", "id": name, "deadline_ms": 59_000}) for name in range(10)]
            connection.send(b"".join(begins) + text({"type": "group", "id": 1, "group": "speed", "values": [1.0]})[:-4])
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", number % 2, 0))  # a reset
        until(lambda: server.held[0] == MANY)
    until(lambda: server.held == (0, 0, 0))


def test_a_body_is_sent_after_100_continue_and_an_answer_before_its_end(server: Server) -> None:
    body = json.dumps({"groups": VALUES}).encode()
    with server.connect() as connection:
        for _ in range(2):
            connection.send(request("POST /predict", body, "Expect: 100-continue")[: -len(body)])
            assert connection.file.read(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.send(body)
            assert connection.response()[2]["complete"]
            connection.head("deadline_ms=20", 50_000)
            assert connection.response()[2]["prediction"] == BASE_RATE
            connection.send(b" " * 50_000)


def test_requests_of_any_size_are_answered_in_order(server: Server) -> None:
    sizes = [100, 70_000, 200, 1_000_000, READ - 200, READ - 1, READ, READ + 1, 3, 130_000]
    bodies = [json.dumps({"groups": {"speed": [i]}}).encode().ljust(size) for i, size in enumerate(sizes)]
    with server.connect() as connection:
        connection.send(b"".join(request("POST /predict", body) for body in bodies))
        predictions = [connection.response()[2]["prediction"] for _ in bodies]
        assert sorted(set(predictions)) in (predictions, predictions[::-1])


@pytest.mark.parametrize("times", [1, 4], ids=["300 KB", "1 MB"])
def test_groups_behind_a_pause_of_the_loop_are_all_used(
    server: Server, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their deadline expires in the pause; on a busy machine the server may take its time to read them."""
    monkeypatch.setattr(deadline, "MAX_DRAIN_S", WAIT_S)
    arrays = {name: np.ones((ROWS, len(values))) for name, values in VALUES.items()}
    groups = [
        msgspec.msgpack.encode({"type": "group", "id": 1, "group": name, "dtype": "f8", "values": each.tobytes()})
        for name, each in list(arrays.items()) * times
        if (name, times) != ("lab", 1)
    ]
    content = b"".join(Frame(Opcode.BINARY, each).serialize(mask=True) for each in groups)
    with server.connect() as connection, server.connect() as other:
        shake_hands(connection)
        connection.send(text({"type": "begin", "id": 1, "deadline_ms": PAUSE_MS / 2, "rows": ROWS}))
        other.send(request("GET /pause"))
        connection.send(content)
        assert other.response()[0] == 200
        answer = json.loads(read_frame(connection)[1])
    if answer["late_groups"]:  # else the machine was so slow that they arrived before the pause, or after the answer
        assert set(answer["groups"]) == set(VALUES) - ({"lab"} if times == 1 else set())


def test_a_message_of_any_size_up_to_eight_megabytes_is_one_message(server: Server) -> None:
    group = {"type": "group", "id": "nobody", "group": "speed", "dtype": "f8", "values": bytes(LONG)}
    with server.connect() as connection:
        shake_hands(connection)
        connection.send(Frame(Opcode.BINARY, msgspec.msgpack.encode(group)).serialize(mask=True))
        error = msgspec.msgpack.decode(read_frame(connection)[1])
        assert (error["id"], error["problem"]["field"]) == ("nobody", "id")
        for name, size in enumerate((2_000, READ - 200, READ - 1, READ, READ + 1, 99_000) * 2):
            connection.send(text(json.dumps({"type": "begin", "id": name, "deadline_ms": 0}).encode().ljust(size)))
            assert json.loads(read_frame(connection)[1])["prediction"] == BASE_RATE
    until(lambda: server.held == (0, 0, 0))


def test_many_small_messages_in_one_segment_are_handled_in_order_and_do_not_hold_up_another_client(
    server: Server, model: Model
) -> None:
    groups = [{"type": "group", "id": "p", "group": "speed", "values": [float(i)]} for i in range(5_000)]
    log: list[dict[str, Any]] = [{"type": "begin", "id": "p"}, *groups, {"type": "end", "id": "p"}]
    log += [{"type": "begin", "id": i, "deadline_ms": 0} for i in range(500)]
    with server.connect() as connection, server.connect() as other:
        shake_hands(connection)
        shake_hands(other)
        connection.send(b"".join(map(text, log)))
        other.send(text({"type": "begin", "id": "other", "deadline_ms": 0}))
        assert json.loads(read_frame(other)[1])["id"] == "other"
        answer = json.loads(read_frame(connection)[1])
        assert timeless(answer) == expected(model, {"speed": [4_999.0]}) | {"replaced": ["speed"]}
        assert [json.loads(read_frame(connection)[1])["id"] for _ in range(500)] == list(range(500))
