"""How the client connects, over HTTP and WebSocket alike: redirects, addresses of a name, and lost connections."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler
from threading import Event
from time import perf_counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosedError
from websockets.http11 import Request, Response

from anytime_service.app import create_app
from anytime_service.client import AsyncClient, Client, ConnectionLostError, ProblemError, ReplyError, engine
from anytime_service.client.engine import Connection
from anytime_service.client.transport import Network as Way
from anytime_service.core.service import PredictionService
from anytime_service.models.registry import ModelRegistry
from anytime_service.settings import Settings
from service.certificates import Certificate
from service.client.test_network import Network, answer_to, fake, frames, problem_reply
from service.serving import VALUES, Running, running, small_model
from system import http_server
from waiting import WAIT_S, until, until_async

CALLS: dict[str, Callable[[Client], Any]] = {
    "websocket": lambda client: client.predict({"speed": [1.0]}),
    "with a deadline": lambda client: client.predict({"speed": [1.0]}, deadline_ms=60_000),
    "get": lambda client: client.models(),
    "query": lambda client: client.plan("brake", budget=3),
    "post": lambda client: client.session().open(),
}
"""Requests of every kind that the client sends; without a deadline in sight."""


class Replying(BaseHTTPRequestHandler):
    """Reply to each request by its path, and note it."""

    protocol_version = "HTTP/1.1"
    heads: list[str]
    respond: Callable[[str], tuple[int, str]]

    def do_GET(self) -> None:
        self.heads.append(str(self.headers))
        status, location = type(self).respond(self.path)
        self.send_response(status)
        self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing."""


# redirects


@pytest.mark.parametrize(
    ("location", "there", "status"),
    [
        *(("https://any.example:8443{path}", "https://any.example:8443", code) for code in (301, 302, 303, 307, 308)),
        ("http://localhost:{other}{path}", "http://localhost:{other}", 307),  # another host
        ("http://127.0.0.1:{other}{path}", "http://127.0.0.1:{other}", 301),  # another port
        ("http://127.0.0.1:{port}/root{path}", "http://127.0.0.1:{port}/root", 308),  # another path
        ("/login?next=%2Fstream", "http://127.0.0.1:{port}/login", 302),
        ("https://user:secret@anytime.example{path}", "https://anytime.example", 307),
    ],
)
def test_every_request_says_where_the_address_redirects_and_no_key_goes_there(
    location: str, there: str, status: int
) -> None:
    def redirect(path: str) -> tuple[int, str]:
        return status, location.format(other=other, port=port, path=path)

    here, elsewhere = list[str](), list[str]()
    with (
        http_server(Replying, heads=elsewhere, respond=lambda _: (200, "")) as other,
        http_server(Replying, heads=here, respond=redirect) as port,
        Client(f"http://127.0.0.1:{port}", api_key="sesame") as client,
    ):
        said = f"redirects to {re.escape(there.format(other=other, port=port))} [(]{status}[)]; expected the address"
        for call in CALLS.values():
            before = len(here)
            with pytest.raises(ReplyError, match=said):
                call(client)
            assert len(here) == before + 1
        assert elsewhere == []
        assert all("Bearer sesame" in head for head in here)


# addresses of a name


