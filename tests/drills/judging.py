"""Records of the calls of a drill, and judges of them and of attacks: wrong or late answers, replies, memory.

Pure functions, which the tests call with wrong, late and missing answers.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime_service.client.errors import OVERLOADED
from benchmarks.harness import violations
from benchmarks.load.models import values_of


class AnswerRecord(msgspec.Struct, frozen=True):
    """The judged fields of an answer; named as in `anytime.Answer`."""

    version: str
    prediction: Any
    groups: list[str]
    prefix: int
    cost: float
    policy: str
    reason: str
    complete: bool
    note: str | None = None


class Call(msgspec.Struct, frozen=True):
    """One call of a client and its result. Times are of `time.perf_counter`, in seconds.

    Attributes
    ----------
    kind : run, predict, websocket, post or session.
    number : identifies the inputs, see `inputs`.
    started, received : at the caller.
    deadline_ms : from `started`; None without one.
    sent : available groups, in the order in which they were sent.
    accepted : whether the server confirmed all of them.
    opened : earliest time at which the model version was fixed; None means `started`.
    replica : number of the replica; None if a balancer chose it.
    status : HTTP status of a refusal.  type, detail : of its problem details; None without them.
    error : connection error, if there was no response.
    """

    client: str
    kind: str
    number: int
    started: float
    received: float
    deadline_ms: float | None
    sent: list[str]
    accepted: bool = False
    opened: float | None = None
    replica: int | None = None
    answer: AnswerRecord | None = None
    status: int | None = None
    type: str | None = None
    detail: str | None = None
    error: str | None = None

    @property
    def shed(self) -> bool:
        """Whether the server refused the call as overload, with a reason."""
        return self.status == 503 and self.type == OVERLOADED and bool(self.detail)

    @property
    def late_ms(self) -> float:
        """Lateness; negative before the deadline."""
        return (self.received - self.started) * 1000.0 - (self.deadline_ms or 0.0)


def inputs(model: Model, number: int) -> dict[str, list[float]]:
    """Return the values of every group for one call. Each call has its own, so that answers differ.

    Models with the same groups have the same inputs, whatever order they compute them in.
    """
    rng = np.random.default_rng(number)
    return {group: values_of(model, group, rng) for group in sorted(model.places)}


def read_calls(path: Path) -> Iterator[Call]:
    """Read the calls that a client process has written, one per line."""
    decoder = msgspec.json.Decoder(Call)
    with path.open("rb") as lines:
        for line in lines:
            yield decoder.decode(line)


TOLERANCE_MS = 5.0
"""Lateness that is tolerated at the caller."""

LATE = 0.001
"""Share of answers that may be later: the 99.9th percentile is promised."""

EXCUSED, EXCUSED_FEW = 0.02, 5
"""Share and number of answers that stalls of the machine may excuse; above both the result is inconclusive."""

STALL_MS = 5.0
"""A stall longer than this during a call may be why it failed."""

DETECTED_S = 1.0
"""Time in which a balancer may still route requests to a failed replica."""

BUCKET_S = 0.25
RECOVERED = 0.9
"""Share of the calls answered before the fault that each later bucket must reach."""

_FALLBACK = re.compile(r"; this is the (base rate|last update)")


class Outcome(StrEnum):
    SERVER = "server"
    FALLBACK = "fallback"
    REFUSED = "refused"
    BROKEN = "broken"


def outcome(call: Call) -> Outcome:
    """Return the outcome of a call; a fallback is recognised by its note."""
    if call.answer is not None:
        return Outcome.FALLBACK if _FALLBACK.search(call.answer.note or "") else Outcome.SERVER
    return Outcome.REFUSED if call.status is not None else Outcome.BROKEN


@dataclass(frozen=True)
class Served:
    """A model version and when it may answer: calls received after `since` and started before `until`."""

    model: Model
    since: float = -math.inf
    until: float = math.inf

    def may_answer(self, call: Call) -> bool:
        """Return whether this version may answer a call."""
        opened = call.started if call.opened is None else call.opened
        return call.received >= self.since and opened <= self.until


class Oracle:
    """Checks answers against the library, for exactly the groups that the answer names.

    Parameters
    ----------
    served : the versions that may answer.
    """

    def __init__(self, served: Iterable[Served]) -> None:
        self._served = {each.model.version: each for each in served}

    def fault(self, call: Call) -> str | None:
        """Return what is wrong with the answer of a call, None if nothing is or there is no answer."""
        answer = call.answer
        if answer is None:
            return None
        served = self._served.get(answer.version)
        if served is None:
            return f"version {answer.version!r}, which was never served"
        if outcome(call) is Outcome.SERVER and not served.may_answer(call):
            return f"version {answer.version!r} when it was not served"
        if not set(answer.groups) <= set(call.sent):
            return f"groups {sorted(set(answer.groups) - set(call.sent))} that were never sent"
        return self._difference(served.model, call, answer)

    def _difference(self, model: Model, call: Call, answer: AnswerRecord) -> str | None:
        values = inputs(model, call.number)
        used = answer.groups
        if outcome(call) is Outcome.SERVER and (call.accepted or answer.reason == "end"):
            used = call.sent  # none of them can have been late
        prediction = Prediction(model, 1)
        for group in used:
            prediction.add(group, values[group])
        expected = prediction.answer(policy="arrived" if answer.policy == "arrived" else "prefix")
        for name in ("prediction", "groups", "prefix", "cost", "complete"):
            found, right = getattr(answer, name), getattr(expected, name)
            close = isinstance(found, float) and math.isclose(found, right, rel_tol=1e-9, abs_tol=1e-9)
            if not close and found != (list(right) if name == "groups" else right):
                return f"{name} {found}, the library returns {right}"
        return None


class Stalls:
    """Stalls of the machine: due time and actual time of a bare timer, in seconds."""

    def __init__(self, intervals: Iterable[tuple[float, float]] = ()) -> None:
        self.intervals = sorted(intervals)

    def within_ms(self, started: float, received: float) -> float:
        """Return the stalled time between two times."""
        covered, last = 0.0, started
        for stall_begin, end_stall in self.intervals:
            begin, end = max(stall_begin, last), min(end_stall, received)
            if end > begin:
                covered += end - begin
                last = end
        return covered * 1000.0

    def overlaps(self, call: Call) -> bool:
        """Return whether a stall may have affected a call."""
        return self.within_ms(call.started, call.received) > STALL_MS

    def excuse(self, call: Call, tolerance_ms: float) -> bool:
        """Return whether a call was in time apart from stalls."""
        return call.late_ms - self.within_ms(call.started, call.received) <= tolerance_ms


@dataclass(frozen=True)
class Phase:
    """A phase of a drill: the calls started in it. Times are of `time.perf_counter`, in seconds."""

    name: str
    begin: float
    end: float


@dataclass
class Figures:
    """Results of the calls of one phase.

    Attributes
    ----------
    lost : failed or late calls that went to a failed replica, for which nothing is promised.
    excused : late because of a stall.
    p999_ms : lateness at the caller, 99.9th percentile of answers with a deadline, without lost and excused ones.
    examples : descriptions of wrong or late answers.
    """

    requests: int = 0
    by: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    lost: int = 0
    wrong: int = 0
    late: int = 0
    excused: int = 0
    p999_ms: float = math.nan
    examples: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Share of calls answered by the server."""
        return self.by[Outcome.SERVER] / self.requests if self.requests else math.nan


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
    lost : start and end of the outage of each failed replica. Calls to it are lost; their answers must still be right.
    """
    found, late_ms = Figures(), []
    for call in calls:
        result = outcome(call)
        found.requests += 1
        found.by[result] += 1
        fault = oracle.fault(call)
        if fault is not None:
            found.wrong += 1
            found.examples.append(f"{call.kind} {call.number}: {fault}")
        late = call.deadline_ms is not None and call.late_ms > tolerance_ms
        if is_lost(call, lost) and (late or call.answer is None):
            found.lost += 1
            found.by[result] -= 1
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
    calls: Iterable[Call], injected: float, before: float, until: float, stalls: Stalls | None = None
) -> float | None:
    """Return the seconds from a fault until the server answers as before, None if it does not before `until`.

    Parameters
    ----------
    before : share of calls answered before the fault.
    stalls : failed calls during stalls are ignored.
    """
    requests: dict[int, int] = {}
    answered: dict[int, int] = {}
    for call in calls:
        counted = stalls is None or outcome(call) is Outcome.SERVER or not stalls.overlaps(call)
        if counted and injected <= call.started < until:
            bucket = int((call.started - injected) / BUCKET_S)
            requests[bucket] = requests.get(bucket, 0) + 1
            answered[bucket] = answered.get(bucket, 0) + (outcome(call) is Outcome.SERVER)
    bad = [bucket for bucket, count in requests.items() if answered[bucket] < RECOVERED * before * count]
    if not requests or max(requests) in bad:
        return None
    return (max(bad) + 1) * BUCKET_S if bad else 0.0


def is_lost(call: Call, lost: Mapping[int, tuple[float, float]]) -> bool:
    """Return whether a call was in progress at a failed replica.

    Sessions are requested through a balancer, which may route to that replica until it detects the failure.
    """
    if call.replica is None and call.kind == "session":
        opened = call.started if call.opened is None else call.opened
        return any(opened < begin + DETECTED_S and call.received > begin for begin, _ in lost.values())
    if call.replica is None or call.replica not in lost:
        return False
    begin, end = lost[call.replica]
    return call.started < end and call.received > begin


MAX_PROBE_S = 1.0
"""Maximum latency of `/livez`."""

MAX_SHED = 0.1
"""Share of other clients' calls that may be shed during an attack."""

