"""Sessions in memory, without sockets; the clock is the tests'."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anytime.inference.prediction import Answer, Settled
from anytime_service.api.predict import SessionGroups
from anytime_service.clock import now_ms
from anytime_service.core.service import PredictionService
from anytime_service.errors import GoneSessionError, UnknownSessionError
from anytime_service.limits.memory import Account
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.codecs import MSGPACK
from anytime_service.schemas.options import PredictionOptions
from anytime_service.sessions.store import REMEMBERED, MemorySession, MemorySessions
from anytime_service.settings import Settings
from service.in_session import begin
from service.serving import (
    LIMITS,
    Collecting,
    Gate,
    Running,
    expected,
    logged,
    packed,
    run_service,
    small_model,
    timeless,
    trained_model,
)
from waiting import until, until_async

MODEL = small_model()
ANYONE = Account()


async def begun(sessions: MemorySessions, rows: int | None = 1) -> MemorySession:
    return await sessions.get(await sessions.create(MODEL, rows, ANYONE))


async def test_a_session_that_is_not_used_expires_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=-1e6)  # before the end of every slice of a turn
    monkeypatch.setattr("anytime_service.limits.turns.now_ms", lambda: clock.now)
    sessions = MemorySessions(10, ttl_s=60)
    session = await begun(sessions)
    for _ in range(2):
        clock.now += 59_999
        sessions._unused._expire()
        assert await sessions.get(session.id) is session, "using it counts"
    clock.now += 60_000
    sessions._unused._expire()
    for request in (sessions.get, sessions.delete):
        with pytest.raises(GoneSessionError, match="expired"):
            await request(session.id)
    assert len(sessions) == 0


async def test_groups_of_a_session_that_ended_while_they_waited_are_refused_and_take_no_memory() -> None:
    sessions = MemorySessions(10, ttl_s=60)
    before, session = ANYONE.bytes, await begun(sessions)
    await sessions.delete(session.id)
    with pytest.raises(GoneSessionError):
        await session.add_groups({"speed": [1.0]})
    assert ANYONE.bytes == before


async def test_a_body_that_ends_when_its_timeout_was_sent_changes_nothing() -> None:
    core, sessions = PredictionService(ModelRegistry.of([MODEL]), Settings(body_timeout_s=0.1)), MemorySessions(10, 60)
    session, sent, timed_out = await begun(sessions), list[Any](), asyncio.Event()

    async def receive() -> Any:
        await timed_out.wait()
        return {"type": "http.request", "body": b'{"hog": [1.0, 2.0]}', "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message.get("status"))
        timed_out.set()

    scope = {"query_string": b"", "headers": [], "path": "/sessions/x/groups", "path_params": {"id": session.id}}
    await SessionGroups(core, sessions)(scope, receive, send)
    assert (sent, session.prediction.rows, session.prediction.nbytes) == ([408, None], 1, 0)


async def test_ids_cannot_be_guessed_and_are_safe_in_a_path() -> None:
    sessions = MemorySessions(1_000, ttl_s=60)
    ids = {await sessions.create(MODEL, 1, ANYONE) for _ in range(1_000)}
    assert len(ids) == 1_000
    assert all(len(name) >= 20 and name.replace("-", "").replace("_", "").isalnum() for name in ids)


async def test_the_number_of_remembered_ids_is_bounded() -> None:
    sessions = MemorySessions(10, ttl_s=60)
    names = []
    for _ in range(REMEMBERED + 1):
        names.append(await sessions.create(MODEL, 1, ANYONE))
        await sessions.delete(names[-1])
    with pytest.raises(UnknownSessionError):
        await sessions.get(names[0])
    for name in names[1:]:
        with pytest.raises(GoneSessionError):
            await sessions.get(name)


async def test_idle_sessions_release_their_memory_without_a_request() -> None:
    sessions, before = MemorySessions(10, ttl_s=0.05), ANYONE.bytes
    for _ in range(2):
        predictions = [weakref.ref((await begun(sessions)).prediction) for _ in range(3)]
        await (await begun(sessions)).add_groups({"hog": [1.0, 2.0]})
        assert ANYONE.bytes == before + 16
        await until_async(lambda: not len(sessions))
        assert ANYONE.bytes == before
        gc.collect()
        assert not any(each() for each in predictions)


@pytest.mark.parametrize("broken", ["the answer", "the error too"])
async def test_every_waiting_prediction_is_answered_when_its_session_ends_though_another_fails(broken: str) -> None:
    core = PredictionService(ModelRegistry.of([MODEL]), Settings())
    sessions = MemorySessions(10, ttl_s=60)
    session = await begun(sessions)
    collecting = Collecting()

    class Unreachable(Collecting):
        def send(self, _answer: Answer, _elapsed_ms: float) -> None:
            raise RuntimeError("no connection to this client")

        def fail(self, error: Exception) -> None:
            if broken == "the error too":
                raise error
            collecting.fail(error)

    for number in range(9):  # the set of those that wait has no order: failing ones come first, last and between
        sink = collecting if number % 3 else Unreachable()
        session.join(core.open(PredictionOptions(deadline_ms=5_000), now_ms(), sink, shared=session.prediction))
    with logged("anytime_service") as records:
        await sessions.delete(session.id)
        while session.waiting:  # those that do not fit into one turn of the loop are answered in the next
            await asyncio.sleep(0)
    assert [answer.reason for answer in collecting.answers] == ["end"] * 6
    assert (len(collecting.failures), len(records)) == ((3, 3) if broken == "the answer" else (0, 6))
    assert (len(core.active), len(session.waiting), len(sessions)) == (0, 0, 0)


# An answer that the worker makes is of one moment: of the values when it was settled, whatever replaces them.


ROWS = 3_000
TRAINED = trained_model()
FIRST, *OTHERS = TRAINED.order(TRAINED.places)
DATABASE = 11


def version_of(version: int) -> dict[str, Any]:
    """Values of all groups; those of an odd version have missing ones."""
    rng = np.random.default_rng(version)
    found = {name: rng.normal(size=(ROWS, len(TRAINED.places[name].features))) for name in TRAINED.places}
    if version % 2:
        found[FIRST][:, 0] = np.nan
    return found


def post(service: Running, session: str, version: int) -> int:
    groups = {name: packed(each) for name, each in version_of(version).items()}
    return service.post_packed(f"/sessions/{session}/groups", groups).status_code


@pytest.fixture(scope="module", params=["memory", "redis"])
def service(request: pytest.FixtureRequest) -> Iterator[Running]:
    url = "memory" if request.param == "memory" else request.getfixturevalue("shared_redis").url(DATABASE)
    patient: dict[str, Any] = {"session_store": url, "session_store_timeout_ms": 5_000, "max_deadline_ms": 60_000}
    patient |= {"max_rows": ROWS, "max_body_bytes": 1_000_000}
    with run_service([TRAINED], LIMITS.model_copy(update=patient)) as running:
        yield running


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The worker's answers wait."""
    gate = Gate(monkeypatch, Settled, "make_arrays")
    yield gate
    gate.opened.set()


