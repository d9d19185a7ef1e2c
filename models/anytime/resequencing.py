"""A model's groups in another order, at other costs: from the moments that it carries, or on its rows again."""

from __future__ import annotations

from dataclasses import dataclass, replace

from anytime.errors import GroupsError, TrainingError
from anytime.generalised import Observed
from anytime.groups import FeatureGroups
from anytime.model import AnytimeModel
from anytime.moments import Moments
from anytime.provenance import now
from anytime.targets import Target
from anytime.training import Options, fit

__all__ = ["Retrained", "left_out", "resequence"]


@dataclass(frozen=True, eq=False)
class Retrained:
    """The rows that a model is fitted on again, and their moments."""

    moments: Moments
    observed: Observed


def resequence(
    model: AnytimeModel, groups: FeatureGroups, name: str | None = None, data: Retrained | None = None
) -> AnytimeModel:
    """The model's problem at other costs, under another name if one is given.

    Least squares reads no data: the moments are in the model. Other families go over the rows of `data` again. The
    penalty is the one that ordered the model, for every prefix: penalties of prefixes and errors were measured on
    folds, which a model does not carry. Groups that training left out may be among the new ones, and stay out.

    Raises
    ------
    TrainingError
        The model was saved without its moments, or is of a family that needs data and none were given.
    """
    old = model.manifest
    options = Options(old.method, old.cost_blind, old.doubling, old.alpha, family=old.family)
    changed = old.groups.with_costs(_without(groups, left_out(model, groups)))
    target = Target(old.task, old.target, old.classes)
    origin = old.provenance.model_copy(update={"created": now(), "resequenced_from": model.version or old.name})
    if old.family != "gaussian":
        if data is None:
            raise TrainingError(f"model {model.name!r} is {old.family}, which is fitted on rows; give its data")
        fitted = fit([data.moments], changed, options, data.observed)
    elif model.moments is None:
        raise TrainingError(f"model {model.name!r} was saved without its moments; train it anew without --no-moments")
    else:
        fitted = fit([model.moments], changed, options)
    changed_model = fitted.model(name or old.name, target, origin, query=old.query)
    # What was left out stays left out; the record of why goes with the model.
    return replace(changed_model, manifest=changed_model.manifest.model_copy(update={"stopped": old.stopped}))


def left_out(model: AnytimeModel, groups: FeatureGroups) -> list[str]:
    """Which of some groups the training of the model left out."""
    stopped = model.manifest.stopped
    return [] if stopped is None else [name for name in groups.names if name in set(stopped.left_out)]


def _without(groups: FeatureGroups, names: list[str]) -> FeatureGroups:
    """Groups without some of them, which the others must not require."""
    kept = [g for g, name in enumerate(groups.names) if name not in names]
    for g in kept:
        lost = [name for name in groups.groups[g].requires if name in names]
        if lost:
            raise GroupsError(
                f"group {groups.names[g]!r} requires {lost[0]!r} in the new file, which training left out of the "
                "model; train it anew"
            )
    return groups.only(kept) if names else groups
