"""Answers of many rows: their time is that at which they are sent, on every binding, and the queue counts before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from anytime.inference.prediction import Answer, Settled
from anytime_service.clock import now_ms
from anytime_service.core import active_prediction
from anytime_service.core import service as core
from anytime_service.limits.admission import Admission
from anytime_service.limits.worker import Worker
from anytime_service.schemas.codecs import JSON, MSGPACK
from anytime_service.settings import Settings
from service.certificates import certificate
from service.inferring import binary, tensors
from service.serving import Running, packed, run_service, small_model
from waiting import until

ROWS = 3_000
VALUES = {"speed": np.ones((ROWS, 1)), "hog": np.ones((ROWS, 2)), "lab": np.ones((ROWS, 1))}
LONG_MS = 60_000
"""Deadlines of the tests are longer than they take, and what the clock is moved by is longer still."""
LIMITS: dict[str, Any] = {
    "port": 0,
    "max_deadline_ms": LONG_MS,
    "max_body_bytes": 1_000_000,
    "max_json_values": 100_000,
    "max_lateness_ms": 5_000,
}


class Stopped:
    """The worker's answers wait until `go`; then the clock of predictions has moved on by a minute and a half."""

    moved_ms = 90_000.0

    def __init__(self) -> None:
        self.shift_ms = 0.0
        self.reached = Event()
        self._opened = Event()

    def clock(self) -> float:
        return now_ms() + self.shift_ms

    def wait(self) -> None:
        self.reached.set()
        assert self._opened.wait(60), "the test did not let the worker go on"

    def go(self) -> None:
        assert self.reached.wait(60), "no answer was given to the worker"
        self.shift_ms = self.moved_ms
        self._opened.set()


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stopped]:
    gate, make = Stopped(), Settled.make_arrays

    def waiting(settled: Settled) -> Answer:
        gate.wait()
        return make(settled)

    monkeypatch.setattr(Settled, "make_arrays", waiting)
    monkeypatch.setattr(active_prediction, "now_ms", gate.clock)
    yield gate
    gate._opened.set()


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with run_service([small_model()], Settings(**LIMITS)) as running:
        yield running


def by_post(url: str, *, verify: Any = True) -> Any:
    content = msgspec.msgpack.encode({"groups": {name: packed(each) for name, each in VALUES.items()}})
    headers = {"content-type": MSGPACK.media_type, "accept": JSON.media_type}
    return httpx.post(f"{url}/predict", content=content, headers=headers, timeout=60, verify=verify).json()


def by_lines(url: str) -> Any:
    lines = [json.dumps({"group": name, "values": each.tolist()}).encode() + b"\n" for name, each in VALUES.items()]
    headers = {"content-type": "application/x-ndjson"}
    return httpx.post(f"{url}/predict", content=b"".join(lines), headers=headers, timeout=60).json()


def by_session(url: str) -> Any:
    session = httpx.post(f"{url}/sessions").json()["id"]
    content = msgspec.msgpack.encode({name: packed(each) for name, each in VALUES.items()})
    headers = {"content-type": MSGPACK.media_type}
    httpx.post(f"{url}/sessions/{session}/groups", content=content, headers=headers).raise_for_status()
    return httpx.get(f"{url}/sessions/{session}/predict", timeout=60).json()


def explained(url: str) -> Any:
    few = {name: each[:600].tolist() for name, each in VALUES.items()}
    return httpx.post(f"{url}/predict", json={"groups": few, "explain": True}, timeout=60).json()


def by_oip(url: str) -> Any:
    body = json.dumps({"inputs": tensors({name: each.tolist() for name, each in VALUES.items()})}).encode()
    return httpx.post(f"{url}/v2/models/brake/infer", content=body, timeout=60).json()["parameters"]


def by_oip_bytes(url: str) -> Any:
    content, headers = binary(VALUES, parameters={"binary_data_output": True})
    reply = httpx.post(f"{url}/v2/models/brake/infer", content=content, headers=headers, timeout=60)
    size = int(reply.headers["Inference-Header-Content-Length"])
    head = json.loads(reply.content[:size])
    assert len(reply.content) == size + sum(each["parameters"]["binary_data_size"] for each in head["outputs"])
    return head["parameters"]


BINDINGS: list[Callable[[str], Any]] = [by_post, by_lines, by_session, explained, by_oip, by_oip_bytes]


