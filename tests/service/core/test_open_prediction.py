from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime.errors import AnytimeError, ValuesError
from anytime.inference.prediction import Answer, Prediction
from anytime.inference.subsets import arrived_model
from anytime_service.core.open_prediction import TRANSITIONS, OpenPrediction, State
from anytime_service.errors import FieldError, UnexpectedEventError
from anytime_service.schemas.options import PredictionOptions
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


def test_the_table_names_events_that_exist() -> None:
    assert {event for _, event in TRANSITIONS} == set(EVENTS)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("policy", EVERY_POLICY)
@pytest.mark.parametrize("state", State)
def test_every_event_in_every_state_does_what_the_table_says(state: State, policy: str, event: str) -> None:
    if (state, policy) == (State.SOLVING, "prefix"):
        return  # never
    opened = reach(state, policy)
    if (state, event) in TRANSITIONS:
        answer = EVENTS[event](opened, 3.0)
        assert opened.state in TRANSITIONS[state, event].values()
        assert (answer is not None) == (opened.state is State.ANSWERED)
        return
    with pytest.raises(UnexpectedEventError, match=event):
        EVENTS[event](opened, 3.0)
    assert opened.state is state
    assert opened.prediction.received == (() if state is State.NEW else ("hog",))


def test_deadline_zero_answers_the_base_rate_at_once() -> None:
    answer = OpenPrediction(MODEL).begin(5.0, PredictionOptions(rows=2, deadline_ms=0))
    assert answer is not None
    assert (answer.prediction, answer.prefix, answer.complete) == ([BASE_RATE, BASE_RATE], 0, False)
    assert (answer.reason, answer.elapsed_ms) == ("deadline", 0.0)


def test_a_budget_that_buys_nothing_is_answered_at_once() -> None:
    answer = OpenPrediction(MODEL).begin(0.0, PredictionOptions(budget=0.5))
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
    assert opened.begin(0.0, PredictionOptions(budget=budget)) is None
    for name in names[:0:-1]:
        assert opened.groups(1.0, {name: VALUES[name]}) is None
    answer = opened.groups(2.0, {names[0]: VALUES[names[0]]})
    assert answer is not None
    assert (answer.reason, answer.complete, answer.groups, answer.missing) == (reason, True, tuple(names), ())


def test_groups_outside_the_budgets_prefix_do_not_complete_it() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0, PredictionOptions(budget=5.0))
    assert opened.groups(1.0, {"hog": VALUES["hog"], "lab": VALUES["lab"]}) is None
    assert opened.state is State.OPEN


def test_arrived_without_moments_waits_for_the_budgets_prefix_like_the_policy_it_falls_back_to() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0, PredictionOptions(budget=1.0, policy="arrived"))
    answer = opened.groups(1.0, {"speed": [2.0]})
    assert answer is not None
    assert (answer.policy, answer.note is not None) == ("prefix", True)


def test_groups_after_the_deadline_are_used_and_named() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(100.0, PredictionOptions(deadline_ms=10.0))
    assert opened.groups(110.0, {"speed": [2.0]}) is None
    assert opened.groups(110.1, {"hog": VALUES["hog"]}) is None
    answer = opened.groups(110.2, {"hog": VALUES["hog"], "lab": VALUES["lab"]})
    assert answer is not None
    assert (answer.groups, answer.late_groups, answer.reason) == (tuple(VALUES), ("hog", "lab"), "deadline")


def test_a_shared_group_after_the_deadline_is_used_and_named() -> None:
    shared = Prediction(MODEL)
    opened = OpenPrediction(MODEL, shared)
    opened.begin(0.0, PredictionOptions(deadline_ms=10.0))
    shared.add("speed", VALUES["speed"])
    assert opened.took(10.1, ["speed"]) is None
    answer = opened.deadline(10.2)
    assert (answer.groups, answer.late_groups) == (("speed",), ("speed",))


def test_a_late_group_that_does_not_exist_is_still_an_error() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0, PredictionOptions(deadline_ms=1.0))
    with pytest.raises(FieldError, match="did you mean 'speed'"):
        opened.groups(2.0, {"sped": [1.0]})
    assert opened.deadline(2.0).late_groups == ()


