from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime.answer import Answer
from anytime.errors import AnytimeError, ValuesError
from anytime.model import AnytimeModel
from anytime_service.errors import FieldError, OutOfTurnError
from anytime_service.protocol import TRANSITIONS, OpenPrediction, State
from service.serving import BASE_RATE, VALUES, small_model

MODEL = small_model()
EVENTS: dict[str, Callable[[OpenPrediction, float], Answer | None]] = {
    "begin": lambda opened, now: opened.begin(now),
    "group": lambda opened, now: opened.group(now, "speed", VALUES["speed"]),
    "groups": lambda opened, now: opened.groups(now, {"speed": VALUES["speed"]}),
    "end": lambda opened, now: opened.end(now),
    "deadline": lambda opened, now: opened.deadline(now),
    "drain": lambda opened, now: opened.drain(now),
}


def reach(state: State) -> OpenPrediction:
    opened = OpenPrediction(MODEL)
    if state is not State.NEW:
        opened.begin(0.0)
        opened.group(1.0, "hog", VALUES["hog"])
    if state is State.ANSWERED:
        opened.end(2.0)
    return opened


def test_the_table_names_events_that_exist() -> None:
    assert {event for _, event in TRANSITIONS} == set(EVENTS)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", State)
def test_every_event_in_every_state_does_what_the_table_says(state: State, event: str) -> None:
    opened = reach(state)
    if (state, event) in TRANSITIONS:
        answer = EVENTS[event](opened, 3.0)
        assert opened.state in TRANSITIONS[state, event]
        assert (answer is not None) == (opened.state is State.ANSWERED)
        return
    with pytest.raises(OutOfTurnError, match=event):
        EVENTS[event](opened, 3.0)
    assert opened.state is state
    assert opened.received == (() if state is State.NEW else ("hog",))


def test_an_illegal_event_does_not_show_in_the_answer() -> None:
    disturbed, quiet = OpenPrediction(MODEL), OpenPrediction(MODEL)
    for opened in (disturbed, quiet):
        opened.begin(0.0, budget=5.0)
    with pytest.raises(OutOfTurnError):
        disturbed.begin(1.0, rows=3, budget=1.0, policy="arrived")
    for opened in (disturbed, quiet):
        opened.group(2.0, "speed", [2.0])
    assert disturbed.end(3.0) == quiet.end(3.0)


def test_deadline_zero_answers_the_base_rate_at_once() -> None:
    answer = OpenPrediction(MODEL).begin(5.0, rows=2, deadline_ms=0)
    assert answer is not None
    assert (answer.prediction, answer.prefix, answer.complete) == ([BASE_RATE, BASE_RATE], 0, False)
    assert (answer.reason, answer.elapsed_ms) == ("deadline", 0.0)


def test_a_budget_that_buys_nothing_is_answered_at_once() -> None:
    answer = OpenPrediction(MODEL).begin(0.0, budget=0.5)
    assert answer is not None
    assert (answer.prediction, answer.reason, answer.complete) == (BASE_RATE, "budget", True)


@pytest.mark.parametrize(
    ("budget", "names", "reason"),
    [
        (1.0, ["speed"], "budget"),
        (9.9, ["speed", "hog"], "budget"),
        (10.0, list(VALUES), "complete"),
        (None, list(VALUES), "complete"),
    ],
)
def test_the_group_that_completes_the_budgets_prefix_brings_the_answer(
    budget: float | None, names: list[str], reason: str
) -> None:
    opened = OpenPrediction(MODEL)
    assert opened.begin(0.0, budget=budget) is None
    for name in names[:0:-1]:
        assert opened.group(1.0, name, VALUES[name]) is None
    answer = opened.group(2.0, names[0], VALUES[names[0]])
    assert answer is not None
    assert (answer.reason, answer.complete, answer.groups, answer.missing) == (reason, True, tuple(names), ())


def test_groups_outside_the_budgets_prefix_do_not_complete_it() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0, budget=5.0)
    assert opened.groups(1.0, {"hog": VALUES["hog"], "lab": VALUES["lab"]}) is None
    assert opened.state is State.OPEN


def test_arrived_without_moments_waits_for_the_budgets_prefix_like_the_policy_it_falls_back_to() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0, budget=1.0, policy="arrived")
    answer = opened.group(1.0, "speed", [2.0])
    assert answer is not None
    assert (answer.policy, answer.note is not None) == ("prefix", True)


def test_groups_after_the_deadline_are_named_and_not_used() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(100.0, deadline_ms=10.0)
    assert opened.group(110.0, "speed", [2.0]) is None
    assert opened.group(110.1, "hog", VALUES["hog"]) is None
    assert opened.groups(110.2, {"hog": VALUES["hog"], "lab": VALUES["lab"]}) is None
    answer = opened.end(111.0)
    assert (answer.groups, answer.late_groups, answer.reason) == (("speed",), ("hog", "lab"), "deadline")


