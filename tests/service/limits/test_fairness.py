"""Floods: a connection is read at most at its rate limit, and floods do not delay other connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from anytime_service.clock import now_ms
from anytime_service.core.service import PredictionService
from anytime_service.limits.queues import TimeoutQueue
from anytime_service.limits.turns import AT_ONCE, DeadlineTimer, FairQueue, Turns
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.options import PredictionOptions
from anytime_service.server.connections import TokenBucket
from anytime_service.settings import Settings
from service.loops import LOOPS
from service.raw_stream import raw, read_frame, text
from service.serving import Collecting, Connection, Running, trained_model
from waiting import until, until_async

RATE = 1_000
SENT = 400
SETTINGS = Settings(port=0, max_message_rate=RATE)


@given(st.lists(st.tuples(st.floats(0, 500), st.integers(1, 400)), max_size=50), st.floats(1, 50_000))
def test_the_bucket_passes_at_most_rate_and_burst(arrivals: list[tuple[float, int]], rate: float) -> None:
    pace, now, count, waited = TokenBucket(rate), 0.0, 0, 0.0
    for gap_ms, messages in arrivals:
        now += max(gap_ms, waited)  # a message that must wait does
        waited = pace.spend(messages, now)
        count += messages
        burst = max(rate * 0.1, 100.0)
        assert count <= burst + now * rate / 1000.0 + messages + 1e-6
        assert (count <= burst) <= (waited == 0.0), "a burst is no flood"


def test_a_rate_of_0_is_no_limit() -> None:
    pace = TokenBucket(0.0)
    assert not any(pace.spend(10_000, 0.0) for _ in range(100))


def others_are_served(service: Running) -> None:
    with service.stream() as stream:
        for name in range(20):
            assert stream.ask(name, deadline_ms=0)["id"] == name


def asked(count: int) -> bytes:
    return b"".join(text({"type": "begin", "id": name, "deadline_ms": 0}) for name in range(count))


def pings(connection: Connection, _service: Running) -> None:
    connection.send(Frame(Opcode.PING, b"x").serialize(mask=True) * SENT)
    for _ in range(SENT):
        assert read_frame(connection) == (Opcode.PONG, b"x")


def messages(connection: Connection, service: Running) -> None:
    connection.send(asked(SENT))
    others_are_served(service)
    assert [json.loads(read_frame(connection)[1])["id"] for _ in range(SENT)] == list(range(SENT))


def pieces(connection: Connection, service: Running) -> None:
    content = json.dumps({"type": "begin", "id": 1, "deadline_ms": 0}).encode().ljust(SENT)
    for at in range(SENT):
        piece = Frame(Opcode.CONT if at else Opcode.TEXT, content[at : at + 1], fin=at == SENT - 1)
        connection.send(piece.serialize(mask=True))
    others_are_served(service)
    assert json.loads(read_frame(connection)[1])["id"] == 1


@pytest.mark.parametrize("flood", [messages, pings, pieces])
def test_a_stream_above_its_rate_loses_nothing(service: Running, flood: Callable[[Connection, Running], None]) -> None:
    with raw(service) as connection:
        flood(connection, service)
        connection.send(text({"type": "begin", "id": "after", "deadline_ms": 0}))
        assert json.loads(read_frame(connection)[1])["id"] == "after"


def test_the_chunks_of_a_body_above_its_rate_are_all_read(service: Running) -> None:
    with service.connect() as connection:
        for _ in range(2):
            connection.head("deadline_ms=9000")
            connection.send(b"1\r\n \r\n" * SENT)
            connection.send(b'd\r\n{"groups": {}\r\n1\r\n}\r\n0\r\n\r\n')
            others_are_served(service)
            status, _, answer = connection.response()
            assert (status, answer["reason"]) == (200, "end")


def test_a_connection_that_closes_while_it_is_rate_limited_affects_no_other(service: Running) -> None:
    for _ in range(5):
        with raw(service) as connection:
            connection.send(asked(SENT))
        with service.connect() as plain:
            plain.head()
            plain.send(b"1\r\n \r\n" * SENT)
    others_are_served(service)
    until(lambda: service.metric("anytime_held_bytes") == 0)


class Work:
    """Pieces of work of .6 ms, in a millisecond of each turn of the loop."""

    def __init__(self, count: int) -> None:
        self.order: list[int] = []
        self._count = count

    def do(self, number: int) -> None:
        self.order.append(number)
        until = perf_counter() + 0.0006
        while perf_counter() < until:
            pass

    async def is_spread(self, most: int = 2) -> None:
        rounds = [0]
        while len(self.order) < self._count:
            before = len(self.order)
            await asyncio.sleep(0)
            rounds.append(len(self.order) - before)
        assert sorted(self.order) == list(range(self._count))
        assert max(rounds) <= most, "the others have their turn after a millisecond, or what was begun by then"


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("how", ["submit", "run"])
async def test_the_fair_queue_uses_a_millisecond_of_each_turn_of_the_loop(loop: str, how: str) -> None:
    work, turns = Work(20), FairQueue()
    for number in range(20):
        getattr(turns, how)(partial(work.do, number))
    at_once = (0,) if how == "submit" else (1, 2)  # one where the machine paused during it
    assert len(work.order) in at_once, "work is run at once while there is time"
    await work.is_spread()
    assert work.order == list(range(20))
    turns.run(partial(work.do, 20))
    assert work.order[-1] == 20


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_deadline_that_is_cancelled_while_it_waits_its_turn_does_not_call(loop: str) -> None:
    work, turns, at = Work(20), Turns(), now_ms() + 2
    timers = [DeadlineTimer(asyncio.get_running_loop(), turns, at, partial(work.do, n)) for n in range(20)]
    while not work.order:
        await asyncio.sleep(0)
    waiting = next(n for n in range(20) if n not in work.order)
    timers[waiting].cancel()
    await until_async(lambda: len(work.order) >= 19, "the other deadlines have expired")
    await asyncio.sleep(0)  # a turn in which the cancelled one would be the next
    assert sorted([*work.order, waiting]) == list(range(20))


@pytest.mark.parametrize("loop", LOOPS)
async def test_deadlines_and_timeouts_of_one_moment_use_a_millisecond_of_each_turn(loop: str) -> None:
    here, at, turns = asyncio.get_running_loop(), now_ms() + 5, Turns()
    work, later = Work(20), Work(20)
    waiting = TimeoutQueue(0.002, later.do)
    timers = [DeadlineTimer(here, turns, at, partial(work.do, number)) for number in range(20)]
    await work.is_spread(most=4)  # a slice for timers that fire, and one for those that have waited
    assert timers
    for number in range(20):
        waiting.begin(number)
    await later.is_spread()
    assert not len(waiting)


@pytest.mark.parametrize("loop", LOOPS)
async def test_an_error_leaves_the_others_their_turns(loop: str) -> None:
    here, errors, work, turns = asyncio.get_running_loop(), list[dict[str, Any]](), Work(20), FairQueue()
    here.set_exception_handler(lambda _, context: errors.append(context))
    turns.submit(partial(divmod, 1, 0))
    for number in range(20):
        turns.submit(partial(work.do, number))
    await work.is_spread()
    assert [type(each["exception"]) for each in errors] == [ZeroDivisionError]


@pytest.mark.parametrize("loop", LOOPS)
async def test_sets_to_solve_use_a_millisecond_of_each_turn(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained_model("arrived")
    service, work = PredictionService(ModelRegistry.of([model]), Settings()), Work(20)
    monkeypatch.setattr(service.solver, "find", lambda *_: work.do(len(work.order)))
    options = PredictionOptions(policy="arrived", budget=1e9, deadline_ms=5_000)
    names = model.order(model.groups.featured)[1:3]  # no prefix, whose optimum is known
    for _ in range(20):
        active = service.open(options, now_ms(), Collecting())
        for name in names:
            active.groups({name: np.ones((1, model.places[name].stop - model.places[name].start))})
    assert not work.order
    await work.is_spread()
    await asyncio.sleep(0.01)
    assert len(work.order) == 20


@pytest.mark.parametrize("loop", LOOPS)
async def test_long_messages_have_a_turn_each_in_order_and_their_wait_is_known(loop: str) -> None:
    turns, waits, work = Turns(), list[float](), Work(5)

    async def decode(number: int) -> None:
        await turns.turn(AT_ONCE + 1)
        waits.append(turns.long_ms)
        work.do(number)

    await turns.turn(AT_ONCE)
    assert not turns.unread, "a short message has no turn of its own"
    decoding = [asyncio.create_task(decode(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert turns.unread
    cancelled = asyncio.create_task(decode(5))
    await asyncio.sleep(0)
    cancelled.cancel()
    await work.is_spread(most=1)
    await asyncio.gather(*decoding)
    assert (work.order, turns.unread, turns.long_ms) == (list(range(5)), False, 0.0)
    assert max(waits) > 0
