"""Predictions as a client plans them, sees them answered, and checks the answers against the library."""

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

__all__ = ["DEADLINES_MS", "Asked", "faults", "planned", "resting"]

DEADLINES_MS = (5.0, 20.0)
SEEN_MS = 4.5
"""A group that was sent so long before an answer left must be in it: one turn of the loop reads it and the next adds it
to its prediction, and turns of up to 2.2 ms are not noted."""

EARLY_MS = 1.0
NEAR_MS = 1.0
"""A loop that stood still so near explains what was not seen."""

RESTING_MS = 150.0
"""So long after it has made up for what it could not do while its loop stood still, the service may refuse."""

MADE_UP = 4.0
"""Milliseconds that a loop with a quarter of its time to spare takes to make up for one."""

UNFINISHED = 0.2
SHUFFLED = 0.2


@dataclass(slots=True)
class Asked:
    """One prediction: what is going to happen, and what did. Times are of `time.perf_counter`, in seconds.

    Attributes
    ----------
    groups : offset, name and values of the groups, in the order in which they are sent.
    end_s : offset of the end; None where it is never told.
    begun : just before the beginning was written.
    sent : just after each group was written.
    answers : when each answer came, and what it says.
    told : called with this when an answer has come.
    """

    name: int
    deadline_ms: float
    policy: Policy
    groups: Sequence[tuple[float, str, list[float]]]
    end_s: float | None
    begun: float = 0.0
    sent: dict[str, float] = field(default_factory=dict)
    answers: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    told: Callable[[Asked], None] | None = None

    def answer(self, came: float, content: dict[str, Any]) -> None:
        """Take what has come."""
        self.answers.append((came, content))
        if self.told is not None:
            self.told(self)

    @property
    def perceived_ms(self) -> float | None:
        """Answer came minus deadline, where a deadline brought it."""
        came, answer = self.answers[0]
        return (came - self.begun) * 1000.0 - self.deadline_ms if answer.get("reason") == "deadline" else None


def planned(
    model: Model, rng: np.random.Generator, count: int, policy: Policy = "prefix", stretch: float = 1.0
) -> Iterator[Asked]:
    """Plan predictions: groups at random times, most in the order of the sequence, some too late.

    A fifth is never finished. `stretch` makes everything last so much longer.
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
        yield Asked(name, deadline_ms, policy, groups, None if unfinished else span_s)


def resting(stalls: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """From when to when stalls, in milliseconds, explain that the service refuses: one after another they add up."""
    caught_up = -math.inf
    for begin, end in sorted(stalls):
        caught_up = max(caught_up, end) + MADE_UP * (end - begin)
        yield begin, caught_up + RESTING_MS


def faults(model: Model, asked: Asked, stalls: Sequence[tuple[float, float]]) -> list[str]:
    """What is wrong with the answer; what a loop that stood still at that time explains is "stalled"."""
    if len(asked.answers) != 1:
        return [f"{len(asked.answers)} answers"]
    came, answer = asked.answers[0]
    if "prediction" not in answer:
        problem = answer.get("problem", answer)
        stood = any(begin < came * 1000.0 and asked.begun * 1000.0 < until for begin, until in resting(stalls))
        if problem.get("type") == OVERLOADED and stood:
            return ["stalled"]
        return [f"no answer: {problem.get('status')} {problem.get('detail')}"]
    found = []
    prediction = Prediction(model, 1)
    for _, group, values in asked.groups:
        if group in answer["groups"]:
            prediction.add(group, values)
    expected = prediction.answer(policy=answer["policy"]).prediction
    if not math.isclose(answer["prediction"], expected, rel_tol=1e-9, abs_tol=1e-9):
        found.append(f"prediction {answer['prediction']}, the library's is {expected}")
    if not set(answer["groups"]) <= set(asked.sent):
        found.append("groups that were never sent")
    # The server read the beginning after it was written, so this is not later than when the answer was made.
    left_ms = asked.begun * 1000.0 + answer["elapsed_ms"]
    seen = {group for group, at in asked.sent.items() if at * 1000.0 <= left_ms - SEEN_MS}
    owed = sum(needed <= seen for needed in model.needed) - 1
    if answer["prefix"] < owed:
        stalled = any(begin < left_ms + NEAR_MS and end > left_ms - SEEN_MS - NEAR_MS for begin, end in stalls)
        found.append(
            "stalled" if stalled else f"prefix {answer['prefix']}, but {owed} had been sent {SEEN_MS} ms before"
        )
    perceived = asked.perceived_ms
    if perceived is not None and min(perceived, answer["elapsed_ms"] - asked.deadline_ms) < -EARLY_MS:
        found.append(f"early by more than {EARLY_MS} ms")
    return found
