"""What is made of an attack: what came back, what it cost in memory, and how others fared meanwhile.

Pure, so that tests can feed it what no server should do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["ANSWERED_S", "Bounds", "Trial", "faults_of", "unseemly"]

ANSWERED_S = 1.0
"""How long a probe may wait for `/livez`."""

SHED = 0.1
"""Share of others' calls that may be refused in order while a server is attacked."""

CLOSES = (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1012, 1013)
"""Codes with which a WebSocket may be closed: all but that of a fault of the server, and those that are never sent."""

_SEEMLY = re.compile(
    r"101|2\d\d|3\d\d|problem (4\d\d|503)|error (4\d\d|503)|answer|update|packed|pong|close|FIN|closed by us|gone"
    rf"|close ({'|'.join(map(str, CLOSES))})|cut off|as documented"
)


@dataclass(frozen=True)
class Bounds:
    """How much memory a server may hold, by its settings.

    Attributes
    ----------
    held_mib : values of groups, of all predictions.
    connection_mib : a connection that is idle.
    sending_mib : a connection that sends or does not read: a body or message as large as it may be, twice for a moment,
        and what waits to be read.
    slack_mib : what allocators keep.
    """

    held_mib: float
    connection_mib: float
    sending_mib: float
    slack_mib: float

    def most_mib(self, before_mib: float, connections: int) -> float:
        """Most that it may hold under an attack by so many connections."""
        few = min(connections, 100)
        return before_mib + self.held_mib + self.slack_mib + self.sending_mib * few + self.connection_mib * connections


@dataclass
class Trial:
    """An attack and what was seen of it.

    Attributes
    ----------
    times : how often it was tried.
    came : what came back.
    before_mib, worst_mib, most_mib : memory of the server before, at the worst moment, and what it may be.
    others_ms : lateness of the answers of others, 99th percentile; `others_most_ms` is what it may be.
    asked, others : calls of others, and what was wrong with them.
    shed : how many of them were refused in order, as the server was too busy or full.
    probes_s : how long each probe waited; infinite where it was never answered.
    log : lines that the server's log should not have.
    lives : whether the server still runs.
    open : predictions that are open when the attack is over.
    """

    name: str
    times: int
    came: Counter[str]
    before_mib: float
    worst_mib: float
    most_mib: float
    others_ms: float
    others_most_ms: float
    asked: int
    probes_s: Sequence[float]
    shed: int = 0
    lives: bool = True
    open: float = 0.0
    resets: bool = False
    stays: bool = False
    failed: str | None = None
    others: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)


def unseemly(came: Counter[str], *, resets: bool, stays: bool) -> list[str]:
    """What came back that should not have: plain errors, faults of the server, connections torn or left open."""
    found = []
    for what in came:
        allowed = (what == "RST" and resets) or (what == "open" and stays) or _SEEMLY.fullmatch(what) is not None
        if not allowed:
            found.append(f"{came[what]} x {what}")
    return found


def faults_of(trial: Trial) -> list[str]:
    """Promises that an attack has broken, in words."""
    found = []
    if not trial.lives:
        found.append("the server has ended")
    if trial.failed is not None or not trial.times:
        found.append(f"the attack could not be made: {trial.failed}")
    bad = unseemly(trial.came, resets=trial.resets, stays=trial.stays)
    if bad:
        found.append("came back: " + ", ".join(bad))
    if trial.worst_mib > trial.most_mib:
        found.append(f"memory {trial.worst_mib:.0f} MiB, at most {trial.most_mib:.0f} by the settings")
    if not trial.asked:
        found.append("nobody else asked, so nothing is shown of others")
    elif not trial.others_ms <= trial.others_most_ms:
        found.append(f"others' answers {trial.others_ms:.1f} ms late, at most {trial.others_most_ms:g}")
    if trial.shed > SHED * trial.asked:
        found.append(f"{trial.shed} of {trial.asked} calls of others were refused, at most {SHED:.0%}")
    if not trial.probes_s or max(trial.probes_s) > ANSWERED_S:
        found.append(f"/livez took {max(trial.probes_s, default=float('inf')):.2f} s, at most {ANSWERED_S:g}")
    if trial.open:
        found.append(f"{trial.open:g} predictions are left open")
    return found + trial.others + [f"log: {line}" for line in trial.log]
