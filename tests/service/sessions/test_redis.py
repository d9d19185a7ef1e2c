"""Sessions in Redis, without HTTP: several stores in one process are the replicas."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from anytime.inference.prediction import Answer
from anytime_service.clock import now_ms
from anytime_service.core.service import ActivePrediction, PredictionService
from anytime_service.errors import (
    BodyTooLargeError,
    DamagedSessionError,
    FieldError,
    GoneSessionError,
    MissingVersionError,
    OverloadedError,
    SessionsUnreachableError,
    UnknownSessionError,
)
from anytime_service.limits.memory import Account
from anytime_service.limits.tuning import Tuning
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.options import PredictionOptions
from anytime_service.sessions.redis_format import ENDED_KEY, SESSIONS_KEY, keys_of, pack_values
from anytime_service.sessions.redis_store import FULL, MAX_RETAINED, ModelVersions, RedisSessions
from anytime_service.sessions.store import MemorySessions, SessionStore
from anytime_service.settings import Settings
from models.properties import quick
from service.loops import run
from service.redis_server import RedisServer
from service.serving import VALUES, Collecting, changed, logged, small_model
from waiting import until_async

MODEL = small_model()
DATABASE = 3
MAX_ROWS = 100
ANYONE = Account()


class Replica:
    """A store, and the predictions that wait at it."""

    def __init__(
        self,
        redis: RedisServer,
        most: int = 100,
        ttl_s: float = 60.0,
        timeout_ms: float = 2_000.0,
        max_rows: int = MAX_ROWS,
        **tuning: float,
    ) -> None:
        self.service = PredictionService(ModelRegistry.of([MODEL]), Settings())
        self.models = ModelVersions(lambda: self.service.registry, retain_s=60, max_rows=max_rows)
        self.store = RedisSessions(redis.url(DATABASE), timeout_ms, most, ttl_s, self.models, Tuning(**tuning))  # type: ignore[arg-type]
        self.sink = Collecting()
        self.answers, self.failures = self.sink.answers, self.sink.failures

    async def wait(self, name: str, deadline_ms: float = 5_000.0) -> ActivePrediction:
        begun = now_ms()
        async with self.store.read(name, begun + deadline_ms, self.service.accounts.anonymous) as session:
            request = PredictionOptions(deadline_ms=deadline_ms)
            live = self.service.open(request, begun, self.sink, shared=session.prediction)
            if not live.answered:
                session.join(live)
        return live


@pytest.fixture
def replicas(shared_redis: RedisServer) -> Callable[..., Any]:
    """Makes several replicas that share an empty database."""

    @asynccontextmanager
    async def several(count: int = 2, **options: Any) -> AsyncIterator[list[Replica]]:
        shared_redis.execute("FLUSHDB", database=DATABASE)
        made = [Replica(shared_redis, **options) for _ in range(count)]
        for replica in made:
            await replica.store.start()
            assert replica.store.trouble is None
        try:
            yield made
        finally:
            for replica in made:
                await replica.store.close()

    return several


@pytest.fixture
def session(replicas: Callable[..., Any]) -> Callable[..., Any]:
    """Begins a session; yields its id, and the replicas."""

    @asynccontextmanager
    async def begun(count: int = 2, rows: int | None = None, **options: Any) -> AsyncIterator[tuple[Any, ...]]:
        async with replicas(count, **options) as made:
            yield await made[0].store.create(MODEL, rows, ANYONE), *made

    return begun


async def answered(store: SessionStore, name: str) -> Answer:
    async with store.read(name, None, ANYONE) as session:
        return session.prediction.answer()


async def post_groups(store: SessionStore, name: str, groups: dict[str, Any]) -> tuple[int, set[str]]:
    prefix, replaced, _ = await (await store.get(name)).add_groups(groups)
    return prefix, {group for group in groups if group in replaced}


async def outcome_of(store: SessionStore, name: str, groups: dict[str, Any]) -> Any:
    """Return the result of posting groups: the prefix and the replaced groups, or the field and text of the error."""
    try:
        return await post_groups(store, name, groups)
    except FieldError as refused:
        return refused.field, str(refused)


def values_of(value: float, rows: int) -> Callable[[str], list[list[float]]]:
    return lambda name: [[value + row] * len(VALUES[name]) for row in range(rows)]


posts = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sets(st.sampled_from(sorted(VALUES)), max_size=3),
        st.sampled_from([-1.0, 0.5, 2.0]),
        st.sampled_from([1, 1, 1, 2]),
    ),
    max_size=8,
)


@settings(quick(max_examples=60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(posts, st.integers(0, 8), st.sampled_from([None, 1, 2]))
def test_groups_over_any_replicas_in_any_order_are_answered_as_by_one_process(
    replicas: Callable[..., Any], posted: list[tuple[int, set[str], float, int]], when: int, rows: int | None
) -> None:
    async def main() -> None:
        memory = MemorySessions(10, ttl_s=60)
        alone = await memory.create(MODEL, rows, ANYONE)
        async with replicas() as both:
            name = await both[0].store.create(MODEL, rows, ANYONE)
            so_far, waiting = await answered(memory, alone), False
            due: Answer | None = None  # the answer that the waiting prediction gets before the end
            for number, (place, groups, value, count) in enumerate([*posted, (0, set(), 0.0, 1)]):
                if number == min(when, len(posted)):
                    await both[1].wait(name)
                    waiting, due = True, so_far if so_far.complete else None
                values = {group: values_of(value, count)(group) for group in sorted(groups)}
                outcome = await outcome_of(memory, alone, values)
                assert await outcome_of(both[place].store, name, values) == outcome
                so_far = await answered(memory, alone)
                due = so_far if waiting and due is None and so_far.complete else due
            for replica in both:
                assert await answered(replica.store, name) == so_far
            await both[0].store.delete(name)
            await until_async(lambda: bool(both[1].answers))
            (answer,) = both[1].answers
            assert answer.reason == ("complete" if due else "end")
            assert replace(answer, reason="end", elapsed_ms=0.0) == (due or so_far)
            assert not len(both[1].store._mirrors)
        await memory.close()

    run(main())


async def test_ended_sessions_stay_ended_on_every_replica_and_unknown_ones_never_were(
    session: Callable[..., Any],
) -> None:
    async with session() as (name, a, b):
        await post_groups(b.store, name, VALUES)
        await b.store.delete(name)
        for store in (a.store, b.store) * 2:
            for request in (post_groups(store, name, VALUES), answered(store, name), store.delete(name)):
                with pytest.raises(GoneSessionError):
                    await request
            for other in ("none", "", "x" * 10_000, "a b", "\0", "{}:*"):
                with pytest.raises(UnknownSessionError) as error:
                    await post_groups(store, other, VALUES)
                assert len(str(error.value)) < 200
        assert len(a.store.known) == len(b.store.known) == 0


async def test_a_session_expires_by_the_clock_of_redis_when_it_is_not_used(
    session: Callable[..., Any], shared_redis: RedisServer
) -> None:
    async with session(ttl_s=1.2) as (used, a, b):
        forgotten = await a.store.create(MODEL, 1, ANYONE)
        for _ in range(4):
            await asyncio.sleep(0.35)
            await post_groups(b.store, used, {"speed": [1.0]})
        assert (await answered(a.store, used)).groups == ("speed",)
        for replica in (a, b):
            with pytest.raises(GoneSessionError):
                await post_groups(replica.store, forgotten, VALUES)
        await asyncio.sleep(1.3)
        with pytest.raises(GoneSessionError):
            await answered(a.store, used)
        # Only names are left, once the next check has swept.
        await until_async(lambda: shared_redis.execute("KEYS", "*", database=DATABASE) == [ENDED_KEY.encode()])
        await until_async(lambda: len(a.store) == 0)


async def test_the_limit_of_sessions_applies_to_all_replicas_together(replicas: Callable[..., Any]) -> None:
    async with replicas(most=5) as (a, b):
        begun = await asyncio.gather(
            *((a, b)[i % 2].store.create(MODEL, 1, ANYONE) for i in range(12)), return_exceptions=True
        )
        names = [each for each in begun if isinstance(each, str)]
        refused = [each for each in begun if isinstance(each, OverloadedError) and "there are 5 sessions" in str(each)]
        assert (len(names), len(refused)) == (5, 7)
        await b.store.delete(names[0])
        await a.store.create(MODEL, 1, ANYONE)
        with pytest.raises(OverloadedError):
            await b.store.create(MODEL, 1, ANYONE)


async def test_expired_sessions_do_not_count(replicas: Callable[..., Any]) -> None:
    async with replicas(count=1, most=2, ttl_s=0.1) as (a,):
        for pause_s in (0.0, 0.15, 0.0):  # the first has expired when the third begins
            await a.store.create(MODEL, 1, ANYONE)
            await asyncio.sleep(pause_s)


async def test_the_first_post_at_any_replica_sets_the_number_of_rows(session: Callable[..., Any]) -> None:
    async with session() as (name, a, b):
        early = await b.store.get(name)  # when there were no values yet
        await post_groups(a.store, name, {"speed": [[1.0], [2.0]]})
        with pytest.raises(FieldError, match=r"^values of group 'hog' are 1 x 2; expected 2 x 2 values") as error:
            await early.add_groups({"hog": [[1.0, 2.0]]})
        assert error.value.field == "groups.hog"
        assert (await answered(b.store, name)).groups == ("speed",)
        assert (await early.add_groups({"hog": [[1.0, 2.0], [3.0, 4.0]]}))[0] == 2


def stored_group(name: str, group: str, values: list[list[float]]) -> bytes:
    """A group as it is stored in a session."""
    return b"\1\0\0\0\0\0\0\0" + pack_values(name, group, np.array(values))


DAMAGED: dict[str, Callable[[str], tuple[str, bytes]]] = {
    "cut off": lambda name: ("g:speed", stored_group(name, "speed", [[1.0]])[:-1]),
    "cut off in its head": lambda name: ("g:speed", stored_group(name, "speed", [[1.0]])[:12]),
    "a bit that turned": lambda name: ("g:speed", stored_group(name, "speed", [[1.0]])[:-1] + b"\0"),
    "of another width": lambda name: ("g:speed", stored_group(name, "speed", [[1.0, 2.0]])),
    "of another group": lambda name: ("g:hog", stored_group(name, "lab", [[1.0, 2.0]])),
    "of another session": lambda _: ("g:speed", stored_group("another", "speed", [[1.0]])),
    "of more rows": lambda name: ("g:speed", stored_group(name, "speed", [[1.0], [2.0]])),
    "too large": lambda name: ("g:speed", stored_group(name, "speed", [[np.inf]])),
    "not written by us": lambda _: ("g:speed", b"\x80\x04\x95 a pickle"),
    "a group that is not": lambda name: ("g:none", stored_group(name, "none", [[1.0]])),
    "a session of other rows": lambda _: ("rows", b"7"),
    "rows that are no number": lambda _: ("rows", b"many"),
    "more rows than are allowed": lambda _: ("rows", b"101"),
    "rows that would fill the memory": lambda _: ("rows", b"1000000000"),
    "rows of more digits than a number has": lambda _: ("rows", b"9" * 5_000),
    "negative rows": lambda _: ("rows", b"-1"),
    "rows that are infinite": lambda _: ("rows", b"inf"),
    "rows that Python reads and we do not write": lambda _: ("rows", b" 1_0"),
    "no revision": lambda _: ("revision", b"x"),
    "a revision that is no number": lambda _: ("revision", b"nan"),
    "a revision that is not whole": lambda _: ("revision", b"1e300"),
    "a negative revision": lambda _: ("revision", b"-5"),
    "a revision beyond the last": lambda _: ("revision", b"4294967296"),
    "a group newer than its session": lambda name: ("g:speed", b"\2" + stored_group(name, "speed", [[1.0]])[1:]),
    "a group that came again 7 times": lambda name: (
        "g:speed",
        b"\1\0\0\0\7\0\0\0" + stored_group(name, "speed", [[1.0]])[8:],
    ),
    "a field of a megabyte": lambda _: ("junk", b"x" * 1_000_000),
    "a name of a megabyte": lambda _: ("name", b"x" * 1_000_000),
    "no name": lambda _: ("name", b""),
    "of another release": lambda _: ("format", b"2"),
    "a model that is no text": lambda _: ("name", b"\xff"),
}


@pytest.mark.parametrize("damage", DAMAGED)
async def test_damaged_data_is_an_error_and_never_reaches_an_answer(
    session: Callable[..., Any], shared_redis: RedisServer, damage: str
) -> None:
    async with session() as (name, a, b):
        other = await a.store.create(MODEL, None, ANYONE)
        await post_groups(a.store, name, {"speed": [1.0]})
        await b.wait(other)
        shared_redis.execute("HSET", keys_of(name)[0], *DAMAGED[damage](name), database=DATABASE)
        damaged_rows = ("rows that are no number", "rows that would fill the memory", "negative rows")
        for replica in (a, b):
            with logged("anytime_service") as records:
                for request in (answered(replica.store, name), replica.wait(name)):
                    with pytest.raises(DamagedSessionError, match="begin another"):
                        await request
            assert replica.store.trouble is None
            words = "its number of rows is" if damage in damaged_rows else ""
            said = [record.getMessage() for record in records]  # with the count of an earlier test's lines, perhaps
            assert any(re.search(f"{name}.*{words}", line) for line in said), "the log says so"
            if DAMAGED[damage](name)[0] in ("rows", "revision"):
                with pytest.raises((DamagedSessionError, FieldError)):  # other rows look like those of the session
                    await post_groups(replica.store, name, {"hog": [1.0, 2.0]})
        assert b"g:hog" not in shared_redis.execute("HKEYS", keys_of(name)[0], database=DATABASE) or "group" in damage
        assert (len(a.store._mirrors), len(b.store._mirrors)) == (0, 1)
        await post_groups(a.store, other, VALUES)
        await until_async(lambda: b.answers)
        assert (b.answers[0].reason, b.answers[0].note) == ("complete", None), "other sessions lose nothing"


async def test_missing_or_too_many_fields_are_an_error(replicas: Callable[..., Any], shared_redis: RedisServer) -> None:
    async with replicas() as (a, b):
        junk = [each for number in range(50) for each in (f"g:{number}", "")]
        missing = [("HDEL", field) for field in ("format", "name", "version", "rows", "revision")]
        for command, *fields in (*missing, ("HSET", *junk), ("SET", "a key of another kind")):
            name = await a.store.create(MODEL, None, ANYONE)
            shared_redis.execute(command, keys_of(name)[0], *fields, database=DATABASE)
            for request in (answered(b.store, name), b.wait(name), post_groups(b.store, name, VALUES)):
                # A version may be empty, and is then one that is not here.
                with pytest.raises((DamagedSessionError, MissingVersionError)):
                    await request
            if command != "SET":
                await b.store.delete(name)
        assert (a.store.trouble, b.store.trouble) == (None, None)


@pytest.mark.parametrize("damage", ["a time that is none", "a key of another kind"])
async def test_a_post_is_accepted_completely_or_not_at_all_if_the_waiting_replicas_are_damaged(
    session: Callable[..., Any], shared_redis: RedisServer, damage: str
) -> None:
    async with session() as (name, a, b):
        stored, waiting = keys_of(name)[:2]
        await b.wait(name)
        if damage == "a key of another kind":
            shared_redis.execute("SET", waiting, "something", database=DATABASE)
            with pytest.raises(DamagedSessionError):
                await post_groups(a.store, name, VALUES)
            assert shared_redis.execute("HKEYS", stored, database=DATABASE) == [
                b"format", b"name", b"version", b"rows", b"revision",
            ]  # fmt: skip
        else:
            shared_redis.execute("HSET", waiting, b.store._replica, "soon", "nobody", "nan", database=DATABASE)
            await post_groups(a.store, name, VALUES)
            await until_async(lambda: b.answers)
            assert b.answers[0].reason == "complete"
            await b.wait(name)
        await a.store.delete(name)
        assert (a.store.trouble, b.store.trouble) == (None, None)


async def test_a_waiting_prediction_fails_when_its_session_is_damaged(
    session: Callable[..., Any], shared_redis: RedisServer
) -> None:
    async with session() as (name, a, b):
        await b.wait(name)
        await post_groups(a.store, name, {"speed": [1.0]})
        await until_async(lambda: bool(next(iter(b.service.active)).machine.prediction.received))
        # A post that no replica would have made.
        shared_redis.execute("HSET", keys_of(name)[0], "g:hog", b"nonsense", "revision", 5, database=DATABASE)
        await post_groups(a.store, name, {"lab": [1.0]})
        await until_async(lambda: b.failures)
        assert isinstance(b.failures[0], DamagedSessionError)
        assert (b.answers, len(b.store._mirrors), len(b.service.active)) == ([], 0, 0)


async def test_groups_posted_while_the_subscription_was_lost_are_not_missed(
    session: Callable[..., Any], shared_redis: RedisServer
) -> None:
    async with session() as (idle, a, b):
        names = [await a.store.create(MODEL, None, ANYONE) for _ in range(10)]
        for name in (*names, idle):
            await b.wait(name, 20_000.0)
        async with b.store.read(idle, now_ms() + 20_000.0, ANYONE) as followed:
            pass
        shared_redis.execute("CLIENT", "KILL", "TYPE", "pubsub")
        for name in names:
            await post_groups(a.store, name, VALUES)
        await until_async(lambda: len(b.answers) == len(names))
        assert {(answer.reason, answer.prefix) for answer in b.answers} == {("complete", 3)}
        assert b.store.trouble is None
        await until_async(lambda: followed.note is None)  # it was read again too
        await a.store.delete(idle)
        await until_async(lambda: not len(b.store._mirrors))


async def test_a_post_is_published_only_to_replicas_with_waiting_predictions(
    session: Callable[..., Any], shared_redis: RedisServer
) -> None:
    async with session(count=3) as (name, a, b, c):
        await b.wait(name)
        assert shared_redis.execute("HKEYS", keys_of(name)[1], database=DATABASE) == [b.store._replica.encode()]
        assert (len(a.store._mirrors), len(b.store._mirrors), len(c.store._mirrors)) == (0, 1, 0)
        shared_redis.execute("PUBLISH", f"anytime:replica:{b.store._replica}", b"hello")  # is ignored
        await post_groups(c.store, name, VALUES)
        await until_async(lambda: b.answers)
        assert (b.answers[0].reason, b.answers[0].prefix, len(b.store._mirrors)) == ("complete", 3, 0)


async def test_values_count_where_a_prediction_waits_and_are_refused_beyond_the_memory_budget(
    replicas: Callable[..., Any],
) -> None:
    async with replicas() as (a, b):
        held = a.service.accounts.anonymous
        name, other = [await b.store.create(MODEL, 1, ANYONE) for _ in range(2)]
        for each in (name, other):
            await post_groups(b.store, each, {"speed": [2.0]})
        await a.wait(name)
        assert held.bytes == 8
        await post_groups(b.store, name, {"hog": [1.0, -1.0]})
        await until_async(lambda: held.bytes == 24)
        held.most = a.service.memory.most = 24
        with pytest.raises(OverloadedError, match="stores 24 bytes, and 8 more"):
            await a.wait(other)
        assert (held.bytes, len(a.store._mirrors)) == (24, 1), "the first prediction still waits"
        await post_groups(b.store, name, {"lab": [0.5]})
        mirrored = a.store._mirrors.get(name)
        await until_async(lambda: mirrored.note == FULL)
        assert (a.failures, a.answers) == ([], []), "the begun prediction still waits for its deadline"
        mirrored.end()
        assert (a.answers[0].groups, a.failures) == (("speed", "hog"), [])
        assert (held.bytes, len(a.store._mirrors), b.service.memory.bytes) == (0, 0, 0)
        assert (await answered(a.store, name)).prefix == 3, "it has been taken all the same"
        held.most = a.service.memory.most = 32
        await a.wait(name)
        assert (a.answers[1].prefix, held.bytes) == (3, 0)


async def test_a_session_is_answered_by_the_version_it_began_with_or_not_at_all(session: Callable[..., Any]) -> None:
    newer = changed(MODEL, version="v2")
    async with session() as (name, a, b):
        b.service.registry = ModelRegistry.of([newer])
        b.models = b.store.models = ModelVersions(lambda: b.service.registry, retain_s=60, max_rows=MAX_ROWS)
        for request in (post_groups(b.store, name, VALUES), answered(b.store, name), b.wait(name)):
            with pytest.raises(MissingVersionError, match=r"'brake' in version 'v1'.*another replica"):
                await request
        a.service.registry = ModelRegistry.of([newer])
        assert await post_groups(a.store, name, VALUES) == (3, set()), "it served that version when the session began"
        assert (await answered(a.store, name)).version == "v1"
        assert not len(b.store._mirrors)


def test_former_versions_are_retained_while_their_sessions_are_used() -> None:
    registry = ModelRegistry.of([changed(MODEL, version="v0")])
    versions = ModelVersions(lambda: registry, retain_s=3600, max_rows=MAX_ROWS)
    for number in range(1, MAX_RETAINED + 3):
        registry = ModelRegistry.of([changed(MODEL, version=f"v{number}")])
        versions.notice()
        assert versions.find("brake", "v0").version == "v0", "used each time"
    assert len(versions._retained) == MAX_RETAINED
    with pytest.raises(MissingVersionError):
        versions.find("brake", "v1")
    brief = ModelVersions(lambda: registry, retain_s=0.0, max_rows=MAX_ROWS)
    registry = ModelRegistry.of([MODEL])
    for _ in range(2):
        brief.notice()
    assert len(brief._retained) == 0


async def test_the_cache_of_known_sessions_is_bounded(replicas: Callable[..., Any]) -> None:
    async with replicas(max_known=3) as (a, b):
        names = [await a.store.create(MODEL, None, ANYONE) for _ in range(6)]
        for name in names:
            await post_groups(b.store, name, VALUES)
        assert len(a.store.known) == len(b.store.known) == 3
        assert await post_groups(a.store, names[0], {}) == (3, set())


async def test_the_number_of_connections_is_bounded(session: Callable[..., Any], shared_redis: RedisServer) -> None:
    async with session(count=1) as (name, a):
        await asyncio.gather(*(post_groups(a.store, name, VALUES) for _ in range(200)))
        clients = shared_redis.execute("CLIENT", "LIST").decode().splitlines()
        ours = [line for line in clients if f" db={DATABASE} " in line and " name=anytime " in line]
        assert 1 < len(ours) <= 17


async def test_a_working_connection_is_not_replaced(replicas: Callable[..., Any], shared_redis: RedisServer) -> None:
    def opened() -> int:
        return int(shared_redis.execute("INFO", "stats")["total_connections_received"])

    async with replicas(count=1, timeout_ms=400.0, store_check_s=0.02):
        before = opened()
        await asyncio.sleep(0.9)
        assert opened() == before + 1, "that of the test"


async def test_the_first_request_starts_the_store(shared_redis: RedisServer) -> None:
    replica = Replica(shared_redis)
    name = await replica.store.create(MODEL, 1, ANYONE)
    assert await post_groups(replica.store, name, VALUES) == (3, set())
    for _ in range(2):
        await replica.store.close()
    assert (await answered(replica.store, name)).prefix == 3, "it starts again"
    await replica.store.close()


@pytest.mark.parametrize("min_read_ms", [0.0, 2_000.0])
async def test_a_deadline_shorter_than_a_round_trip_is_answered_late_rather_than_not_at_all(
    session: Callable[..., Any], shared_redis: RedisServer, min_read_ms: float
) -> None:
    async with session(count=1, min_read_ms=min_read_ms) as (name, a):
        await post_groups(a.store, name, {"speed": [1.0]})
        shared_redis.execute("CLIENT", "PAUSE", "100", "ALL")
        with nullcontext() if min_read_ms else pytest.raises(SessionsUnreachableError):
            await a.wait(name, 5.0)
            await until_async(lambda: a.answers)
            assert (a.answers[0].reason, a.answers[0].groups) == ("deadline", ("speed",))


async def test_stored_data_has_the_documented_format(session: Callable[..., Any], shared_redis: RedisServer) -> None:
    async with session(count=1) as (name, a):
        await post_groups(a.store, name, {"speed": [2.0]})
        assert shared_redis.execute("HGETALL", keys_of(name)[0], database=DATABASE) == {
            b"format": b"1",
            b"name": b"brake",
            b"version": b"v1",
            b"rows": b"1",
            b"revision": b"1",
            b"g:speed": stored_group(name, "speed", [[2.0]]),
        }
        assert 50_000 < shared_redis.execute("PTTL", keys_of(name)[0], database=DATABASE) <= 60_000
        assert shared_redis.execute("ZCARD", SESSIONS_KEY, database=DATABASE) == 1


@pytest.mark.parametrize("rows", [2000, 3000], ids=["by the script", "by a command of its own"])
async def test_a_session_of_many_bytes_is_read_completely_and_followed(session: Callable[..., Any], rows: int) -> None:
    async with session(rows=rows, max_rows=rows) as (name, first, second):
        for group in ("speed", "hog"):
            await post_groups(first.store, name, {group: values_of(1.0, rows)(group)})
        assert (await answered(second.store, name)).missing == ("lab",)
        await second.wait(name, 10_000.0)
        await post_groups(first.store, name, {"lab": values_of(2.0, rows)("lab")})
        await until_async(lambda: bool(second.answers))
        np.testing.assert_array_equal(second.answers[0].prediction, (await answered(first.store, name)).prediction)
        await first.store.delete(name)
        with pytest.raises(GoneSessionError):
            await answered(second.store, name)


async def test_a_session_is_at_most_as_large_as_can_be_read_in_time(replicas: Callable[..., Any]) -> None:
    async with replicas() as (first, second):
        first.models._readable, first.models._seen = 600, None
        first.models.notice()
        name = await first.store.create(MODEL, 20, ANYONE)
        session = await first.store.get(name)
        small = {"speed": [[1.0]] * 20, "lab": [[1.0]] * 20}
        await session.add_groups(small)
        await session.add_groups(small)  # replaced groups do not add up
        with pytest.raises(BodyTooLargeError, match="expected at most 600, so that it is read in time"):
            await session.add_groups({"hog": [[1.0, 2.0]] * 20})
        assert (await answered(second.store, name)).missing == ("hog",)
