"""`anytime evaluate`: every prefix of a model on a table, and what is expected by a deadline when costs are random."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anytime.cli.arguments import AsJson, Data, DropMissing, Jobs, ModelFile, Seed, Weights, workers

__all__ = ["evaluate"]

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
    from anytime import evaluation  # noqa: PLC0415
    from anytime.artifact import load  # noqa: PLC0415
    from anytime.cli.console import print_json, results  # noqa: PLC0415
    from anytime.cli.deadlines import simulated  # noqa: PLC0415
    from anytime.cli.reporting import evaluation_table, evaluation_values  # noqa: PLC0415
    from anytime.errors import TrainingError  # noqa: PLC0415
    from anytime.tables import open_table  # noqa: PLC0415

    loaded = load(model)
    if random_costs is None and deadline:
        raise TrainingError("--deadline is of simulations; add --random-costs FILE")
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
