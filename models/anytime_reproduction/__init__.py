"""The experiments of the papers, reproduced: `anytime reproduce`."""

from __future__ import annotations

from collections.abc import Iterable

from anytime.errors import AnytimeError, suggestion
from anytime_reproduction.experiment import Experiment, Setting
from anytime_reproduction.group_omp.boston import BOSTON
from anytime_reproduction.group_omp.table_1 import GROUP_OMP
from anytime_reproduction.report import check_folder, write_report
from anytime_reproduction.running import results_of
from anytime_reproduction.sets import check_sets
from anytime_reproduction.uai.bounds import BOUNDS
from anytime_reproduction.uai.certificates import CERTIFICATES
from anytime_reproduction.uai.curves import CURVES
from anytime_reproduction.uai.doubling import DOUBLING
from anytime_reproduction.uai.timeliness import TABLE_1, TABLE_2
from anytime_reproduction.uai.training_time import TRAINING_TIME

__all__ = ["EXPERIMENTS", "check_folder", "check_sets", "chosen", "described", "results_of", "write_report"]

EXPERIMENTS: tuple[Experiment, ...] = (
    TABLE_1,
    TABLE_2,
    CURVES,
    TRAINING_TIME,
    DOUBLING,
    BOUNDS,
    CERTIFICATES,
    GROUP_OMP,
    BOSTON,
)
"""All experiments, in the order of the report."""


def chosen(names: Iterable[str]) -> list[Experiment]:
    """Return experiments by name, all if no name is given; raise AnytimeError for an unknown name."""
    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    requested = list(dict.fromkeys(names))
    for name in requested:
        if name not in known:
            raise AnytimeError(f"there is no experiment {name!r}; {suggestion(name, tuple(known))}")
    return [known[name] for name in requested] or list(EXPERIMENTS)


def described(setting: Setting) -> list[str]:
    """Return lines that describe the data and the seed of a report."""
    runs = f"Seed {setting.seed}." + " A quick look: fewer runs of each experiment." * setting.quick
    if setting.data is None:
        where = (
            "The real data sets are not available: scikit-learn's bundled sets and a synthetic one replace them, so "
            "the published numbers are not comparable."
        )
    else:
        where = f"Real data sets from {setting.data}."
    owners = "" if setting.yahoo is None else f" The owners' Yahoo! files from {setting.yahoo[0]}."
    return [where + owners, runs]
