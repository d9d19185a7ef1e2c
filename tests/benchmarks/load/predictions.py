"""Predictions that a load plans and sends; checks of their answers against the library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime.types import Policy
from anytime_service.client.errors import OVERLOADED
from benchmarks.load.models import values_of

DEADLINES_MS = (5.0, 20.0)
STALLED = "stalled"
MAX_STALLED = 0.005
"""Share of answers that stalls of the machine may excuse."""

REFUSED = "refused as overload"
USED_AFTER_MS = 4.5
"""A group sent this long before an answer must be in it: one turn of the loop reads the group, the next adds it to the
prediction, and turns of up to 2.2 ms are not recorded as stalls."""

EARLY_MS = 1.0
NEAR_MS = 1.0
"""A stall this near explains a missing group."""

RECOVERY_MS = 150.0
"""The service may refuse for this long after it has caught up with a stall."""

CATCH_UP = 4.0
"""Milliseconds that a loop with a quarter of idle time needs to catch up with one millisecond."""

UNFINISHED = 0.2
SHUFFLED = 0.2


@dataclass(slots=True)
class LoadPrediction:
    """One prediction: its plan and its answers. Times are of `time.perf_counter`, in seconds.

    Attributes
    ----------
    groups : offset, name and values of the groups, in the order in which they are sent.
    end_s : offset of the end; None if it is never sent.
    started : just before the beginning was written.
    sent : time just after each group was written.
    answers : time and content of each answer.
    on_answer : called with this object after an answer.
    """

    name: int
    deadline_ms: float
    policy: Policy
    groups: Sequence[tuple[float, str, list[float]]]
    end_s: float | None
    started: float = 0.0
    sent: dict[str, float] = field(default_factory=dict)
    answers: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    on_answer: Callable[[LoadPrediction], None] | None = None

    def answer(self, received: float, content: dict[str, Any]) -> None:
        self.answers.append((received, content))
        if self.on_answer is not None:
            self.on_answer(self)

    @property
    def lateness_ms(self) -> float | None:
        """Lateness of the answer at the client; None unless the deadline triggered it."""
        received, answer = self.answers[0]
        return (received - self.started) * 1000.0 - self.deadline_ms if answer.get("reason") == "deadline" else None


def plan_predictions(
    model: Model, rng: np.random.Generator, count: int, policy: Policy = "prefix", stretch: float = 1.0
) -> Iterator[LoadPrediction]:
    """Plan predictions: groups at random times, most in the order of the sequence, some too late.

    A fifth of them never ends. `stretch` multiplies all times.
    """
    names = tuple(model.places)
    for name in range(count):
        deadline_ms = float(rng.choice(DEADLINES_MS)) * stretch
        unfinished = rng.random() < UNFINISHED
        sent = names[: int(rng.integers(1, len(names)))] if unfinished or rng.random() < 0.5 else names
        if rng.random() < SHUFFLED:
            sent = tuple(rng.permutation(sent).tolist())
        span_s = deadline_ms / 1000.0 * float(rng.uniform(0.3, 1.3))
        offsets = np.sort(rng.uniform(0.0, span_s, len(sent))).tolist()
        groups = [(at, group, values_of(model, group, rng)) for at, group in zip(offsets, sent, strict=True)]
        yield LoadPrediction(name, deadline_ms, policy, groups, None if unfinished else span_s)


def recovery_periods(stalls: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield begin and end, in milliseconds, of the times in which stalls explain refusals; stalls add up."""
    caught_up = -math.inf
    for begin, end in sorted(stalls):
        caught_up = max(caught_up, end) + CATCH_UP * (end - begin)
        yield begin, caught_up + RECOVERY_MS


def faults(model: Model, prediction: LoadPrediction, stalls: Sequence[tuple[float, float]]) -> list[str]:
    """Return what is wrong with the answer; faults explained by a stall are `STALLED`."""
    if len(prediction.answers) != 1:
        return [f"{len(prediction.answers)} answers"]
    received, answer = prediction.answers[0]
    if "prediction" not in answer:
        problem = answer.get("problem", answer)
        stalled = any(
            begin < received * 1000.0 and prediction.started * 1000.0 < until
            for begin, until in recovery_periods(stalls)
        )
        if problem.get("type") == OVERLOADED:
            return [STALLED if stalled else REFUSED]
        return [f"no answer: {problem.get('status')} {problem.get('detail')}"]
    found = []
    reference = Prediction(model, 1)
    for _, group, values in prediction.groups:
        if group in answer["groups"]:
            reference.add(group, values)
    expected = reference.answer(policy=answer["policy"]).prediction
    if not math.isclose(answer["prediction"], expected, rel_tol=1e-9, abs_tol=1e-9):
        found.append(f"prediction {answer['prediction']}, the library returns {expected}")
    if not set(answer["groups"]) <= set(prediction.sent):
        found.append("groups that were never sent")
    # The server read the beginning after it was written, so the answer was made no earlier than this.
    answered_ms = prediction.started * 1000.0 + answer["elapsed_ms"]
    usable = {group for group, at in prediction.sent.items() if at * 1000.0 <= answered_ms - USED_AFTER_MS}
    expected_prefix = sum(needed <= usable for needed in model.needed) - 1
    if answer["prefix"] < expected_prefix:
        in_stall = any(
            begin < answered_ms + NEAR_MS and end > answered_ms - USED_AFTER_MS - NEAR_MS for begin, end in stalls
        )
        found.append(
            STALLED
            if in_stall
            else f"prefix {answer['prefix']}, but {expected_prefix} were sent {USED_AFTER_MS} ms before"
        )
    lateness_ms = prediction.lateness_ms
    if lateness_ms is not None and min(lateness_ms, answer["elapsed_ms"] - prediction.deadline_ms) < -EARLY_MS:
        found.append(f"early by more than {EARLY_MS} ms")
    return found