@pytest.mark.parametrize("ask", BINDINGS, ids=lambda ask: ask.__name__)
def test_the_time_of_an_answer_is_when_it_is_sent(
    service: Running, stopped: Stopped, ask: Callable[[str], Any]
) -> None:
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(ask, service.url)
        stopped.go()
        assert asked.result(60)["elapsed_ms"] - stopped.moved_ms > 0


@pytest.mark.parametrize("form", [JSON, MSGPACK])
def test_the_time_of_answers_and_updates_of_a_stream_is_when_they_are_sent(
    service: Running, stopped: Stopped, form: Any
) -> None:
    with service.stream(form) as stream:
        stream.say("begin", 1, rows=ROWS, updates=True)
        values = {"values": VALUES["speed"].tolist()} if form is JSON else packed(VALUES["speed"])
        stream.say("group", 1, group="speed", **values)
        stopped.go()
        update = stream.hear()
        assert update["type"] == "update"
        assert update["elapsed_ms"] - stopped.moved_ms > 0
        stream.say("end", 1)
        while (answer := stream.hear())["type"] == "update":
            pass
        assert answer["elapsed_ms"] - stopped.moved_ms > 0


def test_the_time_of_an_answer_over_tls_is_when_it_is_sent(stopped: Stopped, tmp_path: Path) -> None:
    own = certificate(tmp_path, "own")
    settings = Settings(**LIMITS, ssl_certfile=own.file, ssl_keyfile=own.key)
    with run_service([small_model()], settings) as service, ThreadPoolExecutor(1) as thread:
        asked = thread.submit(by_post, f"https://127.0.0.1:{service.port}", verify=own.trusted())
        stopped.go()
        assert asked.result(60)["elapsed_ms"] - stopped.moved_ms > 0


@pytest.mark.parametrize("reason", ["deadline", "complete"])
def test_the_lateness_of_an_answer_includes_the_wait_for_the_worker(stopped: Stopped, reason: str) -> None:
    """An answer that was settled before its deadline is late too, if it is sent after it."""
    name = "anytime_deadline_lateness_seconds"
    with run_service([small_model()], Settings(**LIMITS)) as service, service.stream(MSGPACK) as stream:
        deadline_ms = 200 if reason == "deadline" else LONG_MS - 1
        stream.say("begin", 1, rows=ROWS, deadline_ms=deadline_ms)
        for group in ("speed",) if reason == "deadline" else VALUES:
            stream.say("group", 1, group=group, **packed(VALUES[group]))
        stopped.go()
        answer = stream.answer(1)
        assert answer["reason"] == reason
        assert answer["elapsed_ms"] - deadline_ms - 20_000 > 0
        until(lambda: service.metric(f"{name}_bucket", le="+Inf") == 1)
        assert service.metric(f"{name}_bucket", le="0.1") == 0, "it was later than that"


# The queue.


def test_slots_end_by_their_deadlines_and_do_not_overlap() -> None:
    worker = Worker()
    try:
        assert worker.reserve(100.0, 10.0) == (90.0, 100.0)
        assert worker.reserve(100.0, 10.0) == (80.0, 90.0)
        assert worker.reserve(97.0, 5.0) == (75.0, 80.0)
        assert worker.reserve(130.0, 10.0) == (120.0, 130.0)
        assert worker.begin_ms(120.0, 20.0) == 100.0, "it fits between two"
        assert worker.begin_ms(125.0, 15.0) == 105.0
        assert worker.begin_ms(125.0, 21.0) == 54.0
        worker.free((80.0, 90.0))
        assert worker.begin_ms(99.0, 10.0) == 80.0
        for slot in ((90.0, 100.0), (75.0, 80.0), (120.0, 130.0)):
            worker.free(slot)
        assert worker.begin_ms(125.0, 21.0) == 104.0
    finally:
        worker.close()


def test_a_random_timetable_has_disjoint_slots_before_their_deadlines() -> None:
    rng, worker, made = np.random.default_rng(0), Worker(), []
    try:
        for _ in range(300):
            due, took = float(rng.uniform(0, 500)), float(rng.uniform(0.1, 5))
            slot = worker.reserve(due, took)
            assert slot[1] <= due + 1e-9
            made.append(slot)
            if rng.random() < 0.3:
                worker.free(made.pop(int(rng.integers(len(made)))))
        made.sort()
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(made))
        assert worker._slots == made
    finally:
        worker.close()


