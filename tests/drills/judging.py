"""What is made of the calls of a drill: which were answered, by whom, wrongly or late, and which promises that breaks.

Pure: calls, stalls and times come in, figures and broken promises go out. Tests feed it answers that are wrong, late,
or by nobody, and expect it to say so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from drills.calls import Call, Told, inputs

__all__ = [
    "EXCUSED",
    "EXCUSED_FEW",
    "LATE",
    "TOLERANCE_MS",
    "Figures",
    "Oracle",
    "Outcome",
    "Phase",
    "Served",
    "Stalls",
    "figures",
    "is_lost",
    "outcome",
    "recovery_s",
]

TOLERANCE_MS = 5.0
"""How much later than its deadline an answer may be in its caller's hands."""

LATE = 0.001
"""Share of answers that may be later than that: the 99.9th percentile is promised."""

EXCUSED, EXCUSED_FEW = 0.02, 5
"""Share of answers that a machine which stood still may excuse, of few this many; with more nothing is shown."""

STOOD_MS = 5.0
"""A machine that stood still for longer while a call was under way may be why it was not answered."""

DETECTED_S = 1.0
"""Until so long after a replica was struck a balancer may have given requests to it."""

BUCKET_S = 0.25
RECOVERED = 0.9
"""Of the share answered by the server before, in each bucket from then on."""

_FALLBACK = re.compile(r"; this is the (base rate|last update)")


class Outcome(StrEnum):
    """What came of a call."""

    SERVER = "server"
    FALLBACK = "fallback"
    REFUSED = "refused"
    BROKEN = "broken"


def outcome(call: Call) -> Outcome:
    """Tell what came of a call; a fallback is one that says so in its note."""
    if call.answer is not None:
        return Outcome.FALLBACK if _FALLBACK.search(call.answer.note or "") else Outcome.SERVER
    return Outcome.REFUSED if call.status is not None else Outcome.BROKEN


@dataclass(frozen=True)
class Served:
    """A version of a model, and when it may answer: calls that came after `since` and began before `until`."""

    model: Model
    since: float = -math.inf
    until: float = math.inf

    def at(self, call: Call) -> bool:
        """Whether it may answer a call."""
        opened = call.begun if call.opened is None else call.opened
        return call.came >= self.since and opened <= self.until


class Oracle:
    """Knows what every answer has to be: the library's own, for exactly the groups that it says it used.

    Parameters
    ----------
    served : the versions that may answer.
    """

    def __init__(self, served: Iterable[Served]) -> None:
        self._served = {each.model.version: each for each in served}

    def fault(self, call: Call) -> str | None:
        """What is wrong with the answer of a call; None if nothing is, or if there is none."""
        told = call.answer
        if told is None:
            return None
        served = self._served.get(told.version)
        if served is None:
            return f"version {told.version!r}, which was never served"
        if outcome(call) is Outcome.SERVER and not served.at(call):
            return f"version {told.version!r} when it was not served"
        if not set(told.groups) <= set(call.sent):
            return f"groups {sorted(set(told.groups) - set(call.sent))} that were never sent"
        return self._unlike(served.model, call, told)

    def _unlike(self, model: Model, call: Call, told: Told) -> str | None:
        values = inputs(model, call.number)
        owed = told.groups
        if outcome(call) is Outcome.SERVER and (call.taken or told.reason == "end"):
            owed = call.sent  # nothing of it can have been late
        prediction = Prediction(model, 1)
        for group in owed:
            prediction.add(group, values[group])
        expected = prediction.answer(policy="arrived" if told.policy == "arrived" else "prefix")
        if not math.isclose(told.prediction, expected.prediction, rel_tol=1e-9, abs_tol=1e-9):
            return f"prediction {told.prediction}, the library's is {expected.prediction}"
        if (told.groups, told.prefix) != (list(expected.groups), expected.prefix):
            return f"prefix {told.prefix} of {told.groups}, the library's is {expected.prefix} of {expected.groups}"
        if not math.isclose(told.cost, expected.cost, rel_tol=1e-9, abs_tol=1e-9) or told.complete != expected.complete:
            return f"cost {told.cost}, complete {told.complete}; the library's {expected.cost}, {expected.complete}"
        return None


