"""Data sets of the comparison with adaptive methods: classes, columns in groups of cost 1, budgets, and splits.

The protocol is that of AFABench (arXiv 2508.14734), from its description: 60 % of the rows to fit on, 20 % to
validate and 20 % to test, hard budgets in numbers of groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from anytime.types import Float, Index
from benchmarks.peers import quality_sets
from benchmarks.peers.environments import Absent, prepared
from benchmarks.peers.measurements import FailedError

MAX_ROWS, QUICK_ROWS = 20_000, 1_000
"""Of a set, at random; the second for a quick look."""

Rows = tuple[Float, Index, Index]
"""Columns (n, D), classes (n,), and the sizes of the groups, which are consecutive columns."""


@dataclass(frozen=True, eq=False)
class AcquisitionSet:
    """A data set of classes, whose groups cost 1 each.

    Attributes
    ----------
    X, y : (n, D), NaN where missing, and (n,), from 0.
    sizes : (J,) of the groups, which are consecutive columns.
    budgets : numbers of groups.
    """

    name: str
    X: Float
    y: Index
    sizes: Index
    budgets: tuple[int, ...]

    def split(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return the rows to fit on (`X`, `y`), to validate (`Xv`, `yv`) and to test (`Xt`, `yt`), sizes and costs.

        Columns are standardised by the rows to fit on, and a missing value is their mean, for every method.
        """
        fifth = len(self.y) // 5
        test, validate, fit = np.split(np.random.default_rng(seed).permutation(len(self.y)), [fifth, 2 * fifth])
        mean, deviation = np.nanmean(self.X[fit], axis=0), np.nanstd(self.X[fit], axis=0)
        X = np.nan_to_num((self.X - mean) / np.where(deviation > 0, deviation, 1.0))
        parts = {"": fit, "v": validate, "t": test}
        arrays = {name + part: of[rows] for part, rows in parts.items() for name, of in (("X", X), ("y", self.y))}
        return arrays | {"sizes": self.sizes, "costs": np.ones(len(self.sizes))}


def cube(rows: int) -> Rows:
    """Return the CUBE: three columns that differ by class are the bits of the class, and the other 17 are noise.

    Columns l, l + 1 and l + 2 of class l are its bits, lowest first, plus N(0, .1); all others are N(.5, .3).
    """
    rng = np.random.default_rng(0)
    y, X = rng.integers(8, size=rows), rng.normal(0.5, 0.3, (rows, 20))
    for bit in range(3):
        X[np.arange(rows), y + bit] = (y >> bit & 1) + rng.normal(0.0, 0.1, rows)
    return X, y, np.ones(20, dtype=np.intp)


def _spambase(data: Path) -> Rows:
    """Return the rows in the order before GDFS's split, which is that of seed 0."""
    parts = [pd.read_parquet(data / "spambase" / f"{part}.parquet") for part in ("test", "validation", "train")]
    table = np.concatenate([part.to_numpy(dtype=np.float64) for part in parts])
    rows = table[np.argsort(np.random.default_rng(0).permutation(len(table)))]
    return rows[:, :-1], rows[:, -1].astype(np.intp), np.ones(rows.shape[1] - 1, dtype=np.intp)


def _bank(_: Path) -> Rows:
    """Return UCI's bank marketing, which empulse ships; levels of a text are the columns of its group."""
    environment = prepared("bank")
    if isinstance(environment, Absent):
        raise FailedError(f"empulse is not installed here: {environment.why}")
    [packages] = environment.python.parents[1].glob("lib/python*/site-packages")
    table = pd.read_csv(packages / "empulse" / "datasets" / "data" / "bankmarketing.csv.gz", sep=";").sample(
        MAX_ROWS, random_state=0
    )
    target = table.pop("y") == "yes"
    blocks = [pd.get_dummies(table[[name]]).to_numpy(dtype=np.float64) for name in table]
    return np.hstack(blocks), target.to_numpy(dtype=np.intp), np.array([block.shape[1] for block in blocks])


def _known(data: Path, name: str) -> Rows:
    """Return the rows of a set of the comparison of quality; of KDD Cup 1999 those of the same days."""
    found = quality_sets.load(name, data)
    whole = found.fit.joined(found.choose)
    if name != "kddcup99":
        whole = whole.joined(found.test)
    sizes = np.array([len(group.features) for group in found.groups.groups if group.features])
    return whole.X, whole.y.astype(np.intp), sizes


SETS: dict[str, tuple[tuple[int, ...], int, Callable[[Path], Rows]]] = {
    "spambase": (tuple(range(1, 11)), 6, _spambase),
    "cube": ((3, 5, 10), 5, lambda _: cube(MAX_ROWS)),
    "bank": ((2, 4, 7), 5, _bank),
    "kddcup99": ((2, 4, 7), 5, partial(_known, name="kddcup99")),
    "mfeat": ((1, 2, 3), 5, partial(_known, name="mfeat")),
    "heart_cleveland": ((2, 4, 7), 5, partial(_known, name="heart_cleveland")),
}
"""The budgets of each, the number of its splits, and how it is read; the first two for a quick look."""


def load(name: str, data: Path, quick: bool) -> AcquisitionSet:
    """Load a data set; raise `FailedError` if its package is not installed."""
    budgets, _, read = SETS[name]
    X, y, sizes = read(data)
    most = QUICK_ROWS if quick else MAX_ROWS
    rows = np.random.default_rng(0).permutation(len(y))[:most] if len(y) > most else slice(None)
    return AcquisitionSet(name, X[rows], y[rows], sizes, budgets)