@pytest.mark.parametrize("options", [{}, {"policy": "arrived"}, {"explain": True}, {"ranking": True}])
def test_a_session_is_answered_from_the_values_before_their_replacement(
    service: Running, gate: Gate, options: dict[str, Any]
) -> None:
    session = begin(service)
    assert post(service, session, 1) == 200
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(service.get, f"/sessions/{session}/predict", **options)
        assert gate.reached.wait(60)
        assert post(service, session, 2) == 200
        gate.opened.set()
        answer = asked.result(60).json()
    assert timeless(answer) == expected(TRAINED, version_of(1), rows=ROWS, **options)
    assert len(answer["imputed"]) == 1
    after = service.get(f"/sessions/{session}/predict", **options).json()
    assert after["prediction"] == expected(TRAINED, version_of(2), rows=ROWS, **options)["prediction"]
    assert (after["imputed"], after["replaced"]) == ([], [FIRST, *OTHERS])
    service.delete(f"/sessions/{session}")
    until(lambda: service.metric("anytime_held_bytes") == 0)


def test_an_update_is_of_the_values_before_their_replacement(service: Running, gate: Gate) -> None:
    first, second = version_of(1), version_of(2)
    with service.stream(MSGPACK) as stream:
        stream.say("begin", 1, rows=ROWS, updates=True)
        stream.say("group", 1, group=FIRST, **packed(first[FIRST]))
        assert gate.reached.wait(60)
        stream.say("group", 1, group=FIRST, **packed(second[FIRST]))
        stream.say("end", 1)
        gate.opened.set()
        while (answer := stream.hear())["type"] == "update":
            some = first if answer["imputed"] else second
            assert answer["prediction"] == expected(TRAINED, {FIRST: some[FIRST]}, rows=ROWS)["prediction"]
    assert answer["prediction"] == expected(TRAINED, {FIRST: second[FIRST]}, rows=ROWS)["prediction"]
