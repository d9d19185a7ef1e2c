"""Mirrors of sessions: in whichever order snapshots and messages arrive, every group is applied exactly once."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytime.inference.prediction import Prediction
from anytime_service.errors import DamagedSessionError, GoneSessionError
from anytime_service.limits.memory import MemoryBudget
from anytime_service.sessions.mirrors import BEHIND, MAX_PENDING, Mirrors
from anytime_service.sessions.redis_format import Bounds, SessionInfo, Snapshot, StoredGroup, pack_values, read_message
from service.serving import VALUES, logged, small_model

MODEL = small_model()
NAME = "a-session"
BOUNDS = Bounds.of([MODEL], 10)
ANYONE = MemoryBudget()


def mirrored(again: Callable[[str], None] = lambda _: None) -> Mirrors:
    return Mirrors(again, lambda: BOUNDS, lambda error: logging.getLogger("anytime_service").warning("%s", error))


def message(revision: int, groups: dict[str, list[float]]) -> bytes:
    """Return the message that a post publishes."""
    pieces = [each for name, values in groups.items() for each in (name.encode(), packed_of(name, values))]
    return b"".join(struct.pack("<I", len(each)) + each for each in (b"%d" % revision, NAME.encode(), *pieces))


def packed_of(name: str, values: list[float]) -> bytes:
    return pack_values(NAME, name, np.array([values]))


class Posts:
    """A session as the store has it: a log of posts, of one group each."""

    def __init__(self, posts: list[tuple[str, float]]) -> None:
        self.posts = [(name, [value] * len(VALUES[name])) for name, value in posts]

    def message(self, revision: int) -> bytes:
        name, values = self.posts[revision - 1]
        return message(revision, {name: values})

    def snapshot(self, revision: int) -> Snapshot:
        groups: dict[str, StoredGroup] = {}
        for number, (name, values) in enumerate(self.posts[:revision], start=1):
            groups[name] = StoredGroup(number, name in groups, packed_of(name, values))
        return Snapshot(SessionInfo(MODEL.name, MODEL.version, 1 if groups else None), revision, groups)

    def prediction(self) -> Prediction:
        prediction = Prediction(MODEL, None)
        for name, values in self.posts:
            prediction.add(name, values)
        return prediction


posts = st.lists(st.tuples(st.sampled_from(sorted(VALUES)), st.sampled_from([-1.0, 0.5, 2.0])), min_size=1, max_size=12)


@settings(max_examples=150)
@given(posts, st.data())
def test_the_order_of_snapshots_and_messages_does_not_change_the_session(
    posted: list[tuple[str, float]], data: st.DataObject
) -> None:
    store = Posts(posted)
    mirrors = mirrored()
    last = len(store.posts)
    reads = data.draw(st.lists(st.integers(0, last), min_size=1, max_size=3), label="revisions that are read")
    shown = sorted((data.draw(st.integers(read, last), label="when it is here"), read) for read in reads)
    dropped = data.draw(st.sets(st.integers(1, last)), label="messages that never come")
    with mirrors.followed(NAME, ANYONE) as mirror:
        for revision in range(last + 1):
            if revision and revision not in dropped:
                for _ in range(data.draw(st.integers(1, 2), label="times that it comes")):
                    mirrors.receive(store.message(revision))
            for _, read in [each for each in shown if each[0] == revision]:
                mirror.apply(store.snapshot(read), MODEL)
        if dropped:  # as when the subscription was lost
            mirror.apply(store.snapshot(last), MODEL)
        assert mirror.session is not None
        assert mirror.session.prediction.answer() == store.prediction().answer()


def test_after_a_gap_the_session_is_read_again_and_later_messages_wait() -> None:
    store = Posts([("speed", 1.0), ("hog", 1.0), ("lab", 1.0)])
    unread: list[str] = []
    mirrors = mirrored(unread.append)
    mirrors.mark_all(subscribed=True)
    with mirrors.followed(NAME, ANYONE) as mirror:
        session = mirror.apply(store.snapshot(1), MODEL)
        mirrors.receive(store.message(3))
        assert (unread, session.prediction.received) == ([NAME], ("speed",))
        mirror.apply(store.snapshot(2), MODEL)
        assert session.prediction.received == ("speed", "hog", "lab"), "what waited is taken without another reading"
        assert session.prediction.replaced == {}


def test_too_many_pending_messages_make_the_mirror_read_the_session_again() -> None:
    count = MAX_PENDING + 1
    store = Posts([("speed", float(number)) for number in range(count)])
    unread: list[str] = []
    mirrors = mirrored(unread.append)
    with mirrors.followed(NAME, ANYONE) as mirror:
        for revision in range(1, count + 1):
            mirrors.receive(store.message(revision))
        assert unread == [NAME]
        assert mirror.apply(store.snapshot(count), MODEL).prediction.answer() == store.prediction().answer()


def test_answers_have_a_note_from_a_lost_subscription_until_the_session_is_read_again() -> None:
    unread: list[str] = []
    mirrors = mirrored(unread.append)
    mirrors.mark_all(subscribed=True)
    with mirrors.followed(NAME, ANYONE) as mirror:
        session = mirror.apply(Posts([]).snapshot(0), MODEL)
        answer = session.prediction.answer()
        assert session.noted(answer).note is None
        mirrors.mark_all(subscribed=False)
        assert session.noted(answer).note == BEHIND
        mirrors.mark_all(subscribed=True)
        assert unread == [NAME]
        assert session.noted(answer).note == BEHIND, "it has not been read yet"
        mirror.mark(behind=False)
        assert session.noted(answer).note is None


def test_a_message_with_the_next_revision_removes_the_note() -> None:
    store = Posts([("speed", 1.0), ("hog", 1.0), ("lab", 1.0)])
    mirrors = mirrored()
    mirrors.mark_all(subscribed=True)
    with mirrors.followed(NAME, ANYONE) as mirror:
        session = mirror.apply(store.snapshot(1), MODEL)
        mirrors.mark_all(subscribed=False)
        mirrors.mark_all(subscribed=True)
        mirrors.receive(store.message(3))
        assert session.note == BEHIND
        mirrors.receive(store.message(2))
        assert session.note is None


def test_a_session_that_ends_while_it_is_read_is_gone() -> None:
    mirrors = mirrored()
    with mirrors.followed(NAME, ANYONE) as mirror:
        mirrors.receive(message(0, {}))
        with pytest.raises(GoneSessionError):
            mirror.apply(Posts([]).snapshot(0), MODEL)


def test_pending_messages_count_in_the_memory_budget_and_are_released() -> None:
    store = Posts([("speed", 1.0), ("hog", 1.0), ("lab", 1.0)])
    account = MemoryBudget(100)
    mirrors = mirrored()
    with mirrors.followed(NAME, account) as mirror:
        mirrors.receive(store.message(2))
        assert account.bytes == len(packed_of("hog", [1.0, 1.0]))
        mirror.apply(store.snapshot(1), MODEL)
        assert account.bytes == 24
        mirrors.receive(store.message(3))
        assert account.bytes == 32
    assert account.bytes == 0
    mirror.apply(store.snapshot(3), MODEL)
    assert account.bytes == 0, "a snapshot that arrives after the last prediction is not stored"


def test_a_session_without_waiting_predictions_has_no_mirror() -> None:
    mirrors = mirrored()
    with mirrors.followed(NAME, ANYONE) as mirror:
        mirror.apply(Posts([]).snapshot(0), MODEL)
        assert len(mirrors._all) == 1
    assert len(mirrors._all) == 0
    mirrors.receive(message(1, {"speed": [1.0]}))
    assert len(mirrors._all) == 0


def test_a_false_revision_is_dropped_after_one_reading() -> None:
    store = Posts([("speed", 1.0), ("hog", 1.0), ("lab", 1.0)])
    unread: list[str] = []
    mirrors = mirrored(unread.append)
    mirrors.mark_all(subscribed=True)
    with mirrors.followed(NAME, ANYONE) as mirror, logged("anytime_service") as records:
        session = mirror.apply(store.snapshot(1), MODEL)
        mirrors.receive(message(1_000, {"lab": [9.0]}))
        assert (unread, mirror.newest) == ([NAME], 1_000)
        mirror.apply(store.snapshot(1), MODEL, mirror.newest)
        assert (unread, mirror.newest, len(records)) == ([NAME], 0, 1), "nothing is left to read again for"
        mirrors.receive(store.message(2))
        mirrors.receive(store.message(3))
        assert session.prediction.answer() == store.prediction().answer()


@pytest.mark.parametrize("state", ["before the session has been read", "after a gap"])
def test_pending_messages_stay_within_the_memory_budget(state: str) -> None:
    store = Posts([("speed", 1.0), ("hog", 1.0), ("lab", 1.0)])
    unread: list[str] = []
    account = MemoryBudget(100)
    mirrors = mirrored(unread.append)
    with mirrors.followed(NAME, account) as mirror:
        if state == "after a gap":
            mirror.apply(store.snapshot(0), MODEL)
        mirrors.receive(store.message(2))
        assert account.bytes == len(packed_of("hog", [1.0, 1.0]))
        unread.clear()
        for revision in (4, 5, 6):
            mirrors.receive(message(revision, {"lab": [1.0], "hog": [1.0, 1.0]}))
            assert account.bytes <= 100
        assert NAME in unread, "what was dropped is read"
        assert mirror.apply(store.snapshot(3), MODEL).prediction.answer() == store.prediction().answer()


@pytest.mark.parametrize(
    "content",
    [
        message(-1, {"speed": [1.0]}),
        message(2**32, {"speed": [1.0]}),
        message(1, {f"group {number}": [1.0] for number in range(100)}),
        message(1, {"speed": [1.0] * 10_000}),
        message(1, {"speed": [1.0, 2.0]}),
    ],
    ids=["a negative revision", "a revision too large", "too many groups", "too many bytes", "values of another width"],
)
def test_a_damaged_message_fails_the_predictions_of_its_session_and_no_other(content: bytes) -> None:
    mirrors = mirrored()
    mirrors.mark_all(subscribed=True)
    with (
        mirrors.followed(NAME, ANYONE) as mirror,
        mirrors.followed("another", ANYONE) as other,
        logged("anytime_service") as records,
    ):
        mirror.apply(Posts([]).snapshot(0), MODEL)
        other.apply(Posts([]).snapshot(0), MODEL)
        failures: list[Exception] = []
        others: list[Exception] = []
        mirror.fail, other.fail = failures.append, others.append  # type: ignore[method-assign, assignment]
        mirrors.receive(content)
    assert [type(error) for error in failures] == [DamagedSessionError]
    assert (others, len(records)) == ([], 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        message(1, {"speed": [1.0]})[:-1],
        message(1, {"speed": [1.0]}) + b"x",
        message(1, {f"group {number}": [1.0] for number in range(BOUNDS.fields)}),
        b"\xff" * 40,
    ],
)
def test_content_that_is_not_a_message_is_an_error(content: bytes) -> None:
    with pytest.raises(DamagedSessionError):
        read_message(content, BOUNDS)
