"""A model's groups in another order, at other costs: from the moments that it carries, or on its rows again."""

from __future__ import annotations

from dataclasses import dataclass

from anytime.errors import TrainingError
from anytime.generalised import Observed
from anytime.groups import FeatureGroups
from anytime.model import AnytimeModel
from anytime.moments import Moments
from anytime.provenance import now
from anytime.targets import Target
from anytime.training import Options, fit

__all__ = ["Retrained", "resequence"]


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
    folds, which a model does not carry.

    Raises
    ------
    TrainingError
        The model was saved without its moments, or is of a family that needs data and none were given.
    """
    old = model.manifest
    options = Options(old.method, old.cost_blind, old.doubling, old.alpha, family=old.family)
    changed = old.groups.with_costs(groups)
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
    return fitted.model(name or old.name, target, origin, query=old.query)
