"""Deadlines simulated under random costs, for `anytime evaluate --random-costs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from anytime.arrays import Float
from anytime.cli.costing import random_table, random_values
from anytime.distributions import CostDistributions
from anytime.evaluation import Evaluation
from anytime.model import AnytimeModel
from anytime.random_costs import RandomTimes, simulate

__all__ = ["Simulated", "simulated"]

SHARES = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5)
"""Deadlines unless told, as shares of the mean time of all groups."""


@dataclass(frozen=True, eq=False)
class Simulated:
    """When the prefixes of a model are complete in random draws, and the deadlines asked about (ms)."""

    times: RandomTimes
    deadlines: Float

    def values(self, evaluated: Evaluation) -> dict[str, Any]:
        """For programs."""
        stop, random, fixed = self._timeliness(evaluated)
        mean, error = (None, None) if random is None else random
        timeliness = {"stop_ms": stop, "mean": mean, "error": error, "at_mean_costs": fixed}
        deadlines = random_values(evaluated, self.times, self.deadlines)
        return {"draws": len(self.times.times), "timeliness_r2": timeliness, "deadlines": deadlines}

    def table(self, model: AnytimeModel, evaluated: Evaluation) -> Table:
        """For people."""
        return random_table(model, evaluated, self.times, self.deadlines)

    def line(self, evaluated: Evaluation) -> str:
        """What the simulation comes to, in a line."""
        stop, random, fixed = self._timeliness(evaluated)
        draws = f"{len(self.times.times)} draws of costs"
        if random is None:
            return f"{draws}; no timeliness of r2, as the target does not vary in the table"
        return (
            f"{draws}; timeliness of r2 up to {stop:.4g} ms: {random[0]:.4f} ± {random[1]:.1g}, "
            f"{fixed:.4f} if every group took its mean"
        )

    def _timeliness(self, evaluated: Evaluation) -> tuple[float, tuple[float, float] | None, float | None]:
        """Return where it stops, and its value under random costs, with its standard error, and at their means.

        Both are None where R² is.
        """
        means = self.times.times.mean(axis=0)
        plateau = int(np.searchsorted(evaluated.costs, evaluated.stop * (1 - 1e-12)))
        stop = float(means[plateau])
        if evaluated.r2 is None:
            return stop, None, None
        if stop <= 0:
            return 0.0, (0.0, 0.0), 0.0
        fixed, _ = RandomTimes(means[np.newaxis]).timeliness(evaluated.r2, stop)
        return stop, self.times.timeliness(evaluated.r2, stop), fixed


def simulated(model: AnytimeModel, path: Path, deadlines: Sequence[float], draws: int, seed: int) -> Simulated:
    """Draw costs from a file of distributions.

    Raises
    ------
    GroupsError
        It cannot be read, or lacks a group.
    """
    times = simulate(model, CostDistributions.load(path), draws, np.random.default_rng(seed))
    if deadlines:
        return Simulated(times, np.array(sorted(deadlines)))
    whole = float(times.times[:, -1].mean())
    return Simulated(times, np.array([float(f"{share * whole:.2g}") for share in SHARES]))
