"""`anytime costs`: measured costs of a model's groups in service, and whether its sequence is still the right one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from anytime._files import check_writable
from anytime.cli import options
from anytime.cli.console import blank_table, print_json, print_results, remark, working
from anytime.cli.sources import open_retrained
from anytime.costs.distributions import CostDistributions, Histogram, priced
from anytime.costs.drift import Drift, drift
from anytime.costs.scraping import added, histograms, joined_text, of_model, paired, pieces, since, tallies, was_reset
from anytime.errors import AnytimeError
from anytime.groups import SUFFIXES, FeatureGroups, milliseconds, write_groups, write_text
from anytime.inference.prediction import load

BUDGETS = (0.1, 0.25, 0.5, 1.0)
"""Default budgets, as shares of the cost at which the new sequence reaches its plateau."""

DRIFT = 3
"""Exit code of `--check` if the sequence should change; no failure uses it."""


def costs(
    source: Annotated[
        list[str],
        typer.Option("--from", help="Read metrics from this service (http://HOST:PORT) or file; repeat for replicas."),
    ],
    model: Annotated[Path, typer.Option("--model", help="Read the model file that the service uses.")],
    since: Annotated[
        list[str] | None,
        typer.Option(help="Subtract the metrics in this file: one that --keep wrote, or one for each --from."),
    ] = None,
    cost_quantile: options.CostQuantile = None,
    least: Annotated[
        int, typer.Option(min=1, help="Change the cost of a group only from this many measured values on.")
    ] = 30,
    out: Annotated[Path | None, typer.Option(help=options.GROUPS_OUT)] = None,
    distributions: options.Distributions = None,
    keep: Annotated[Path | None, typer.Option(help="Write the metrics to this file, for a later --since.")] = None,
    budget: Annotated[
        list[float] | None, typer.Option(min=0, help="Compare the sequences at this budget, in ms; repeat for several.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 3 if the current sequence loses more than --tolerance.")
    ] = False,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Tolerate this loss of timeliness, as a share from 0 to 1.")
    ] = 0.01,
    data: Annotated[Path | None, typer.Option(help=options.REFIT)] = None,
    weights: options.Weights = None,
    drop_missing_target: options.DropMissing = False,
    n_jobs: options.Jobs = None,
    json: options.AsJson = False,
) -> None:
    """Measure the costs of the groups in a running service, and report whether the sequence should change.

    A cost is the mean, which is exact; a quantile is interpolated in a bucket, which is printed. The API key is
    read from ANYTIME_KEY.

    Example: anytime costs --from http://127.0.0.1:8000 --model model.safetensors --out measured.yaml
    """
    quantile = options.checked_quantile(cost_quantile)
    check_writable(out, SUFFIXES)
    check_writable(distributions, (".json",))
    loaded = load(model)
    measured = _measured(source, since or (), loaded.name, keep)
    group_costs = _group_costs(loaded.groups, measured, quantile, least)
    groups = priced(loaded.groups, {each.group: each.cost for each in group_costs if each.why is None})
    retrained = open_retrained(
        loaded, groups, data, weights=weights, drop_missing=drop_missing_target, jobs=options.workers(n_jobs)
    )
    with working(f"ordering {len(groups)} groups"):
        changed = drift(loaded, groups, retrained)
    budgets = budget or [float(f"{share * changed.stop:.3g}") for share in BUDGETS]
    if out is not None:
        write_groups(groups, out)
    if distributions is not None:
        write_text(measured.text(), distributions)
    sequence = _sequence_values(changed, budgets) | {"tolerance": tolerance}
    if json:
        entries = [each._asdict() for each in group_costs]
        print_json({"model": loaded.name, "cost_unit": "ms", "groups": entries, "sequence": sequence})
    else:
        print_results(_cost_table(group_costs), *_sequence_parts(sequence))
        written = [str(path) for path in (out, distributions, keep) if path is not None]
        if written:
            print_results(f"wrote {' and '.join(written)}")
    if changed.estimated:
        why = "the model has no moments" if loaded.manifest.family == "gaussian" else "a likelihood needs --data"
        remark(f"the new sequence is estimated from the gains of the steps, as {why}")
    if check and changed.lost > tolerance:
        remark(f"the sequence loses {changed.lost:.4f} of timeliness, more than {tolerance:g}; resequence the model")
        raise typer.Exit(DRIFT)


def _measured(sources: Sequence[str], earlier: Sequence[str], model: str, keep: Path | None) -> CostDistributions:
    """Return the timings of a model's groups from several services, minus earlier ones; store the text if requested."""
    key = os.environ.get("ANYTIME_KEY") or None
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
    if keep is not None:
        write_text(joined_text(now), keep)
    if not found:
        raise AnytimeError(f"no group of model {model!r} was timed since then; wait for some predictions")
    return CostDistributions(source=f"anytime costs --from {' --from '.join(sources)}", groups=dict(found))


