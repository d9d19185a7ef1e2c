"""`anytime evaluate`: the quality of every prefix on a table, and simulated deadlines with `--random-costs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from anytime.cli.console import blank_table, print_json, print_results
from anytime.cli.options import AsJson, Data, ModelFile, RowOptions, Seed, spread
from anytime.cli.report import evaluation_table, measure_lines
from anytime.cli.sources import remark_missing
from anytime.costs.distributions import CostDistributions, RandomTimes, simulate
from anytime.errors import TrainingError
from anytime.evaluation.calibrate import held_out
from anytime.evaluation.evaluate import Evaluation, evaluated
from anytime.loaded import load
from anytime.model.model import Model

SHARES = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5)
"""Default deadlines, as shares of the mean time of all groups."""


@spread
def evaluate(
    model: ModelFile,
    data: Data,
    json: AsJson = False,
    budget: Annotated[
        list[float] | None,
        typer.Option(help="Print the measures at this budget, in the model's cost unit; repeat for several."),
    ] = None,
    random_costs: Annotated[
        Path | None,
        typer.Option(help="Simulate deadlines with the times in this file, which profile or costs wrote (*.json)."),
    ] = None,
    deadline: Annotated[
        list[float] | None, typer.Option(min=0, help="Simulate this deadline, in ms; repeat for several.")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1, help="Simulate predictions of this many rows; by default that of the calls that were measured."
        ),
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(min=1, help="Simulate groups that this many workers compute at the same time.")
    ] = None,
    draws: Annotated[int, typer.Option(min=2, help="Simulate this many predictions.")] = 10_000,
    seed: Seed = 0,
    *,
    reading: RowOptions,
) -> None:
    """Measure every prefix of a model on a table: r2, squared error, measures of classes, NDCG@5, coverage, timeliness.

    Example: anytime evaluate model.safetensors test.csv
    """
    loaded, budgets = load(model), budget or ()
    within = [loaded.affordable(each) for each in budgets]
    if random_costs is None and deadline:
        raise TrainingError("--deadline applies to simulations only; add --random-costs FILE")
    for option, value in (("--rows", rows), ("--parallel", parallel)):
        if random_costs is None and value is not None:
            raise TrainingError(f"{option} applies to simulations only; add --random-costs FILE")
    times, called = None, rows or 1
    if random_costs is not None:
        measured = CostDistributions.load(random_costs)
        called = rows or measured.rows
        times = simulate(loaded, measured, draws, np.random.default_rng(seed), called, parallel or 1)
    dataset, found = held_out(loaded, reading.open(data), weights=reading.weights, drop_missing=reading.drops_missing)
    remark_missing(found)
    evaluation = evaluated(loaded, dataset, n_jobs=reading.n_jobs)
    simulation = None if times is None else {"rows": called} | _simulation(evaluation, times, deadline or ())
    if json:
        values = _evaluation_values(evaluation)
        if budgets:
            reached = (values["prefixes"][prefix] for prefix in within)
            values["budgets"] = [{"budget": each} | row for each, row in zip(budgets, reached, strict=True)]
        print_json(values if simulation is None else values | {"random_costs": simulation})
        return
    print_results(
        evaluation_table(loaded, evaluation, budgets),
        f"{evaluation.rows} rows; timeliness up to cost {evaluation.stop:g}: {evaluation.timeliness:.4f} (trapezoid), "
        f"{evaluation.timeliness_step:.4f} (step)",
        *measure_lines(evaluation),
    )
    if simulation is not None:
        line = _simulation_line(simulation["draws"], called, simulation["timeliness_r2"])
        print_results(_simulation_table(loaded, simulation["deadlines"]), line)


def _evaluation_values(evaluation: Evaluation) -> dict[str, Any]:
    steps = len(evaluation.costs)
    measures = {name: values.tolist() for name, values in evaluation.measures.items()}
    columns = {
        "prefix": list(range(steps)),
        "cost": evaluation.costs.tolist(),
        "explained_variance": evaluation.explained_variance.tolist(),
        "r2": [None] * steps,
        **measures,
    }
    queries = evaluation.ndcg_queries
    return {
        "rows": evaluation.rows,
        **({} if queries is None else {"queries": queries[0], "queries_without_relevant": queries[1]}),
        "stop": evaluation.stop,
        "timeliness": evaluation.timeliness,
        "timeliness_step": evaluation.timeliness_step,
        "prefixes": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
    }


def _simulation(evaluation: Evaluation, times: RandomTimes, requested: Sequence[float]) -> dict[str, Any]:
    """Return the simulated timeliness, and the expected measures at each deadline (ms) with standard errors."""
    mean_total = float(times.times[:, -1].mean())
    deadlines = np.array(sorted(requested) or [float(f"{share * mean_total:.2g}") for share in SHARES])
    left = ("coverage", "size", "mse" if evaluation.deviance is not None else "")
    measures = {name: values for name, values in evaluation.measures.items() if name not in left}
    columns = {"deadline_ms": deadlines, "prefix": times.prefixes(deadlines).mean}
    for name, values in measures.items():
        columns[name], columns[f"{name}_error"] = times.expected(values, deadlines)
    rows = [dict(zip(columns, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)]
    return {"draws": len(times.times), "timeliness_r2": _timeliness(evaluation, times), "deadlines": rows}


def _timeliness(evaluation: Evaluation, times: RandomTimes) -> dict[str, float | None]:
    """Return the stopping time, and the timeliness of R² under random costs and at mean costs; None without R²."""
    means = times.times.mean(axis=0)
    stop = float(means[int(np.searchsorted(evaluation.costs, evaluation.stop * (1 - 1e-12)))])
    if evaluation.r2 is None:
        return {"stop_ms": stop, "mean": None, "error": None, "at_mean_costs": None}
    if stop <= 0:
        return {"stop_ms": 0.0, "mean": 0.0, "error": 0.0, "at_mean_costs": 0.0}
    mean, error = times.timeliness(evaluation.r2, stop)
    fixed, _ = RandomTimes(means[np.newaxis]).timeliness(evaluation.r2, stop)
    return {"stop_ms": stop, "mean": mean, "error": error, "at_mean_costs": fixed}


def _simulation_table(model: Model, rows: Sequence[Mapping[str, float]]) -> Table:
    measures = [name.removesuffix("_error") for name in rows[0] if name.endswith("_error")]
    table = blank_table("deadline (ms)", f"steps of {model.steps}", *(f"test {name}" for name in measures))
    for row in rows:
        cells = [f"{row[name]:.4g} ± {row[f'{name}_error']:.1g}" for name in measures]
        table.add_row(f"{row['deadline_ms']:.4g}", f"{row['prefix']:.2f}", *cells)
    return table


def _simulation_line(draws: int, rows: int, timeliness: Mapping[str, float | None]) -> str:
    of_rows = "" if rows == 1 else f" of {rows} rows"
    if timeliness["mean"] is None:
        return f"{draws} draws of costs{of_rows}; no timeliness of r2, as the target is constant in the table"
    return (
        f"{draws} draws of costs{of_rows}; timeliness of r2 up to {timeliness['stop_ms']:.4g} ms: "
        f"{timeliness['mean']:.4f} ± {timeliness['error']:.1g}, "
        f"{timeliness['at_mean_costs']:.4f} if every group takes its mean time"
    )
