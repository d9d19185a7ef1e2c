"""An answer: the best prediction at hand, and how good it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anytime.model.model import Expected
from anytime.types import Policy, Reason

__all__ = ["Answer"]


@dataclass(frozen=True)
class Answer:
    """A prediction and what it rests on; every field is JSON as it stands.

    Attributes
    ----------
    model, version : which model answered.
    prediction : a number, a vector (several responses) or a class; a list of them when there are several rows.
    probabilities : for classification, one per class in the model's order; a list per row when there are several rows.
        Least squares on one-hot classes can leave [0, 1]; what is told is clipped to it and scaled to sum to one.
        Those of a likelihood are told as they are.
    prefix : complete steps used, 0 being the base rate.  steps : how many the model has.
    groups : groups used, in sequence order.  cost : their joint cost, in the model's cost unit.
    budget : as asked.  complete : every step that the budget allows was used.
    missing : groups of the budget's prefix that were not received.
    imputed : features that came as null, filled by their training means.
    reason : why the answer was given now; None in an update, which is not the last word.
    policy : the policy that the answer follows; `note` says why where another was asked for.
    approximate : the optimum of what arrived is one Newton step from the nearest prefix, not exact.
    expected : how good the groups used were in training.
    interval : [low, high] where regression or counts are calibrated (several responses: a list of them); a list per row
        when there are several rows. It is that of the prefix that answered.
    prediction_set : where classes are calibrated, those that are likely enough, in the model's order, maybe none; a
        list per row when there are several rows. As `interval`, None where a set of groups answered that is no prefix.
    elapsed_ms : from begin to answer.
    late_groups : groups received after the deadline and before the answer was made; the policy may use them.
    unused_groups : groups that were computed and came too late to be used. `Runner` and the client fill it in; the
        server does not send it.
    replaced : groups that came more than once; their last values count.
    ranking : row indices by descending score (of the second of two classes), where asked for.
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