def test_a_deadline_event_answers_even_if_it_is_early() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0, PredictionOptions(deadline_ms=5.0))
    assert opened.deadline(4.1).reason == "deadline"


def test_draining_answers_from_the_received_groups() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0)
    opened.groups(1.0, {"speed": [2.0]})
    answer = opened.drain(2.0)
    assert (answer.reason, answer.prefix, answer.missing) == ("draining", 1, ("hog", "lab"))


def test_a_refused_group_changes_nothing_and_names_its_field() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0)
    with pytest.raises(FieldError) as error:
        opened.groups(1.0, {"hog": [1.0]})
    assert error.value.field == "groups.hog"
    assert (opened.state, opened.prediction.received) == (State.OPEN, ())


@pytest.mark.parametrize("before", [{}, {"lab": [0.5]}])
def test_groups_that_arrive_together_are_accepted_all_or_none(before: dict[str, list[float]]) -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0)
    opened.groups(1.0, before)
    with pytest.raises(FieldError):
        opened.groups(2.0, {"speed": [2.0], "hog": [1.0]})
    assert opened.prediction.received == tuple(before)
    answer = opened.groups(3.0, VALUES)
    assert answer is not None
    assert answer.groups == ("speed", "hog", "lab")


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
    opened = OpenPrediction(MODEL)
    opened.begin(0.0, PredictionOptions(rows=None))
    assert opened.prediction.rows == 1
    opened.groups(1.0, {"speed": [[1.0], [2.0], [3.0]]})
    assert opened.prediction.rows == 3
    with pytest.raises(FieldError, match="expected 3 x 2"):
        opened.groups(2.0, {"hog": [1.0, 2.0]})
    with pytest.raises(ValuesError, match="expected 3"):
        opened.prediction.expect_rows(2)
    opened.prepare()
    assert len(opened.drain(3.0).prediction) == 3


def test_the_scores_of_several_rows_are_computed_before_the_deadline() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0, PredictionOptions(rows=2))
    opened.groups(1.0, {"speed": [[1.0], [2.0]]})
    opened.groups(1.0, {"hog": [[1.0, 2.0], [3.0, 4.0]]})
    opened.prepare()
    ready = opened.prediction._ready
    assert ready is not None
    assert ready[0] == opened.prediction.prefix == 2


def test_groups_that_arrive_together_have_one_number_of_rows() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0, PredictionOptions(rows=None))
    with pytest.raises(FieldError, match="'speed' has 1, 'hog' has 2") as error:
        opened.groups(1.0, {"speed": [[1.0]], "hog": [[1.0, 2.0], [3.0, 4.0]]})
    assert (error.value.field, opened.prediction.received) == ("groups", ())


def test_rows_are_ranked_by_their_scores_on_request() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0, PredictionOptions(rows=4, ranking=True))
    opened.groups(1.0, {"speed": [[1.0], [4.0], [4.0], [-2.0]]})
    answer = opened.end(2.0)
    assert answer is not None
    assert answer.ranking == np.argsort(-np.array(answer.prediction), kind="stable").tolist()
    with pytest.raises(FieldError, match="cannot rank rows") as error:
        OpenPrediction(small_model(responses=2)).begin(0.0, PredictionOptions(rows=4, ranking=True))
    assert error.value.field == "ranking"


def test_the_last_values_of_a_group_count_and_the_answer_says_so() -> None:
    opened, once = OpenPrediction(MODEL), OpenPrediction(MODEL)
    for each in (opened, once):
        each.begin(0.0)
    opened.groups(1.0, {"speed": [100.0]})
    for each in (opened, once):
        each.groups(2.0, {"speed": [2.0]})
    answer, expected = opened.end(3.0), once.end(3.0)
    assert answer is not None
    assert expected is not None
    assert answer == replace(expected, replaced=("speed",))


def test_an_update_is_returned_when_the_answer_changes() -> None:
    opened = OpenPrediction(MODEL)
    assert opened.update(0.0) is None
    opened.begin(0.0)
    assert opened.update(0.0) is None, "the base rate is nothing new"
    opened.groups(1.0, {"hog": VALUES["hog"]})
    assert opened.update(1.0) is None, "no longer prefix is complete"
    opened.groups(2.0, {"speed": VALUES["speed"]})
    better = opened.update(2.0)
    assert better is not None
    assert (better.prefix, better.reason, better.elapsed_ms) == (2, None, 2.0)
    assert opened.update(3.0) is None, "reported already"
    opened.groups(4.0, {"speed": [3.0]})
    again = opened.update(4.0)
    assert again is not None
    assert (again.prefix, again.replaced) == (2, ("speed",))
    assert again.prediction != better.prediction
    assert opened.end(5.0) is not None
    assert opened.update(6.0) is None


