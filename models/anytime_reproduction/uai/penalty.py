"""The penalty chosen by validation, as in section 5.1 of the paper, on our data sets."""

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
    """Return the penalty with the smallest cross-validated error of CS-G-OMP's curve, on a set's first training part.

    Parameters
    ----------
    size : size of the random groups; the first grouping of a size represents all of them. Rows of a query share a fold.
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
    fold_of_key = np.random.default_rng([seed, FOLDS]).integers(0, FOLDS, int(keys.max()) + 1)
    return np.asarray(fold_of_key[keys], dtype=np.intp)
