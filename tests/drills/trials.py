"""Judge an attack: replies, memory, and the effect on other clients. Pure functions, which tests call with failures."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.harness import violations

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
