from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime.errors import AnytimeError, ValuesError
from anytime.inference.contributions import Contributions
from anytime.inference.prediction import Answer, Prediction
from anytime.inference.subsets import arrived_model
from anytime.model.model import Model
from anytime_service.core.open_prediction import OVERLOADED, TRANSITIONS, Limits, OpenPrediction, State
from anytime_service.errors import FieldError, UnexpectedEventError
from anytime_service.schemas.options import PredictionOptions
from models.present import present
from models.properties import quick
from service.serving import BASE_RATE, VALUES, small_model, trained_model

MODEL = small_model()
"""Has its moments; its sequence is lab, hog, speed."""
HOG = frozenset({"hog"})
EVERY_POLICY = ("prefix", "arrived")
EVENTS: dict[str, Callable[[OpenPrediction, float], Answer | None]] = {
    "begin": lambda opened, now: opened.begin(now),
    "amend": lambda opened, now: opened.amend(now, opened.options),
    "groups": lambda opened, now: opened.groups(now, {"speed": VALUES["speed"]}),
    "took": lambda opened, now: opened.took(now, ["speed"]),
    "solved": lambda opened, now: opened.solved(now, HOG, None),
    "end": lambda opened, now: opened.end(now),
    "deadline": lambda opened, now: opened.deadline(now),
    "drain": lambda opened, now: opened.drain(now),
}


def reach(state: State, policy: Any = "arrived") -> OpenPrediction:
    opened = OpenPrediction(trained_model())
    if state is not State.NEW:
        opened.begin(0.0, PredictionOptions(policy=policy))
        opened.groups(1.0, {"hog": VALUES["hog"]})
    if state is State.SOLVING:
        assert opened.end(2.0) is None
    if state is State.ANSWERED:
        opened.drain(2.0)
    assert opened.state is state
    return opened


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("policy", EVERY_POLICY)
@pytest.mark.parametrize("state", State)
def test_every_event_in_every_state_does_what_the_table_says(state: State, policy: str, event: str) -> None:
    if (state, policy) == (State.SOLVING, "prefix"):
        return  # never
    opened = reach(state, policy)
    if (state, event) in TRANSITIONS:
        answer = EVENTS[event](opened, 3.0)
        assert opened.state in TRANSITIONS[state, event]
        assert (answer is not None) == (opened.state is State.ANSWERED)
        return
    with pytest.raises(UnexpectedEventError, match=event):
        EVENTS[event](opened, 3.0)
    assert opened.state is state
    assert opened.prediction.received == (() if state is State.NEW else ("hog",))


def some(*names: str) -> dict[str, Any]:
    return {name: VALUES[name] for name in names}


def began(model: Model = MODEL, shared: Prediction | None = None, **options: Any) -> OpenPrediction:
    """A prediction that has begun at 0 and waits."""
    opened = OpenPrediction(model, shared)
    assert opened.begin(0.0, PredictionOptions(**options)) is None
    return opened


Log = list[tuple[str, float, tuple[Any, ...]]]
HOG_AND_END: Log = [("groups", 1.0, (some("hog"),)), ("end", 2.0, ())]
EVERY: Log = [("groups", float(now), (some(name),)) for now, name in enumerate(VALUES, start=1)]
BASE = {"prediction": BASE_RATE, "prefix": 0}

