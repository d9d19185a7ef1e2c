"""Timeliness of all methods on one problem after another: the runs of Tables 1 and 2."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from anytime.comparison import Comparison, Measured, compare
from anytime.experiments.experiment import Result, Setting
from anytime.experiments.sets import SetName, load_set, numbered_grouping
from anytime.experiments.uai.penalty import validated_alpha
from anytime.groups import FeatureGroups

__all__ = ["by_method", "measure_groupings", "measure_sets"]


def measure_sets(setting: Setting, split: int) -> Result:
    """One of the disjoint sets of AGRICULTURAL's stand-in, held out, in the groups as they are."""
    data = load_set("kddcup99", setting)
    part = data.split(split)
    return _collected([compare(part.gram, data.groups, 1e-7, part.held, 0.97)])


def measure_groupings(setting: Setting, name: SetName, size: int, groupings: int, alpha: float | None) -> Result:
    """Random groupings of one size on one set, each the mean over its splits; `alpha` None: what validation chooses.

    Where all groupings are the same one, its splits are the runs.
    """
    data = load_set(name, setting)
    moments = data.moments()
    parts = [data.split(number, moments) for number in range(len(data.splits))]
    penalty = validated_alpha(setting, name, size) if alpha is None else alpha
    compared: dict[str, list[Comparison]] = {}
    for grouping in range(groupings):
        groups, order = numbered_grouping(setting, data.groups, size, grouping)
        key = _key(groups)
        if key not in compared:  # features that cost the same may be too few for another grouping
            reordered = [part.ordered(order) for part in parts]
            compared[key] = [compare(s.gram, groups, penalty, s.held, 0.99) for s in reordered]
    found = list(compared.values())
    if len(found) == 1:  # then the splits are what varies
        found = [[comparison] for comparison in found[0]]
    runs = [_collected(comparisons) for comparisons in found]
    sides = {side: by_method(runs, side) for side in ("train", "test")}
    return {**sides, "alpha": penalty, "groupings": sorted(compared)}


def _key(groups: FeatureGroups) -> str:
    """Name of a grouping, whatever the order of its groups and features."""
    members = sorted(",".join(sorted(group.features)) for group in groups.groups)
    return hashlib.sha256(";".join(members).encode()).hexdigest()[:16]


def _collected(compared: list[Comparison]) -> Result:
    """Timeliness by side and method, means over splits."""

    def mean(curves: list[Measured]) -> float:
        return float(np.mean([curve.timeliness for curve in curves]))

    return {
        side: {method: mean([getattr(c, side)[method] for c in compared]) for method in compared[0].train}
        for side in ("train", "test")
    }


def by_method(runs: Iterable[Result], side: str) -> dict[str, list[float]]:
    """Timeliness of the runs by method, on one side."""
    found = list(runs)
    return {method: [run[side][method] for run in found] for method in found[0][side]}
