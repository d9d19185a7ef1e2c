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
from anytime_service.errors import DamagedSessionError, GoneSessionError, OverloadedError
from anytime_service.limits.memory import MemoryBudget
from anytime_service.sessions.mirrors import BEHIND, Mirrors
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
    return b"".join(struct.pack("<I", len(each)) + each for each in (NAME.encode(), b"%d" % revision, *pieces))


def packed_of(name: str, values: list[float]) -> bytes:
    return pack_values(NAME, name, np.array([values]))


class Posts:
    """A session as the store has it: a log of posts, of one group each."""

    def __init__(self, posts: list[tuple[str, float]]) -> None:
        self.posts = [(name, [value] * len(VALUES[name])) for name, value in posts]

    def message(self, revision: int) -> bytes:
        name, values = self.posts[revision - 1]
        return message(revision, {name: values})

    def snapshot(self, revision: int, since: int = 0) -> Snapshot:
        groups: dict[str, StoredGroup] = {}
        for number, (name, values) in enumerate(self.posts[:revision], start=1):
            groups[name] = StoredGroup(number, name in groups, packed_of(name, values))
        newer = {name: group for name, group in groups.items() if group.revision > since}
        return Snapshot(SessionInfo(MODEL.name, MODEL.version, 1 if groups else None), revision, newer)

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
    """Several reads are on their way at once, each requested after some revision that the mirror had, and end late."""
    store, last = Posts(posted), len(posted)
    pending: list[Snapshot] = []
    unread: list[str] = []
    mirrors = mirrored(unread.append)
    dropped = data.draw(st.sets(st.integers(1, last)), label="messages that never arrive")
    with mirrors.followed(NAME, ANYONE) as mirror:
        for revision in range(last + 1):
            if revision and revision not in dropped:
                for _ in range(data.draw(st.integers(1, 2), label="times that it arrives")):
                    mirrors.receive(store.message(revision))
            begun = data.draw(st.integers(0, 2), label="reads that begin")
            pending += [store.snapshot(revision, mirror.revision)] * begun
            for _ in range(data.draw(st.integers(0, len(pending)), label="reads that end")):
                place = data.draw(st.integers(0, len(pending) - 1), label="which one")
                mirror.apply(pending.pop(place), MODEL)
        for snapshot in pending:
            mirror.apply(snapshot, MODEL)
        if unread or dropped or mirror.session is None:  # as when the subscription was lost
            mirror.apply(store.snapshot(last, mirror.revision), MODEL)
        assert mirror.session is not None
        assert mirror.session.prediction.answer() == store.prediction().answer()
        assert mirror.revision == last


def test_a_session_is_read_after_a_gap_and_after_its_end_while_a_prediction_waits() -> None:
    store = Posts([("speed", 1.0), ("hog", 1.0), ("lab", 1.0)])
    unread: list[str] = []
    mirrors = mirrored(unread.append)
    mirrors.receive(store.message(1))
    with mirrors.followed(NAME, ANYONE) as mirror:
        assert unread == []
        mirrors.receive(store.message(2))
        assert unread == [NAME], "it has not been read yet"
        session = mirror.apply(store.snapshot(1), MODEL)
        mirrors.receive(store.message(1))
        mirrors.receive(store.message(3))
        assert (unread, session.prediction.received) == ([NAME] * 2, ("speed",))
        mirror.apply(store.snapshot(2, 1), MODEL)
        mirrors.receive(store.message(3))
        assert (unread, session.prediction.answer()) == ([NAME] * 2, store.prediction().answer())
        mirrors.receive(message(0, {}))
        assert unread == [NAME] * 3
    mirrors.receive(message(0, {}))
    assert (len(unread), len(mirrors._all)) == (3, 0)


def test_a_message_with_the_next_revision_removes_the_note() -> None:
    store = Posts([("speed", 1.0), ("hog", 1.0), ("lab", 1.0)])
    mirrors = mirrored()
    mirrors.mark_all(subscribed=True)
    with mirrors.followed(NAME, ANYONE) as mirror:
        session = mirror.apply(store.snapshot(1), MODEL)
        mirrors.mark_all(subscribed=False)
        mirrors.receive(store.message(3))
        assert session.note == BEHIND
        mirrors.receive(store.message(2))
        assert session.note is None


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


def test_a_session_that_ends_while_it_is_read_is_gone() -> None:
    with mirrored().followed(NAME, ANYONE) as mirror:
        mirror.end()
        with pytest.raises(GoneSessionError):
            mirror.apply(Posts([]).snapshot(0), MODEL)


def test_values_count_in_the_memory_budget_and_are_released() -> None:
    store = Posts([("speed", 1.0), ("hog", 1.0), ("lab", 1.0)])
    account = MemoryBudget(24)
    with mirrored().followed(NAME, account) as mirror:
        mirror.apply(store.snapshot(1), MODEL)
        assert account.bytes == 8
        mirror.apply(store.snapshot(2, 1), MODEL)
        assert account.bytes == 24
        with pytest.raises(OverloadedError):
            mirror.apply(store.snapshot(3, 2), MODEL)
        assert (account.bytes, mirror.revision) == (24, 2), "the next reading includes what was refused"
    assert account.bytes == 0
    account.most = 32
    mirror.apply(store.snapshot(3, 2), MODEL)
    assert account.bytes == 0, "a snapshot that arrives after the last prediction is not counted"


def test_values_of_another_width_fail_the_predictions_of_their_session_and_no_other() -> None:
    mirrors = mirrored()
    with (
        mirrors.followed(NAME, ANYONE) as mirror,
        mirrors.followed("another", ANYONE) as other,
        logged("anytime_service") as records,
    ):
        failures: list[Exception] = []
        others: list[Exception] = []
        for each, found in ((mirror, failures), (other, others)):
            each.apply(Posts([]).snapshot(0), MODEL)
            each.fail = found.append  # type: ignore[method-assign, assignment]
        mirrors.receive(message(1, {"speed": [1.0, 2.0]}))
    assert [type(error) for error in failures] == [DamagedSessionError]
    assert (others, len(records)) == ([], 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"\xff" * 40,
        message(1, {"speed": [1.0]})[:-1],
        message(1, {"speed": [1.0]}) + b"x",
        message(-1, {"speed": [1.0]}),
        message(2**32, {"speed": [1.0]}),
        message(1, {f"group {number}": [1.0] for number in range(100)}),
        message(1, {"speed": [1.0] * 10_000}),
    ],
)
def test_content_that_is_not_a_message_is_reported_and_ignored(content: bytes) -> None:
    with pytest.raises(DamagedSessionError):
        read_message(content, BOUNDS)
    mirrors = mirrored()
    with mirrors.followed(NAME, ANYONE), logged("anytime_service") as records:
        mirrors.receive(content)
    assert len(records) == 1
