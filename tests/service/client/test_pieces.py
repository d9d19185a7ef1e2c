"""The small parts of the client, each alone."""

from __future__ import annotations

import asyncio
import base64
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime_service.api.openapi import AnytimeAPI
from anytime_service.client import (
    AsyncClient,
    Client,
    ClientError,
    ClosedError,
    ConnectionLostError,
    NoAnswerError,
    ProblemError,
    engine,
)
from anytime_service.client.engine import FEW, MAX_MARGIN_MS, Call, Connection, K, NetworkMargin, Throttle
from anytime_service.client.messages import encode_values, problem_of, seconds_of
from anytime_service.client.running import KnownModel
from anytime_service.client.transport import Network, certificates, proxy_of, without_password
from anytime_service.schemas.catalogue import ModelColumn, summary
from anytime_service.schemas.options import PredictionOptions
from service.doors import PREDICTING, WRONG, keyed_app
from service.serving import EXTRACTORS, LIKELIHOODS, VALUES, Running, expected, likelihood_model
from waiting import until_async


@pytest.mark.parametrize(
    ("url", "http", "stream"),
    [
        ("http://here:80", "http://here:80", "ws://here:80/stream"),
        ("http://here:80/", "http://here:80", "ws://here:80/stream"),
        ("https://here/below/", "https://here/below", "wss://here/below/stream"),
        ("ws://here", "http://here", "ws://here/stream"),
        ("wss://[::1]:7", "https://[::1]:7", "wss://[::1]:7/stream"),
    ],
)
def test_one_address_gives_both_the_routes_and_the_stream(url: str, http: str, stream: str) -> None:
    network = Network(url, None, 30.0)
    assert (network.http, network.stream) == (http, stream)


@pytest.mark.parametrize("family", LIKELIHOODS)
@pytest.mark.parametrize("rows", [1, 3])
def test_the_cached_base_rate_is_the_librarys_for_the_same_number_of_rows(family: str, rows: int) -> None:
    model = likelihood_model(family)
    known = KnownModel(summary(model, ()), Prediction(model).answer(explain=True))
    for explain in (False, True):
        expected = Prediction(model, rows).answer(explain=explain)
        assert known.base_rate(PredictionOptions(rows=rows, explain=explain)) == expected


def test_interval_and_set_of_the_base_rate_are_repeated_for_every_row() -> None:
    model = likelihood_model("poisson")
    base = replace(Prediction(model).answer(), interval=[0.0, 2.0], prediction_set=["a"])
    found = KnownModel(summary(model, ()), base).base_rate(PredictionOptions(rows=2))
    assert (found.interval, found.prediction_set) == ([[0.0, 2.0], [0.0, 2.0]], [["a"], ["a"]])


@pytest.mark.parametrize(("kind", "levels"), [("number", (2, 4)), ("bool", (False, True)), ("text", ("a", "b"))])
def test_numbers_of_an_extractor_are_levels_unless_these_are_text(kind: Any, levels: Any) -> None:
    columns = {"g": [ModelColumn(name="c", group="g", type=kind, levels=levels, other=False, range=None)]}
    sent = [encode_values("g", np.array([1]), 1, columns, coded=coded).dtype for coded in (True, False)]
    assert sent == ["f8", "f8" if kind == "text" else None]


def test_the_margin_covers_nearly_all_recent_delays() -> None:
    margin = NetworkMargin()
    for deadline_ms, delays_ms, expected_ms in (
        (20.0, [], 0.0),
        (0.0, [1e9], MAX_MARGIN_MS),  # of an immediate answer, until there is another one
        (0.0, [3.0], 3.0),
        (20.0, [-5.0], 3.0),  # of the server's own maximum
        (20.0, [1.0 + i / 100 for i in range(64)], 1.62),
        (20.0, [500.0], 1.63),  # one stall
        (20.0, [40.0], 40.0),  # two are a slower network
        (0.0, [3.0], 40.0),
        (20.0, [0.5] * 64, 0.5),
        (20.0, [-0.5] * 64, 0.0),
    ):
        for delay_ms in delays_ms:
            margin.add(deadline_ms, delay_ms)
        assert margin.ms == pytest.approx(expected_ms)


def test_the_margin_is_at_most_half_of_the_time() -> None:
    margin = NetworkMargin()
    margin.add(0.0, 8.0)
    assert [margin.server_deadline_ms(left) for left in (20.0, 10.0, -1.0)] == [12.0, 5.0, 0.0]


