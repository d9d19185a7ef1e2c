"""Measured costs. `anytime profile`: of extractors on this machine. `anytime costs`: in service, for a model.

The costs in service also tell whether the model's sequence is still the right one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from anytime._files import check_writable
from anytime.cli import options
from anytime.cli.console import Done, as_json, progress, remark, working
from anytime.cli.resequence import open_refit
from anytime.costs import profiling
from anytime.costs.distributions import CostDistributions, priced, rounded_cost
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
from anytime.data.formats import open_table
from anytime.errors import AnytimeError, ExtractorError, suggestion, summary
from anytime.groups import SUFFIXES, CallCost, FeatureGroups, load_groups, milliseconds, write_groups, write_text
from anytime.loaded import load
from anytime.tabulated import R2, SHARE, Series, Tabulated

PERCENTILES = (10, 90, 99)
"""Percentiles to print next to the median."""


def profile(
    extractors: Annotated[
        str, typer.Argument(metavar="MODULE:EXTRACTORS", help="Import this dict, which has a callable for each group.")
    ],
    groups: Annotated[Path, typer.Option(help="Read the feature groups from this file (JSON, YAML or a model).")],
    out: Annotated[Path, typer.Option(help=options.GROUPS_OUT)],
    data: Annotated[
        Path | None, typer.Argument(help="Pass the rows of this table, as dicts, to the extractors.")
    ] = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="MODULE:INPUTS", help="Import this iterable of inputs, instead of a table.")
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help="Pass this many rows to each call; 1,100,500 fits a fixed cost and one per row.")
    ] = None,
    cost_quantile: options.CostQuantile = None,
    limit: Annotated[int, typer.Option(min=1, help="Measure at most this many inputs, from the first.")] = 100,
    repeats: Annotated[
        int,
        typer.Option(
            min=1,
            help="Measure each input this many times. Later calls find it in the caches; 'cold' is the first call.",
        ),
    ] = 5,
    parallel: Annotated[
        int, typer.Option(min=1, help="Compute this many groups of an input at the same time, in threads.")
    ] = 1,
    warm_up: Annotated[int, typer.Option(min=1, help="Compute this many inputs before the measurements.")] = 10,
    distributions: options.Distributions = None,
    json: options.AsJson = False,
) -> None:
    """Measure the extractors of the groups and write the median time of each as its cost.

    Groups that others require are computed before them. With --rows an extractor is called with several rows, as a
    dict of arrays or a list of inputs. With one row count a cost is the time per row; with several it has a fixed part
    and one per row, and the file states the last count as the rows of a call.

    Example: anytime profile module:EXTRACTORS test.csv --groups groups.yaml --out measured.yaml
    """
    quantile, counts = options.checked_quantile(cost_quantile), _row_counts(rows)
    check_writable(out, SUFFIXES)
    check_writable(distributions, (".json",))
    known = load(groups).groups.bare if groups.suffix == ".safetensors" else load_groups(groups)
    priced(known, dict.fromkeys(known.featured, 0.0))  # check before the work
    loaded, rows_of = imported_extractors(extractors), _inputs(data, inputs, limit)
    with progress("measuring", profiling.measurements(rows_of, counts, repeats), "inputs") as advance:
        measured = profiling.profile(
            known, loaded, rows_of, rows=counts, parallel=parallel, warm_up=warm_up, repeats=repeats, progress=advance
        )
    times = CostDistributions.measured(measured.times, f"anytime profile {extractors}", measured.rows)
    measured_costs = {name: rounded_cost(each.cost(quantile or 0.5)) for name, each in measured.groups.items()}
    costs = priced(known.for_rows(counts[-1]) if len(counts) > 1 else known, measured_costs)
    table, done = _profile_table(measured, costs), Done()
    with done.then(out):
        write_groups(costs, out)
    if distributions is not None:
        with done.then(distributions):
            write_text(times.text(), distributions)
    if json:
        done.print(as_json({"cost_unit": "ms", "timer_ms": measured.timer_ms, "groups": table.records()}))
        return
    priced_groups = zip(costs.groups, costs.costs, strict=True)
    if unmeasured := [group.name for group, cost in priced_groups if group.name not in loaded and cost > 0]:
        remark(f"not measured, since they have no extractor: {', '.join(unmeasured)}; their costs are unchanged")
    done.print(table, *([f"wrote {done}"] if done.files else []))


def _row_counts(rows: str | None) -> tuple[int, ...]:
    counts = () if rows is None else tuple(options.number_or_word(part, int) for part in rows.split(","))
    if not all(isinstance(count, int) and count > 0 for count in counts) or len(set(counts)) < len(counts):
        raise ExtractorError(f"--rows is {rows!r}; expected distinct whole numbers, 1 or more, like 1,8,64")
    return counts


def _inputs(data: Path | None, inputs: str | None, limit: int) -> profiling.Inputs:
    if data is not None and inputs is None:
        return profiling.TableInputs.of(open_table(data), limit)
    if data is None and inputs is not None:
        return profiling.inputs_of(imported(inputs), limit, inputs)
    what = "no inputs are given" if data is None else "a table and --inputs are given"
    raise ExtractorError(f"{what}; give a table, or --inputs MODULE:INPUTS")


def _profile_table(measured: profiling.Profile, costs: FeatureGroups) -> Tabulated:
    names, times = list(measured.groups), list(measured.groups.values())
    median, *others = np.transpose([np.percentile(each.per_row, (50, *PERCENTILES)) for each in times])
    scaling = [each.scaling for each in times if each.scaling is not None]
    return Tabulated.of(
        Series(None, names, "group"),
        Series("cost (ms)", [costs.costs[costs.positions[name]] for name in names], "cost"),
        Series("median", median),
        *(Series(f"p{q}", values) for q, values in zip(PERCENTILES, others, strict=True)),
        Series("cold", [each.cold for each in times]),
        Series(None, [len(each.per_row) for each in times], "calls"),
        Series(
            "timer", [min(measured.timer_ms / each, 1.0) if each > 0 else 1.0 for each in median], "timer_share", SHARE
        ),
        Series("a call", [each.fixed for each in scaling] or None, "base", ".3g"),
        Series("a row", [each.per_row for each in scaling] or None, "per_row", ".3g"),
        Series("group", names, None),
    )


def imported(reference: str) -> Any:
    """Return the object that `MODULE:NAME` names, or raise ExtractorError; the working directory is searched too."""
    module, colon, name = reference.partition(":")
    if not (module and colon and name):
        raise ExtractorError(f"{reference!r} is not a name in a module; expected MODULE:NAME, like vision:EXTRACTORS")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        extractors = import_module(module)
    except Exception as error:  # the module may raise anything
        raise ExtractorError(f"cannot import {module!r} ({summary(error)}); run this where Python finds it") from error
    try:
        return reduce(getattr, name.split("."), extractors)
    except AttributeError as error:
        known = [public for public in vars(extractors) if not public.startswith("_")]
        raise ExtractorError(f"module {module!r} has no {name!r}; {suggestion(name, known)}") from error


def imported_extractors(reference: str) -> dict[str, Callable[[Any], Any]]:
    """Return the extractors that `MODULE:NAME` names: a mapping of groups to callables, or a function that returns one.

    Raises ExtractorError if it is something else, or empty.
    """
    extractors, expected = imported(reference), "expected a dict with a callable for each group"
    try:
        extractors = extractors() if callable(extractors) and not isinstance(extractors, Mapping) else extractors
    except Exception as error:  # the function may raise anything
        raise ExtractorError(f"{reference} failed ({summary(error)}); {expected}") from error
    if not (isinstance(extractors, Mapping) and extractors):
        raise ExtractorError(f"{reference} is {type(extractors).__name__}; {expected}")
    return dict(extractors)


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
        int, typer.Option(min=1, help="Change the cost of a group only if this many calls of it were measured.")
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

    A cost is the mean time per row, or a quantile, interpolated within a bucket of the histogram, which is printed. If
    calls with different numbers of rows were measured, a cost has a fixed part and a part per row. The API key is read
    from ANYTIME_KEY.

    Example: anytime costs --from http://127.0.0.1:8000 --model model.safetensors --out measured.yaml
    """
    quantile = options.checked_quantile(cost_quantile)
    check_writable(out, SUFFIXES)
    check_writable(distributions, (".json",))
    loaded = load(model)
    measured = _measured(source, since or (), loaded.name, keep)
    groups = _measured_groups(loaded.groups, measured, quantile, least)
    group_costs = _cost_table(loaded.groups, groups, measured, quantile, least)
    retrained = open_refit(loaded, groups, refit)
    with working(f"ordering {len(groups)} groups"):
        changed = drift(loaded, groups, retrained)
    budgets = budget or [float(f"{share * changed.stop:.3g}") for share in BUDGETS]
    done = Done()
    if out is not None:
        with done.then(out):
            write_groups(groups.bare, out)
    if distributions is not None:
        name, parts = f"anytime costs --from {' --from '.join(source)}", {g.name: g.call_cost for g in groups.groups}
        with done.then(distributions):
            write_text(distributions_of(measured, parts, name).text(), distributions)
    done.files += [] if keep is None else [keep]
    explained = _budgets_table(changed, budgets)
    staying, moving = changed.timeliness
    if changed.estimated:
        why = (
            "the model has no moments" if loaded.manifest.learned.family.least_squares else "a likelihood needs --data"
        )
        remark(f"the new sequence is estimated from the gains of the steps, since {why}")
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
        values = {"model": loaded.name, "cost_unit": "ms", "rows": groups.rows or 1}
        done.print(as_json(values | {"groups": group_costs.records(), "sequence": sequence}))
    else:
        done.print(
            group_costs,
            *([f"costs are per row, {groups.shared_by}"] if groups.shared_by else []),  # if it depends on the rows
            *_sequence_lines(changed),
            explained,
            f"timeliness (the mean share explained up to {changed.stop:.4g} ms, in training): {staying:.4f} with the "
            f"current sequence, {moving:.4f} with the new one; the current one loses {changed.lost:.4f}",
            *([f"wrote {done}"] if done.files else []),
        )
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
    before = paired(now, [piece for source in earlier for piece in pieces(source, key)]) if earlier else []
    for i, then in enumerate(None if piece is None else read_scrape(piece.text) for piece in before):
        if then is not None and was_reset(model, scrapes[i], then):
            remark(f"{now[i].source} was restarted since then; all of its counts are used")
        elif then is not None:
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
    timed = [(group, measured.get(group.name, ())) for group in groups.groups if group.features]
    costs = {
        group.name: rounded_cost(group_cost(calls, CallCost.of(group.call_cost.scaled(factor)), quantile, least))
        for group, calls in timed
        if sum(each.calls for each in calls) >= least
    }
    repriced = priced(groups, costs)
    if groups.rows is None and repriced.cost_parts[0].any():
        repriced = repriced.for_rows(round(mean_rows([each for calls in measured.values() for each in calls])))
    return repriced


