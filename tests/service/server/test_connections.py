"""Limits of connections: their number, their timeouts, and the size of their requests."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest

from anytime_service.app import create_app
from anytime_service.limits.table import HEADERS
from anytime_service.limits.tuning import TUNING, Tuning
from anytime_service.models.registry import ModelRegistry
from anytime_service.server.connections import MAX_CLOSING, RESERVED, RESERVED_DESCRIPTORS, raise_file_limit
from anytime_service.server.run import Server, bind, bind_side
from anytime_service.settings import Settings
from models.present import present
from service.commands import ENVIRONMENT
from service.doors import refused
from service.in_session import begin
from service.loops import LOOPS
from service.raw_stream import HANDSHAKE
from service.serving import Connection, Running, logged, running, small_model
from waiting import until

FEW = 4
FEWEST_FILES = 48
REQUEST = b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n"
MODELS = REQUEST.replace(b"/livez", b"/models")
HEAD_BYTES = 1_000
IDLE_S = 1.2
MAX_PIECES = 900
"""Of a body that continues after its response; the wait between two is a fraction of the timeout of 0.4 s."""


@contextmanager
def serve(send_buffer: int | None = None, tuning: Tuning = TUNING, **limits: Any) -> Iterator[Running]:
    settings = Settings(port=0, max_rows=50, max_body_bytes=100_000, **limits)
    app = create_app(ModelRegistry.of([small_model()]), settings, tuning=tuning)
    with running(app, settings, send_buffer) as service:
        yield service


@pytest.fixture(scope="module")
def few() -> Iterator[Running]:
    with serve(max_connections=FEW) as service:
        yield service


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    """A service with short timeouts: half a second for a head or a body, and longer for what a test keeps in use."""
    timeouts = {"header_timeout_s": 0.5, "body_timeout_s": 0.5, "idle_timeout_s": IDLE_S}
    limits = {"max_header_bytes": HEAD_BYTES, "max_message_rate": 0}
    # A client that does not read would have to send megabytes before the server waits, but for the buffer.
    with serve(send_buffer=65_536, tuning=Tuning(linger_s=0.4), **timeouts, **limits) as service:
        yield service


def exchange(connection: Connection, request: bytes = REQUEST) -> tuple[int, Any]:
    connection.send(request)
    status, headers, content = connection.response()
    if status >= 400:
        assert headers["content-type"] == "application/problem+json"
    return status, content


def connections_seen_by(connection: Connection) -> float:
    connection.send(REQUEST.replace(b"/livez", b"/metrics"))
    head = b"".join(iter(connection.file.readline, b"\r\n")).lower()
    content = connection.file.read(int(re.findall(rb"content-length: (\d+)", head)[0]))
    return float(re.findall(rb"^anytime_connections (\S+)$", content, re.MULTILINE)[0])


def at_end(connection: Connection) -> bool:
    """Wait for the server to close, whether in order or not."""
    with suppress(ConnectionResetError):
        return connection.at_end()
    return True


@pytest.fixture
def crowd(few: Running) -> Iterator[list[Connection]]:
    """As many connections as the limit allows, each used once."""
    until(lambda: few.metric("anytime_connections") == 1)  # this one
    with ExitStack() as stack:
        connections = [stack.enter_context(few.connect()) for _ in range(FEW)]
        for connection in connections:
            assert exchange(connection, MODELS)[0] == 200
        yield connections


def test_above_the_limit_only_health_and_metrics_are_served(few: Running, crowd: list[Connection]) -> None:
    for path in ("/livez", "/readyz", "/v2/health/live", "/v2/health/ready"):
        with few.connect() as probe:
            assert [exchange(probe, REQUEST.replace(b"/livez", path.encode()))[0] for _ in range(2)] == [200, 200]
    assert few.metric("anytime_connections") == FEW + 1
    for path in ("/models", "/livezz", "/predict?x=/livez"):
        with few.connect() as other:
            status, problem = exchange(other, REQUEST.replace(b"/livez", path.encode()))
            assert (status, problem["type"]) == (503, "urn:anytime:problem:overloaded")
            assert f"there are {FEW} connections, the limit" in problem["detail"]
            assert other.at_end()
    assert refused(few).status_code == 503
    assert few.metric("anytime_shed_total", how="refused", why="connections") >= 4
    assert all(exchange(connection, MODELS)[0] == 200 for connection in crowd), "earlier connections stay"


def test_a_connection_above_the_limit_is_served_once_another_closes(few: Running, crowd: list[Connection]) -> None:
    with few.connect() as extra:
        assert exchange(extra)[0] == 200
        crowd[0].file.close()
        crowd[0].sock.close()
        until(lambda: connections_seen_by(extra) == FEW)
        assert exchange(extra, MODELS)[0] == 200
        with few.connect() as other:
            assert exchange(other, MODELS)[0] == 503


def test_a_flood_of_connections_does_not_block_probes(few: Running, crowd: list[Connection]) -> None:
    with ExitStack() as stack:
        flood = [stack.enter_context(few.connect()) for _ in range(3 * RESERVED)]
        for _ in range(3):
            with few.connect() as probe:
                assert exchange(probe)[0] == 200
        for turned_away in flood[: 2 * RESERVED]:
            with suppress(ConnectionResetError):
                assert turned_away.response()[0] == 503
                assert turned_away.at_end()
        assert FEW + RESERVED <= few.metric("anytime_connections") <= FEW + RESERVED + MAX_CLOSING + 1


def test_websockets_count_as_connections(few: Running) -> None:
    until(lambda: few.metric("anytime_connections") == 1)
    with ExitStack() as stack:
        streams = [stack.enter_context(few.stream()) for _ in range(FEW)]
        with few.connect() as other:
            assert exchange(other, MODELS)[0] == 503
        streams[0].say("begin", 1, deadline_ms=0)
        assert streams[0].answer(1)["prefix"] == 0
    until(lambda: few.metric("anytime_connections") == 1)


HALVES = [
    b"G",
    b"GET /livez HTTP/1.1\r\nHost: te",
    REQUEST[:-1],
    HANDSHAKE[:-2],
    b"POST /predict HTTP/1.1\r\nX: " + b"x" * 900,
]


def test_an_incomplete_head_times_out_with_a_problem_also_on_a_used_connection(hasty: Running) -> None:
    with ExitStack() as stack:
        fresh, used = ([stack.enter_context(hasty.connect()) for _ in HALVES] for _ in range(2))
        assert [exchange(connection)[0] for connection in used] == [200] * len(HALVES)
        for half, *connections in zip(HALVES, fresh, used, strict=True):
            for connection in connections:
                connection.send(half)
        for connection in (*fresh, *used):
            status, headers, problem = connection.response()
            assert (status, headers["connection"]) == (408, "close")
            assert (problem["type"], "0.5 s" in problem["detail"]) == ("urn:anytime:problem:slow-request", True)
            assert at_end(connection)


def test_the_timeout_of_a_head_counts_from_its_first_byte(hasty: Running) -> None:
    with hasty.connect() as connection:
        connection.sock.settimeout(0.02)
        received = b""
        for byte in REQUEST * 10:
            connection.sock.send(bytes((byte,)))
            with suppress(TimeoutError):
                received = connection.sock.recv(100)
                break
        assert received.startswith(b"HTTP/1.1 408 ")


def test_an_idle_connection_is_closed_silently_and_one_that_is_used_is_not(hasty: Running) -> None:
    with hasty.connect() as used, hasty.connect() as idle, hasty.connect() as blank, hasty.connect() as mute:
        assert exchange(idle)[0] == exchange(blank)[0] == 200
        blank.send(b"\r\n")  # is no request
        begun = monotonic()
        while monotonic() - begun < 1.5 * IDLE_S:
            assert exchange(used)[0] == 200
            sleep(0.05)
        assert all((idle.at_end(), mute.at_end(), at_end(blank)))
        assert exchange(used)[0] == 200


@pytest.mark.parametrize("piece", [b"1\r\nx\r\n", b"x"], ids=["chunks", "length"])
def test_a_body_that_continues_after_the_response_is_cut_soon(hasty: Running, piece: bytes) -> None:
    # The response is sent, and each piece of the request would restart a timeout that waits for the next one.
    form = b"Transfer-Encoding: chunked" if len(piece) > 1 else b"Content-Length: 1000"
    head = b"POST /models/nothing/reload HTTP/1.1\r\nHost: test\r\n%b\r\n\r\n"
    with hasty.connect() as connection:
        assert exchange(connection, head % form)[0] in (404, 409)
        with pytest.raises(OSError):  # noqa: PT012
            for _ in range(MAX_PIECES):
                connection.send(piece)
                sleep(0.02)


EARLY = (b"GET /livez HTTP/1.1", b"POST /nowhere HTTP/1.1", b"POST /predict HTTP/1.1", b"POST /sessions HTTP/1.1")
"""Requests that are answered before their body, which is of an unsupported type, has arrived."""


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("line", EARLY, ids=bytes.decode)
def test_a_client_that_sends_all_of_its_request_receives_the_response_that_left_before(
    few: Running, line: bytes, chunked: bool, closes: bool
) -> None:
    form = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 90000"
    form += b"\r\nConnection: close" if closes else b""
    piece, end = (b"2328\r\n%b\r\n" % bytes(9_000), b"0\r\n\r\n") if chunked else (bytes(9_000), b"")
    with few.connect() as connection:
        connection.send(line + b"\r\nHost: test\r\nContent-Type: text/csv\r\n%b\r\n\r\n" % form)
        assert connection.response()[0] in (200, 404, 415)
        for _ in range(10):
            connection.send(piece)
        connection.send(end)
        if closes:
            assert connection.at_end(), "in order"
        else:
            assert exchange(connection)[0] == 200, "the connection serves the next request"


@pytest.mark.parametrize(("path", "sent"), [("/sessions", b""), ("/sessions/{}/groups", b'{"speed"')])
def test_a_body_without_a_deadline_times_out(hasty: Running, path: str, sent: bytes) -> None:
    session = begin(hasty)
    with hasty.connect() as connection, logged() as records:
        head = f"POST {path.format(session)} HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\n"
        connection.send(head.encode() + sent)
        status, headers, problem = connection.response()
        assert (status, headers["connection"]) == (408, "close")
        assert problem["type"] == "urn:anytime:problem:slow-request"
        assert at_end(connection)
    assert not records
    with hasty.connect() as connection:  # one with a deadline has until then
        connection.head("deadline_ms=800", length=100)
        assert connection.response()[2]["reason"] == "deadline"


@pytest.mark.parametrize("line", [b"X-Header: and its value\r\n", b"X"], ids=["many headers", "one header"])
def test_an_endless_head_is_refused_and_not_stored(hasty: Running, line: bytes) -> None:
    with hasty.connect() as connection:
        connection.send(b"GET /livez HTTP/1.1\r\nHost: test\r\n")
        connection.send(line * (400_000 // len(line)))
        status, headers, problem = connection.response()
        assert (status, headers["connection"]) == (431, "close")
        assert problem["type"] == "urn:anytime:problem:head-too-large"
        limits = (f"{HEAD_BYTES}", f"more than {int(HEADERS)} headers")  # whichever the first reads exceed
        assert any(limit in problem["detail"] for limit in limits)
        assert at_end(connection)


def test_a_head_may_be_longer_than_a_read() -> None:
    with serve(max_header_bytes=200_000, header_timeout_s=30) as service, service.connect() as connection:
        for size, status in ((150_000, 200), (199_900, 200), (250_000, 431)):
            connection.send(REQUEST[:-2] + b"X: %b\r\n\r\n" % (b"y" * size))
            assert connection.response()[0] == status


def test_an_idle_stream_is_closed_and_one_with_an_open_prediction_is_not(hasty: Running) -> None:
    with hasty.stream() as idle, hasty.stream() as waiting, hasty.stream() as used:
        waiting.say("begin", 1, deadline_ms=1_700 * IDLE_S)
        for number in range(30):
            assert used.ask(number, deadline_ms=0)["prefix"] == 0
            sleep(IDLE_S / 20)
        assert idle.closed()[0] == 1001
        assert waiting.answer(1)["reason"] == "deadline"
        assert waiting.closed()[0] == 1001


@pytest.mark.parametrize("kind", ["a response", "pongs"])
def test_a_client_that_does_not_read_is_cut(hasty: Running, kind: str) -> None:
    until(lambda: hasty.metric("anytime_connections") == 1)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(60)
        sock.connect(("127.0.0.1", hasty.port))
        if kind == "pongs":
            sock.sendall(HANDSHAKE)
            sock.settimeout(0.3)
            with suppress(OSError):
                while True:
                    sock.sendall((b"\x89\xfd" + bytes(4) + b"x" * 125) * 500)
        else:
            sock.sendall(REQUEST.replace(b"/livez", b"/console/swagger-ui-bundle.js"))
        until(lambda: hasty.metric("anytime_connections") == 1)


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "allowed", "after"),
    [
        (1024, 4096, 100, 100, 1024),
        (1024, 4096, 2_000, 2_000, 2_000 + RESERVED_DESCRIPTORS),
        (1024, 4096, 10_000, 4096 - RESERVED_DESCRIPTORS, 4096),
        (1024, -1, 10_000, 10_000, 10_000 + RESERVED_DESCRIPTORS),
        (-1, -1, 10_000, 10_000, -1),
        (10, 10, 10, 1, 10),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_allowed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int, allowed: int, after: int
) -> None:
    now = [(soft, hard)]
    system = SimpleNamespace(RLIMIT_NOFILE=7, RLIM_INFINITY=-1)
    system.getrlimit, system.setrlimit = lambda _: now[-1], lambda _, limits: now.append(limits)
    monkeypatch.setattr("anytime_service.server.connections.resource", system)
    assert raise_file_limit(wanted) == allowed
    assert now[-1] == (after, hard)


def test_a_server_without_descriptors_serves_its_connections_and_does_not_spin(model_file: Path) -> None:
    serve = [sys.executable, "-m", "anytime", "serve", "--port", "0", str(model_file)]
    limited = ["bash", "-c", f'ulimit -n {FEWEST_FILES} && exec "$@"', "bash", *serve]
    with subprocess.Popen(limited, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = [next(line for line in present(process.stderr) if words in line) for words in ("permits", "http://")]
            assert "permits 1 connections, not 10000 (ANYTIME_MAX_CONNECTIONS)" in said[0]
            service = Running(int(re.findall(r"http://[^:]+:(\d+)", said[1])[0]))
            with ExitStack() as stack:
                client = stack.enter_context(service.connect())
                assert exchange(client)[0] == 200
                for _ in range(200):
                    stack.enter_context(service.connect())
                assert exchange(client)[0] == 200
                before = _cpu_s(process.pid)
                sleep(0.5)
                assert _cpu_s(process.pid) - before < 0.25
                assert exchange(client)[0] == 200
            until(lambda: is_served(service))
        finally:
            process.kill()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("port", ["main", "metrics"])
async def test_many_clients_that_connect_at_once_wait_for_few_turns(port: str, loop: str) -> None:
    settings = Settings(port=0, metrics_port=0)
    with bind(settings) as main, bind_side(settings) as side, ExitStack() as clients:
        assert side is not None
        server = Server(create_app(ModelRegistry.of([small_model()]), settings), settings, side)
        serving = asyncio.ensure_future(server.serve([main]))
        while not (server.started or serving.done()):
            await asyncio.sleep(0)
        state, sock = (server.server_state, main) if port == "main" else (server._side, side)
        for _ in range(64):
            clients.enter_context(socket.create_connection(sock.getsockname()))
        for _ in range(32):
            await asyncio.sleep(0)
        connected = len(state.connections)
        server.should_exit = True
        await serving
    assert connected == 64


def is_served(service: Running) -> bool:
    with suppress(OSError, IndexError), service.connect() as probe:  # it may close without a reply
        return exchange(probe)[0] == 200
    return False


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100.0