def call(seconds: float) -> Call:
    """A call without a deadline, on a connection to nobody."""
    connection = Connection(Network("http://127.0.0.1:9", None, 1.0))
    connection._socket = object()  # type: ignore[assignment]
    return Call(connection, PredictionOptions(), time.perf_counter() + seconds)


async def test_the_first_reply_is_returned_until_the_deadline() -> None:
    answer = Prediction(likelihood_model("poisson")).answer()
    refusal = ProblemError(422, "Invalid", "too wide", "groups.hog")
    for replies in ((answer, refusal), (refusal, answer)):
        waiting = call(20)
        for reply in replies:
            asyncio.get_running_loop().call_later(0.01, waiting.receive, reply)
        refused = pytest.raises(ProblemError, match="too wide") if replies[0] is refusal else nullcontext()
        with refused:
            assert await waiting.answer(accepts_overload=True) is answer
    late = call(-1)
    late.receive(answer)
    assert await late.answer(accepts_overload=True) is answer, "it had arrived"
    assert await call(0.05).answer(accepts_overload=True) is None


def test_a_timer_that_fires_early_is_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        now = 0.0
        monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=lambda: now))
        early = call(0.0)
        early.until = 0.02
        waits: list[float] = []
        loop = asyncio.get_running_loop()
        set_timer = loop.call_later
        monkeypatch.setattr(loop, "call_later", lambda s, *f: waits.append(s) or set_timer(s, *f))  # type: ignore[func-returns-value]
        waiting = asyncio.create_task(early.answer(accepts_overload=True))
        await until_async(lambda: waits.count(0.02) > 1, "the timer fired while its time had not come")
        assert not waiting.done()
        now = 0.02
        assert await waiting is None

    asyncio.run(main())


@pytest.mark.parametrize("details", [None, [], "text", {}, {"status": "odd", "detail": 7, "field": ["x"]}])
def test_problem_details_may_be_missing(details: object) -> None:
    problem = problem_of(details, 503, 2.0)
    assert (problem.status, problem.field, problem.retry_after_s) == (503, None, 2.0)
    assert str(problem)


@pytest.mark.parametrize(
    ("header", "seconds"), [("2", 2.0), ("", None), ("Wed, 21 Oct 2015 07:28:00 GMT", None), ("9" * 99, None)]
)
def test_a_retry_after_is_read_if_it_is_a_number(header: str, seconds: float | None) -> None:
    assert seconds_of(header) == seconds


@pytest.mark.parametrize(
    "error",
    [
        ConnectionLostError("the server is unreachable"),
        ProblemError(429, "Too many", "wait", "rows", type="urn:x", retry_after_s=2.0),
    ],
)
def test_the_arguments_of_an_error_make_the_same_error_for_another_caller(error: ClientError) -> None:
    same = type(error)(*error.args)
    assert (str(same), vars(same)) == (str(error), vars(error))


# The client sends fewer requests to a server that refuses them, and more after the overload.


BURST = 8.0


class Throttled(Throttle):
    """A throttle with a clock that the test moves."""

    now_s = 100.0

    def __init__(self) -> None:
        super().__init__(lambda: self.now_s, random.Random(0).random)


def served(throttle: Throttled, capacity: float, wanted: float, seconds: float) -> tuple[int, int, int]:
    """Return how many predictions were wanted, sent and accepted by a server with a capacity per second and a burst."""
    sent = accepted = 0
    tokens = BURST
    count = round(wanted * seconds)
    for _ in range(count):
        throttle.now_s += 1.0 / wanted
        tokens = min(tokens + capacity / wanted, BURST)
        if throttle.rejects():
            continue
        sent += 1
        taken = int(tokens >= 1.0)
        tokens, accepted = tokens - taken, accepted + taken
        throttle.record(accepted=bool(taken))
    return count, sent, accepted


def test_every_request_is_sent_to_a_server_that_accepts() -> None:
    wanted, sent, accepted = served(Throttled(), 1_000.0, 500.0, 10.0)
    assert wanted == sent == accepted


@pytest.mark.parametrize("excess", [1.5, 2.0, 5.0, 50.0])
def test_a_server_that_refuses_receives_a_few_more_requests_than_it_accepts(excess: float) -> None:
    throttle = Throttled()
    served(throttle, 100.0, 100.0 * excess, 5.0)
    _, sent, accepted = served(throttle, 100.0, 100.0 * excess, 20.0)
    assert accepted == pytest.approx(2_000, rel=0.05)
    assert accepted < sent < 1.1 * K * accepted


def test_after_the_overload_every_request_is_soon_sent_again() -> None:
    throttle = Throttled()
    served(throttle, 50.0, 200.0, 10.0)
    served(throttle, 1_000.0, 200.0, 20.0)
    wanted, sent, _ = served(throttle, 1_000.0, 200.0, 5.0)
    assert sent == wanted