ANSWERS: dict[str, tuple[dict[str, Any], Log, dict[str, Any]]] = {
    "a deadline of 0": (
        {"rows": 2, "deadline_ms": 0},
        [],
        {"prediction": [BASE_RATE] * 2, "complete": False, "reason": "deadline", "elapsed_ms": 0.0},
    ),
    "a budget that buys nothing": ({"budget": 0.5}, [], BASE | {"reason": "budget", "complete": True}),
    "the budget's prefix": ({"budget": 1.0}, EVERY[:1], {"reason": "budget", "groups": ("speed",), "missing": ()}),
    "the budget's prefix in another order": (
        {"budget": 9.9},
        EVERY[1::-1],
        {"reason": "budget", "complete": True, "groups": ("speed", "hog"), "missing": ()},
    ),
    "a budget for all": ({"budget": 10.0}, EVERY, {"reason": "complete", "groups": tuple(VALUES)}),
    "no budget": ({}, EVERY[::-1], {"reason": "complete", "groups": tuple(VALUES), "missing": ()}),
    "groups beyond the budget complete nothing": (
        {"budget": 5.0},
        [*EVERY[:0:-1], ("end", 4.0, ())],
        {"reason": "end", "groups": (), "missing": ("speed",)},
    ),
    "arrived without moments falls back to the prefix": (
        {"budget": 1.0, "policy": "arrived"},
        EVERY[:1],
        {"policy": "prefix", "reason": "budget", "note": "moments"},
    ),
    "groups after the deadline count and are named": (
        {"deadline_ms": 10.0},
        [("groups", 10.0, (some("speed"),)), ("groups", 10.1, (some("hog"),)), ("groups", 10.2, (some("hog", "lab"),))],
        {"groups": tuple(VALUES), "late_groups": ("hog", "lab"), "reason": "deadline"},
    ),
    "an early deadline": ({"deadline_ms": 5.0}, [("deadline", 4.1, ())], {"reason": "deadline"}),
    "an end after the deadline": ({"deadline_ms": 5.0}, [("end", 5.1, ())], {"reason": "deadline", "policy": "prefix"}),
    "a drain": (
        {},
        [*EVERY[:1], ("drain", 2.0, ())],
        {"reason": "draining", "prefix": 1, "missing": ("hog", "lab"), "elapsed_ms": 2.0},
    ),
}
ARRIVED: dict[str, tuple[dict[str, Any], Log, dict[str, Any]]] = {
    "an end waits for the optimum": (
        {},
        [*HOG_AND_END, ("end", 3.0, ()), ("solved", 4.0, (HOG, False))],
        {"reason": "end", "policy": "arrived", "groups": ("hog",), "note": None},
    ),
    "an end does not wait for a known optimum": (
        {},
        [HOG_AND_END[0], ("solved", 1.5, (HOG, False)), HOG_AND_END[1]],
        {"reason": "end", "policy": "arrived", "groups": ("hog",)},
    ),
    "a deadline does not wait for the optimum": (
        {},
        [*HOG_AND_END, ("deadline", 3.0, ())],
        {"reason": "deadline", "policy": "prefix", "groups": (), "prefix": 0, "note": "not solved yet"},
    ),
    "nor before an end": (
        {},
        [HOG_AND_END[0], ("deadline", 3.0, ())],
        {"reason": "deadline", "policy": "prefix", "groups": (), "prefix": 0, "note": "not solved yet"},
    ),
    "an optimum that is available at the deadline": (
        {},
        [HOG_AND_END[0], ("deadline", 3.0, ("optimum",))],
        {"reason": "deadline", "policy": "arrived", "groups": ("hog",)},
    ),
    "an optimum that is available a little before the deadline, after an end": (
        {},
        [*HOG_AND_END, ("deadline", 3.0, ("optimum",))],
        {"reason": "end", "policy": "arrived", "groups": ("hog",)},
    ),
    "an optimum that is available at a drain": (
        {},
        [*HOG_AND_END, ("drain", 3.0, ("optimum",))],
        {"reason": "draining", "policy": "arrived", "groups": ("hog",)},
    ),
    "a drain does not wait for the optimum": (
        {},
        [*HOG_AND_END, ("drain", 3.0, ())],
        {"reason": "draining", "policy": "prefix", "note": "not solved yet"},
    ),
    "an optimum after the deadline": (
        {"deadline_ms": 1.5},
        [*HOG_AND_END, ("solved", 5.2, (HOG, False))],
        {"reason": "deadline", "policy": "arrived", "groups": ("hog",)},
    ),
    "a refused optimum": (
        {},
        [*HOG_AND_END, ("solved", 3.0, (HOG, True))],
        {"reason": "end", "policy": "prefix", "groups": (), "note": "prefix"},
    ),
    "the optimum of another set does not answer": (
        {},
        [*HOG_AND_END, ("solved", 3.0, (frozenset({"speed"}), False)), ("solved", 4.0, (None, False))],
        {"reason": "end", "policy": "arrived", "groups": ("hog",)},
    ),
    "groups that want a set that is solved already": (
        {"budget": 6.0},
        [
            HOG_AND_END[0],
            ("solved", 1.5, (frozenset({"lab"}), False)),
            HOG_AND_END[1],
            ("groups", 3.0, (some("lab"),)),  # which costs too much to be added to hog
        ],
        {"reason": "end", "policy": "arrived", "groups": ("lab",)},
    ),
    "groups while the optimum is solved change what is solved": (
        {},
        [
            *HOG_AND_END,
            ("groups", 3.0, (some("speed"),)),
            ("groups", 4.0, (some("lab"),)),
            ("solved", 5.0, (HOG, False)),
            ("solved", 6.0, (frozenset(VALUES), False)),
        ],
        {"groups": ("lab", "hog", "speed"), "late_groups": (), "reason": "end"},
    ),
    "every group and the optimum of them all": (
        {},
        [*EVERY, ("solved", 9.0, (frozenset(VALUES), False))],
        {"reason": "complete", "complete": True, "groups": ("lab", "hog", "speed")},
    ),
    "the optimum of what the budget buys": (
        {"budget": 6.0},
        [*EVERY[:2], ("end", 4.0, ()), ("solved", 5.0, (HOG | {"speed"}, False))],
        {"groups": ("hog", "speed")},
    ),
    "the first of the sequence that the budget buys": (
        {"budget": 6.0},
        [*EVERY, ("solved", 5.0, (frozenset({"lab"}), False))],
        {"groups": ("lab",)},
    ),
}
"""Options, events (the last one answers), and fields of the answer; of a note, some words."""


