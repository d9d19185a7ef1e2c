"""Garbage waits until no client is connected; closed connections leave none; freed large blocks are returned."""

from __future__ import annotations

import ctypes
import gc
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from anytime_service.api.oip import Inference
from anytime_service.api.predict import Lines
from anytime_service.core.service import ActivePrediction
from anytime_service.http.exchange import Exchange, SendQueue
from anytime_service.server import run
from anytime_service.server.connections import Connection as ServerConnection
from anytime_service.server.frames import FrameReader
from anytime_service.server.http_protocol import Transaction
from anytime_service.server.requests import Body, Head
from anytime_service.server.run import DUE_BUSY, DUE_IDLE, NEVER, collect_when_due, control_collections
from anytime_service.settings import Settings
from service.certificates import Certificate
from service.raw_stream import HANDSHAKE, text
from service.serving import VALUES, Connection, Running, run_service, small_model
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
    leaves_nothing(lambda: socket.create_connection(("127.0.0.1", server.port), timeout=30), kind)


@pytest.mark.parametrize("kind", ["an answer", "a WebSocket with an open prediction"])
def test_an_encrypted_connection_leaves_nothing_to_the_garbage_collector(
    kind: str, secure: Running, own: Certificate
) -> None:
    def connect() -> socket.socket:
        return own.trusted().wrap_socket(
            socket.create_connection(("127.0.0.1", secure.port), timeout=30), server_hostname="localhost"
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
