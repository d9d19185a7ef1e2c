"""A model's groups in another order: at other costs, by another rule, without some; from the moments that it carries.

Least squares reads no data: the moments are in the model. Other families go over the rows again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from anytime.errors import GroupsError, TrainingError
from anytime.generalised import Observations
from anytime.groups import FeatureGroups
from anytime.manifest import Manifest, Method, Stopped
from anytime.model import AnytimeModel
from anytime.moments import Moments
from anytime.options import Options
from anytime.provenance import now
from anytime.targets import Target
from anytime.training import fit

__all__ = ["Changes", "Retrained", "kept_groups", "left_out", "resequence"]


@dataclass(frozen=True)
class Changes:
    """What is to be otherwise than in the model; None leaves it.

    Attributes
    ----------
    method, alpha, cost_blind, doubling : as `anytime.training.Options`; alpha is a number, as a model has no folds.
    first : groups that go before all others, in this order.
    without : groups that the new model is not to have.
    """

    method: Method | None = None
    alpha: float | None = None
    cost_blind: bool | None = None
    doubling: bool | None = None
    first: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def options(self, old: Manifest) -> Options:
        """How the new order is found."""
        return Options(
            method=old.method if self.method is None else self.method,
            cost_blind=old.cost_blind if self.cost_blind is None else self.cost_blind,
            doubling=old.doubling if self.doubling is None else self.doubling,
            alpha=old.alpha if self.alpha is None else self.alpha,
            family=old.family,
            first=self.first,
        )


@dataclass(frozen=True, eq=False)
class Retrained:
    """The rows that a model is fitted on again, of the groups that are kept, and their moments."""

    moments: Moments
    observed: Observations


def resequence(
    model: AnytimeModel,
    groups: FeatureGroups | None = None,
    name: str | None = None,
    data: Retrained | None = None,
    changes: Changes | None = None,
) -> AnytimeModel:
    """The model's problem in another order, under another name if one is given.

    There is one penalty for every prefix: penalties of prefixes and errors were measured on folds, which a model does
    not carry.

    Parameters
    ----------
    groups : the groups at other costs; those that training left out may be among them, and stay out.
    data : the rows, for families other than "gaussian".
    changes : what else is to be otherwise.

    Raises
    ------
    GroupsError
        The groups are not those of the model, or one is to be left out that another requires.
    TrainingError
        The model was saved without its moments, or is of a family that needs data and none were given.
    """
    changes = changes or Changes()
    old = model.manifest
    options = changes.options(old)
    options.check()
    priced = old.groups if groups is None else old.groups.with_costs(_without(groups, left_out(model, groups)))
    kept = _kept(priced, changes)
    target = Target(old.task, old.target, old.classes)
    origin = old.provenance.model_copy(update={"created": now(), "resequenced_from": model.version or old.name})
    if old.family != "gaussian":
        if data is None:
            raise TrainingError(f"model {model.name!r} is {old.family}, which is fitted on rows; give its data")
        fitted = fit([data.moments], kept, options, data.observed)
    elif model.moments is None:
        raise TrainingError(f"model {model.name!r} was saved without its moments; train it anew without --no-moments")
    else:
        fitted = fit([_moments_of(model.moments, old.groups, kept)], kept, options)
    changed = fitted.model(name or old.name, target, origin, query=old.query)
    # What was left out stays left out; the record of why goes with the model.
    stopped = _stopped(old.stopped, changes.without, len(changed.manifest.steps))
    return replace(changed, manifest=changed.manifest.model_copy(update={"stopped": stopped}))


def kept_groups(model: AnytimeModel, changes: Changes) -> FeatureGroups:
    """The groups of the model that the new one will have; raises as `resequence`."""
    return _kept(model.groups, changes)


def left_out(model: AnytimeModel, groups: FeatureGroups) -> list[str]:
    """Which of some groups the training of the model left out."""
    stopped = model.manifest.stopped
    return [] if stopped is None else [name for name in groups.names if name in set(stopped.left_out)]


def _kept(groups: FeatureGroups, changes: Changes) -> FeatureGroups:
    """Groups without those that are not wanted; those that go first must be among them."""
    for name in (*changes.without, *changes.first):
        groups.position(name)
    both = [name for name in changes.first if name in changes.without]
    if both:
        raise GroupsError(f"group {both[0]!r} is to go first and to be left out; choose one")
    if not changes.without:
        return groups
    kept = [g for g, name in enumerate(groups.names) if name not in changes.without]
    if not kept:
        raise GroupsError("no groups are left; expected at least one")
    _check_required(groups, kept, changes.without, ", which is to be left out; leave out both")
    return groups.only(kept)


def _moments_of(moments: Moments, groups: FeatureGroups, kept: FeatureGroups) -> Moments:
    """Moments of the features of the groups that are kept."""
    columns = [
        np.arange(s.start, s.stop)
        for name, s in zip(groups.names, groups.slices, strict=True)
        if name in kept.positions
    ]
    return moments.restricted(np.concatenate(columns))


def _stopped(old: Stopped | None, without: tuple[str, ...], steps: int) -> Stopped | None:
    if not without:
        return old
    if old is None:
        return Stopped(rule=None, steps=steps, left_out=without)
    return old.model_copy(update={"left_out": (*old.left_out, *without)})


def _without(groups: FeatureGroups, names: list[str]) -> FeatureGroups:
    """Groups without those that training left out, which the others must not require."""
    kept = [g for g, name in enumerate(groups.names) if name not in names]
    why = " in the new file, which training left out of the model; train it anew"
    _check_required(groups, kept, names, why)
    return groups.only(kept) if names else groups


def _check_required(groups: FeatureGroups, kept: Iterable[int], names: Iterable[str], why: str) -> None:
    """Refuse to leave out what a group that is kept requires."""
    gone = set(names)
    for g in kept:
        lost = [name for name in groups.groups[g].requires if name in gone]
        if lost:
            raise GroupsError(f"group {groups.names[g]!r} requires {lost[0]!r}{why}")