CLOSE_CODES = (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1012, 1013)
"""Codes that may close a WebSocket: all but internal errors and reserved codes."""

_EXPECTED = re.compile(
    r"101|2\d\d|3\d\d|problem (4\d\d|50[13])|error (4\d\d|503)|answer|update|packed|pong|close|FIN|closed by us|gone"
    rf"|close ({'|'.join(map(str, CLOSE_CODES))})|cut off"
)


@dataclass(frozen=True)
class Bounds:
    """Memory limits of a server that follow from its settings.

    Attributes
    ----------
    value_mib : values of groups, of all predictions.
    connection_mib : an idle connection.
    sending_mib : a connection that sends or does not read: a body or message of maximum size, which exists twice
        briefly, and unread bytes.
    slack_mib : allocator overhead.
    """

    value_mib: float
    connection_mib: float
    sending_mib: float
    slack_mib: float

    def max_mib(self, before_mib: float, connections: int) -> float:
        """Maximum memory during an attack with this many connections."""
        few = min(connections, 100)
        return before_mib + self.value_mib + self.slack_mib + self.sending_mib * few + self.connection_mib * connections


@dataclass
class Trial:
    """An attack and its observations.

    Attributes
    ----------
    times : number of repetitions.
    received : replies and their counts.
    before_mib, worst_mib, max_mib : memory of the server before, at its maximum, and its bound.
    others_ms : lateness of other clients' answers, 99th percentile; `max_others_ms` is its bound.
    requests, others : calls of other clients, and their faults.
    shed : how many of these calls were shed.
    probes_s : latency of each probe; infinite without an answer.
    log : error lines in the server's log.
    alive : whether the server still runs.
    open : open predictions after the attack.
    period : start and end.
    """

    name: str
    times: int
    received: Counter[str]
    before_mib: float
    worst_mib: float
    max_mib: float
    others_ms: float
    max_others_ms: float
    requests: int
    probes_s: Sequence[float]
    shed: int = 0
    alive: bool = True
    open: float = 0.0
    period: tuple[float, float] = (0.0, 0.0)
    may_reset: bool = False
    may_stay_open: bool = False
    failed: str | None = None
    others: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)


