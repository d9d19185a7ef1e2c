"""The penalty that validation chooses: what the paper did on its set (section 5.1), done on ours."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from anytime.moments.accumulate import fold_moments_of
from anytime.training.fit import fit
from anytime.training.options import Options
from anytime.types import Index
from anytime_reproduction.experiment import Setting
from anytime_reproduction.sets import RealSet, SetName, load_set, numbered_grouping

__all__ = [
    "validated_alpha",
]

FOLDS = 5


@lru_cache(maxsize=16)
def validated_alpha(setting: Setting, name: SetName, size: int) -> float:
    """Penalty with the least cross-validated error of CS-G-OMP's curve, on the training rows of a set's first split.

    Parameters
    ----------
    size : of the random groups; the first grouping is taken for all of that size. Rows of a query share a fold.
    """
    data = load_set(name, setting)
    groups, order = numbered_grouping(setting, data.groups, size)
    rows = np.flatnonzero(np.isin(data.part, data.splits[0][0]))
    moments = fold_moments_of(
        data.X[np.ix_(rows, order)], data.y[rows], folds=_folds(data, rows, setting.seed), count=FOLDS
    )
    return fit(moments, groups, Options("omp", alpha="cv")).alpha


def _folds(data: RealSet, rows: Index, seed: int) -> Index:
    keys = rows if data.query is None else np.unique(data.query[rows], return_inverse=True)[1]
    dealt = np.random.default_rng([seed, FOLDS]).integers(0, FOLDS, int(keys.max()) + 1)
    return np.asarray(dealt[keys], dtype=np.intp)
