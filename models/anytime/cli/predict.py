"""A model on the rows of a table. `anytime predict`: their predictions. `anytime evaluate`: the quality of each prefix.

With `--random-costs`, `evaluate` simulates deadlines, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from anytime._files import ENDING, check_writable, cleanup_on
from anytime.cli.console import as_json, print_results, progress, remark, remark_missing
from anytime.cli.options import AsJson, Data, ModelFile, RowOptions, Seed, TableFormat, spread
from anytime.cli.summary import steps_table
from anytime.costs.distributions import CostDistributions, RandomTimes, simulate
from anytime.data.formats.writing import WRITABLE, types_to_write, write_table
from anytime.errors import TableError, TrainingError, ValuesError, clipped, listed
from anytime.evaluation.calibrate import held_out
from anytime.evaluation.evaluate import Evaluation, evaluated
from anytime.inference.tables import TableAnswer, TableScorer
from anytime.loaded import load
from anytime.model.model import Model
from anytime.tabulated import NUMBER, R2, Series, Tabulated
from anytime.types import Policy


@spread
def predict(
    model: ModelFile,
    data: Data,
    out: Annotated[
        Path,
        typer.Option(
            help="Write the predictions to this table (*.csv, *.csv.gz, *.tsv, *.parquet, *.arrow, *.feather)."
        ),
    ],
    budget: Annotated[
        float | None, typer.Option(help="Use groups of at most this cost per row, in the model's cost unit.")
    ] = None,
    prefix: Annotated[int | None, typer.Option(help="Use this many steps, instead of a budget.")] = None,
    policy: Annotated[
        Policy,
        typer.Option(
            help="Use the longest complete prefix (prefix); best: that prefix, or a shorter one whose "
            "cross-validated error is clearly less. arrived: use every group that the table has."
        ),
    ] = "prefix",
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Add the contribution of each group to the score, and its base.")
    ] = False,
    interval: Annotated[
        bool, typer.Option("--interval", help="Add the interval, or the set of classes, of a calibrated model.")
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Keep this column of the table unchanged, such as an id; repeat for several."),
    ] = None,
    *,
    tables: TableFormat,
) -> None:
    """Predict every row of a table by the groups within a budget; only their columns are read.

    A group without any column in the table is missing: the longest complete prefix answers, or with `--policy arrived`
    the optimum of the other groups. A table of any size takes the same memory.

    Example: anytime predict model.safetensors rows.parquet --budget 10 --keep id --out predictions.csv
    """
    check_writable(out, WRITABLE)
    loaded = load(model)
    if proba and loaded.manifest.classes is None:
        raise ValuesError(f"--proba requires a model of classes; the task of {loaded.name!r} is {loaded.manifest.task}")
    if interval and loaded.manifest.calibration is None:
        raise ValuesError(
            f"--interval requires a calibrated model; train {loaded.name!r} with --calibrate TABLE of held-out rows"
        )
    for path, what in ((out, "the table itself"), (out.parent, "in the folder that is the table")):
        if data.exists() and path.exists() and data.samefile(path):
            raise TableError(f"--out is {str(out)!r}, {what}; name another file")
    table = tables.open(data)
    kept = tuple(dict.fromkeys(keep or ()))
    table.require(kept)
    scorer = TableScorer.of(loaded, table, budget=budget, prefix=prefix, policy=policy, explain=explain)
    last, imputed = deque[TableAnswer](maxlen=1), dict[str, None]()

    def batches(advance: Callable[[int], None]) -> Iterator[Mapping[str, Any]]:
        for answer, batch in scorer.answers(kept):
            predicted = answer.columns(proba=proba, interval=interval)
            if both := [name for name in predicted if name in kept]:
                raise TableError(f"--keep {both[0]}: a column of the predictions has this name; rename the table's")
            yield {name: batch.columns[name] for name in kept} | predicted
            last.append(answer)
            imputed.update(dict.fromkeys(answer.imputed))
            advance(batch.rows)

    with cleanup_on(*ENDING), progress(f"predicting {data.name}", table.known_rows) as advance:
        write_table(out, batches(advance), types_to_write(table, kept, out))
    for line in _remarks(loaded, last[0], [name for name in imputed if name not in last[0].absent]):
        remark(line)
    remark(f"wrote {out}")


def _remarks(model: Model, answer: TableAnswer, imputed: list[str]) -> Iterator[str]:
    if answer.groups:
        prefix = f"step {answer.prefix} of {answer.steps}"
        by = "the optimum of the table's groups" if answer.policy == "arrived" else prefix
        yield f"predicted by {by}: {listed(answer.groups, 10)} (cost {model.groups.amount(answer.cost)} a row)"
    if answer.note:
        yield answer.note
    if answer.contributions is not None and answer.probabilities is not None and answer.scores.shape[1] == 1:
        yield f"contributions add to the score of {answer.names[-1]!r}"
    if answer.missing:
        yield f"missing: {listed(answer.missing, 10)} (the table has none of their columns)"
    used = {column for name in answer.groups for column in model.places[name].features}
    if lacking := [name for name in answer.absent if name in used]:
        yield f"imputed: {listed(map(clipped, lacking), 10)} (the table lacks these columns)"
    if imputed:
        yield f"imputed: {listed(map(clipped, imputed), 10)} (missing or unknown values in some rows)"


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
    dataset, found = held_out(
        loaded, reading.open(data), weights=reading.weights, drop_missing=reading.missing_target == "drop"
    )
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
        f"{evaluation.rows} rows; timeliness (the mean share explained over costs from 0 to {evaluation.stop:g}): "
        f"{evaluation.timeliness_step:.4f} by steps, {evaluation.timeliness:.4f} by straight lines between them",
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