class Stalls:
    """When the machine stood still, by a bare timer: from when it should have struck to when it did, in seconds."""

    def __init__(self, intervals: Iterable[tuple[float, float]] = ()) -> None:
        self.intervals = sorted(intervals)

    def within_ms(self, begun: float, came: float) -> float:
        """How much of a time the machine stood still."""
        covered, last = 0.0, begun
        for stood, went_on in self.intervals:
            begin, end = max(stood, last), min(went_on, came)
            if end > begin:
                covered += end - begin
                last = end
        return covered * 1000.0

    def stood(self, call: Call) -> bool:
        """Whether a call may have met a machine that stood still."""
        return self.within_ms(call.begun, call.came) > STOOD_MS

    def excuse(self, call: Call, tolerance_ms: float) -> bool:
        """Whether a call would have been in time on a machine that did not stand still."""
        return call.late_ms - self.within_ms(call.begun, call.came) <= tolerance_ms


@dataclass(frozen=True)
class Phase:
    """A part of a drill: calls that began in it. Times are of `time.perf_counter`, in seconds."""

    name: str
    begin: float
    end: float


@dataclass
class Figures:
    """What the calls of one phase came to.

    Attributes
    ----------
    lost : of calls that a fault took with it, those that were refused, broken or late: no promise holds for them.
    excused : late, and the machine stood still.
    p999_ms : lateness at the caller, 99.9th percentile of the answers with a deadline, lost and excused ones aside.
    examples : what was wrong, in words.
    """

    asked: int = 0
    by: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    lost: int = 0
    wrong: int = 0
    late: int = 0
    excused: int = 0
    p999_ms: float = math.nan
    examples: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Share answered by the server."""
        return self.by[Outcome.SERVER] / self.asked if self.asked else math.nan


def figures(
    calls: Sequence[Call],
    oracle: Oracle,
    stalls: Stalls,
    lost: Mapping[int, tuple[float, float]],
    tolerance_ms: float = TOLERANCE_MS,
) -> Figures:
    """Judge the calls of one phase.

    Parameters
    ----------
    lost : replicas that were struck, and from when to when; their own clients, who asked nobody else, are lost with
        them. Their answers must be right all the same.
    """
    found, late_ms = Figures(), []
    for call in calls:
        what = outcome(call)
        found.asked += 1
        found.by[what] += 1
        fault = oracle.fault(call)
        if fault is not None:
            found.wrong += 1
            found.examples.append(f"{call.kind} {call.number}: {fault}")
        late = call.deadline_ms is not None and call.late_ms > tolerance_ms
        if is_lost(call, lost) and (late or call.answer is None):
            found.lost += 1
            found.by[what] -= 1
        elif late and stalls.excuse(call, tolerance_ms):
            found.excused += 1
        elif call.deadline_ms is not None:
            late_ms.append(call.late_ms)
            if late:
                found.late += 1
                found.examples.append(f"{call.kind} {call.number}: {call.late_ms:.1f} ms after its deadline")
    if late_ms:
        found.p999_ms = float(np.percentile(late_ms, 99.9))
    return found


def recovery_s(
    calls: Iterable[Call], struck: float, before: float, until: float, stalls: Stalls | None = None
) -> float | None:
    """Seconds from when a fault struck until the server answers as before; None if it does not before `until`.

    Parameters
    ----------
    before : share that it answered before.
    stalls : when the machine stood still; calls that are not answered then count for nothing.
    """
    asked: dict[int, int] = {}
    answered: dict[int, int] = {}
    for call in calls:
        ours = stalls is None or outcome(call) is Outcome.SERVER or not stalls.stood(call)
        if ours and struck <= call.begun < until:
            bucket = int((call.begun - struck) / BUCKET_S)
            asked[bucket] = asked.get(bucket, 0) + 1
            answered[bucket] = answered.get(bucket, 0) + (outcome(call) is Outcome.SERVER)
    bad = [bucket for bucket, count in asked.items() if answered[bucket] < RECOVERED * before * count]
    if not asked or max(asked) in bad:
        return None
    return (max(bad) + 1) * BUCKET_S if bad else 0.0


def is_lost(call: Call, lost: Mapping[int, tuple[float, float]]) -> bool:
    """Whether a fault has taken a call with it: it was under way to a replica that was struck.

    Sessions are asked for by way of a balancer; until it knows better it may give them to that replica.
    """
    if call.replica is None and call.kind == "session":
        opened = call.begun if call.opened is None else call.opened
        return any(opened < begin + DETECTED_S and call.came > begin for begin, _ in lost.values())
    if call.replica is None or call.replica not in lost:
        return False
    begin, end = lost[call.replica]
    return call.begun < end and call.came > begin
