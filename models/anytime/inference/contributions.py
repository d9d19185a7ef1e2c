"""What each column and each group adds to a score.

Every family's score is linear in the terms, `intercept + (term - mean) @ coef`. So the contribution of a column is the
sum over its terms of coef * (term - mean). It is 0 for a row at the training means, and a missing value is at them:
only the indicator of missing values, if the column has one, contributes then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np

from anytime.model.model import Model
from anytime.types import Float

PRODUCTS = 2**20
"""Products of terms and coefficients that are in memory at once, 8 MiB, unless one row has more."""


@dataclass(frozen=True)
class Contributions:
    """Parts of the score of each row: `intercept` plus those of all groups, or of all columns, is the score.

    The score is the prediction in least squares, the log-odds of the second of two classes, a score for each of several
    classes (their softmax is the probabilities), and the logarithm of an expected count.

    Attributes
    ----------
    intercept : the score of a row at the training means: a number, or a list of one for each response or class.
    groups, features : for each group used and each of its columns, in the order of the sequence, a number or a list as
        `intercept`; a list per row if there are several rows. `predict` of the estimators has arrays.
    """

    intercept: Any
    groups: dict[str, Any]
    features: dict[str, Any]


def contributions(
    model: Model,
    names: Iterable[str],
    terms: Float,
    coef: Float,
    intercept: Any,
    shaped: Callable[[Float], Iterable[Any]],
) -> Contributions:
    """Return the contributions to the scores `terms @ coef`.

    `terms` (rows, T) are those of the groups `names`, one group after the other, less their means; `coef` is (T, P).
    `shaped` returns the values of each name, given those of all: (names, rows, P).
    """
    names = tuple(names)
    places = [model.places[name] for name in names]
    columns = tuple(chain.from_iterable(place.features for place in places))
    rows, P = len(terms), coef.shape[1]
    of_columns = of_groups = np.zeros((len(columns), rows, P))
    if columns:
        before = accumulate((place.stop - place.start for place in places), initial=0)
        starts = np.concatenate([at + place.expansion.starts for at, place in zip(before, places, strict=False)])
        firsts = [*accumulate((len(place.features) for place in places[:-1]), initial=0)]
        at_once = max(1, PRODUCTS // coef.size)
        with np.errstate(over="ignore", invalid="ignore"):  # as for scores, callers check
            for i in range(0, rows, at_once):
                products = terms[i : i + at_once, :, np.newaxis] * coef
                of_columns[:, i : i + at_once] = np.add.reduceat(products, starts, axis=1).transpose(1, 0, 2)
            of_groups = np.add.reduceat(of_columns, firsts, axis=0)
    groups, features = (dict(zip(of, shaped(v), strict=True)) for of, v in ((names, of_groups), (columns, of_columns)))
    return Contributions(intercept, groups, features)
