"""The stages of a connection: the table that runs, and the limits of size, without a socket."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime_service.server.stages import MAX_DISCARDED, TRANSITIONS, ConnectionState, Event, Stage

HEAD, BUSY, TAIL, IDLE, LAST = Stage
MAX_HEAD, MAX_BODY = 100, 1_000


@pytest.fixture
def state() -> ConnectionState:
    return ConnectionState(MAX_HEAD, MAX_BODY)


def request(state: ConnectionState, size: int = 40, body: int = 0) -> None:
    """Receive a complete request in one slice."""
    assert state.receive(size + body)
    state.begin_request()
    state.end_head()
    if body:
        assert state.body(body)
    state.advance(Event.BODY_END)
    assert state.end_slice()


def test_every_stage_can_be_reached_and_only_the_last_one_is_final() -> None:
    assert set(TRANSITIONS) == set(Stage)
    reached = {HEAD}
    for _ in Stage:
        reached |= {after for stage in reached for after in TRANSITIONS[stage].values()}
    assert reached == set(Stage)
    assert {stage for stage in Stage if set(TRANSITIONS[stage].values()) == {stage}} == {LAST}
    assert all(row[Event.REFUSAL] is LAST for row in TRANSITIONS.values()), "the server may refuse at any time"


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("event", Event)
def test_the_state_goes_where_the_table_says(stage: Stage, event: Event, state: ConnectionState) -> None:
    state.stage = stage
    after = TRANSITIONS[stage].get(event)
    if after is None:
        with pytest.raises(KeyError):
            state.advance(event)
        assert (state.stage, state.visit) == (stage, 0)
    else:
        state.advance(event)
        assert (state.stage, state.visit) == (after, int(after is not stage))


def test_a_connection_is_idle_between_requests_and_each_visit_differs(state: ConnectionState) -> None:
    stages = []
    for _ in range(2):
        request(state, body=10)
        stages.append(state.stage)
        state.advance(Event.RESPONSE)
        stages.append(state.stage)
    assert stages == [BUSY, IDLE, BUSY, IDLE]
    assert state.visit == 5, "the second request waits in a HEAD of its own"


def test_an_early_response_leaves_a_limited_body(state: ConnectionState) -> None:
    state.receive(40)
    state.begin_request()
    state.end_head()
    state.end_slice()
    state.advance(Event.EARLY_RESPONSE)
    assert state.stage is TAIL
    for _ in range(MAX_BODY // 100):
        state.receive(100)
        assert state.body(100)
        assert state.end_slice()
    state.receive(1)
    assert not state.body(1)


def test_what_follows_the_last_response_is_limited(state: ConnectionState) -> None:
    state.advance(Event.REFUSAL)
    assert state.receive(MAX_DISCARDED)
    assert not state.receive(1)
    for event in Event:
        state.advance(event)
        assert state.stage is LAST


@pytest.mark.parametrize(
    "deliver",
    [
        lambda state: state.receive(MAX_HEAD) and state.end_slice(),
        lambda state: all(state.receive(10) and state.end_slice() for _ in range(10)),
    ],
    ids=["at once", "in pieces"],
)
def test_a_head_may_have_as_many_bytes_as_the_limit(
    deliver: Callable[[ConnectionState], bool], state: ConnectionState
) -> None:
    assert deliver(state)
    assert not (state.receive(1) and state.end_slice())


def test_a_repeated_head_counts_once(state: ConnectionState) -> None:
    state.receive(90)
    state.begin_request()
    state.end_head()
    state.repeat_head()
    state.begin_request()
    state.end_head()
    assert state.pieces == 1
    assert state.end_slice()
    state.receive(11)
    assert state.end_slice()
    state.receive(90)
    assert not state.end_slice(), "11 bytes of framing were counted before"


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_framing_is_limited_however_it_is_cut(sizes: list[int]) -> None:
    state = ConnectionState(MAX_HEAD, MAX_BODY)
    request(state)
    total = 0
    for size in sizes:  # after the request: blank lines, or a head that never ends
        total += size
        fits = state.receive(size) and state.end_slice()
        assert fits == (total <= MAX_HEAD)
        if not fits:
            return
