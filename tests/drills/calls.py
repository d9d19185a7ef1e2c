"""Records of the calls of a drill's clients, and the known inputs of each call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from anytime.model.model import Model
from anytime_service.client.errors import OVERLOADED
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
