"""Floods: a connection is read at most at its rate limit, and floods do not delay other connections."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from heapq import heappop, heappush
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from websockets.frames import Frame, Opcode

from anytime.testing import FakeClock
from anytime_service.clock import now_ms
from anytime_service.core.service import PredictionService
from anytime_service.errors import OverloadedError
from anytime_service.limits import turns
from anytime_service.limits.table import PAGES
from anytime_service.limits.turns import AT_ONCE, SLACK_MS, DeadlineTimer, FairQueue, TimeoutQueue, Turns
from anytime_service.limits.worker import Slot, Worker
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.options import PredictionOptions
from anytime_service.server.connections import TokenBucket
from anytime_service.settings import Settings
from service.loops import LOOPS
from service.raw_stream import raw, read_frame, text
from service.serving import Collecting, Connection, Running, trained_model
from waiting import WAIT_S, until, until_async

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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock that only work moves: the machine may pause."""
    clock = FakeClock(1000.0)
    monkeypatch.setattr(turns, "now_ms", lambda: clock.ms)
    return clock


class Work:
    """Pieces of work of .55 ms: two begin in a millisecond of each turn of the loop."""

    def __init__(self, count: int, clock: FakeClock) -> None:
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
async def test_the_fair_queue_uses_a_millisecond_of_each_turn_of_the_loop(
    loop: str, how: str, clock: FakeClock
) -> None:
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
async def test_work_that_waits_shares_the_millisecond_of_a_turn_with_new_work(loop: str, clock: FakeClock) -> None:
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
async def test_a_deadline_that_is_cancelled_while_it_waits_its_turn_does_not_call(loop: str, clock: FakeClock) -> None:
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
    loop: str, late_ms: float, clock: FakeClock
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
async def test_an_error_leaves_the_others_their_turns(loop: str, clock: FakeClock) -> None:
    here, errors, work, queue = asyncio.get_running_loop(), list[dict[str, Any]](), Work(20, clock), FairQueue()
    here.set_exception_handler(lambda _, context: errors.append(context))
    queue.submit(partial(divmod, 1, 0))
    for number in range(20):
        queue.submit(partial(work.do, number))
    await work.is_spread()
    assert [type(each["exception"]) for each in errors] == [ZeroDivisionError]


