"""The answer of a prediction and its expected quality."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anytime.model.model import Expected
from anytime.types import Policy, Reason

__all__ = ["Answer"]


@dataclass(frozen=True)
class Answer:
    """A prediction and the groups it is based on; every field is JSON-serialisable.

    Attributes
    ----------
    model, version : name and version of the model.
    prediction : a number, a vector (several responses) or a class; a list of them if there are several rows.
    probabilities : for classification, one per class in the model's order; a list per row if there are several rows.
        Least squares on one-hot classes can leave [0, 1]; its outputs are clipped to [0, 1] and scaled to sum to one.
        Probabilities of a likelihood are returned unchanged.
    prefix : number of complete steps used; 0 is the base rate.  steps : number of steps of the model.
    groups : groups used, in sequence order.  cost : their joint cost, in the model's cost unit.
    budget : the requested budget.  complete : whether every step within the budget was used.
    missing : groups of the budget's prefix that were not received.
    imputed : features received as null and replaced by their training means.
    reason : why the answer was made now; None in an update, which is not final.
    policy : the policy that the answer follows; `note` gives the reason if a different one was requested.
    approximate : whether the optimum of the received groups is one Newton step from the nearest prefix, not exact.
    expected : quality of the groups used, measured in training.
    interval : [low, high] if regression or counts are calibrated (several responses: a list of them); a list per row
        if there are several rows. It belongs to the prefix that answered.
    prediction_set : if classes are calibrated, the classes that are likely enough, in the model's order, possibly none;
        a list per row if there are several rows. Like `interval`, None if the groups used do not form a prefix.
    elapsed_ms : milliseconds from begin to answer.
    late_groups : groups received after the deadline and before the answer was made; the policy may use them.
    unused_groups : groups that were computed too late to be used. `Runner` and the client set it; the server does not
        send it.
    replaced : groups received more than once; the last values count.
    ranking : row indices by descending score (of the second of two classes), if requested.
    """

    model: str
    version: str
    prediction: Any
    probabilities: Any
    prefix: int
    steps: int
    groups: tuple[str, ...]
    cost: float
    budget: float | None
    complete: bool
    missing: tuple[str, ...]
    imputed: tuple[str, ...]
    reason: Reason | None
    policy: Policy
    expected: Expected
    interval: list[Any] | None = None
    prediction_set: list[Any] | None = None
    elapsed_ms: float = 0.0
    late_groups: tuple[str, ...] = ()
    unused_groups: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    ranking: list[int] | None = None
    note: str | None = None
    approximate: bool = False