def test_an_update_under_arrived_is_never_worse_than_the_one_before() -> None:
    opened = OpenPrediction(trained_model())
    opened.begin(0.0, PredictionOptions(policy="arrived"))
    opened.groups(1.0, {"hog": VALUES["hog"]})
    assert opened.update(1.0) is None, "nothing is solved, and no prefix is complete"
    opened.solved(2.0, HOG, arrived_model(trained_model(), HOG))
    better = opened.update(2.0)
    assert better is not None
    assert (better.policy, better.groups) == ("arrived", ("hog",))
    opened.groups(3.0, {"speed": VALUES["speed"]})
    assert opened.update(3.0) is None, "the prefix stands in, and is worse than the reported answer"
    both = HOG | {"speed"}
    opened.solved(4.0, both, arrived_model(trained_model(), both))
    best = opened.update(4.0)
    assert best is not None
    assert best.groups == ("hog", "speed")


def test_an_end_under_arrived_waits_for_the_optimum() -> None:
    opened = reach(State.SOLVING)
    assert opened.unsolved == HOG
    assert opened.end(3.0) is None, "once is enough"
    answer = opened.solved(4.0, HOG, arrived_model(trained_model(), HOG))
    assert answer is not None
    assert (answer.reason, answer.policy, answer.groups, answer.note) == ("end", "arrived", ("hog",), None)
    expected = Prediction(trained_model())
    expected.add("hog", VALUES["hog"])
    assert answer.prediction == expected.answer(policy="arrived").prediction
    assert opened.unsolved is None


def test_the_end_does_not_wait_for_an_optimum_that_is_known() -> None:
    opened = reach(State.OPEN)
    assert opened.unsolved == HOG
    opened.solved(2.0, HOG, arrived_model(trained_model(), HOG))
    assert opened.unsolved is None
    answer = opened.end(3.0)
    assert answer is not None
    assert answer.policy == "arrived"


def test_the_deadline_does_not_wait_for_the_optimum_and_the_answer_says_so() -> None:
    for opened in (reach(State.SOLVING), reach(State.OPEN)):
        answer = opened.deadline(3.0)
        assert (answer.reason, answer.policy, answer.groups, answer.prefix) == ("deadline", "prefix", (), 0)
        assert "not solved yet" in str(answer.note)


def test_a_draining_service_does_not_wait_for_the_optimum() -> None:
    answer = reach(State.SOLVING).drain(3.0)
    assert (answer.reason, answer.policy, answer.note is not None) == ("draining", "prefix", True)


def test_after_the_deadline_the_optimum_of_what_arrived_still_answers_if_it_is_solved_first() -> None:
    opened = OpenPrediction(trained_model())
    opened.begin(0.0, PredictionOptions(deadline_ms=5.0, policy="arrived"))
    opened.groups(1.0, {"hog": VALUES["hog"]})
    assert opened.end(5.1) is None
    answer = opened.solved(5.2, HOG, arrived_model(trained_model(), HOG))
    assert answer is not None
    assert (answer.reason, answer.policy, answer.groups) == ("deadline", "arrived", ("hog",))


def test_an_end_after_the_deadline_has_the_deadline_for_its_reason() -> None:
    opened = OpenPrediction(MODEL)
    opened.begin(0.0, PredictionOptions(deadline_ms=5.0))
    answer = opened.end(5.1)
    assert answer is not None
    assert (answer.reason, answer.policy) == ("deadline", "prefix")


def test_where_the_optimum_is_refused_the_prefix_answers_and_says_so() -> None:
    opened = reach(State.SOLVING)
    answer = opened.solved(3.0, HOG, None)
    assert answer is not None
    assert (answer.reason, answer.policy, answer.prediction) == (
        "end",
        "prefix",
        Prediction(trained_model()).answer().prediction,
    )
    assert answer.note is not None


