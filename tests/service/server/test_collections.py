"""Garbage waits until no client is connected; closed connections leave none; freed large blocks are returned."""

from __future__ import annotations

import ctypes
import gc
import json
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from time import sleep
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import httpx
import pytest
from starlette.responses import Response

from anytime_service.api.oip import Inference
from anytime_service.api.openapi import AnytimeAPI
from anytime_service.api.predict import Lines
from anytime_service.app import create_app
from anytime_service.core.service import ActivePrediction, PredictionService
from anytime_service.http.exchange import Exchange, SendQueue
from anytime_service.models.registry import ModelRegistry
from anytime_service.server import run
from anytime_service.server.connections import READ, SIDE_CONNECTIONS, Connection as ServerConnection
from anytime_service.server.frames import FrameReader
from anytime_service.server.http_protocol import Transaction
from anytime_service.server.requests import Body, Head
from anytime_service.server.run import DUE_BUSY, DUE_IDLE, NEVER, collect_when_due, control_collections
from anytime_service.settings import Settings
from drills.accounting import PROBE_S, faults_of, target
from drills.attacks.wire import connect, receive, replies, send_all
from models.present import present
from service.certificates import Certificate
from service.doors import PREDICTING, keyed
from service.raw_stream import HANDSHAKE, read_frame, text
from service.serving import PLAIN, VALUES, Connection, Running, logged, run_service, running, small_model
from waiting import until

