"""`anytime costs`: measured costs of a model's groups in service, and whether its sequence is still the right one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer

from anytime._files import check_writable
from anytime.cli import options
from anytime.cli.console import print_json, print_results, remark, working
from anytime.cli.sources import open_refit
from anytime.cli.streams import remember_written
from anytime.costs.distributions import priced, rounded_cost
from anytime.costs.drift import Drift, drift
from anytime.costs.scraping import (
    CallTimes,
    added,
    call_times,
    distributions_of,
    group_cost,
    joined_text,
    mean_rows,
    of_model,
    paired,
    pieces,
    read_scrape,
    since,
    was_reset,
)
from anytime.errors import AnytimeError
from anytime.groups import SUFFIXES, CallCost, FeatureGroups, milliseconds, write_groups, write_text
from anytime.loaded import load
from anytime.tabulated import R2, Series, Tabulated

BUDGETS = (0.1, 0.25, 0.5, 1.0)
"""Default budgets, as shares of the cost at which the new sequence reaches its plateau."""

DRIFT = 3
"""Exit code of `--check` if the sequence should change; no failure uses it."""


@options.spread
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
        int, typer.Option(min=1, help="Change the cost of a group only from this many measured calls on.")
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
    json: options.AsJson = False,
    *,
    refit: options.RefitOptions,
) -> None:
    """Measure the costs of the groups in a running service, and report whether the sequence should change.

    A cost is per row: the mean, which is exact, or a quantile, interpolated in a bucket, which is printed. Where calls
    of different numbers of rows were measured, a cost has a fixed part and one per row. The API key is read from
    ANYTIME_KEY.

    Example: anytime costs --from http://127.0.0.1:8000 --model model.safetensors --out measured.yaml
    """
    quantile = options.checked_quantile(cost_quantile)
    check_writable(out, SUFFIXES)
    check_writable(distributions, (".json",))
    loaded = load(model)
    measured = _measured(source, since or (), loaded.name, keep)
    groups = _measured_groups(loaded.groups, measured, quantile, least)
    group_costs = _group_costs(loaded.groups, groups, measured, quantile, least)
    retrained = open_refit(loaded, groups, refit)
    with working(f"ordering {len(groups)} groups"):
        changed = drift(loaded, groups, retrained)
    budgets = budget or [float(f"{share * changed.stop:.3g}") for share in BUDGETS]
    if out is not None:
        write_groups(groups.bare, out)
    if distributions is not None:
        name, parts = f"anytime costs --from {' --from '.join(source)}", {g.name: g.call_cost for g in groups.groups}
        write_text(distributions_of(measured, parts, name).text(), distributions)
    remember_written(out, distributions, keep)
    explained, (staying, moving) = _budgets_table(changed, budgets), changed.timeliness
    if json:
        sequence = {
            "changes": changed.changes,
            "estimated": changed.estimated,
            "staying": changed.current.steps,
            "moving": changed.relearned.steps,
            "stop": changed.stop,
            "timeliness": {"staying": staying, "moving": moving, "lost": changed.lost},
            "budgets": explained.records(),
            "tolerance": tolerance,
        }
        entries = [each._asdict() for each in group_costs]
        values = {"model": loaded.name, "cost_unit": "ms", "rows": groups.rows_per_call, "groups": entries}
        print_json(values | {"sequence": sequence})
    else:
        lines = [f"costs are per row, {groups.shared_by}"] if groups.shared_by else []  # if it depends on the rows
        print_results(
            _cost_table(group_costs),
            *lines,
            *_sequence_lines(changed),
            explained,
            f"timeliness up to {changed.stop:.4g} ms, in training: {staying:.4f} with the current sequence, "
            f"{moving:.4f} with the new one; the current one loses {changed.lost:.4f}",
        )
        written = [str(path) for path in (out, distributions, keep) if path is not None]
        if written:
            print_results(f"wrote {' and '.join(written)}")
    if changed.estimated:
        why = (
            "the model has no moments" if loaded.manifest.learned.family.least_squares else "a likelihood needs --data"
        )
        remark(f"the new sequence is estimated from the gains of the steps, as {why}")
    if check and changed.lost > tolerance:
        remark(f"the sequence loses {changed.lost:.4f} of timeliness, more than {tolerance:g}; resequence the model")
        raise typer.Exit(DRIFT)


def _measured(
    sources: Sequence[str], earlier: Sequence[str], model: str, keep: Path | None
) -> dict[str, list[CallTimes]]:
    """Return the timings of a model's groups from several services, minus earlier ones; store the text if requested."""
    key = os.environ.get("ANYTIME_KEY") or None
    now = [piece for source in sources for piece in pieces(source, key)]
    scrapes = [read_scrape(piece.text) for piece in now]
    timings = of_model([each.timings for each in scrapes], model)
    if earlier:
        before = paired(now, [piece for source in earlier for piece in pieces(source, key)])
        for i, piece in enumerate(before):
            if piece is None:
                continue
            then = read_scrape(piece.text)
            if was_reset(model, scrapes[i], then):
                remark(f"{now[i].source} was restarted since then; all of its counts are used")
            else:
                timings[i] = since(timings[i], then.timings.get(model, {}))
    times = call_times(added(timings))
    if keep is not None:
        write_text(joined_text(now), keep)
    if not times:
        raise AnytimeError(f"no group of model {model!r} was timed since then; wait for some predictions")
    return times