@contextmanager
def hole(address: str, port: int) -> Iterator[None]:
    """An address that does not answer: a socket whose queue is full, so that the system drops further connections."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listening, ExitStack() as waiting:
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((address, port))
        listening.listen(0)
        for _ in range(6):
            one = waiting.enter_context(socket.socket(family))
            one.setblocking(False)
            one.connect_ex((address, port))
        yield


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that gives the name `localhost` some addresses."""
    real = socket.getaddrinfo

    def resolve(*addresses: str) -> None:
        def getaddrinfo(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
            if host not in ("localhost", b"localhost"):
                return real(host, port, *rest, **options)
            return [found for each in addresses for found in real(each, port, type=socket.SOCK_STREAM)]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return resolve


ANSWERING: dict[str, Callable[[Client], bool]] = {
    "websocket": lambda client: client.predict(VALUES).complete,
    "http": lambda client: bool(client.models()),
}
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address of Linux, which drops connections")


@LINUX
@pytest.mark.parametrize("kind", ANSWERING)
@pytest.mark.parametrize(
    ("dead", "refusing"),
    [
        (["::1"], []),
        (["127.0.0.2"], []),
        (["::1", "127.0.0.2"], []),
        ([], ["::1", "127.0.0.2"]),
        (["::1"], ["127.0.0.2"]),
    ],
)
def test_an_address_that_does_not_answer_does_not_cost_the_time_limit(
    server: Running, resolve: Callable[..., None], kind: str, dead: list[str], refusing: list[str]
) -> None:
    resolve(*dead, *refusing, "127.0.0.1")
    with ExitStack() as holes:
        for address in dead:
            try:
                holes.enter_context(hole(address, server.port))
            except OSError:
                pytest.skip("no IPv6 on this machine")
        # Without the second address a call raises after 60 s.
        with Client(f"http://localhost:{server.port}", timeout_s=60) as client:
            assert ANSWERING[kind](client)


@LINUX
@pytest.mark.parametrize("kind", ANSWERING)
def test_a_name_without_an_address_that_answers_is_an_error(resolve: Callable[..., None], kind: str) -> None:
    resolve("127.0.0.2", "127.0.0.3")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        refused = pytest.raises(ConnectionLostError, match=f"cannot connect to http://localhost:{port}: ")
        with Client(f"http://localhost:{port}") as client, refused:
            ANSWERING[kind](client)
        dead = pytest.raises(
            ConnectionLostError, match=f"cannot connect to http://localhost:{port}: .*([Tt]ime|no connection within)"
        )
        with hole("127.0.0.2", port), Client(f"http://localhost:{port}", timeout_s=0.3) as client, dead:
            ANSWERING[kind](client)


async def test_another_event_loop_connects_to_any_address(server: Running) -> None:
    """uvloop, in which this runs, has no option for it; the IPv6 address of localhost, if there is one, refuses."""
    async with AsyncClient(f"http://localhost:{server.port}") as client:
        assert await client.models()
        assert (await client.predict(VALUES)).complete


@LINUX
@pytest.mark.parametrize("kind", ANSWERING)
def test_a_proxy_is_found_at_any_address(
    server: Running, resolve: Callable[..., None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve("127.0.0.2", "127.0.0.1")
    with closing(Network(server.port)) as proxy, hole("127.0.0.2", proxy.port):
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, f"http://localhost:{proxy.port}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        with Client(f"http://127.0.0.1:{server.port}", timeout_s=60) as client:
            assert ANSWERING[kind](client)
        assert proxy.connections, "the client used no proxy"


# lost connections


def socket_of(client: Client) -> Any:
    return client._async._connection._socket


def test_a_server_that_restarts_is_found_again_without_a_call(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_PAUSE_S", 0.1)
    with closing(Network(server.port)) as network, Client(network.url) as client:
        client.warm_up()
        before = socket_of(client)
        network.shut()
        until(lambda: client._async._connection._refusals >= 2, "the client tries more than once")
        network.open()
        until(lambda: socket_of(client) not in (before, None), "the client connects again")
        assert client.predict(VALUES, deadline_ms=60_000).complete
        network.shut()
        until(lambda: client._async._connection._refusals, "the client tries again")
        client.close()
        assert not client._async._transport.lifetime._tasks, "a closed client connects no more"


def test_a_key_that_is_refused_is_not_sent_again_without_a_call() -> None:
    tried: list[str | None] = []

    def refuse(connection: ServerConnection, request: Request) -> Response | None:
        tried.append(request.headers.get("Authorization"))
        return None if len(tried) == 1 else problem_reply(connection, 401, "removed")

    async def leaving(socket: ServerConnection) -> None:
        begun = await anext(frames(socket))
        await socket.send(answer_to(begun))  # then the server closes the connection

    with fake(leaving, refuse) as url, Client(url, api_key="sesame") as client:
        client.predict(VALUES)
        until(lambda: len(tried) == 2 and not client._async._transport.lifetime._tasks, "the client gives up")
        assert tried == ["Bearer sesame"] * 2
        with pytest.raises(ProblemError, match="removed"):
            client.predict(VALUES)


async def test_pauses_between_attempts_that_nobody_waits_for_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a fake clock: one attempt a minute at last, and the first one after a second where a connection just began."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > 20:
            raise asyncio.CancelledError

    class Refusing(Connection):
        async def ready(self, _: float) -> bool:
            raise ConnectionLostError("nobody answers")

    connection = Refusing(Way("http://127.0.0.1:9", None, 1.0))
    monkeypatch.setattr(engine, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    monkeypatch.setattr(engine, "random", SimpleNamespace(uniform=lambda _, high: high))
    with pytest.raises(asyncio.CancelledError):
        await connection._keep_open()
    assert pauses[:8] == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 60.0, 60.0]
    assert set(pauses[8:]) == {60.0}


async def test_a_peer_that_drops_every_connection_is_tried_by_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_PAUSE_S", 0.0)
    opened = AsyncMock(side_effect=lambda: AsyncMock(recv=AsyncMock(side_effect=ConnectionClosedError(None, None))))
    monkeypatch.setattr(Way, "open", opened)
    connection = Connection(Way("http://localhost", None, 1.0))
    await connection.ready(perf_counter() + WAIT_S)
    await until_async(lambda: opened.call_count > 20)
    tasks = [each for each in asyncio.all_tasks() if "_keep_open" in repr(each.get_coro())]
    assert len(tasks) <= 2, "one that ends, and the next"
    await connection.transport.close()


# Calls that are cancelled, or whose client closes, are no open predictions on the server any more.


LONG_MS = 50_000.0
"""The server answers by itself long after a test has failed."""


@pytest.fixture(scope="module", params=["plain", "TLS"])
def serving(request: pytest.FixtureRequest, own: Certificate) -> Iterator[tuple[PredictionService, str, Any]]:
    encrypted = request.param == "TLS"
    tls: dict[str, Any] = {"ssl_certfile": own.file, "ssl_keyfile": own.key} if encrypted else {}
    settings = Settings(port=0, max_deadline_ms=60_000, max_lateness_ms=5_000, **tls)
    app = create_app(ModelRegistry.of([small_model()]), settings)
    with running(app, settings) as server:
        url = f"{'https' if encrypted else 'http'}://127.0.0.1:{server.port}"
        yield app.state.service, url, own.trusted() if encrypted else None


RELEASED = Event()


def waits(_: Any) -> list[float]:
    RELEASED.wait(60)
    return VALUES["hog"]


WAITING = {"speed": lambda _: VALUES["speed"], "hog": waits, "lab": lambda _: VALUES["lab"]}


@pytest.mark.parametrize("budget", [None, 6.0])
@pytest.mark.parametrize("end", ["cancel", "close"])
async def test_a_call_that_has_ended_is_freed_on_the_server_at_once(
    serving: tuple[PredictionService, str, Any], budget: float | None, end: str
) -> None:
    service, url, ssl = serving
    RELEASED.clear()
    async with AsyncClient(url, ssl=ssl) as client:
        await client.warm_up(WAITING)
        tasks = [asyncio.create_task(client.run(WAITING, None, LONG_MS, budget=budget)) for _ in range(5)]
        await until_async(lambda: len(service.active) == 5, "the predictions are open")
        if end == "close":
            await client.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until_async(lambda: not service.active, "the predictions are freed")
        RELEASED.set()
        if end == "cancel":
            assert (await client.predict(VALUES, deadline_ms=LONG_MS)).complete, "the connection is still used"
    assert asyncio.all_tasks() == {asyncio.current_task()}
