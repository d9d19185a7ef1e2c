"""Mirrors of sessions: in whichever order snapshots and messages arrive, every group is applied exactly once."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime.inference.prediction import Prediction
from anytime_service.errors import DamagedSessionError
from anytime_service.limits.memory import Account
from anytime_service.models.registry import ModelRegistry
from anytime_service.sessions.redis_format import Bounds, SessionInfo, Snapshot, StoredGroup, pack_values
from anytime_service.sessions.redis_store import BEHIND, Mirror, ModelVersions, RedisSessions
from models.properties import quick
from service.serving import VALUES, logged, small_model

MODEL = small_model()
REGISTRY = ModelRegistry.of([MODEL])
NAME = "a-session"
BOUNDS = Bounds.of([MODEL], 10)


class Mirrored(RedisSessions):
    """Sessions of a replica that connects to no Redis; it is reported what its readings return."""

    def __init__(self) -> None:
        super().__init__("redis://localhost", 1.0, 10, 60.0, ModelVersions(lambda: REGISTRY, 60.0, 10))
        self.account = Account()
        self._reading[NAME] += 1
        self.subscribed(True)
        self._missed.clear()

    def read_at(self, posts: Posts, revision: int, *, requested: bool = True) -> Mirror:
        if requested and NAME in self._mirrors:  # after the messages that made it necessary
            self._mirrors[NAME].is_unread = False
        return self.apply(NAME, posts.snapshot(revision), MODEL, self.account)

    @property
    def must_read(self) -> bool:
        return self._mirrors[NAME].is_unread

    def leave(self) -> None:
        del self._reading[NAME]
        self._drop_idle(NAME)


def message(revision: int, groups: dict[str, list[float]]) -> bytes:
    """Return the message that a post publishes."""
    pieces = [each for name, values in groups.items() for each in (name.encode(), packed_of(name, values))]
    return b"".join(struct.pack("<I", len(each)) + each for each in (b"%d" % revision, NAME.encode(), *pieces))


def packed_of(name: str, values: list[float]) -> bytes:
    return pack_values(NAME, name, np.array([values]))


class Posts:
    """A session as the store has it: a log of posts, of one group each."""

    def __init__(self, *posts: tuple[str, float]) -> None:
        self.posts = [(name, [value] * len(VALUES[name])) for name, value in posts]

    def message(self, revision: int) -> bytes:
        name, values = self.posts[revision - 1]
        return message(revision, {name: values})

    def snapshot(self, revision: int) -> Snapshot:
        groups: dict[str, StoredGroup] = {}
        for number, (name, values) in enumerate(self.posts[:revision], start=1):
            groups[name] = StoredGroup(number, name in groups, packed_of(name, values))
        return Snapshot(SessionInfo(MODEL.name, MODEL.version, 1 if groups else None), revision, groups)

    def answer(self) -> Any:
        prediction = Prediction(MODEL, None)
        for name, values in self.posts:
            prediction.add(name, values)
        return prediction.answer()


THREE = Posts(("speed", 1.0), ("hog", 1.0), ("lab", 1.0))
posts = st.lists(st.tuples(st.sampled_from(sorted(VALUES)), st.sampled_from([-1.0, 0.5, 2.0])), min_size=1, max_size=12)


@quick(max_examples=150)
@given(posts, st.data())
def test_the_order_of_snapshots_and_messages_does_not_change_the_session(
    posted: list[tuple[str, float]], data: st.DataObject
) -> None:
    store, sessions = Posts(*posted), Mirrored()
    last = len(store.posts)
    reads = data.draw(st.lists(st.integers(0, last), min_size=1, max_size=3), label="revisions that are read")
    shown = sorted((data.draw(st.integers(read, last), label="when it is here"), read) for read in reads)
    dropped = data.draw(st.sets(st.integers(1, last)), label="messages that never come")
    for revision in range(last + 1):
        if revision and revision not in dropped:
            for _ in range(data.draw(st.integers(1, 2), label="times that it comes")):
                sessions.receive(store.message(revision))
        for _, read in [each for each in shown if each[0] == revision]:
            sessions.read_at(store, read, requested=read == revision)
    if sessions.must_read or dropped:
        sessions.read_at(store, last)
    assert sessions._mirrors[NAME].prediction.answer() == store.answer()


def test_after_a_gap_or_a_message_before_the_first_snapshot_the_session_is_read_again() -> None:
    sessions = Mirrored()
    mirror = sessions.read_at(THREE, 1)
    sessions.receive(THREE.message(3))
    assert (sessions.must_read, mirror.prediction.received) == (True, ("speed",))
    sessions.read_at(THREE, 3)
    assert (mirror.prediction.received, mirror.prediction.replaced) == (("speed", "hog", "lab"), {})
    early = Mirrored()
    early.receive(THREE.message(1))
    early.read_at(THREE, 0)
    assert early.must_read


def test_a_session_that_ends_while_it_is_read_is_read_again() -> None:
    sessions = Mirrored()
    sessions.read_at(THREE, 1)
    sessions.receive(message(0, {}))
    sessions.read_at(THREE, 1)  # a snapshot from before the end
    assert sessions.must_read


def test_answers_have_a_note_from_a_lost_subscription_until_no_message_can_be_missing() -> None:
    sessions = Mirrored()
    mirror = sessions.read_at(THREE, 1)
    answer = mirror.prediction.answer()
    assert mirror.noted(answer).note is None
    sessions.subscribed(False)
    assert mirror.noted(answer).note == BEHIND
    sessions.subscribed(True)
    assert sessions.must_read
    sessions.receive(THREE.message(3))
    assert mirror.noted(answer).note == BEHIND, "it has not been read yet"
    sessions.receive(THREE.message(2))
    assert mirror.noted(answer).note is None, "the next revision"
    sessions.subscribed(False)
    sessions.leave()
    sessions._reading[NAME] += 1
    assert sessions.read_at(THREE, 3).note == BEHIND


def test_a_false_revision_has_the_session_read_once() -> None:
    sessions = Mirrored()
    sessions.read_at(THREE, 1)
    sessions.receive(message(1_000, {"lab": [9.0]}))
    assert sessions.must_read
    mirror = sessions.read_at(THREE, 1)
    for revision in (2, 3):
        assert not sessions.must_read
        sessions.receive(THREE.message(revision))
    assert mirror.prediction.answer() == THREE.answer()


@pytest.mark.parametrize("values", [[1.0] * 10_000, [1.0, 2.0], [1e200]], ids=["many", "another width", "too large"])
def test_a_damaged_message_fails_the_predictions_of_its_session_and_no_other(
    values: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[tuple[str, type[Exception]]] = []
    monkeypatch.setattr(Mirror, "fail", lambda mirror, error: failures.append((mirror.id, type(error))))
    sessions = Mirrored()
    sessions.read_at(THREE, 0)
    sessions.apply("another", THREE.snapshot(0), MODEL, sessions.account)
    with logged("anytime_service") as records:
        sessions.receive(message(1, {"speed": values}))
    assert (failures, len(records)) == ([(NAME, DamagedSessionError)], 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        message(1, {"speed": [1.0]})[:-1],
        message(1, {"speed": [1.0]}) + b"x",
        message(1, {f"group {number}": [1.0] for number in range(BOUNDS.fields)}),
        message(-1, {"speed": [1.0]}),
        message(2**32, {"speed": [1.0]}),
        struct.pack("<I", 1) + b"1",
        b"\xff" * 40,
    ],
)
def test_content_that_is_not_a_message_is_ignored(content: bytes) -> None:
    sessions = Mirrored()
    mirror = sessions.read_at(THREE, 1)
    with logged("anytime_service") as records:
        sessions.receive(content)
    assert len(records) == 1
    sessions.receive(THREE.message(2))
    assert (mirror.revision, mirror.prediction.received) == (2, ("speed", "hog"))
