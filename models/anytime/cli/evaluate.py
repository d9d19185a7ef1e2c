"""`anytime evaluate`: the quality of every prefix on a table, and simulated deadlines with `--random-costs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from anytime.cli.console import as_json, print_results, remark_missing
from anytime.cli.options import AsJson, Data, ModelFile, RowOptions, Seed, spread
from anytime.cli.summary import steps_table
from anytime.costs.distributions import CostDistributions, RandomTimes, simulate
from anytime.errors import TrainingError
from anytime.evaluation.calibrate import held_out
from anytime.evaluation.evaluate import Evaluation, evaluated
from anytime.loaded import load
from anytime.tabulated import NUMBER, R2, Series, Tabulated

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
    loaded, budgets = load(model), Series("budget", budget or (), form="g")
    within = [loaded.affordable(each) for each in budgets]
    for option, value in (("--deadline", deadline), ("--rows", rows), ("--parallel", parallel)):
        if random_costs is None and value:
            raise TrainingError(f"{option} applies to simulations only; add --random-costs FILE")
    times, called = None, rows or 1
    if random_costs is not None:
        measured = CostDistributions.load(random_costs)
        called = rows or measured.rows
        times = simulate(loaded, measured, draws, np.random.default_rng(seed), called, parallel or 1)
    drops = reading.missing_target == "drop"
    dataset, found = held_out(loaded, reading.open(data), weights=reading.weights, drop_missing=drops)
    remark_missing(found)
    evaluation = evaluated(loaded, dataset, n_jobs=reading.n_jobs)
    simulation = None if times is None else _simulation(evaluation, times, deadline or ())
    timely = {} if times is None else _timeliness(evaluation, times)
    if json:
        queries, simulated = evaluation.ndcg_queries, {"rows": called, "draws": draws, "timeliness_r2": timely}
        values = {
            "rows": evaluation.rows,
            **({} if queries is None else {"queries": queries[0], "queries_without_relevant": queries[1]}),
            "stop": evaluation.stop,
            "timeliness": evaluation.timeliness,
            "timeliness_step": evaluation.timeliness_step,
            "prefixes": evaluation.table.records(),
            **({"budgets": evaluation.table.take(within, budgets).records()} if within else {}),
            **({} if simulation is None else {"random_costs": simulated | {"deadlines": simulation.records()}}),
        }
        print_results(as_json(values))
        return
    table = steps_table(loaded, evaluation)
    print_results(
        replace(table.take(within, budgets) if within else table, notes=()),
        f"{evaluation.rows} rows; timeliness up to cost {evaluation.stop:g}: {evaluation.timeliness:.4f} (trapezoid), "
        f"{evaluation.timeliness_step:.4f} (step)",
        *table.notes,
        *(() if simulation is None else (simulation, _simulation_line(draws, called, timely))),
    )


def _simulation(evaluation: Evaluation, times: RandomTimes, requested: Sequence[float]) -> Tabulated:
    """Return the expected measures at each simulated deadline (ms), with standard errors."""
    mean_total, steps = float(times.times[:, -1].mean()), len(evaluation.costs) - 1
    deadlines = np.array(sorted(requested) or [float(f"{share * mean_total:.2g}") for share in SHARES])
    omitted = ("coverage", "size", "mse" if evaluation.deviance is not None else "")
    measured = (
        (name, times.expected(values, deadlines)) for name, values in evaluation.measures.items() if name not in omitted
    )
    pairs = (
        (Series(f"test {name}", mean, name, R2 if name == "r2" else NUMBER), Series("±", error, f"{name}_error", ".1g"))
        for name, (mean, error) in measured
    )
    return Tabulated.of(
        Series("deadline (ms)", deadlines, "deadline_ms"),
        Series(f"steps of {steps}", times.prefixes(deadlines).mean, "prefix", ".2f"),
        *chain.from_iterable(pairs),
    )


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


def _simulation_line(draws: int, rows: int, timeliness: Mapping[str, float | None]) -> str:
    of_rows = "" if rows == 1 else f" of {rows} rows"
    if timeliness["mean"] is None:
        return f"{draws} draws of costs{of_rows}; no timeliness of r2, as the target is constant in the table"
    return (
        f"{draws} draws of costs{of_rows}; timeliness of r2 up to {timeliness['stop_ms']:.4g} ms: "
        f"{timeliness['mean']:.4f} ± {timeliness['error']:.1g}, "
        f"{timeliness['at_mean_costs']:.4f} if every group takes its mean time"
    )