def test_the_optimum_of_another_set_does_not_answer() -> None:
    opened = reach(State.SOLVING)
    other = frozenset({"speed"})
    assert opened.solved(3.0, other, arrived_model(trained_model(), other)) is None
    assert (opened.state, opened.unsolved) == (State.SOLVING, HOG)


def test_groups_received_while_the_optimum_is_solved_change_what_is_solved() -> None:
    opened = reach(State.SOLVING)
    assert opened.groups(3.0, {"speed": VALUES["speed"]}) is None
    assert opened.groups(4.0, {"lab": VALUES["lab"]}) is None
    with pytest.raises(FieldError):
        opened.groups(4.0, {"lab": [1.0, 2.0]})
    assert opened.solved(5.0, HOG, arrived_model(trained_model(), HOG)) is None
    everything = frozenset(VALUES)
    assert opened.unsolved == everything
    answer = opened.solved(6.0, everything, arrived_model(trained_model(), everything))
    assert answer is not None
    assert (answer.groups, answer.late_groups, answer.reason) == (("lab", "hog", "speed"), (), "end")


def test_arrived_waits_for_every_group_and_for_the_optimum_of_them_all() -> None:
    opened = OpenPrediction(trained_model())
    opened.begin(0.0, PredictionOptions(policy="arrived"))
    for now, name in enumerate(VALUES):
        assert opened.groups(float(now), {name: VALUES[name]}) is None
    everything = frozenset(VALUES)
    assert (opened.state, opened.unsolved) == (State.SOLVING, everything)
    answer = opened.solved(9.0, everything, arrived_model(trained_model(), everything))
    assert answer is not None
    assert (answer.reason, answer.complete) == ("complete", True)
    assert answer.prediction == expected_prediction(VALUES, policy="prefix")


def test_arrived_within_a_budget_wants_the_optimum_of_what_fits() -> None:
    opened = OpenPrediction(trained_model())
    opened.begin(0.0, PredictionOptions(budget=6.0, policy="arrived"))
    opened.groups(1.0, {"speed": VALUES["speed"]})
    assert opened.unsolved == frozenset({"speed"})
    opened.groups(2.0, {"hog": VALUES["hog"]})
    assert opened.unsolved == HOG | {"speed"}
    opened.groups(3.0, {"lab": VALUES["lab"]})
    assert opened.unsolved == frozenset({"lab"}), "its 5 come first in the sequence, and then 4 more are too many"


def expected_prediction(groups: dict[str, Any], **options: Any) -> Any:
    prediction = Prediction(trained_model())
    for name, values in groups.items():
        prediction.add(name, values)
    return prediction.answer(**options).prediction


def test_groups_of_a_shared_prediction_count() -> None:
    shared = Prediction(MODEL)
    shared.add("speed", VALUES["speed"])
    opened = OpenPrediction(MODEL, shared)
    assert opened.begin(0.0, PredictionOptions(budget=5.0, deadline_ms=100.0)) is None
    assert opened.prediction.received == ("speed",)
    shared.add("lab", VALUES["lab"])
    assert opened.took(1.0, ["lab"]) is None
    shared.add("hog", VALUES["hog"])
    answer = opened.took(2.0, ["hog"])
    assert answer is not None
    assert (answer.reason, answer.groups, answer.elapsed_ms) == ("budget", ("speed", "hog"), 2.0)


def test_a_prediction_whose_groups_are_all_received_is_answered_at_once() -> None:
    shared = Prediction(trained_model())
    for name, values in VALUES.items():
        shared.add(name, values)
    answer = OpenPrediction(trained_model(), shared).begin(0.0)
    assert answer is not None
    assert answer.reason == "complete"
    waiting = OpenPrediction(trained_model(), shared)
    assert waiting.begin(0.0, PredictionOptions(policy="arrived")) is None
    assert waiting.state is State.SOLVING


Event = tuple[str, float, tuple[Any, ...]]
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
    answer: Answer | None = getattr(opened, name)(now, *arguments)
    return answer


