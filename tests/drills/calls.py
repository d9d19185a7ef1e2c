"""Calls as the clients of a drill made them, on known inputs, and how they are handed to the judge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from anytime.model.model import Model
from benchmarks.load.models import values_of

__all__ = ["OVERLOADED", "Call", "Told", "inputs", "read_calls"]


OVERLOADED = "urn:anytime:problem:overloaded"


class Told(msgspec.Struct, frozen=True):
    """An answer, as far as it is judged; fields as in `anytime.Answer`."""

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
    """One call of one client, from its beginning to what came of it. Times are of `time.perf_counter`, in seconds.

    Attributes
    ----------
    kind : the way it was asked: run, predict, websocket, post, session.
    number : tells its inputs, see `inputs`.
    begun, came : at the caller.
    deadline_ms : from `begun`; None where it has none.
    sent : groups that were at hand, in the order in which they were sent.
    taken : whether the server had said that it took them all.
    opened : when the model's version was settled, at the earliest; None is at `begun`.
    replica : which one it went to; None where a balancer chose.
    answer : what came.
    status : HTTP status of a refusal.  type, why : of its problem details; None if it came without.
    broke : what happened to the connection instead.
    """

    client: str
    kind: str
    number: int
    begun: float
    came: float
    deadline_ms: float | None
    sent: list[str]
    taken: bool = False
    opened: float | None = None
    replica: int | None = None
    answer: Told | None = None
    status: int | None = None
    type: str | None = None
    why: str | None = None
    broke: str | None = None

    @property
    def shed(self) -> bool:
        """Whether a server that was too busy, or full, refused it in order."""
        return self.status == 503 and self.type == OVERLOADED and bool(self.why)

    @property
    def late_ms(self) -> float:
        """How long after its deadline it came; negative is before."""
        return (self.came - self.begun) * 1000.0 - (self.deadline_ms or 0.0)


def inputs(model: Model, number: int) -> dict[str, list[float]]:
    """Values of every group for one call; other calls have others, so that no answer passes for another's.

    Models of the same groups have the same, in whatever order they compute them.
    """
    rng = np.random.default_rng(number)
    return {group: values_of(model, group, rng) for group in sorted(model.places)}


def read_calls(path: Path) -> Iterator[Call]:
    """Read what a client process has written, a call a line."""
    decoder = msgspec.json.Decoder(Call)
    with path.open("rb") as lines:
        for line in lines:
            yield decoder.decode(line)