@pytest.mark.parametrize("name", ANSWERS | ARRIVED)
def test_a_log_of_events_has_one_answer(name: str) -> None:
    model = MODEL if name in ANSWERS else trained_model()
    options, log, expected = (ANSWERS | ARRIVED)[name]
    opened = OpenPrediction(model)
    answer = opened.begin(0.0, PredictionOptions(**({} if name in ANSWERS else {"policy": "arrived"}) | options))
    for event, now, arguments in log:
        assert answer is None
        answer = apply(opened, event, now, arguments)
    assert answer is not None
    assert (expected.get("note") or "") in str(answer.note)
    found = {field: getattr(answer, field) for field in expected}
    assert found == expected | ({"note": answer.note} if expected.get("note") else {})
    assert opened.unsolved is None
    if answer.policy == "arrived":
        literal = Prediction(model)
        literal.add_all({group: np.array([VALUES[group]]) for group in answer.groups})
        assert answer.prediction == literal.answer(policy="arrived").prediction


@pytest.mark.parametrize(
    ("limit", "rows", "note"),
    [
        (12, 3, None),
        (12, 4, "no contributions: 4 rows x 4 columns x 1 scores are more than 12; explain fewer rows at once"),
        (3, 1, "no contributions: 4 columns x 1 scores are more than 3"),
    ],
)
def test_an_answer_with_too_many_contributions_has_none_and_says_why(limit: int, rows: int, note: str | None) -> None:
    opened = OpenPrediction(MODEL, None, Limits(max_contributions=limit))
    opened.begin(0.0, PredictionOptions(rows=rows, explain=True))
    opened.groups(1.0, {"speed": [[2.0]] * rows})
    for answer in (opened.update(2.0), opened.end(3.0)):
        assert answer is not None
        assert (answer.note, answer.contributions is None) == (note, note is not None)


def test_the_base_rate_of_an_overloaded_server_has_the_intercept_alone() -> None:
    answer = present(OpenPrediction(MODEL).begin(0.0, PredictionOptions(explain=True), overloaded=True))
    assert (answer.contributions, answer.note) == (Contributions(BASE_RATE, {}, {}), OVERLOADED)


def test_a_shared_group_after_the_deadline_is_used_and_named_and_one_that_does_not_exist_is_an_error() -> None:
    shared = Prediction(MODEL)
    opened = began(shared=shared, deadline_ms=10.0)
    shared.add("speed", VALUES["speed"])
    assert opened.took(10.1, ["speed"]) is None
    with pytest.raises(FieldError, match="did you mean 'speed'"):
        opened.groups(10.1, {"sped": [1.0]})
    answer = opened.deadline(10.2)
    assert (answer.groups, answer.late_groups) == (("speed",), ("speed",))


@pytest.mark.parametrize("before", [{}, {"lab": [0.5]}])
def test_groups_that_arrive_together_are_accepted_all_or_none(before: dict[str, list[float]]) -> None:
    opened = began()
    opened.groups(1.0, before)
    with pytest.raises(FieldError):
        opened.groups(2.0, {"speed": [2.0], "hog": [1.0]})
    assert opened.prediction.received == tuple(before)
    assert present(opened.groups(3.0, VALUES)).groups == ("speed", "hog", "lab")


@pytest.mark.parametrize(
    "wrong",
    [{"rows": 0}, {"budget": -1.0}, {"budget": float("nan")}, {"deadline_ms": -1.0}, {"deadline_ms": float("nan")}],
)
def test_begin_can_be_retried_after_an_error(wrong: dict[str, Any]) -> None:
    opened = OpenPrediction(MODEL)
    with pytest.raises(ValuesError):
        opened.begin(0.0, PredictionOptions(**wrong))
    assert opened.state is State.NEW
    assert opened.begin(0.0) is None


