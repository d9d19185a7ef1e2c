"""The small parts of the client, each alone."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from anytime.inference.prediction import Prediction
from anytime_service.client import engine
from anytime_service.client.engine import MAX_MARGIN_MS, Call, Connection, NetworkMargin
from anytime_service.client.errors import ClientError, ConnectionLostError, ProblemError
from anytime_service.client.messages import problem_of, seconds_of
from anytime_service.client.running import KnownModel
from anytime_service.client.transport import Network
from anytime_service.schemas.catalogue import summary
from anytime_service.schemas.options import PredictionOptions
from service.serving import LIKELIHOODS, likelihood_model
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
