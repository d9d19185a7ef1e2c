"""From the options of `train` and `compare` to the moments of the folds."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anytime.cli.console import progress, remark
from anytime.dataset import Dataset, TargetScan, scan_target
from anytime.errors import GroupsError, TrainingError, listed, suggestion
from anytime.groups import FeatureGroups, load_groups
from anytime.manifest import Task
from anytime.moments import Moments
from anytime.tables import open_table

__all__ = ["Source", "open_source"]


@dataclass(frozen=True)
class Source:
    """A table opened for training, and what its target is."""

    dataset: Dataset
    scan: TargetScan

    def moments(self, folds: int, seed: int, jobs: int) -> list[Moments]:
        """Moments of each fold, while progress is told."""
        if folds < 0 or folds == 1:
            raise TrainingError(f"--folds is {folds}; expected 2 or more, or 0 for none")
        name = Path(self.dataset.table.name).name
        with progress(f"reading {name}", self.scan.rows - self.scan.missing) as told:
            return self.dataset.moments(max(folds, 1), seed=seed, n_jobs=jobs, progress=told)


def open_source(
    data: Path,
    groups: Path,
    target: Many[str],
    task: Task | Literal["auto"],
    *,
    query: str | None,
    weights: str | None,
    drop: Many[str] | None,
    drop_missing: bool,
) -> Source:
    """Open and check everything that training will read; remarks say what was settled and what is left out."""
    loaded = _without(load_groups(groups), drop or ())
    table = open_table(data)
    scan = scan_target(table, target, task, drop_missing=drop_missing)
    dataset = Dataset(table, loaded, scan.target, query, weights, drop_missing)
    ignored = dataset.check()
    if ignored:
        remark(f"ignored: {listed(ignored, 10)} (in no group)")
    if scan.missing:
        remark(f"left out: {scan.missing} of {scan.rows} rows without a target")
    return Source(dataset, scan)


def _without(groups: FeatureGroups, drop: Many[str]) -> FeatureGroups:
    for feature in drop:
        if feature not in groups.features:
            raise GroupsError(f"--drop {feature}: no group has this feature; {suggestion(feature, groups.features)}")
    return groups.without(drop) if drop else groups
