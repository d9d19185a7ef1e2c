"""Regressions that are made: standardised rows with correlated columns, in groups that cost 1 to 10, and their Gram."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anytime.groups import FeatureGroups, load_groups
from anytime.types import Float, Index
from benchmarks.peers.workers import write_arrays

__all__ = ["Made", "made"]


@dataclass(frozen=True, eq=False)
class Made:
    """A problem, in memory and in files.

    Attributes
    ----------
    X, y : (n, D) and (n,), each column centred and of deviation 1.
    S, q : X'X/n and X'y/n: what every way from the Gram is given.
    sizes, costs : of the groups, which are consecutive columns.
    folder : where the arrays are, as files.
    """

    X: Float
    y: Float
    S: Float
    q: Float
    sizes: Index
    costs: Float
    folder: Path

    @property
    def name(self) -> str:
        """In words."""
        n, D = self.X.shape
        J = len(self.sizes)
        return f"n={n:,} D={D:,}, {J:,} groups of {'one' if J == D else D // J}"

    @property
    def groups(self) -> FeatureGroups:
        """The groups."""
        ends = np.cumsum(self.sizes).tolist()
        spans = zip([0, *ends[:-1]], ends, self.costs.tolist(), strict=True)
        told = [
            {"name": f"g{g}", "features": [f"x{j}" for j in range(start, end)], "cost": cost}
            for g, (start, end, cost) in enumerate(spans)
        ]
        return load_groups({"cost_unit": "ms", "groups": told})

    def penalty(self, share: float) -> float:
        """A share of the smallest penalty of the cost-weighted Group Lasso at which no group is active."""
        ends = np.cumsum(self.sizes)
        norms = np.sqrt(np.add.reduceat(np.square(self.q), ends - self.sizes))
        return share * float((norms / self.costs).max())


def made(n: int, D: int, size: int, folder: Path, seed: int = 0) -> Made:
    """Make a problem, and write it for the processes of the rivals."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D))
    for start in range(0, n, 1024):
        X[start : start + 1024, 1:] += 0.5 * X[start : start + 1024, :-1]
    J = -(-D // size)
    strength = np.repeat(rng.uniform(0, 1, J) ** 4, size)[:D]  # few groups matter much, many a little
    y = X @ (strength * rng.standard_normal(D)) + 5 * rng.standard_normal(n)
    X -= X.mean(axis=0)
    X /= X.std(axis=0)
    y = (y - y.mean()) / y.std()
    sizes = np.full(J, size)
    sizes[-1] = D - size * (J - 1)
    costs = rng.uniform(1, 10, J)
    S, q = X.T @ X / n, X.T @ y / n
    write_arrays(folder, {"X": X, "y": y, "S": S, "q": q, "sizes": sizes, "costs": costs, "rows": np.array(n)})
    return Made(X, y, S, q, sizes, costs, folder)