def test_the_answer_with_the_nearest_deadline_is_next_and_no_page_holds_it_up() -> None:
    order: list[str] = []
    page, first = Event(), Event()

    async def act() -> None:
        worker = Worker()
        try:
            slow = asyncio.create_task(worker.page(lambda: order.extend(["page"] * page.wait(60))))
            await asyncio.sleep(0)
            later: list[Any] = [worker.answer(lambda: first.wait(60), 1.0, 3.0)]
            for name, due in (("third", 30.0), ("second", 20.0), ("also second", 20.0), ("last", np.inf)):
                later.append(worker.answer(lambda name=name: order.append(name), due, 2.0))  # type: ignore[misc]
            assert worker.queued_ms == 11.0
            first.set()
            await asyncio.wait_for(asyncio.gather(*later), 60)
            assert (worker.queued_ms, worker.waiting) == (0.0, 0)
            page.set()
            await asyncio.wait_for(slow, 60)
        finally:
            worker.close()

    asyncio.run(act())
    assert order == ["second", "also second", "third", "last", "page"]


def test_a_cancelled_answer_is_not_made_and_does_not_count() -> None:
    gate, made = Event(), []

    async def act() -> None:
        worker = Worker()
        try:
            running = worker.answer(lambda: gate.wait(60), 1.0, 5.0)
            cancelled = worker.answer(lambda: made.append(1), 2.0, 5.0)
            after = worker.answer(lambda: made.append(2), 3.0, 5.0)
            cancelled.cancel()
            gate.set()
            await asyncio.wait_for(asyncio.gather(running, after), 60)
            assert worker.queued_ms == 0.0
        finally:
            worker.close()

    asyncio.run(act())
    assert made == [2]


MS, FAR_MS = 0.1, 10_000_000
"""What a number takes, as far as the server knows: an answer of 3,000 rows takes 300 ms. And a far deadline."""


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A server that may be 5 ms late; the load of this machine refuses nothing."""
    monkeypatch.setattr(core, "MS_PER_NUMBER", MS)
    monkeypatch.setattr(Admission, "admits", lambda *_: True)
    settings = Settings(**LIMITS | {"max_lateness_ms": 5, "max_deadline_ms": FAR_MS})
    with run_service([small_model()], settings) as running:
        yield running


@pytest.mark.parametrize("given", [True, False])
def test_as_many_answers_begin_as_the_worker_makes_in_the_second_half_of_their_time(
    slow: Running, monkeypatch: pytest.MonkeyPatch, *, given: bool
) -> None:
    """In half of 10,000 s, 33 answers of 150 s are made; without `rows`, the 34th is refused with its values."""
    monkeypatch.setattr(core, "MS_PER_NUMBER", 500 * MS)
    with slow.stream(MSGPACK) as stream:
        for name in range(34):
            stream.say("begin", name, deadline_ms=FAR_MS, **({"rows": ROWS} if given else {}))
            if not given:
                stream.say("group", name, group="speed", **packed(VALUES["speed"]))
        problem = stream.problem()
        assert (problem["id"], problem["status"]) == (33, 503)
        assert "many rows" in problem["detail"]
        stream.say("begin", "few", deadline_ms=0)
        assert stream.answer("few")["prefix"] == 0, "an answer of few rows does not wait for the worker"
        for name in range(33):
            stream.say("end", name)
        for _ in range(33):
            assert stream.hear()["type"] == "answer"
        assert slow.metric("anytime_shed_total", how="refused", why="lateness") == 1
        stream.say("begin", "again", deadline_ms=FAR_MS, rows=ROWS)
        stream.say("end", "again")
        assert stream.answer("again")["prefix"] == 0


@pytest.mark.parametrize("binding", ["post", "session", "oip"])
def test_every_binding_refuses_an_answer_that_the_queue_would_delay(
    slow: Running, stopped: Stopped, binding: str
) -> None:
    """One answer is being made: by what the server knows it takes 300 ms, and another that is due now would be late."""
    session = slow.post_to("/sessions", {"rows": ROWS}).json()["id"]
    asks: dict[str, Callable[[], httpx.Response]] = {
        "post": lambda: slow.post({"groups": {}}, rows=ROWS, deadline_ms=0),
        "session": lambda: slow.get(f"/sessions/{session}/predict", deadline_ms=0),
        "oip": lambda: slow.post_to("/v2/models/brake/infer", {"inputs": []}, params={"rows": ROWS, "deadline_ms": 0}),
    }
    with slow.stream() as stream:
        stream.say("begin", 1, rows=ROWS, deadline_ms=0)
        assert stopped.reached.wait(60)
        assert asks[binding]().status_code == 503
        stopped.go()
        assert stream.answer(1)["prefix"] == 0
    assert asks[binding]().status_code == 200
