"""Synthetic regressions: standardised rows with correlated columns, in groups that cost 1 to 10, and their Gram."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anytime.groups import FeatureGroups
from anytime.types import Float, Index
from benchmarks.peers.adapters.with_ours import groups_of


@dataclass(frozen=True, eq=False)
class SyntheticProblem:
    """A problem, in memory and in files.

    Attributes
    ----------
    X, y : (n, D) and (n,), each column centred with deviation 1.
    S, q : X'X/n and X'y/n, the input of all methods that use the Gram.
    sizes, costs : of the groups, which are consecutive columns.
    folder : of the arrays as files.
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
        (n, D), J = self.X.shape, len(self.sizes)
        return f"n={n:,} D={D:,}, {J:,} groups of {'one' if J == D else D // J}"

    @cached_property
    def groups(self) -> FeatureGroups:
        return groups_of({"sizes": self.sizes, "costs": self.costs})

    def norms(self, w: Float) -> Float:
        """Return the norm of each group of a vector."""
        norms: Float = np.sqrt(np.add.reduceat(np.square(w), np.cumsum(self.sizes) - self.sizes))
        return norms

    def penalty(self, share: float) -> float:
        """Return a share of the smallest penalty of the cost-weighted Group Lasso with no active group."""
        return share * float((self.norms(self.q) / self.costs).max())


def make_problem(n: int, D: int, size: int, folder: Path, seed: int = 0) -> SyntheticProblem:
    """Create a problem, and write it for the processes of the peers."""
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
    return SyntheticProblem(X, y, S, q, sizes, costs, folder)


def write_arrays(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write each array to a file of its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