BODY = json.dumps({"groups": VALUES}).encode()
TENSOR = {"name": "speed", "shape": [1, 1], "datatype": "FP64", "data": [1.0]}
SLOW = b"POST /predict?deadline_ms=20000 HTTP/1.1\r\nHost: test\r\nContent-Length: 9\r\n\r\n"
LINES = (
    b"POST /predict?deadline_ms=5 HTTP/1.1\r\nHost: test\r\nContent-Type: application/x-ndjson\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
BEGIN = text({"type": "begin", "id": 1, "deadline_ms": 20_000})
GROUP = text({"type": "group", "id": 1, "group": "speed", "values": [2.0]})
NOT_A_FRAME, CLOSE = b"\xff\xff\xff", b"\x88\x80\0\0\0\0"

OWNED = (
    *(ServerConnection, Head, Body, Transaction, FrameReader, Exchange, SendQueue, Lines, Inference),
    ActivePrediction,
)


def post(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


UP = (HANDSHAKE, b"101")
KINDS: dict[str, tuple[tuple[bytes, bytes], ...]] = {
    "nothing sent": (),
    "an answer": ((post("/predict", BODY), b'"complete"'),),
    "a problem": ((post("/predict", b"{}}"), b"problem"),),
    "an unknown route": ((post("/nowhere", b""), b"404"),),
    "an invalid head": ((b"NONSENSE\r\n\r\n", b"400"),),
    "an answer before the end of the request": ((LINES, b'"deadline"'),),
    "an inference": ((post("/v2/models/brake/infer", json.dumps({"inputs": [TENSOR]}).encode()), b'"outputs"'),),
    "a request without its body": ((SLOW, b""),),
    "an unfinished line": ((LINES.replace(b"=5 ", b"=20000 ") + b'9\r\n{"group":\r\n', b""),),
    "requests behind another one": ((LINES + b"0\r\n\r\n" + SLOW + b"{        " + 3 * post("/predict", BODY), b"200"),),
    "a WebSocket with an open prediction": (UP, (BEGIN + GROUP, b"")),
    "a WebSocket with an answer": (UP, (BEGIN + GROUP + text({"type": "end", "id": 1}), b'"answer"')),
    "a WebSocket with an error": (UP, (GROUP, b'"error"')),
    "a WebSocket that both close": (UP, (CLOSE, b"\x88")),
    "a WebSocket without frames": (UP, (NOT_A_FRAME, b"\x88")),
    "a refused subprotocol": ((HANDSHAKE[:-2] + b"Sec-WebSocket-Protocol: other\r\n\r\n", b"problem"),),
    "a WebSocket without a route": ((HANDSHAKE.replace(b"/stream", b"/nowhere"), b"404"),),
    "a handshake without a key": ((HANDSHAKE.replace(b"-Key", b"-Lock"), b"400"),),
}
"""Bytes that a client sends, and bytes that it waits for; then it disconnects."""


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("thresholds")
def test_python_collects_only_young_objects_by_itself() -> None:
    young = gc.get_threshold()[0]
    control_collections()
    assert gc.get_threshold() == (young, NEVER, NEVER)
    assert gc.get_freeze_count() > 1000


@pytest.mark.parametrize(
    ("threshold", "count", "idle", "collects"),
    [
        (NEVER, DUE_IDLE - 1, True, False),
        (NEVER, DUE_IDLE, True, True),
        (NEVER, DUE_IDLE, False, False),
        (NEVER, DUE_BUSY, False, True),
        (10, DUE_BUSY, True, False),  # a program that embeds the server controls its own collections
    ],
)
def test_a_full_collection_waits_for_an_idle_server(
    threshold: int, count: int, idle: bool, collects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[int] = []
    stand_in = SimpleNamespace(
        get_threshold=lambda: (700, threshold, threshold),
        get_count=lambda: (0, count, 0),
        collect=lambda: collected.append(2),
    )
    monkeypatch.setattr(run, "gc", stand_in)
    collect_when_due(idle=idle)
    assert bool(collected) == collects


@pytest.fixture(scope="module")
def secure(own: Certificate) -> Iterator[Running]:
    with run_service([small_model()], Settings(port=0, ssl_certfile=own.file, ssl_keyfile=own.key)) as service:
        yield service


def remains() -> list[object]:
    """Return the objects of connections, requests and predictions that exist, garbage included."""
    return [each for each in gc.get_objects() if isinstance(each, OWNED)]


def leaves_nothing(connect: Callable[[], socket.socket], kind: str) -> None:
    """Connect and disconnect without a garbage collection; wait until all objects of the connection are gone."""
    gc.collect()
    gc.disable()
    gc.freeze()  # so that `remains` looks at few objects
    try:
        with Connection(connect()) as connection:
            until(lambda: bool(remains()))
            for sent, awaited in KINDS[kind]:
                connection.send(sent)
                received = b""
                while awaited not in received:
                    received += connection.sock.recv(65_536) or pytest.fail(f"received only {received!r}")
        until(lambda: not remains())
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_connection_leaves_nothing_to_the_garbage_collector(kind: str, server: Running) -> None:
    leaves_nothing(lambda: socket.create_connection(("127.0.0.1", server.port), timeout=60), kind)


@pytest.mark.parametrize("kind", ["an answer", "a WebSocket with an open prediction"])
def test_an_encrypted_connection_leaves_nothing_to_the_garbage_collector(
    kind: str, secure: Running, own: Certificate
) -> None:
    def connect() -> socket.socket:
        return own.trusted().wrap_socket(
            socket.create_connection(("127.0.0.1", secure.port), timeout=60), server_hostname="localhost"
        )

    leaves_nothing(connect, kind)


def test_a_server_is_idle_while_no_client_is_connected(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[bool] = []
    monkeypatch.setattr(run, "collect_when_due", lambda *, idle: ticks.append(idle))
    until(lambda: bool(ticks) and all(ticks[-4:]))
    with server.connect():
        until(lambda: not all(ticks[-4:]))  # another server of this process may tick too
    until(lambda: all(ticks[-4:]))


_BLOCKS = """
import ctypes
from anytime_service.server.run import MAPPED, map_large_blocks

class Blocks(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    _fields_ = [(name, ctypes.c_size_t) for name in names]

glibc = ctypes.CDLL(None)
glibc.mallinfo2.restype = Blocks
map_large_blocks()
del bytearray(20 * MAPPED)[:]
before = glibc.mallinfo2()
blocks = [bytearray(2 * MAPPED) for _ in range(10)]
assert glibc.mallinfo2().hblks == before.hblks + len(blocks), "large blocks lie in the heap"
del blocks
assert glibc.mallinfo2().hblkhd == before.hblkhd
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_freed_bodies_return_to_the_system_after_a_larger_one() -> None:
    subprocess.run([sys.executable, "-c", _BLOCKS], check=True, timeout=60)


# Every byte stored for a client is counted, on every port; random sequences search for exceptions.


HEAD_BYTES = 4096
SETTINGS = Settings(
    port=0, metrics_port=0, max_header_bytes=HEAD_BYTES, idle_timeout_s=1.0, max_connections=4, max_deadline_ms=60_000
)
CHUNKED = b"%b HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"2\r\n{}\r\n0\r\n"
ENDLESS = 64 << 20
"""Bytes that a server which limits nothing would read."""

ROUND_S = 1.5


@pytest.fixture(scope="module")
def app() -> AnytimeAPI:
    app = create_app(ModelRegistry.of([small_model()]), SETTINGS)

    async def large() -> Response:
        return Response(bytes(16 << 20))

    app.add_api_route("/large", large, include_in_schema=False)
    return app


def read_of(port: int, begin: bytes, piece: bytes) -> tuple[int, bytes]:
    """Send a beginning and then pieces without end; return the number of bytes read, and the response."""
    with connect(port) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        send_all(sock, begin)
        size = 0
        with suppress(OSError):
            while size < ENDLESS:
                sock.sendall(piece)
                size += len(piece)
        return size, receive(sock)[0]


@pytest.mark.parametrize(
    ("request_line", "begin", "piece"),
    [
        (b"POST /predict", LAST_CHUNK, b"X: %b\r\n" % (b"y" * 1000)),
        (b"GET /livez", LAST_CHUNK, b"X: %b\r\n" % (b"y" * 1000)),
        (b"POST /nowhere", LAST_CHUNK, b"X: %b\r\n" % (b"y" * 1000)),
        (b"POST /sessions", LAST_CHUNK, b"X: %b\r\n" % (b"y" * 1000)),
        (b"POST /predict", LAST_CHUNK, b"y" * 65_536),
        (b"POST /predict", LAST_CHUNK, b"\r" * 65_536),
        (b"POST /predict", b"2;", b"y" * 65_536),
    ],
    ids=[*("trailers", "of a probe", "of no route", "of a session"), "one trailer", "line ends", "a chunk extension"],
)
def test_trailers_and_extensions_count_against_the_limit_of_heads(
    service: Running, request_line: bytes, begin: bytes, piece: bytes
) -> None:
    size, _ = read_of(service.port, CHUNKED % request_line + begin, piece)
    assert size < 16 << 20, "a few socket buffers at most"


def test_too_many_trailers_are_refused_by_a_problem(service: Running) -> None:
    with service.connect() as client:
        client.send(CHUNKED % b"POST /predict" + LAST_CHUNK)
        sleep(0.05)  # a slice of its own, or its share of the trailers would not be known
        client.send(b"X: %b\r\n" % (b"y" * 2 * HEAD_BYTES))
        status, _, problem = client.response()
        assert (status, "trailers" in problem["detail"], str(HEAD_BYTES) in problem["detail"]) == (431, True, True)
        assert client.at_end()


def test_many_small_chunks_are_not_too_much_framing(service: Running) -> None:
    with service.connect() as client:
        client.head(content_type="application/json")
        body = b'{"groups": {"speed": [2.0]}}' + b" " * 20_000
        client.send(b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\nX: y\r\n\r\n")
        assert client.response()[2]["prefix"] == 1


def test_trailers_are_not_headers() -> None:
    with keyed() as guarded, guarded.connect() as client:
        client.head(content_type="application/json")
        client.send(LAST_CHUNK + f"Authorization: Bearer {PREDICTING}\r\n\r\n".encode())
        assert client.response()[0] == 401


@pytest.mark.parametrize("target_", [b"/predict", b"/v2/models/brake/infer"], ids=["predict", "infer"])
def test_a_client_that_does_not_read_shed_replies_is_not_read_either(
    monkeypatch: pytest.MonkeyPatch, target_: bytes
) -> None:
    """Replies of load shedding are written by the protocol itself; they wait for the client like all others."""
    limits = Settings(port=0, idle_timeout_s=1.0, header_timeout_s=1.0)
    app = create_app(ModelRegistry.of([small_model()]), limits)
    core: PredictionService = app.state.service
    monkeypatch.setattr(core.admission, "admits", lambda _: False)
    query = b"?overload=prior&rows=100" if target_ == b"/predict" else b""
    head = b"POST %b%b HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n"
    request = head % (target_, query) + b'{"inputs": []}'
    with running(app, limits, send_buffer=4096) as service, connect(service.port, receive_buffer=4096) as deaf:
        with service.connect() as client:  # the second reply is at hand
            for _ in range(2):
                client.send(request)
                assert client.response()[0] in (200, 503)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        deaf.settimeout(0.3)
        # No further request is read before the client reads.
        with pytest.raises((TimeoutError, ConnectionError)):
            deaf.sendall(request * (ENDLESS // len(request)))
        until(lambda: core.memory.bytes > 65_536)  # unread replies count as held
        until(lambda: core.memory.bytes == 0)  # its connection has been closed


def test_a_flood_of_pipelined_requests_stays_with_its_client(
    app: AnytimeAPI, service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of requests has thirty thousand: one is answered, some wait as bytes, the kernel has the rest."""
    alive, most, held = WeakSet[Transaction](), 0, 0
    begin = Transaction.__init__
    core: PredictionService = app.state.service

    def counted(transaction: Transaction, *args: Any, **options: Any) -> None:
        nonlocal most, held
        begin(transaction, *args, **options)
        alive.add(transaction)
        most, held = max(most, len(alive)), max(held, core.memory.bytes)

    monkeypatch.setattr(Transaction, "__init__", counted)
    count = 3_000
    with connect(service.port) as sock:
        sender = Thread(target=sock.sendall, args=(b"OPTIONS / HTTP/1.1\r\nHost: test\r\n\r\n" * count,))
        sender.start()
        received = b""
        while received.count(b"HTTP/1.1 405") < count:
            received += sock.recv(1 << 20)
        sender.join()
    assert 0 < most <= 3
    assert held <= 2 * READ


def test_a_request_that_follows_an_answered_body_at_once_is_answered_before_the_connection_closes(
    service: Running,
) -> None:
    with logged() as records, service.connect() as client:
        client.send(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
        assert client.response()[0] == 404
        client.send(b"body" + 2 * b"GET /models HTTP/1.1\r\nHost: x\r\n\r\n" + b"\x00\r\n\r\n")
        assert [client.response()[0] for _ in range(3)] == [200, 200, 400]
        assert client.at_end(), "the complete answers, and then the end of the connection"
    assert [record.getMessage() for record in records] == ["Invalid HTTP request received."]


def test_a_websocket_does_not_inherit_the_timeout_of_an_earlier_reply(service: Running) -> None:
    with service.connect() as client:
        client.send(b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n")
        assert b" 200 " in client.file.readline()
        client.send(HANDSHAKE)
        sleep(0.1)
        for size, status in ((16 << 20, b" 101 "), (0, b"")):
            while client.file.readline().strip():
                pass
            assert len(client.file.read(size)) == size
            assert status in (client.file.readline() if status else b"")
        client.send(text({"type": "begin", "id": 0}))  # or the WebSocket itself would be idle
        sleep(1.2 * SETTINGS.idle_timeout_s)
        client.send(text({"type": "begin", "id": 1, "deadline_ms": 0}))
        assert read_frame(client)[0] == 1


def test_the_metrics_port_has_the_limits_of_the_main_port(service: Running) -> None:
    side = present(service.metrics_port)
    size, _ = read_of(side, b"GET /metrics HTTP/1.1\r\nHost: test\r\n", b"X: %b\r\n" % (b"y" * 1000))
    assert size < 16 << 20
    with connect(side) as sock:
        send_all(sock, b"GET /metrics HTTP/1.1\r\nHost: test\r\nX: %b\r\n\r\n" % (b"y" * 2 * HEAD_BYTES))
        assert list(replies(receive(sock)[0])) == ["problem 431"]


def test_slow_connections_of_the_metrics_port_close_and_do_not_block_scrapes(service: Running) -> None:
    side = present(service.metrics_port)
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(side)) for _ in range(2 * SIDE_CONNECTIONS)]
        for sock in slow:
            send_all(sock, b"GET /metrics HTTP/1.1\r\n")
        assert [service.scrape(path).status_code for path in ("/metrics", "/livez")] == [200, 200]
        closed = [sock for sock in slow if receive(sock, 0.05)[1] != "open"]
        assert len(closed) >= len(slow) - SETTINGS.max_connections - 32
    assert service.get("/livez").status_code == 200


def test_the_date_of_the_metrics_port_moves_on(service: Running) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{service.metrics_port}", verify=PLAIN) as client:
        first = client.get("/livez").headers["date"]
        until(lambda: client.get("/livez").headers["date"] != first)


@pytest.mark.parametrize(
    "with_key", [False, pytest.param(True, marks=pytest.mark.heavy)], ids=["without a key", "with a key"]
)
def test_no_sequence_of_protocol_elements_makes_the_server_hold_more_than_stated(
    tmp_path: Path, *, with_key: bool
) -> None:
    seed = random.SystemRandom().randrange(10**9)
    with target(tmp_path, keyed=with_key) as attacked:
        faults = faults_of(attacked.account(seed, ROUND_S), PROBE_S)
        assert not faults, f"tests/drills/accounting.py --seed {seed}: {faults}"