def _cost_table(
    groups: FeatureGroups,
    priced_groups: FeatureGroups,
    measured: Mapping[str, Sequence[CallTimes]],
    quantile: float | None,
    least: int,
) -> Tabulated:
    """Return the measured and the old cost of each group per row, in milliseconds, in the order of the groups.

    The old cost is None if it is not a time, `bucket` contains a quantile of calls with equal numbers of rows, and
    `why` says why the old cost is unchanged, if it is.
    """
    factor, changed = milliseconds(groups.cost_unit), priced_groups.groups
    # Both per row, in calls with the same number of rows.
    old = None if factor is None else factor * groups.for_rows(priced_groups.rows or 1).costs
    calls = [measured.get(group.name, ()) if group.features else () for group in changed]
    counts = [sum(each.calls for each in times) for times in calls]
    rows = [mean_rows(times) if times else 1.0 for times in calls]
    few = f"unchanged: fewer than {least} values were measured"
    whys = [
        None if count >= least else few if group.features else "unchanged: it has no features"
        for group, count in zip(changed, counts, strict=True)
    ]
    buckets = [
        None
        if quantile is None or why is not None or len(times) != 1
        else tuple(end / times[0].rows for end in times[0].times.bucket(quantile))
        for times, why in zip(calls, whys, strict=True)
    ]
    by_rows = any(count > 1 for count in rows) or any(group.call_cost.fixed for group in changed)
    return Tabulated.of(
        Series(None, priced_groups.names, "group"),
        Series("cost (ms)", priced_groups.costs, "cost"),
        Series("was", [None] * len(changed) if old is None else old, "old"),
        Series("measured", counts),
        Series(None, buckets, "bucket"),
        Series(None, whys, "why"),
        Series("rows" if by_rows else None, rows, "rows"),
        Series("a call" if by_rows else None, [group.call_cost.fixed for group in changed], "fixed"),
        Series("a row" if by_rows else None, [group.call_cost.per_row for group in changed], "per_row"),
        Series("group", priced_groups.names, None),
        Series("", [why or _range(bucket) for why, bucket in zip(whys, buckets, strict=True)], None),
    )


def _range(bucket: Sequence[float] | None) -> str:
    if bucket is None:
        return ""
    return f"more than {bucket[0]:g}" if np.isinf(bucket[1]) else f"between {bucket[0]:g} and {bucket[1]:g}"


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