@pytest.mark.parametrize(
    "options",
    [
        {"rows": 2, "explain": True, "ranking": True},
        {"budget": 1.0},
        {"deadline_ms": 0.0},
        {"deadline_ms": 7.0, "policy": "best"},
    ],
)
def test_options_that_amend_a_prediction_count_as_if_it_had_begun_with_them(options: dict[str, Any]) -> None:
    amended, begun = OpenPrediction(MODEL), OpenPrediction(MODEL)
    amended.begin(1.0, PredictionOptions(deadline_ms=9.0))
    with pytest.raises(FieldError, match="there are 0 rows"):
        amended.amend(1.5, PredictionOptions(rows=0))
    stated = PredictionOptions(**{"deadline_ms": 9.0, **options})
    answers = [amended.amend(2.0, stated), begun.begin(1.0, stated)]
    assert amended.deadline_at == begun.deadline_at
    rows = options.get("rows", 1)
    for number, opened in enumerate((amended, begun)):
        if answers[number] is None:
            answers[number] = opened.groups(3.0, {"speed": [[2.0]] * rows}) or opened.end(4.0)
    ends = {"elapsed_ms": 0.0} if "deadline_ms" in options else {}
    first, second = [replace(answer, **ends) for answer in answers if answer is not None]
    assert first == second


def test_the_first_values_set_the_number_of_rows() -> None:
    opened = began(rows=None)
    with pytest.raises(FieldError, match="'speed' has 1, 'hog' has 2") as error:
        opened.groups(1.0, {"speed": [[1.0]], "hog": [[1.0, 2.0], [3.0, 4.0]]})
    assert (error.value.field, opened.prediction.rows, opened.prediction.received) == ("groups", 1, ())
    opened.groups(1.0, {"speed": [[1.0], [2.0], [3.0]]})
    assert opened.prediction.rows == 3
    with pytest.raises(FieldError, match="expected 3 x 2"):
        opened.groups(2.0, {"hog": [1.0, 2.0]})
    with pytest.raises(ValuesError, match="expected 3"):
        opened.prediction.expect_rows(2)
    opened.prepare()
    assert len(opened.drain(3.0).prediction) == 3


def test_rows_of_several_responses_are_not_ranked() -> None:
    with pytest.raises(FieldError, match="cannot rank rows") as error:
        OpenPrediction(small_model(responses=2)).begin(0.0, PredictionOptions(rows=4, ranking=True))
    assert error.value.field == "ranking"


def test_an_update_is_returned_when_the_answer_changes() -> None:
    opened = OpenPrediction(MODEL)
    assert opened.update(0.0) is None
    opened.begin(0.0)
    assert opened.update(0.0) is None, "the base rate is nothing new"
    opened.groups(1.0, {"hog": VALUES["hog"]})
    assert opened.update(1.0) is None, "no longer prefix is complete"
    opened.groups(2.0, {"speed": VALUES["speed"]})
    better = present(opened.update(2.0))
    assert (better.prefix, better.reason, better.elapsed_ms) == (2, None, 2.0)
    assert opened.update(3.0) is None, "reported already"
    opened.groups(4.0, {"speed": [3.0]})
    again = present(opened.update(4.0))
    assert (again.prefix, again.replaced) == (2, ("speed",))
    assert again.prediction != better.prediction
    assert opened.end(5.0) is not None
    assert opened.update(6.0) is None


def test_an_update_under_arrived_is_never_worse_than_the_one_before() -> None:
    opened = began(trained_model(), policy="arrived")
    opened.groups(1.0, {"hog": VALUES["hog"]})
    assert opened.update(1.0) is None, "nothing is solved, and no prefix is complete"
    opened.solved(2.0, HOG, arrived_model(trained_model(), HOG))
    better = present(opened.update(2.0))
    assert (better.policy, better.groups) == ("arrived", ("hog",))
    opened.groups(3.0, {"speed": VALUES["speed"]})
    assert opened.update(3.0) is None, "the prefix stands in, and is worse than the reported answer"
    both = HOG | {"speed"}
    opened.solved(4.0, both, arrived_model(trained_model(), both))
    assert present(opened.update(4.0)).groups == ("hog", "speed")


def test_groups_of_a_shared_prediction_count() -> None:
    shared = Prediction(MODEL)
    shared.add("speed", VALUES["speed"])
    opened = began(shared=shared, budget=5.0, deadline_ms=100.0)
    assert opened.prediction.received == ("speed",)
    shared.add("lab", VALUES["lab"])
    assert opened.took(1.0, ["lab"]) is None
    shared.add("hog", VALUES["hog"])
    answer = present(opened.took(2.0, ["hog"]))
    assert (answer.reason, answer.groups, answer.elapsed_ms) == ("budget", ("speed", "hog"), 2.0)