class _GroupCost(NamedTuple):
    """The measured and the old cost of one group, in milliseconds, and the number of values measured."""

    group: str
    cost: float
    old: float | None
    """None if the model's cost is not a time."""
    measured: int
    bucket: tuple[float, float] | None = None
    """The bucket that contains the cost, if it is a quantile of a histogram."""
    why: str | None = None
    """Why the old cost is unchanged, if it is."""

    def remark(self) -> str:
        if self.why is not None or self.bucket is None:
            return self.why or ""
        low, high = self.bucket
        return f"more than {low:g}" if np.isinf(high) else f"between {low:g} and {high:g}"


def _group_costs(
    groups: FeatureGroups, measured: CostDistributions, quantile: float | None, least: int
) -> list[_GroupCost]:
    """Return the cost of each group, in the order of the groups; unchanged with fewer than `least` measured values."""
    factor = milliseconds(groups.cost_unit)
    found: list[_GroupCost] = []
    for group in groups.groups:
        old = None if factor is None else group.cost * factor
        timings = measured.groups.get(group.name) if group.features else None
        count = 0 if timings is None else timings.count
        why = f"fewer than {least} values were measured" if group.features else "it has no features"
        if timings is None or count < least:
            found.append(_GroupCost(group.name, old or 0.0, old, count, why=f"unchanged: {why}"))
        else:
            bucket = timings.bucket(quantile) if isinstance(timings, Histogram) and quantile is not None else None
            found.append(_GroupCost(group.name, measured.cost(group.name, quantile), old, count, bucket))
    return found


def _cost_table(group_costs: Sequence[_GroupCost]) -> Table:
    table = blank_table("cost (ms)", "was", "measured")
    table.add_column("group", overflow="fold")
    table.add_column("", overflow="fold")
    for each in group_costs:
        was = "-" if each.old is None else f"{each.old:.4g}"
        table.add_row(f"{each.cost:.4g}", was, str(each.measured), escape(each.group), escape(each.remark()))
    return table


def _sequence_values(changed: Drift, budgets: Sequence[float]) -> dict[str, Any]:
    """Return both sequences, their timeliness, and what each budget explains with them."""
    staying, moving = changed.timeliness
    return {
        "changes": changed.changes,
        "estimated": changed.estimated,
        "staying": [list(adds) for adds in changed.staying.steps],
        "moving": [list(adds) for adds in changed.moving.steps],
        "stop": changed.stop,
        "timeliness": {"staying": staying, "moving": moving, "lost": changed.lost},
        "budgets": [
            {"budget": budget, "r2_staying": changed.staying.at(budget), "r2_moving": changed.moving.at(budget)}
            for budget in budgets
        ],
    }


def _sequence_parts(sequence: Mapping[str, Any]) -> Iterator[Table | str]:
    if sequence["changes"]:
        for title, steps in (("current: ", sequence["staying"]), ("new:     ", sequence["moving"])):
            yield title + " ".join("+".join(adds) for adds in steps)
    else:
        yield "the sequence does not change"
    table = blank_table("budget (ms)", "r2 current", "r2 new", "lost")
    for row in sequence["budgets"]:
        staying, moving = row["r2_staying"], row["r2_moving"]
        cells = ["-"] * 3
        if staying is not None and moving is not None:
            cells = [f"{value:.4f}" for value in (staying, moving, max(moving - staying, 0.0))]
        table.add_row(f"{row['budget']:.4g}", *cells)
    yield table
    timeliness = sequence["timeliness"]
    yield (
        f"timeliness up to {sequence['stop']:.4g} ms, in training: {timeliness['staying']:.4f} with the current "
        f"sequence, {timeliness['moving']:.4f} with the new one; the current one loses {timeliness['lost']:.4f}"
    )
