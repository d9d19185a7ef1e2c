"""`anytime evaluate`: the quality of every prefix on a table, and simulated deadlines with `--random-costs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from anytime.cli.console import print_json, results
from anytime.cli.cost_report import random_table, random_values
from anytime.cli.options import AsJson, Data, DropMissing, Jobs, ModelFile, Seed, Weights, workers
from anytime.cli.report import evaluation_table, evaluation_values
from anytime.costs.distributions import CostDistributions, RandomTimes, simulate
from anytime.data.formats import open_table
from anytime.errors import TrainingError
from anytime.evaluation import evaluate as evaluation
from anytime.evaluation.evaluate import Evaluation
from anytime.inference.prediction import load
from anytime.model.model import Model
from anytime.types import Float

__all__ = [
    "Simulated",
    "evaluate",
    "simulated",
]

SHARES = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5)
"""Default deadlines, as shares of the mean time of all groups."""


@dataclass(frozen=True, eq=False)
class Simulated:
    """Times at which the prefixes are complete in random draws, and the requested deadlines (ms)."""

    times: RandomTimes
    deadlines: Float

    def values(self, evaluated: Evaluation) -> dict[str, Any]:
        """Return the results as JSON values."""
        stop, random, fixed = self._timeliness(evaluated)
        mean, error = (None, None) if random is None else random
        timeliness = {"stop_ms": stop, "mean": mean, "error": error, "at_mean_costs": fixed}
        deadlines = random_values(evaluated, self.times, self.deadlines)
        return {"draws": len(self.times.times), "timeliness_r2": timeliness, "deadlines": deadlines}

    def table(self, model: Model, evaluated: Evaluation) -> Table:
        """Return the results as a table."""
        return random_table(model, evaluated, self.times, self.deadlines)

    def line(self, evaluated: Evaluation) -> str:
        """Return the summary of the simulation, in one line."""
        stop, random, fixed = self._timeliness(evaluated)
        draws = f"{len(self.times.times)} draws of costs"
        if random is None:
            return f"{draws}; no timeliness of r2, as the target is constant in the table"
        return (
            f"{draws}; timeliness of r2 up to {stop:.4g} ms: {random[0]:.4f} ± {random[1]:.1g}, "
            f"{fixed:.4f} if every group takes its mean time"
        )

    def _timeliness(self, evaluated: Evaluation) -> tuple[float, tuple[float, float] | None, float | None]:
        """Return the stopping time, timeliness under random costs with standard error, and timeliness at mean costs.

        Both timeliness values are None if R² is None.
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


def simulated(model: Model, path: Path, deadlines: Sequence[float], draws: int, seed: int) -> Simulated:
    """Draw costs from a file of distributions and simulate the deadlines.

    Raises
    ------
    GroupsError
        The file is unreadable, or lacks a group.
    """
    times = simulate(model, CostDistributions.load(path), draws, np.random.default_rng(seed))
    if deadlines:
        return Simulated(times, np.array(sorted(deadlines)))
    mean_total = float(times.times[:, -1].mean())
    return Simulated(times, np.array([float(f"{share * mean_total:.2g}") for share in SHARES]))


RandomCosts = Annotated[
    Path | None,
    typer.Option(
        "--random-costs", help="Distributions of costs, from profile or costs: simulate deadlines.", show_default=False
    ),
]
Deadlines = Annotated[
    list[float] | None,
    typer.Option("--deadline", min=0, help="Deadline to simulate, in ms; may be repeated.", show_default=False),
]


def evaluate(
    model: ModelFile,
    data: Data,
    json: AsJson = False,
    weights: Weights = None,
    drop_missing_target: DropMissing = False,
    random_costs: RandomCosts = None,
    deadline: Deadlines = None,
    draws: Annotated[int, typer.Option(min=2, help="Predictions to simulate.")] = 10_000,
    seed: Seed = 0,
    n_jobs: Jobs = None,
) -> None:
    """Measure every prefix of a model on a table: r2, squared error, accuracy or NDCG@5, coverage, timeliness."""
    loaded = load(model)
    if random_costs is None and deadline:
        raise TrainingError("--deadline applies to simulations only; add --random-costs FILE")
    times = None if random_costs is None else simulated(loaded, random_costs, deadline or (), draws, seed)
    table = open_table(data)
    evaluated = evaluation.evaluate(
        loaded, table, weights=weights, drop_missing=drop_missing_target, n_jobs=workers(n_jobs)
    )
    if json:
        print_json(evaluation_values(evaluated) | ({} if times is None else {"random_costs": times.values(evaluated)}))
        return
    console = results()
    console.print(evaluation_table(loaded, evaluated))
    console.print(
        f"{evaluated.rows} rows; timeliness up to cost {evaluated.stop:g}: {evaluated.timeliness:.4f} (trapezoid), "
        f"{evaluated.timeliness_step:.4f} (step)",
        markup=False,
    )
    if times is not None:
        console.print(times.table(loaded, evaluated))
        console.print(times.line(evaluated), markup=False)