def test_a_prediction_whose_groups_are_all_received_is_answered_at_once() -> None:
    shared = Prediction(trained_model())
    shared.add_all({name: np.array([values]) for name, values in VALUES.items()})
    assert present(OpenPrediction(trained_model(), shared).begin(0.0)).reason == "complete"
    assert began(trained_model(), shared, policy="arrived").state is State.SOLVING


values = st.lists(st.floats(-5, 5) | st.none(), min_size=1, max_size=2)
names = st.sampled_from(list(VALUES))
events = st.one_of(
    st.tuples(
        st.just("begin"),
        st.tuples(
            st.none() | st.integers(0, 2),
            st.none() | st.sampled_from([0.0, 1.0, 5.0, 10.0]),
            st.none() | st.floats(0, 20),
            st.sampled_from(EVERY_POLICY),
        ),
    ),
    st.tuples(st.just("groups"), names.map(lambda name: ({name: VALUES[name]},))),
    st.tuples(st.just("groups"), st.tuples(st.dictionaries(names | st.sampled_from(["blood", "none"]), values))),
    st.tuples(st.just("solved"), st.tuples(st.none() | st.frozensets(names), st.booleans())),
    st.tuples(st.sampled_from(["end", "deadline", "drain"]), st.just(())),
)
beginning = st.sampled_from(EVERY_POLICY).map(lambda policy: ("begin", (1, None, 15.0, policy)))
logs = st.builds(lambda first, rest: [first, *rest], events | beginning, st.lists(events, max_size=8)).flatmap(
    lambda log: st.lists(st.floats(0, 5), min_size=len(log), max_size=len(log)).map(
        lambda gaps: [(name, sum(gaps[: i + 1]), args) for i, (name, args) in enumerate(log)]
    )
)


def apply(opened: OpenPrediction, name: str, now: float, arguments: Iterable[Any]) -> Answer | None:
    """Bring about one event of a log; what is solved is the set wanted, unless the log names another."""
    if name == "solved":
        named, refused = arguments
        groups = opened.unsolved or frozenset() if named is None else named
        return opened.solved(now, groups, None if refused else arrived_model(trained_model(), groups))
    if name == "begin":
        rows, budget, deadline_ms, policy = arguments
        return opened.begin(now, PredictionOptions(rows=rows, budget=budget, deadline_ms=deadline_ms, policy=policy))
    if arguments == ("optimum",):
        arguments = (arrived_model(trained_model(), present(opened.unsolved)),)
    answer: Answer | None = getattr(opened, name)(now, *arguments)
    return answer


def replay(log: Log) -> list[Answer | str | None]:
    opened = OpenPrediction(trained_model())
    results: list[Answer | str | None] = []
    for name, now, arguments in log:
        before = (opened.state, opened.prediction.received, opened.unsolved, opened.deadline_at)
        try:
            results.append(apply(opened, name, now, arguments))
            assert opened.state in TRANSITIONS[before[0], name]
        except AnytimeError as error:
            results.append(str(error))
            assert (opened.state, opened.prediction.received, opened.unsolved, opened.deadline_at) == before
    return results


@quick()
@given(logs)
def test_the_same_log_gives_the_same_answers_also_without_its_rejected_events(log: Log) -> None:
    results = replay(log)
    assert results == replay(log)
    assert sum(isinstance(each, Answer) for each in results) <= 1
    accepted = [event for event, answer in zip(log, results, strict=True) if not isinstance(answer, str)]
    assert replay(accepted) == [answer for answer in results if not isinstance(answer, str)]


@quick()
@given(
    st.permutations(list(VALUES)),
    st.sampled_from([None, 0.0, 1.0, 5.0, 9.0, 10.0]),
    st.integers(0, 3),
    st.sampled_from(EVERY_POLICY),
)
def test_the_order_of_arrival_does_not_change_the_answer(
    order: list[str], budget: float | None, count: int, policy: Any
) -> None:
    opened, reference = OpenPrediction(trained_model()), Prediction(trained_model())
    answer = opened.begin(0.0, PredictionOptions(budget=budget, policy=policy))
    for name in order[:count]:
        if answer is None and opened.state is State.OPEN:
            reference.add(name, VALUES[name])
            answer = opened.groups(1.0, {name: VALUES[name]})
    answer = answer or opened.end(2.0) or apply(opened, "solved", 3.0, (None, False))
    expected = reference.answer(budget, policy)
    assert replace(present(answer), reason=None, elapsed_ms=0.0) == replace(expected, reason=None, elapsed_ms=0.0)