@pytest.mark.parametrize("loop", LOOPS)
async def test_sets_to_solve_use_a_millisecond_of_each_turn(
    loop: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
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
async def test_long_messages_have_a_turn_each_in_order_and_their_wait_is_known(loop: str, clock: FakeClock) -> None:
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


# Timers of deadlines: on a simulated event loop, and on the two that the service runs on.


every_loop = pytest.mark.parametrize("loop", LOOPS)

FREE: Any = SimpleNamespace(due=SimpleNamespace(run=lambda call: call()), unread=False)
"""Turns in which nothing waits."""

TURN_MS = 0.001
"""How long each callback of the simulated loop takes."""


class ClockLoop:
    """An event loop whose time stands still while it works, and whose timers fire early, as those of uvloop do."""

    def __init__(self, early_ms: float) -> None:
        self.now_ms = 0.0
        self._early_ms = early_ms
        self._numbers = count()
        self._due: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []

    def call_soon(self, call: Callable[..., object], *arguments: object) -> None:
        heappush(self._due, (self.now_ms, next(self._numbers), call, arguments))

    def call_later(self, delay_s: float, call: Callable[..., object], *arguments: object) -> None:
        at_ms = self.now_ms + max(1000.0 * delay_s - self._early_ms, 0.0)
        heappush(self._due, (at_ms, next(self._numbers), call, arguments))

    def run(self) -> None:
        while self._due:
            at_ms, _, call, arguments = heappop(self._due)
            self.now_ms = max(self.now_ms, at_ms) + TURN_MS
            call(*arguments)


@pytest.mark.parametrize("early_ms", [0.0, 0.5, 0.9])
def test_timers_fire_once_in_order_and_at_most_the_slack_early(
    early_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop: Any = ClockLoop(early_ms)
    monkeypatch.setattr(turns, "now_ms", lambda: loop.now_ms)
    fired: list[tuple[float, float]] = []
    dues = [-5.0, 0.0, 0.1, 0.5, 0.95, 1.0, 1.05, 1.9, 5.0, 7.3, *(20 + i * 167 % 500 / 10 for i in range(500))]
    for due in dues:
        DeadlineTimer(loop, FREE, due, partial(lambda due: fired.append((due, loop.now_ms)), due))
    assert not fired, "never from the constructor"
    loop.run()
    assert sorted(due for due, _ in fired) == sorted(dues)
    latest, turns_ms = 0.0, len(dues) * TURN_MS
    for due, at_ms in fired:
        assert due - SLACK_MS <= at_ms <= max(due, 0.0) + 2 * turns_ms
        assert max(due, 0.0) >= latest - SLACK_MS - turns_ms
        latest = max(latest, due)


@every_loop
async def test_a_timer_that_is_cancelled_never_fires(loop: str) -> None:
    here = asyncio.get_running_loop()
    fired: list[int] = []
    timers = [
        DeadlineTimer(here, Turns(), now_ms() + delay, lambda: fired.append(1)) for delay in (-1, 0, 0.5, 1.5, 100)
    ]
    for timer in timers[:4]:
        timer.cancel()
    for _ in range(3):  # it has woken meanwhile, and looks again
        await asyncio.sleep(0.0005)
    for _ in range(2):
        timers[4].cancel()

    def expire() -> None:
        fired.append(2)
        timer.cancel()

    timer = DeadlineTimer(here, Turns(), now_ms() + 1, expire)
    while not fired:
        await asyncio.sleep(0.001)
    timer.cancel()
    await asyncio.sleep(0.02)
    assert fired == [2], "once, and cancelled from its callback and after it"


def test_the_loop_serves_others_while_a_timer_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    loop: Any = ClockLoop(0.0)
    monkeypatch.setattr(turns, "now_ms", lambda: loop.now_ms)
    order: list[str] = []

    def serve() -> None:
        order.append("serve")
        if "fire" not in order:
            loop.call_soon(serve)

    DeadlineTimer(loop, FREE, 0.9, lambda: order.append("fire"))
    loop.call_soon(serve)
    loop.run()
    assert (order.count("serve") > 1, order.count("fire")) == (True, 1)


# The worker threads: the most urgent answer is next, in its time slot, and no page holds it up.


@asynccontextmanager
async def working() -> AsyncIterator[Worker]:
    worker = Worker()
    try:
        async with asyncio.timeout(WAIT_S):
            yield worker
    finally:
        worker.close()


def latest(slots: list[Slot], due_ms: float, took_ms: float) -> float:
    """The latest begin of so long a time by a deadline that overlaps no slot."""
    begins = [due_ms - took_ms, *(begin_ms - took_ms for begin_ms, _ in slots if begin_ms <= due_ms)]
    return max(at for at in begins if all(end <= at or at + took_ms <= begin for begin, end in slots))


async def test_slots_end_by_their_deadlines_as_late_as_they_can_and_do_not_overlap() -> None:
    async with working() as worker:
        rng, made = np.random.default_rng(0), list[Slot]()
        for _ in range(300):
            due, took = float(rng.integers(0, 500)), float(rng.integers(1, 6))  # so that sums are exact
            assert worker.begin_ms(due, took) == latest(made, due, took)
            made.append(worker.reserve(due, took))
            assert made[-1] == (latest(made[:-1], due, took), latest(made[:-1], due, took) + took)
            if rng.random() < 0.3:
                worker.free(made.pop(int(rng.integers(len(made)))))


async def test_the_answer_with_the_nearest_deadline_is_next_and_no_page_holds_it_up() -> None:
    order: list[str] = []
    page, first = threading.Event(), threading.Event()
    async with working() as worker:
        slow = asyncio.create_task(worker.page(lambda: order.extend(["page"] * page.wait(60))))
        await asyncio.sleep(0)
        later: list[Any] = [worker.answer(lambda: first.wait(60), 1.0, 3.0)]
        for name, due in (("third", 30.0), ("second", 20.0), ("also second", 20.0), ("last", np.inf)):
            later.append(worker.answer(partial(order.append, name), due, 2.0))
        last = asyncio.create_task(worker.page(partial(order.append, "another page")))
        await asyncio.sleep(0)
        assert worker.queued_ms == 11.0
        first.set()
        await asyncio.gather(*later)
        assert (worker.queued_ms, worker.waiting) == (0.0, 0)
        page.set()
        await asyncio.gather(slow, last)
    assert order == ["second", "also second", "third", "last", "page", "another page"]


async def test_a_cancelled_answer_is_not_made_and_does_not_count() -> None:
    gate, made = threading.Event(), list[int]()
    async with working() as worker:
        running = worker.answer(lambda: gate.wait(60), 1.0, 5.0)
        worker.answer(partial(made.append, 1), 2.0, 5.0).cancel()
        after = worker.answer(partial(made.append, 2), 3.0, 5.0)
        gate.set()
        await asyncio.gather(running, after)
        assert (worker.queued_ms, made) == (0.0, [2])


class Result:
    """A result that can be watched."""


async def test_a_result_is_released_at_once() -> None:
    gc.disable()
    try:
        async with working() as worker:
            jobs = [worker.answer(Result)]
            await asyncio.wait(jobs)
            result = weakref.ref(jobs[0].result())
            jobs.clear()
            await asyncio.sleep(0)
            assert result() is None
    finally:
        gc.enable()


async def test_more_pages_than_the_limit_are_refused_and_cancelled_ones_are_not_made() -> None:
    gate, made, refused = threading.Event(), [], []
    async with working() as worker:
        worker._refused = lambda: refused.append(1)
        first = asyncio.create_task(worker.page(lambda: gate.wait(60.0)))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(worker.page(lambda: made.append(1))) for _ in range(int(PAGES))]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="pages are being made"):
            await worker.page(lambda: None)
        for each in waiting[1:]:
            each.cancel()
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, waiting[0])
    assert (len(made), len(refused)) == (1, 1)


async def test_a_job_has_the_context_of_its_request() -> None:
    request: ContextVar[str] = ContextVar("request")
    async with working() as worker:
        request.set("7")
        assert await worker.page(request.get) == "7"
