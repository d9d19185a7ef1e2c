"""The doubles for users' tests answer as the library does, and never wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from anytime import Runner
from anytime.errors import ExtractorError, ValuesError
from anytime.testing import FakeClock, ScriptedRunner, linear_model

MODEL = linear_model({"quick": [1.0], "slow": [10.0, 2.0]}, intercept=5.0, costs={"slow": 4.0})
EXTRACTORS: dict[str, Any] = {"quick": lambda x: [x], "slow": lambda x: [x, 1.0]}


def test_a_model_of_a_few_numbers_predicts_their_sum() -> None:
    prediction = MODEL.open()
    assert (MODEL.steps, MODEL.costs.tolist(), prediction.answer().prediction) == (2, [0.0, 1.0, 5.0], 5.0)
    prediction.add("slow", [1.0, 2.0])
    assert prediction.answer().prediction == 5.0, "the prefix needs the first group"
    prediction.add("quick", [3.0])
    assert prediction.answer().prediction == 5.0 + 3.0 + 10.0 + 4.0
    assert prediction.answer(budget=2.0).prediction == 8.0


def test_a_scripted_run_in_time_is_the_answer_of_a_runner() -> None:
    with ScriptedRunner(MODEL, EXTRACTORS) as scripted, Runner(MODEL, EXTRACTORS) as runner:
        for budget in (None, 2.0, 0.5):
            found, real = scripted.run(2.0, 10_000, budget=budget), runner.run(2.0, 10_000, budget=budget)
            assert (found.prediction, found.groups, found.reason) == (real.prediction, real.groups, real.reason)


def test_a_late_group_is_computed_and_not_used_and_the_clock_stands_at_the_deadline() -> None:
    clock = FakeClock(100.0)
    runner = ScriptedRunner(MODEL, EXTRACTORS, took_ms={"quick": 5.0, "slow": 30.0}, clock=clock)
    answer = runner.run(2.0, 20)
    assert (answer.prediction, answer.groups, answer.missing) == (7.0, ("quick",), ("slow",))
    assert (answer.reason, answer.unused_groups, answer.elapsed_ms, clock.ms) == ("deadline", ("slow",), 20.0, 120.0)
    assert runner.run(2.0, 35).reason == "complete"
    assert clock.ms == 155.0


def test_a_failed_group_ends_the_run() -> None:
    answer = ScriptedRunner(MODEL, {**EXTRACTORS, "slow": lambda _: 1 / 0}).run(2.0, 20)
    assert (answer.groups, answer.reason) == (("quick",), "end")
    assert answer.note == "group 'slow' failed: ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("call", "error", "why"),
    [
        (partial(ScriptedRunner, MODEL, EXTRACTORS, took_ms={"slwo": 1.0}), ValuesError, "expected a group's millisec"),
        (
            partial(ScriptedRunner, MODEL, EXTRACTORS, took_ms={"slow": -1.0}),
            ValuesError,
            "expected a group's millisec",
        ),
        (partial(ScriptedRunner, MODEL, {"quick": EXTRACTORS["quick"]}), ExtractorError, "no extractor for 'slow'"),
        (partial(ScriptedRunner(MODEL, EXTRACTORS).run, 1.0, -1), ValuesError, "deadline_ms"),
        (partial(linear_model, {}), ValuesError, "a group has no coefficients"),
        (partial(linear_model, {"a": []}), ValuesError, "a group has no coefficients"),
        (partial(linear_model, {"a": [1.0]}, costs={"b": 1.0}), ValuesError, "there is no group 'b'"),
        (partial(FakeClock().advance, -1), ValuesError, "expected a number, 0 or more"),
    ],
)
def test_invalid_scripts_are_refused(call: Callable[[], Any], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        call()
