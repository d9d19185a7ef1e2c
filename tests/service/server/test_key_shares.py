"""Shares of the limits: one key cannot use everything, and what it uses is counted exactly."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from select import select
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Opcode

from anytime.errors import AnytimeError
from anytime.inference.prediction import Prediction
from anytime_service.app import create_app
from anytime_service.clock import now_ms
from anytime_service.core.open_prediction import checked_groups
from anytime_service.core.service import ActivePrediction, PredictionService
from anytime_service.errors import OverloadedError
from anytime_service.keys import KEY, KeyRing, read_keys
from anytime_service.limits.memory import Account, Accounts
from anytime_service.limits.tuning import Tuning
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.options import PredictionOptions
from anytime_service.sessions.store import MemorySessions
from anytime_service.settings import Settings
from models.properties import quick
from service.doors import bearer
from service.loops import run
from service.raw_stream import raw, read_frame, text
from service.redis_server import RedisServer
from service.serving import VALUES, Collecting, Running, running, small_model
from waiting import WAIT_S, until

ANN, BOB = "ann-0123456789abcdef", "bob-0123456789abcdef"
BOTH = f"{ANN},{BOB}"
MODEL = small_model()


def test_a_single_key_may_use_the_full_limits() -> None:
    for listed in (ANN, f"{ANN},admin:{ANN}"):  # one key in two scopes
        keys = KeyRing(read_keys(listed))
        account = Accounts(Account(100), 0.5, keys).of_key(keys.current[0])
        account.check(100)
        assert (account.fits(100), bool(account.share_exhausted(1_000, 10))) == (True, False)
        with pytest.raises(OverloadedError, match="limit of 100"):
            account.check(101)


def test_a_share_is_at_least_one_and_its_refusal_names_the_share_and_no_key() -> None:
    keys, held = KeyRing(read_keys(BOTH)), Account(100)
    accounts = Accounts(held, 0.25, keys)
    account = accounts.of_key(keys.current[0])
    assert (account.share(100), account.share(2)) == (25, 1)
    account.add(20)
    assert (account.fits(5), account.fits(6), held.bytes) == (True, False, 20)
    with pytest.raises(
        OverloadedError, match=r"this API key has 20 bytes stored, and 6 more .* share, 25 of 100"
    ) as why:
        account.check(6, "groups")
    assert why.value.field == "groups"
    assert "ann" not in str(why.value)
    accounts.of_key(keys.current[1]).check(25)
    accounts.anonymous.add(78)
    with pytest.raises(OverloadedError, match="limit of 100"):
        account.check(4)
    assert accounts.of({KEY: keys.current[0]}) is account
    assert accounts.of({}) is accounts.anonymous
    assert account.owner != accounts.of_key(keys.current[1]).owner


def test_a_second_key_halves_the_share_of_the_first_and_a_removed_key_keeps_its_account(tmp_path: Path) -> None:
    file, held = tmp_path / "keys", Account(100)
    file.write_text(ANN)
    keys = KeyRing((), file)
    (ann,) = keys.current
    accounts = Accounts(held, 0.5, keys)
    account = accounts.of_key(ann)
    assert accounts.of_key(read_keys(f"admin:{ANN}")[0]) is account, "a key is one, however often it is read"
    account.add(80)
    file.write_text(f"{ANN}\n{BOB}\n")
    keys.read()
    assert not account.fits(1)
    file.write_text(BOB)
    keys.read()
    assert accounts.of_key(ann) is account, "as long as something is counted on it"
    account.add(-80)
    assert held.bytes == 0
    del account
    gc.collect()
    assert len(accounts._all) == 0


class Steps:
    """Random steps of two keys and of requests without one, in process."""

    def __init__(self) -> None:
        self.keys = KeyRing(read_keys(BOTH))
        settings = Settings(max_open=6, max_held_bytes=400, max_sessions=4)
        self.service = PredictionService(ModelRegistry.of([MODEL]), settings, keys=self.keys)
        self.sessions = MemorySessions(4, 60.0)
        self.accounts = [*map(self.service.accounts.of_key, self.keys.current), self.service.memory]
        self.lives: list[Any] = []
        self.joined: set[Any] = set()
        self.names: list[str] = []

    async def step(self, kind: str, who: int, which: int) -> None:
        account, group = self.accounts[who], sorted(VALUES)[which % 3]
        live = self.lives[which % len(self.lives)] if self.lives else None
        name = self.names[which % len(self.names)] if self.names else ""
        with suppress(AnytimeError):  # refused: out of turn, over a limit, gone
            if kind == "open":
                self.lives.append(self.open(account))
            elif kind == "create":
                self.names.append(await self.sessions.create(MODEL, None, account))
            elif kind == "take":
                await (await self.sessions.get(name)).add_groups({group: [VALUES[group]] * (1 + which % 2)})
            elif kind == "wait":
                async with self.sessions.read(name, None, account) as session:
                    self.lives.append(self.open(account, session.prediction))
                    self.joined.add(self.lives[-1])
                    if not self.lives[-1].answered:
                        session.join(self.lives[-1])
            elif kind == "delete":
                await self.sessions.delete(name)
            elif kind == "rotate":
                self.keys.several = not self.keys.several
            elif kind == "group":
                if live is not None and live not in self.joined:  # a session receives its groups itself
                    live.groups(checked_groups(live.machine.prediction, {group: VALUES[group]}))
            elif live is not None:
                getattr(live, kind)(*([ValueError()] if kind == "fail" else []))

    def open(self, account: Account, shared: Prediction | None = None) -> ActivePrediction:
        options = PredictionOptions(deadline_ms=5_000)
        return self.service.open(options, now_ms(), Collecting(), shared=shared, account=account)

    def check(self) -> None:
        core = self.service
        assert sum(account.bytes for account in self.accounts[:-1]) <= core.memory.bytes
        assert set().union(*(account.active for account in self.accounts)) == core.active
        assert sum(len(account.active) for account in self.accounts) == len(core.active) <= 6
        assert sum(account.sessions for account in self.accounts) == len(self.sessions) <= 4
        assert 0 <= core.memory.bytes <= 400


KINDS = ("open", "group", "end", "drop", "drain", "fail", "create", "take", "wait", "delete", "rotate")
steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.integers(0, 5)), max_size=40)


@quick(max_examples=400)
@given(steps)
def test_use_by_key_is_counted_exactly_and_is_zero_at_the_end(events: list[tuple[str, int, int]]) -> None:
    async def main() -> None:
        these = Steps()
        for kind, who, which in events:
            await these.step(kind, who, which)
            these.check()
        for live in these.lives:
            live.drop()
        for name in these.names:
            with suppress(AnytimeError):
                await these.sessions.delete(name)
        these.check()
        assert (these.service.memory.bytes, len(these.service.active), len(these.sessions)) == (0, 0, 0)
        assert all((each.bytes, len(each.active), each.sessions) == (0, 0, 0) for each in these.accounts)
        await these.sessions.close()

    run(main())


@contextmanager
def served(**limits: Any) -> Iterator[tuple[Running, PredictionService]]:
    """A service with two keys, and its core."""
    settings = Settings(port=0, api_keys=BOTH, session_store_timeout_ms=5_000, **limits)
    app = create_app(ModelRegistry.of([MODEL]), settings)
    with running(app, settings) as service:
        yield service, app.state.service


def used(core: PredictionService) -> tuple[int, int, int]:
    """What the core counts: bytes, open predictions, accounts."""
    gc.collect()
    return core.memory.bytes, len(core.active), len(core.accounts._all)


Opener = Callable[[Running, PredictionService, str, ExitStack], Any]
"""Opens a prediction until the end of the stack; returns the problem if it is refused, else None."""


def by_stream(service: Running, _: PredictionService, key: str, stack: ExitStack) -> Any:
    stream = stack.enter_context(service.stream(additional_headers=bearer(key)))
    stream.say("begin", 1, deadline_ms=9_000)
    stream.say("end", "never begun")
    problem = stream.problem()
    return problem if problem["id"] == 1 else None


def by_post(service: Running, core: PredictionService, key: str, stack: ExitStack) -> Any:
    before, connection = len(core.active), stack.enter_context(service.connect())
    connection.head("deadline_ms=9000", length=10_000, **bearer(key))
    until(lambda: len(core.active) > before or bool(select([connection.sock], [], [], 0)[0]))
    return None if len(core.active) > before else connection.response()[2]


@pytest.mark.parametrize("open_one", [by_stream, by_post])
def test_one_key_opens_at_most_its_share(open_one: Opener) -> None:
    with served(max_open=4) as (service, core):
        with ExitStack() as stack:
            assert [open_one(service, core, ANN, stack) for _ in range(2)] == [None, None]
            until(lambda: len(core.active) == 2)
            problem = open_one(service, core, ANN, stack)
            assert (problem["status"], problem["type"]) == (503, "urn:anytime:problem:overloaded")
            assert "this API key has 2 open predictions, and its share is 2 of 4" in problem["detail"]
            assert open_one(service, core, BOB, stack) is None, "the other key is served"
            until(lambda: len(core.active) == 3)
        until(lambda: not core.active)
        with ExitStack() as stack:
            assert open_one(service, core, ANN, stack) is None, "what has ended is not counted"
        until(lambda: used(core) == (0, 0, 0))


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory"
    redis: RedisServer = request.getfixturevalue("shared_redis")
    redis.execute("FLUSHDB", database=6)
    return redis.url(6)


def test_one_key_begins_at_most_its_share_of_sessions(store: str) -> None:
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(served(max_sessions=5, session_store=store, session_ttl_s=600))[0]
            for _ in range(1 if store == "memory" else 2)
        ]

        def begin(key: str) -> httpx.Response:
            replicas.append(replicas.pop(0))
            return replicas[0].post_to("/sessions", headers=bearer(key))

        def names(key: str) -> list[str]:
            return [begin(key).json()["id"] for _ in range(2)]

        of_ann = names(ANN)
        for _ in range(2):  # at each replica
            refused = begin(ANN)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert "this API key has 2 sessions, and its share is 2 of 5" in refused.json()["detail"]
        of_bob = names(BOB)
        assert "share" in begin(BOB).json()["detail"]
        path = f"/sessions/{of_ann[0]}"
        assert replicas[0].post_to(f"{path}/groups", VALUES, headers=bearer(BOB)).status_code == 200
        for name, key in ((of_ann[0], BOB), (of_ann[1], ANN), (of_bob[0], ANN)):  # any key may end a session
            assert httpx.delete(f"{replicas[0].url}/sessions/{name}", headers=bearer(key)).status_code == 204
        assert len(names(ANN)) == 2
        assert begin(BOB).status_code == 201


def test_expired_sessions_of_a_key_are_not_counted(store: str) -> None:
    with served(max_sessions=2, session_store=store, session_ttl_s=1.0) as (service, _):
        assert service.post_to("/sessions", headers=bearer(ANN)).status_code == 201
        assert service.post_to("/sessions", headers=bearer(ANN)).status_code == 503
        until(lambda: service.post_to("/sessions", headers=bearer(ANN)).status_code == 201)


def test_a_damaged_count_of_a_keys_sessions_in_redis_is_corrected(shared_redis: RedisServer) -> None:
    shared_redis.execute("FLUSHDB", database=6)
    with served(max_sessions=4, session_store=shared_redis.url(6)) as (service, core):
        owner = core.accounts.of_key(read_keys(ANN)[0]).owner
        shared_redis.execute("SET", f"anytime:sessions:{owner}", "something", database=6)
        for status in (201, 201, 503):
            assert service.post_to("/sessions", headers=bearer(ANN)).status_code == status
        assert ANN.encode() not in b"".join(shared_redis.execute("KEYS", "*", database=6))


def test_one_key_stores_at_most_its_share_of_bytes() -> None:
    with served(max_held_bytes=4_000, max_rows=100) as (service, core):
        with ExitStack() as stack:
            half = text({"type": "begin", "id": 1, "model": "x" * 1_900})[:1_800]
            stack.enter_context(raw(service, key=ANN)).send(half)
            until(lambda: 1_700 < core.memory.bytes <= 1_800)
            other = stack.enter_context(raw(service, key=ANN))
            other.send(half)
            opcode, content = read_frame(other)
            assert (opcode, content[2:19]) == (Opcode.CLOSE, b"this API key has ")
            body = service.post_to("/predict", headers=bearer(ANN), content=b" " * 1_000)
            assert (body.status_code, "its share, 2000 of 4000 bytes" in body.json()["detail"]) == (503, True)
            stream = stack.enter_context(service.stream(additional_headers=bearer(ANN)))
            stream.say("begin", 1)
            stream.groups(1, {"speed": [[1.0]] * 50})
            assert stream.problem()["field"] == "groups.speed"
            answered = service.post_to("/predict", {"groups": {"speed": [[1.0]] * 50}}, headers=bearer(BOB))
            assert answered.status_code == 200, "the other key has its own share"
        until(lambda: used(core) == (0, 0, 0))


def test_a_key_removed_with_open_predictions_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{ANN}\n{BOB}\n")
    settings = Settings(port=0, api_keys_file=file, max_open=4, max_sessions=4, session_ttl_s=2)
    app = create_app(ModelRegistry.of([MODEL]), settings, tuning=Tuning(key_check_s=0.05))
    core: PredictionService = app.state.service
    with running(app, settings) as service, ThreadPoolExecutor(1) as threads, ExitStack() as stack:
        with service.stream(additional_headers=bearer(ANN)) as stream:
            stream.say("begin", 1, deadline_ms=9_000)
            stream.groups(1, {"speed": [2.0]})
            path = service.post_to("/sessions", headers=bearer(ANN)).headers["location"]
            assert service.post_to(f"{path}/groups", {"speed": [2.0]}, headers=bearer(ANN)).status_code == 200
            client = stack.enter_context(httpx.Client(base_url=service.url, headers=bearer(ANN), timeout=WAIT_S))
            waiting = threads.submit(client.get, f"{path}/predict?deadline_ms=1500")
            until(lambda: len(core.active) == 2)
            file.write_text(BOB)
            assert stream.answer(1)["reason"] == "draining"
            assert waiting.result(20).json()["reason"] == "deadline", "a request that was let in is answered"
        until(lambda: len(app.state.sessions) == 0)
        until(lambda: used(core) == (0, 0, 0))
        opened = [by_stream(service, core, BOB, stack) for _ in range(4)]
        assert opened == [None] * 4, "the only remaining key may use everything"