def replay(log: list[Event], seen: set[tuple[State, str, State]] | None = None) -> list[Answer | str | None]:
    opened = OpenPrediction(trained_model())
    results: list[Answer | str | None] = []
    for name, now, arguments in log:
        before = (opened.state, opened.prediction.received, opened.unsolved, opened.deadline_at)
        try:
            results.append(apply(opened, name, now, arguments))
            assert opened.state in TRANSITIONS[before[0], name].values()
            if seen is not None:
                seen.add((before[0], name, opened.state))
        except AnytimeError as error:
            results.append(str(error))
            assert (opened.state, opened.prediction.received, opened.unsolved, opened.deadline_at) == before
    return results


@quick()
@given(logs)
def test_the_same_log_gives_the_same_answers(log: list[Event]) -> None:
    results = replay(log)
    assert results == replay(log)
    assert sum(isinstance(each, Answer) for each in results) <= 1


@quick()
@given(logs)
def test_rejected_events_do_not_change_later_answers(log: list[Event]) -> None:
    results = replay(log)
    accepted = [event for event, answer in zip(log, results, strict=True) if not isinstance(answer, str)]
    assert replay(accepted) == [answer for answer in results if not isinstance(answer, str)]


def about_to_want_a_set_that_is_solved() -> OpenPrediction:
    """A prediction that waits for the optimum of hog and has that of lab, which costs too much to be added to hog."""
    shared = Prediction(trained_model())
    shared.add("hog", VALUES["hog"])
    opened = OpenPrediction(trained_model(), shared)
    opened.begin(0.0, PredictionOptions(budget=6.0, policy="arrived"))
    lab = frozenset({"lab"})
    opened.solved(1.0, lab, arrived_model(trained_model(), lab))
    opened.end(2.0)
    assert (opened.state, opened.unsolved) == (State.SOLVING, HOG)
    shared.add("lab", VALUES["lab"])
    return opened


def test_every_transition_of_the_table_occurs() -> None:
    """Every transition is seen in some short log."""
    steps: list[tuple[str, tuple[Any, ...]]] = [
        *(("groups", ({name: VALUES[name]},)) for name in VALUES),
        ("groups", (VALUES,)),
        ("groups", ({"hog": VALUES["hog"], "lab": VALUES["lab"]},)),
        ("took", (["hog"],)),
        ("took", (list(VALUES),)),
        ("solved", (None, False)),
        ("solved", (frozenset({"speed"}), False)),
        *((event, ()) for event in ("end", "deadline", "drain")),
    ]
    begins = itertools.product((1,), (None, 0.0, 5.0), (None, 0.0, 1.5), EVERY_POLICY)
    seen: set[tuple[State, str, State]] = set()
    for begin in begins:
        for size in range(3):
            for chosen in itertools.product(steps, repeat=size):
                log = [("begin", 0.0, begin), *((name, i + 1.0, args) for i, (name, args) in enumerate(chosen))]
                replay(log, seen)
    full = Prediction(trained_model())
    for name in VALUES:
        full.add(name, VALUES[name])
    opened = OpenPrediction(trained_model(), full)
    opened.begin(0.0, PredictionOptions(policy="arrived"))
    seen.add((State.NEW, "begin", opened.state))
    for options in ({}, {"budget": 0.0}, {"policy": "arrived"}):
        opened = OpenPrediction(trained_model(), Prediction(trained_model()))
        opened.begin(0.0)
        for name in VALUES if options else ():
            opened.prediction.add(name, VALUES[name])
        opened.amend(1.0, PredictionOptions(**options))
        seen.add((State.OPEN, "amend", opened.state))
    for event, received in (("groups", {"lab": VALUES["lab"]}), ("took", ["lab"])):
        opened = about_to_want_a_set_that_is_solved()
        assert getattr(opened, event)(4.0, received).policy == "arrived"
        seen.add((State.SOLVING, event, opened.state))
    listed = {(state, event, to) for (state, event), targets in TRANSITIONS.items() for to in targets.values()}
    assert seen == listed


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
    if answer is None:
        answer = opened.end(2.0)
    wanted = opened.unsolved
    if answer is None and wanted is not None:
        answer = opened.solved(3.0, wanted, arrived_model(trained_model(), wanted))
    assert answer is not None
    expected = reference.answer(budget, policy)
    assert replace(answer, reason=None, elapsed_ms=0.0) == replace(expected, reason=None, elapsed_ms=0.0)