def test_a_late_group_that_does_not_exist_is_still_an_error() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0, deadline_ms=1.0)
    with pytest.raises(FieldError, match="did you mean 'speed'"):
        opened.group(2.0, "sped", [1.0])
    assert opened.deadline(2.0).late_groups == ()


def test_a_timer_that_fires_early_is_believed() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0, deadline_ms=5.0)
    assert opened.deadline(4.1).reason == "deadline"


def test_draining_answers_from_what_is_here() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0)
    opened.group(1.0, "speed", [2.0])
    answer = opened.drain(2.0)
    assert (answer.reason, answer.prefix, answer.missing) == ("draining", 1, ("hog", "lab"))


def test_a_refused_group_changes_nothing_and_names_its_field() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0)
    with pytest.raises(FieldError) as error:
        opened.group(1.0, "hog", [1.0])
    assert error.value.field == "groups.hog"
    assert (opened.state, opened.received) == (State.OPEN, ())


@pytest.mark.parametrize("before", [{}, {"lab": [0.5]}])
def test_of_groups_that_come_together_all_are_taken_or_none(before: dict[str, list[float]]) -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0)
    opened.groups(1.0, before)
    with pytest.raises(FieldError):
        opened.groups(2.0, {"speed": [2.0], "hog": [1.0]})
    assert opened.received == tuple(before)
    answer = opened.groups(3.0, VALUES)
    assert answer is not None
    assert answer.groups == ("speed", "hog", "lab")


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 0},
        {"budget": -1.0},
        {"budget": float("nan")},
        {"deadline_ms": -1.0},
        {"deadline_ms": float("nan")},
        {"policy": "best"},
    ],
)
def test_a_refused_begin_can_be_mended(wrong: dict[str, Any]) -> None:
    opened = OpenPrediction(MODEL)
    with pytest.raises(ValuesError):
        opened.begin(0.0, **wrong)
    assert opened.state is State.NEW
    assert opened.begin(0.0) is None


Event = tuple[str, float, tuple[Any, ...]]
values = st.lists(st.floats(-5, 5) | st.none(), min_size=1, max_size=2)
events = st.one_of(
    st.tuples(
        st.just("begin"),
        st.tuples(
            st.integers(0, 2),
            st.none() | st.sampled_from([0.0, 1.0, 5.0, 10.0]),
            st.none() | st.floats(0, 20),
            st.sampled_from(["prefix", "arrived"]),
        ),
    ),
    st.tuples(st.just("group"), st.tuples(st.sampled_from(["speed", "hog", "blood", "lab", "none"]), values)),
    st.tuples(st.just("groups"), st.tuples(st.dictionaries(st.sampled_from(list(VALUES)), values))),
    st.tuples(st.sampled_from(["end", "deadline", "drain"]), st.just(())),
)
beginning = st.just(("begin", (1, None, 15.0, "prefix")))
logs = st.builds(lambda first, rest: [first, *rest], events | beginning, st.lists(events, max_size=8)).flatmap(
    lambda log: st.lists(st.floats(0, 5), min_size=len(log), max_size=len(log)).map(
        lambda gaps: [(name, sum(gaps[: i + 1]), args) for i, (name, args) in enumerate(log)]
    )
)


def replay(model: AnytimeModel, log: list[Event]) -> list[Answer | str | None]:
    opened = OpenPrediction(model)
    told: list[Answer | str | None] = []
    for name, now, arguments in log:
        before = (opened.state, opened.received)
        try:
            told.append(getattr(opened, name)(now, *arguments))
            assert opened.state in TRANSITIONS[before[0], name]
        except AnytimeError as error:
            told.append(str(error))
            assert (opened.state, opened.received) == before
    return told


@given(logs)
def test_the_same_log_gives_the_same_answers(log: list[Event]) -> None:
    told = replay(MODEL, log)
    assert told == replay(MODEL, log)
    assert sum(isinstance(each, Answer) for each in told) <= 1


@given(st.permutations(list(VALUES)), st.sampled_from([None, 0.0, 1.0, 5.0, 10.0]), st.integers(0, 3))
def test_what_came_decides_the_answer_not_in_which_order(order: list[str], budget: float | None, count: int) -> None:
    opened, reference = OpenPrediction(MODEL), MODEL.open()
    answer = opened.begin(0.0, budget=budget)
    for name in order[:count]:
        reference.add(name, VALUES[name])
        if answer is None:
            answer = opened.group(1.0, name, VALUES[name])
    answer = answer or opened.end(2.0)
    expected = reference.answer(budget)
    assert (answer.prediction, answer.groups, answer.complete) == (
        expected.prediction,
        expected.groups,
        expected.complete,
    )
