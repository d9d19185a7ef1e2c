"""`anytime evaluate`: the quality of every prefix on a table, and simulated deadlines with `--random-costs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from anytime.cli.console import blank_table, print_json, results
from anytime.cli.options import AsJson, Data, DropMissing, Jobs, ModelFile, Seed, Weights, workers
from anytime.cli.report import evaluation_table
from anytime.costs.distributions import CostDistributions, RandomTimes, simulate
from anytime.data.formats import open_table
from anytime.errors import TrainingError
from anytime.evaluation.evaluate import Evaluation
from anytime.evaluation.evaluate import evaluate as evaluate_model
from anytime.inference.prediction import load
from anytime.model.model import Model
from anytime.types import Float

__all__ = ["evaluate"]

SHARES = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5)
"""Default deadlines, as shares of the mean time of all groups."""

RandomCosts = Annotated[
    Path | None, typer.Option(help="Distributions of costs, from profile or costs: simulate deadlines.")
]
Deadlines = Annotated[list[float] | None, typer.Option(min=0, help="Deadline to simulate, in ms; may be repeated.")]


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
    times = None
    if random_costs is not None:
        times = simulate(loaded, CostDistributions.load(random_costs), draws, np.random.default_rng(seed))
    evaluation = evaluate_model(
        loaded, open_table(data), weights=weights, drop_missing=drop_missing_target, n_jobs=workers(n_jobs)
    )
    simulation = None if times is None else _Simulation(evaluation, times, _deadlines(times, deadline or ()))
    if json:
        values = _evaluation_values(evaluation)
        print_json(values if simulation is None else values | {"random_costs": simulation.values()})
        return
    console = results()
    console.print(evaluation_table(loaded, evaluation))
    console.print(
        f"{evaluation.rows} rows; timeliness up to cost {evaluation.stop:g}: {evaluation.timeliness:.4f} (trapezoid), "
        f"{evaluation.timeliness_step:.4f} (step)",
        markup=False,
    )
    if simulation is not None:
        console.print(simulation.table(loaded))
        console.print(simulation.line(), markup=False)


def _evaluation_values(evaluation: Evaluation) -> dict[str, Any]:
    """Return the output of `evaluate --json`."""
    steps = len(evaluation.costs)
    arrays = {
        "prefix": np.arange(steps),
        "cost": evaluation.costs,
        "explained_variance": evaluation.explained_variance,
        "r2": np.full(steps, None) if evaluation.r2 is None else evaluation.r2,
        "mse": evaluation.mse,
        "deviance": evaluation.deviance,
        "accuracy": evaluation.accuracy,
        "ndcg@5": evaluation.ndcg,
        "coverage": evaluation.coverage,
        "size": evaluation.size,
    }
    columns = {name: array.tolist() for name, array in arrays.items() if array is not None}
    return {
        "rows": evaluation.rows,
        "stop": evaluation.stop,
        "timeliness": evaluation.timeliness,
        "timeliness_step": evaluation.timeliness_step,
        "prefixes": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
    }


def _deadlines(times: RandomTimes, requested: Sequence[float]) -> Float:
    """Return the requested deadlines (ms), or shares of the mean time of all groups."""
    mean_total = float(times.times[:, -1].mean())
    return np.array(sorted(requested) or [float(f"{share * mean_total:.2g}") for share in SHARES])


@dataclass(frozen=True, eq=False)
class _Simulation:
    """Times at which the prefixes are complete in random draws, and the deadlines (ms) to simulate."""

    evaluation: Evaluation
    times: RandomTimes
    deadlines: Float

    def values(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        stop, random, fixed = self._timeliness()
        mean, error = (None, None) if random is None else random
        timeliness = {"stop_ms": stop, "mean": mean, "error": error, "at_mean_costs": fixed}
        return {"draws": len(self.times.times), "timeliness_r2": timeliness, "deadlines": self._rows()}

    def table(self, model: Model) -> Table:
        """Return the expected measures at each deadline as a table."""
        measures = list(self._measures())
        table = blank_table("deadline (ms)", f"steps of {model.steps}", *(f"test {name}" for name in measures))
        for row in self._rows():
            cells = [f"{row[name]:.4g} ± {row[f'{name}_error']:.1g}" for name in measures]
            table.add_row(f"{row['deadline_ms']:.4g}", f"{row['prefix']:.2f}", *cells)
        return table

    def line(self) -> str:
        """Return the summary of the simulation, in one line."""
        stop, random, fixed = self._timeliness()
        draws = f"{len(self.times.times)} draws of costs"
        if random is None:
            return f"{draws}; no timeliness of r2, as the target is constant in the table"
        return (
            f"{draws}; timeliness of r2 up to {stop:.4g} ms: {random[0]:.4f} ± {random[1]:.1g}, "
            f"{fixed:.4f} if every group takes its mean time"
        )

    def _measures(self) -> dict[str, Float]:
        values = {
            "r2": self.evaluation.r2,
            "mse": self.evaluation.mse if self.evaluation.deviance is None else None,
            "deviance": self.evaluation.deviance,
            "accuracy": self.evaluation.accuracy,
            "ndcg@5": self.evaluation.ndcg,
        }
        return {name: value for name, value in values.items() if value is not None}

    def _rows(self) -> list[dict[str, float]]:
        """Return the expected measures at each deadline, with standard errors."""
        columns = {"deadline_ms": self.deadlines, "prefix": self.times.prefixes(self.deadlines).mean}
        for name, values in self._measures().items():
            columns[name], columns[f"{name}_error"] = self.times.expected(values, self.deadlines)
        return [dict(zip(columns, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)]

    def _timeliness(self) -> tuple[float, tuple[float, float] | None, float | None]:
        """Return the stopping time, timeliness under random costs with standard error, and timeliness at mean costs.

        Both timeliness values are None if R² is None.
        """
        evaluation, means = self.evaluation, self.times.times.mean(axis=0)
        stop = float(means[int(np.searchsorted(evaluation.costs, evaluation.stop * (1 - 1e-12)))])
        if evaluation.r2 is None:
            return stop, None, None
        if stop <= 0:
            return 0.0, (0.0, 0.0), 0.0
        fixed, _ = RandomTimes(means[np.newaxis]).timeliness(evaluation.r2, stop)
        return stop, self.times.timeliness(evaluation.r2, stop), fixed
