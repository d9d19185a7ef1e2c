"""`anytime costs`: measured costs of a model's groups in service, and whether its sequence is still the right one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from anytime._files import check_writable
from anytime.cli.console import print_json, remark, results, working
from anytime.cli.cost_report import (
    Learned,
    budgets_of,
    drift_table,
    drift_values,
    histogram_bucket,
    learned_table,
    learned_values,
    order_lines,
)
from anytime.cli.options import AsJson, DropMissing, Jobs, Weights, workers
from anytime.cli.profile import CostQuantile, Distributions
from anytime.cli.sources import open_retrained
from anytime.costs.distributions import CostDistributions, checked_quantile, milliseconds, priced
from anytime.costs.drift import drift
from anytime.costs.scraping import (
    added,
    histograms,
    joined_text,
    of_model,
    paired,
    pieces,
    since,
    tallies,
    was_reset,
)
from anytime.errors import AnytimeError
from anytime.groups import SUFFIXES, FeatureGroups, write_groups, write_text
from anytime.inference.prediction import load

__all__ = [
    "KEY",
    "costs",
    "learned_costs",
    "metrics_of",
]

KEY = "ANYTIME_KEY"
"""Environment variable with the API key, if the service needs one."""


def metrics_of(sources: Sequence[str], earlier: Sequence[str], model: str, keep_file: Path | None) -> CostDistributions:
    """Return the timings of a model's groups from several services, minus earlier ones; store the text if requested.

    Raises
    ------
    AnytimeError
        As `scraped`, `paired`, `tallies`, `of_model` and `histograms`; or no group has arrived since.
    """
    key = os.environ.get(KEY) or None
    now = [piece for source in sources for piece in pieces(source, key)]
    timings = of_model([tallies(piece.text) for piece in now], model)
    if earlier:
        before = paired(now, [piece for source in earlier for piece in pieces(source, key)])
        for i, piece in enumerate(before):
            then = {} if piece is None else tallies(piece.text).get(model, {})
            if was_reset(timings[i], then):
                remark(f"{now[i].source} was restarted since then; all of its counts are used")
            else:
                timings[i] = since(timings[i], then)
    found = histograms(added(timings))
    if keep_file is not None:
        write_text(joined_text(now), keep_file)
    if not found:
        raise AnytimeError(f"no group of model {model!r} was timed since then; wait for some predictions")
    return CostDistributions(source=f"anytime costs --from {' --from '.join(sources)}", groups=dict(found))


def learned_costs(groups: FeatureGroups, found: CostDistributions, quantile: float | None, least: int) -> list[Learned]:
    """Return the cost of each group, in the order of the groups; unchanged with fewer than `least` measured values."""
    factor = milliseconds(groups.cost_unit)
    learned: list[Learned] = []
    for group in groups.groups:
        old = None if factor is None else group.cost * factor
        timings = found.groups.get(group.name)
        count = 0 if timings is None else timings.count
        if not group.features:
            learned.append(Learned(group.name, old or 0.0, old, 0, why="unchanged: it has no features"))
        elif timings is None or count < least:
            learned.append(
                Learned(group.name, old or 0.0, old, count, why=f"unchanged: fewer than {least} values were measured")
            )
        else:
            bucket = histogram_bucket(found, group.name, quantile)
            learned.append(Learned(group.name, found.cost(group.name, quantile), old, count, bucket))
    return learned


DRIFT = 3
"""Exit code of `--check` if the sequence should change; no failure uses it."""

Sources = Annotated[
    list[str],
    typer.Option(
        "--from", help="Address of a service's metrics, or a file of them; repeat it for replicas.", show_default=False
    ),
]
Since = Annotated[
    list[str] | None,
    typer.Option(
        "--since",
        help="File of earlier metrics to subtract: the one that --keep wrote, or one for each --from.",
        show_default=False,
    ),
]
ModelOption = Annotated[Path, typer.Option("--model", help="Model file that the service uses.", show_default=False)]
MaybeOut = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Groups file to write: .yaml or .json; 'resequence --costs' reads it.", show_default=False
    ),
]
Keep = Annotated[
    Path | None, typer.Option("--keep", help="File to store the metrics in, for --since.", show_default=False)
]
Budgets = Annotated[
    list[float] | None,
    typer.Option("--budget", min=0, help="Budget to compare at, in ms; may be repeated.", show_default=False),
]


def costs(
    source: Sources,
    model: ModelOption,
    since: Since = None,
    cost_quantile: CostQuantile = None,
    least: Annotated[int, typer.Option(min=1, help="Minimum number of measured values to change a group's cost.")] = 30,
    out: MaybeOut = None,
    distributions: Distributions = None,
    keep: Keep = None,
    budget: Budgets = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 3 if keeping the sequence loses too much.")] = False,
    tolerance: Annotated[float, typer.Option(min=0, help="Loss of timeliness, 0 to 1, to tolerate.")] = 0.01,
    data: Annotated[
        Path | None, typer.Option("--data", help="Table on which to refit a likelihood.", show_default=False)
    ] = None,
    weights: Weights = None,
    drop_missing_target: DropMissing = False,
    n_jobs: Jobs = None,
    json: AsJson = False,
) -> None:
    """Measure the costs of the groups in a running service, and report whether the sequence should change.

    A cost is the mean, which is exact; a quantile is interpolated in a bucket, which is printed. ANYTIME_KEY holds the
    API key.
    """
    quantile = checked_quantile(cost_quantile)
    if out is not None:
        check_writable(out, SUFFIXES)
    if distributions is not None:
        check_writable(distributions, (".json",))
    loaded = load(model)
    found = metrics_of(source, since or (), loaded.name, keep)
    learned = learned_costs(loaded.groups, found, quantile, least)
    groups = priced(loaded.groups, {each.group: each.cost for each in learned if each.why is None})
    retrained = None
    if data is not None and loaded.manifest.family != "gaussian":
        retrained = open_retrained(
            loaded, groups, data, weights=weights, drop_missing=drop_missing_target, jobs=workers(n_jobs)
        )
    with working(f"ordering {len(groups)} groups"):
        changed = drift(loaded, groups, retrained)
    budgets = budgets_of(changed, budget or ())
    if out is not None:
        write_groups(groups, out)
    if distributions is not None:
        write_text(found.text(), distributions)
    if json:
        values = drift_values(changed, budgets) | {"tolerance": tolerance}
        print_json({"model": loaded.name, "cost_unit": "ms", "groups": learned_values(learned), "sequence": values})
    else:
        console = results()
        console.print(learned_table(learned))
        for line in order_lines(changed):
            console.print(line, markup=False)
        console.print(drift_table(changed, budgets))
        staying, moving = changed.timeliness
        console.print(
            f"timeliness up to {changed.stop:.4g} ms, in training: {staying:.4f} with the current sequence, "
            f"{moving:.4f} with the new one; the current one loses {changed.lost:.4f}",
            markup=False,
        )
        written = [str(path) for path in (out, distributions, keep) if path is not None]
        if written:
            console.print(f"wrote {' and '.join(written)}", markup=False)
    if changed.estimated:
        why = "the model has no moments" if loaded.manifest.family == "gaussian" else "a likelihood needs --data"
        remark(f"the new sequence is estimated from the gains of the steps, as {why}")
    if check and changed.lost > tolerance:
        remark(f"the sequence loses {changed.lost:.4f} of timeliness, more than {tolerance:g}; resequence the model")
        raise typer.Exit(DRIFT)