def test_a_few_refusals_and_old_ones_do_not_throttle() -> None:
    throttle = Throttled()
    for number in range(100):
        throttle.record(accepted=False)
        assert number >= FEW or not throttle.rejects()
    for passed_s, throttled in ((0.0, True), (60.0, False)):
        throttle.now_s += passed_s
        assert any(throttle.rejects() for _ in range(1_000)) == throttled


# Clients whose server is an application in this process: the same answers and errors, and no socket.


@pytest.fixture
def client(app: AnytimeAPI) -> Iterator[Client]:
    with Client(transport=app) as client:
        yield client


def test_it_answers_as_a_server_does(client: Client, model: Model) -> None:
    prediction = expected(model, VALUES)["prediction"]
    for answer in (client.predict(VALUES), client.run(EXTRACTORS, VALUES, 30_000)):
        assert (answer.prediction, answer.groups, answer.reason) == (prediction, tuple(VALUES), "complete")
    assert [card.name for card in client.models()] == [model.name]
    assert [step.group for step in client.plan(have=["speed"]).steps] == ["hog", "lab"]
    with client.session() as session:
        session.add("speed", VALUES["speed"])
        assert session.predict().groups == ("speed",)
    with pytest.raises(ProblemError, match="there is no group 'hg'"):
        client.predict({"hg": [1.0]})
    assert client.predict({"speed": VALUES["speed"]}, deadline_ms=20).groups in ((), ("speed",)), "still connected"


def test_two_event_loops_have_a_client_each(app: AnytimeAPI) -> None:
    async def predicted() -> Any:
        async with AsyncClient(transport=app) as client:
            return (await client.predict(VALUES)).prediction

    assert asyncio.run(predicted()) == asyncio.run(predicted())


async def failing(*_: object) -> None:
    raise RuntimeError("no such thing")


async def accepting(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})


async def closing(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "websocket.close", "code": 1000})


async def silent(*_: object) -> None:
    """Send no reply."""


async def hanging(*_: object) -> None:
    await asyncio.Event().wait()


async def dripping(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200})
    while True:
        await send({"type": "http.response.body", "body": b" ", "more_body": True})
        await asyncio.sleep(0.01)


def predict(client: Client) -> object:
    return client.predict(VALUES)


@pytest.mark.parametrize(
    ("app", "call", "error", "why"),
    [
        (failing, predict, ConnectionLostError, "cannot connect to http://localhost: .*no such thing"),
        (accepting, predict, ConnectionLostError, "does not speak"),
        (closing, predict, ConnectionLostError, "HTTP status 403"),
        (failing, Client.models, ProblemError, r"Internal Server Error \(500\)"),
        (silent, Client.models, ConnectionLostError, "GET /models at http://localhost broke"),
        (hanging, Client.models, NoAnswerError, "did not reply within 0.1 s to GET /models"),
        (dripping, Client.models, NoAnswerError, "did not reply within 0.1 s to GET /models"),
    ],
)
def test_an_application_that_fails_hangs_or_speaks_something_else_is_an_error(
    app: Any, call: Callable[[Client], object], error: type[ClientError], why: str
) -> None:
    timeout_s = 0.1 if error is NoAnswerError else 60.0
    with Client(transport=app, timeout_s=timeout_s) as client, pytest.raises(error, match=why):
        call(client)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_application_that_ends_the_loop_ends_every_call() -> None:
    """SystemExit in a task ends its event loop, for which the callers wait."""
    waiting = threading.Event()

    async def leaving(scope: Any, _receive: Any, _send: Any) -> None:
        if scope["path"] == "/models":
            waiting.set()
            await asyncio.Event().wait()
        sys.exit(3)

    with ThreadPoolExecutor() as threads, Client(transport=leaving) as client:
        other = threads.submit(client.models)
        assert waiting.wait(60)
        for call in (lambda: client.predict(VALUES), partial(other.result, 60), client.models):
            with pytest.raises(ClosedError, match="create a new one"):
                call()


@pytest.mark.parametrize("key", [None, WRONG, PREDICTING])
@pytest.mark.parametrize("call", [predict, Client.models])
def test_keys_are_checked(key: str | None, call: Callable[[Client], object]) -> None:
    app, _ = keyed_app()
    refused = nullcontext() if key == PREDICTING else pytest.raises(ProblemError, match=r"\(401\)")
    with Client(transport=app, api_key=key) as client, refused:
        assert call(client)