def unexpected_replies(received: Counter[str], *, may_reset: bool, may_stay_open: bool) -> list[str]:
    """Return unexpected replies: plain errors, server errors, and connections that were reset or stayed open."""
    allowed = {"RST": may_reset, "open": may_stay_open}
    return [
        f"{count} x {reply}"
        for reply, count in received.items()
        if not allowed.get(reply) and _EXPECTED.fullmatch(reply) is None
    ]


def faults_of(trial: Trial) -> list[str]:
    """Return the promises that an attack has broken."""
    bad = unexpected_replies(trial.received, may_reset=trial.may_reset, may_stay_open=trial.may_stay_open)
    probe_s = max(trial.probes_s, default=math.inf)
    return [
        *violations(
            (not trial.alive, "the server has ended"),
            (trial.failed is not None or not trial.times, f"the attack failed: {trial.failed}"),
            (bad, f"replies: {', '.join(bad)}"),
            (
                trial.worst_mib > trial.max_mib,
                f"memory {trial.worst_mib:.0f} MiB, at most {trial.max_mib:.0f} by the settings",
            ),
            (not trial.requests, "no calls of others, inconclusive"),
            (
                trial.requests and not trial.others_ms <= trial.max_others_ms,
                f"others' answers {trial.others_ms:.1f} ms late, at most {trial.max_others_ms:g}",
            ),
            (
                trial.shed > MAX_SHED * trial.requests,
                f"{trial.shed} of {trial.requests} calls of others were refused, at most {MAX_SHED:.0%}",
            ),
            (probe_s > MAX_PROBE_S, f"/livez took {probe_s:.2f} s, at most {MAX_PROBE_S:g}"),
            (trial.open, f"{trial.open:g} predictions are still open"),
        ),
        *trial.others,
        *(f"log: {line}" for line in trial.log),
    ]
