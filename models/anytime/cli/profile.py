"""`anytime profile`: measured times of extractors on this machine, as the costs of a groups file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from anytime._files import check_writable
from anytime.cli.console import print_json, print_results, progress, remark
from anytime.cli.options import GROUPS_OUT, AsJson, CostQuantile, Distributions, checked_quantile, number_or_word
from anytime.costs import profiling
from anytime.costs.distributions import CostDistributions, priced, rounded_cost
from anytime.data.formats import open_table
from anytime.errors import ExtractorError, suggestion, summary
from anytime.groups import SUFFIXES, FeatureGroups, load_groups, write_groups, write_text
from anytime.loaded import load
from anytime.tabulated import SHARE, Series, Tabulated

PERCENTILES = (10, 90, 99)
"""Percentiles to print next to the median."""


def profile(
    extractors: Annotated[
        str, typer.Argument(metavar="MODULE:EXTRACTORS", help="Import this dict, which has a callable for each group.")
    ],
    groups: Annotated[Path, typer.Option(help="Read the feature groups from this file (JSON, YAML or a model).")],
    out: Annotated[Path, typer.Option(help=GROUPS_OUT)],
    data: Annotated[
        Path | None, typer.Argument(help="Pass the rows of this table, as dicts, to the extractors.")
    ] = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="MODULE:INPUTS", help="Import this iterable of inputs, instead of a table.")
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help="Pass this many rows to each call; 1,100,500 fits a fixed cost and one per row.")
    ] = None,
    cost_quantile: CostQuantile = None,
    limit: Annotated[int, typer.Option(min=1, help="Measure at most this many inputs, from the first.")] = 100,
    repeats: Annotated[
        int, typer.Option(min=1, help="Measure each input this many times; repeats find it in the caches, see 'cold'.")
    ] = 5,
    parallel: Annotated[
        int, typer.Option(min=1, help="Compute this many groups of an input at the same time, in threads.")
    ] = 1,
    warm_up: Annotated[int, typer.Option(min=1, help="Compute this many inputs before the measurements.")] = 10,
    distributions: Distributions = None,
    json: AsJson = False,
) -> None:
    """Measure the extractors of the groups and write the median time of each as its cost.

    Groups that others require are computed before them. With --rows an extractor is called with several rows, as a
    dict of arrays or a list of inputs. With one row count a cost is the time per row; with several it has a fixed part
    and one per row, and the file states the last count as the rows of a call.

    Example: anytime profile module:EXTRACTORS test.csv --groups groups.yaml --out measured.yaml
    """
    quantile, counts = checked_quantile(cost_quantile), _row_counts(rows)
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
    write_groups(costs, out)
    if distributions is not None:
        write_text(times.text(), distributions)
    table = _table(measured, costs)
    written = (out, distributions)
    if json:
        print_json({"cost_unit": "ms", "timer_ms": measured.timer_ms, "groups": table.records()}, written)
        return
    print_results(table, written=written)
    priced_groups = zip(costs.groups, costs.costs, strict=True)
    if unmeasured := [group.name for group, cost in priced_groups if group.name not in loaded and cost > 0]:
        remark(f"not measured, as they have no extractor: {', '.join(unmeasured)}; their costs are unchanged")
    print_results(f"wrote {out}" + (f" and {distributions}" if distributions else ""), written=written)


def _row_counts(rows: str | None) -> tuple[int, ...]:
    counts = () if rows is None else tuple(number_or_word(part, int) for part in rows.split(","))
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


def _table(measured: profiling.Profile, costs: FeatureGroups) -> Tabulated:
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
    extractors = imported(reference)
    if callable(extractors) and not isinstance(extractors, Mapping):
        extractors = extractors()
    if not isinstance(extractors, Mapping) or not extractors:
        raise ExtractorError(
            f"{reference} is {type(extractors).__name__}; expected a dict with a callable for each group"
        )
    return dict(extractors)