def _measured_groups(
    groups: FeatureGroups, measured: Mapping[str, Sequence[CallTimes]], quantile: float | None, least: int
) -> FeatureGroups:
    """Return the groups with measured costs, in ms; those with fewer than `least` calls keep theirs.

    If a cost has a fixed part, and the groups state no number of rows, costs are for the mean number in service.
    """
    factor = milliseconds(groups.cost_unit) or 0.0
    costs: dict[str, float | CallCost] = {}
    for group in groups.groups:
        calls = measured.get(group.name, ()) if group.features else ()
        if sum(each.calls for each in calls) >= least:
            stated = CallCost.of(group.call_cost.scaled(factor))
            costs[group.name] = rounded_cost(group_cost(calls, stated, quantile, least))
    repriced = priced(groups, costs)
    if groups.rows is None and repriced.fixed_costs.any():
        repriced = repriced.for_rows(round(mean_rows([each for calls in measured.values() for each in calls])))
    return repriced


class _GroupCost(NamedTuple):
    """The measured and the old cost of one group per row, in milliseconds, and the number of calls measured."""

    group: str
    cost: float
    old: float | None
    """None if the model's cost is not a time."""
    measured: int
    bucket: tuple[float, float] | None = None
    """The bucket that contains the cost, if it is a quantile of calls with equal numbers of rows."""
    why: str | None = None
    """Why the old cost is unchanged, if it is."""
    rows: float = 1.0
    """Mean number of rows of the calls measured."""
    fixed: float = 0.0
    """The part of the cost of a call that does not depend on its rows."""
    per_row: float = 0.0
    """The part of the cost of a call that each row adds."""

    def remark(self) -> str:
        if self.why is not None or self.bucket is None:
            return self.why or ""
        low, high = self.bucket
        return f"more than {low:g}" if np.isinf(high) else f"between {low:g} and {high:g}"


def _group_costs(
    groups: FeatureGroups,
    priced_groups: FeatureGroups,
    measured: Mapping[str, Sequence[CallTimes]],
    quantile: float | None,
    least: int,
) -> list[_GroupCost]:
    """Return the old and the new cost of each group, in the order of the groups."""
    factor = milliseconds(groups.cost_unit)
    # Both per row, in calls with the same number of rows.
    old = None if factor is None else factor * groups.for_rows(priced_groups.rows_per_call).costs
    changes: list[_GroupCost] = []
    for g, group in enumerate(priced_groups.groups):
        calls = measured.get(group.name, ()) if group.features else ()
        count = sum(each.calls for each in calls)
        why: str | None = None
        bucket = None
        if not group.features:
            why = "unchanged: it has no features"
        elif count < least:
            why = f"unchanged: fewer than {least} values were measured"
        elif quantile is not None and len(calls) == 1:
            low, high = calls[0].times.bucket(quantile)
            bucket = low / calls[0].rows, high / calls[0].rows
        changes.append(
            _GroupCost(
                group=group.name,
                cost=float(priced_groups.costs[g]),
                old=None if old is None else float(old[g]),
                measured=count,
                bucket=bucket,
                why=why,
                rows=mean_rows(calls) if calls else 1.0,
                fixed=group.call_cost.fixed,
                per_row=group.call_cost.per_row,
            )
        )
    return changes


def _cost_table(found: Sequence[_GroupCost]) -> Tabulated:
    by_rows = any(each.rows > 1 or each.fixed for each in found)
    return Tabulated.of(
        Series("cost (ms)", [each.cost for each in found]),
        Series("was", [each.old for each in found]),
        Series("measured", [each.measured for each in found]),
        Series("rows", [each.rows for each in found] if by_rows else None),
        Series("a call", [each.fixed for each in found] if by_rows else None),
        Series("a row", [each.per_row for each in found] if by_rows else None),
        Series("group", [each.group for each in found]),
        Series("", [each.remark() for each in found]),
    )


def _budgets_table(changed: Drift, budgets: Sequence[float]) -> Tabulated:
    """Return what each budget explains with both sequences."""
    staying, moving = ([order.at(each) for each in budgets] for order in (changed.current, changed.relearned))
    pairs = zip(staying, moving, strict=True)
    lost = [None if old is None or new is None else max(new - old, 0.0) for old, new in pairs]
    return Tabulated.of(
        Series("budget (ms)", budgets, "budget"),
        Series("r2 current", staying, "r2_staying", R2),
        Series("r2 new", moving, "r2_moving", R2),
        Series("lost", lost, None, R2),
    )


def _sequence_lines(changed: Drift) -> list[str]:
    if not changed.changes:
        return ["the sequence does not change"]
    orders = {"current: ": changed.current, "new:     ": changed.relearned}
    return [title + " ".join(map("+".join, order.steps)) for title, order in orders.items()]