# Proxy variables, certificates and passwords: both protocols of the client treat the environment alike.


PROXY = "http://proxy.test:3128"
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("url", "no_proxy", "excepted"),
    [
        ("http://a.test", "", False),
        ("http://a.test", "*", True),
        ("http://a.test", "b.test, a.test", True),
        ("http://a.test", "b.test a.test", True),
        ("http://a.test", ".a.test", True),
        ("http://A.Test", "a.TEST", True),
        ("http://x.a.test", "a.test", True),
        ("http://x.a.test", "*.a.test", True),
        ("http://xa.test", "a.test", False),
        ("http://a.test:8000", "a.test:8000", True),
        ("http://a.test:8000", "a.test:8001", False),
        ("http://a.test", "a.test:80", True),
        ("http://10.1.2.3", "10.0.0.0/8", True),
        ("http://11.1.2.3", "10.0.0.0/8", False),
        ("http://10.1.2.3", "10.1.2.3", True),
        ("http://[fd07:b51a::1]:8000", "127.0.0.1,fd07:b51a::/64", True),
        ("http://[fd08::1]", "fd07:b51a::/64", False),
        ("http://[::1]", "[::1]", True),
        ("http://[::1]", "::1", True),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("http://[::1]:8000", "[::1]:80", False),
        ("http://10.1.2.3", "300.0.0.0/8,1.2.3", False),
    ],
)
def test_no_proxy_lists_hosts_domains_addresses_and_ranges(
    monkeypatch: pytest.MonkeyPatch, url: str, no_proxy: str, excepted: bool
) -> None:
    monkeypatch.setenv("ALL_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert proxy_of(url) == (None if excepted else PROXY)


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
def test_the_variable_of_the_scheme_names_the_proxy(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "proxy.test:3128")
    assert proxy_of("https://a.test") == PROXY
    assert proxy_of("http://a.test") == (PROXY if name.lower() == "all_proxy" else None)


@pytest.mark.parametrize("proxy", ["socks4://h:1", "ftp://h", "http://", "http://h:x", "http://h:0", "http://[::1"])
@pytest.mark.parametrize("password", ["", "user:secret@"])
def test_an_invalid_proxy_is_an_error_of_the_client_in_every_call(
    monkeypatch: pytest.MonkeyPatch, server: Running, proxy: str, password: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy.replace("://", f"://{password}"))
    with Client(server.url) as client:
        for call in (client.models, lambda: client.predict(VALUES), lambda: client.predict(VALUES, deadline_ms=500)):
            with pytest.raises(ClientError, match=r"^ALL_PROXY is ") as caught:
                call()
            assert "secret" not in str(caught.value)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Client(server.url) as client:
        assert client.predict(VALUES).complete
        assert client.models()[0].name == "brake"


@pytest.mark.parametrize(("name", "makes"), [("SSL_CERT_FILE", None), ("SSL_CERT_FILE", "x"), ("SSL_CERT_DIR", None)])
def test_unreadable_certificates_are_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, makes: str | None
) -> None:
    path = tmp_path / "certificates"
    if makes is not None:
        path.write_text(makes)
    monkeypatch.setenv(name, str(path))
    with pytest.raises(ClientError, match=f"^{name} is "):
        certificates()
    with Client("https://127.0.0.1:9") as client:
        for call in (client.models, lambda: client.predict(VALUES)):
            with pytest.raises(ClientError, match=f"^{name} is "):
                call()


def test_a_password_in_the_address_is_sent_once_and_never_shown() -> None:
    network = Network("http://user:p%40ss@host.test:8000/x/", None, 1.0)
    assert network.headers == {"Authorization": f"Basic {base64.b64encode(b'user:p@ss').decode()}"}
    assert (network.url, network.http) == ("http://host.test:8000/x/", "http://host.test:8000/x")
    assert "p%40ss" not in repr(network) + network.stream
    for url, key in (
        ("http://user:secret@host.test", "key"),
        ("ftp://user:secret@h", None),
        ("http://u:secret@h:x", None),
    ):
        with pytest.raises(ClientError) as caught:
            Network(url, key, 1.0)
        assert "secret" not in str(caught.value)
    assert without_password("user:a@b@host/x@y") == "host/x@y"


@pytest.mark.parametrize("url", ["http://exa mple.test", "http://\u2603\u2603.invalid", "http://a..b", "http://%zz"])
def test_a_strange_host_is_an_error_of_the_client(url: str) -> None:
    with Client(url, timeout_s=2) as client:
        for call in (client.models, lambda: client.predict(VALUES)):
            with pytest.raises(ClientError):
                call()
