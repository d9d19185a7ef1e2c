"""Floods: a connection is read at most at its rate limit, and floods do not delay other connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from anytime_service.clock import now_ms
from anytime_service.core.service import PredictionService
from anytime_service.limits.turns import AT_ONCE, DeadlineTimer, FairQueue, TimeoutQueue, Turns
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
SOON_MS = 0.15  # a deadline that is so near has expired, and is not late after a millisecond
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


class Clock:
    """A clock that only work moves: the machine may pause."""

    def __init__(self) -> None:
        self.ms = 1000.0

    def __call__(self) -> float:
        return self.ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("anytime_service.limits.turns.now_ms", made)
    return made


class Work:
    """Pieces of work of .55 ms: two begin in a millisecond of each turn of the loop."""

    def __init__(self, count: int, clock: Clock) -> None:
        self.order: list[int] = []
        self._count = count
        self._clock = clock

    def do(self, number: int) -> None:
        self.order.append(number)
        self._clock.ms += 0.55

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
async def test_the_fair_queue_uses_a_millisecond_of_each_turn_of_the_loop(loop: str, how: str, clock: Clock) -> None:
    work, queue = Work(20, clock), FairQueue()
    for number in range(20):
        getattr(queue, how)(partial(work.do, number))
    assert len(work.order) == (0 if how == "submit" else 2), "work is run at once while there is time"
    await work.is_spread()
    assert work.order == list(range(20))
    await asyncio.sleep(0)
    queue.run(partial(work.do, 20))
    assert work.order[-1] == 20


@pytest.mark.parametrize("loop", LOOPS)
async def test_work_that_waits_shares_the_millisecond_of_a_turn_with_new_work(loop: str, clock: Clock) -> None:
    work, queue, before = Work(21, clock), FairQueue(), 0
    for numbers in (range(3), *(range(first, first + 2) for first in range(3, 21, 2))):
        for number in numbers:
            queue.run(partial(work.do, number))
        assert len(work.order) - before <= 2
        before = len(work.order)
        await asyncio.sleep(0)
    await work.is_spread()
    assert work.order == list(range(21))


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_deadline_that_is_cancelled_while_it_waits_its_turn_does_not_call(loop: str, clock: Clock) -> None:
    work, shared, at = Work(20, clock), Turns(), clock.ms + SOON_MS
    timers = [DeadlineTimer(asyncio.get_running_loop(), shared, at, partial(work.do, n)) for n in range(20)]
    while not work.order:
        await asyncio.sleep(0)
    waiting = next(n for n in range(20) if n not in work.order)
    timers[waiting].cancel()
    await until_async(lambda: len(work.order) >= 19, "the other deadlines have expired")
    await asyncio.sleep(0)  # a turn in which the cancelled one would be the next
    assert sorted([*work.order, waiting]) == list(range(20))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("late_ms", [-SOON_MS, 5.0], ids=["in time", "late"])
async def test_deadlines_and_timeouts_of_one_moment_use_a_millisecond_of_each_turn(
    loop: str, late_ms: float, clock: Clock
) -> None:
    here, at, shared = asyncio.get_running_loop(), clock.ms - late_ms, Turns()
    work, later = Work(20, clock), Work(20, clock)
    waiting = TimeoutQueue(0.0, later.do)
    timers = [DeadlineTimer(here, shared, at, partial(work.do, number)) for number in range(20)]
    await work.is_spread()
    assert timers
    for number in range(20):
        waiting.begin(number)
    await later.is_spread()
    assert not len(waiting)


@pytest.mark.parametrize("loop", LOOPS)
async def test_an_error_leaves_the_others_their_turns(loop: str, clock: Clock) -> None:
    here, errors, work, queue = asyncio.get_running_loop(), list[dict[str, Any]](), Work(20, clock), FairQueue()
    here.set_exception_handler(lambda _, context: errors.append(context))
    queue.submit(partial(divmod, 1, 0))
    for number in range(20):
        queue.submit(partial(work.do, number))
    await work.is_spread()
    assert [type(each["exception"]) for each in errors] == [ZeroDivisionError]


@pytest.mark.parametrize("loop", LOOPS)
async def test_sets_to_solve_use_a_millisecond_of_each_turn(
    loop: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained_model("arrived")
    service, work = PredictionService(ModelRegistry.of([model]), Settings()), Work(20, clock)
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
async def test_long_messages_have_a_turn_each_in_order_and_their_wait_is_known(loop: str, clock: Clock) -> None:
    shared, waits, work = Turns(), list[float](), Work(5, clock)

    async def decode(number: int) -> None:
        await shared.turn(AT_ONCE + 1)
        waits.append(shared.long_ms)
        work.do(number)

    await shared.turn(AT_ONCE)
    assert not shared.unread, "a short message has no turn of its own"
    decoding = [asyncio.create_task(decode(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert shared.unread
    cancelled = asyncio.create_task(decode(5))
    await asyncio.sleep(0)
    cancelled.cancel()
    await work.is_spread(most=1)
    await asyncio.gather(*decoding)
    assert (work.order, shared.unread, shared.long_ms) == (list(range(5)), False, 0.0)
    assert max(waits) > 0
