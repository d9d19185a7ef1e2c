"""`anytime profile`: measured times of extractors on this machine, as the costs of a groups file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anytime._files import check_writable
from anytime.cli.console import print_json, progress, remark, results
from anytime.cli.cost_report import profile_table, profile_values
from anytime.cli.options import AsJson
from anytime.costs.distributions import CostDistributions, checked_quantile, priced
from anytime.costs.profiling import Inputs, ModuleInputs, TableInputs, measurements
from anytime.costs.profiling import profile as profiled
from anytime.data.formats import open_table
from anytime.errors import ExtractorError
from anytime.groups import SUFFIXES, FeatureGroups, load_groups, write_groups, write_text
from anytime.inference.prediction import load
from anytime.inference.runner import imported, imported_extractors

__all__ = [
    "CostQuantile",
    "Distributions",
    "groups_of",
    "inputs_of",
    "profile",
    "row_counts",
]


def groups_of(path: Path) -> FeatureGroups:
    """Return the groups of a groups file or of a model."""
    return load(path).groups if path.suffix == ".safetensors" else load_groups(path)


def inputs_of(data: Path | None, inputs: str | None, limit: int) -> Inputs:
    """Return the rows of a table, or the inputs that a module defines.

    Raises
    ------
    ExtractorError
        Both are given, or neither; or the module has no inputs.
    """
    if (data is None) == (inputs is None):
        what = "no inputs are given" if data is None else "a table and --inputs are given"
        raise ExtractorError(f"{what}; give a table, or --inputs MODULE:INPUTS")
    if data is not None:
        return TableInputs.of(open_table(data), limit)
    assert inputs is not None  # noqa: S101
    return ModuleInputs.of(imported(inputs), limit, inputs)


def row_counts(text: str | None) -> tuple[int, ...]:
    """Return the value of --rows: distinct whole numbers, 1 or more; empty for extractors of one row."""
    if text is None:
        return ()
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1 or len(set(counts)) < len(counts):
        raise ExtractorError(f"--rows is {text!r}; expected distinct whole numbers, 1 or more, like 1,8,64")
    return counts


CostQuantile = Annotated[
    float | None,
    typer.Option("--cost-quantile", help="Quantile to use as a cost, 0.9 for example.", show_default=False),
]
Distributions = Annotated[
    Path | None,
    typer.Option("--distributions", help="File to write all measurements to (.json).", show_default=False),
]
Extractors = Annotated[
    str, typer.Argument(metavar="MODULE:EXTRACTORS", help="A dict with a callable for each group.", show_default=False)
]
MaybeData = Annotated[
    Path | None,
    typer.Argument(help="Table whose rows are the inputs, as dicts of its columns.", show_default=False),
]
GroupsOrModel = Annotated[
    Path, typer.Option("--groups", help="Groups file, or a model that has the groups.", show_default=False)
]
OutGroups = Annotated[
    Path, typer.Option("--out", help="Groups file to write: .yaml or .json, costs in ms.", show_default=False)
]
InputsName = Annotated[
    str | None,
    typer.Option(
        "--inputs", metavar="MODULE:INPUTS", help="An iterable of inputs, instead of a table.", show_default=False
    ),
]
RowCounts = Annotated[
    str | None,
    typer.Option("--rows", help="Row counts for extractors of several rows, 1,8,64 for example.", show_default=False),
]


def profile(
    extractors: Extractors,
    groups: GroupsOrModel,
    out: OutGroups,
    data: MaybeData = None,
    inputs: InputsName = None,
    rows: RowCounts = None,
    cost_quantile: CostQuantile = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of inputs to measure, from the first.")] = 100,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each input.")] = 5,
    warm_up: Annotated[int, typer.Option(min=1, help="Inputs computed before the measurements.")] = 10,
    distributions: Distributions = None,
    json: AsJson = False,
) -> None:
    """Measure the extractors of the groups and write the median time of each as its cost.

    Groups that others require are computed before them. With --rows an extractor is called with several rows, as a
    dict of arrays or a list of inputs, and a cost is the time per row at the last of these row counts.
    """
    quantile, counts = checked_quantile(cost_quantile), row_counts(rows)
    check_writable(out, SUFFIXES)
    if distributions is not None:
        check_writable(distributions, (".json",))
    known = groups_of(groups)
    priced(known, {group.name: 0.0 for group in known.groups if group.features})  # check before the work
    found, given = imported_extractors(extractors), inputs_of(data, inputs, limit)
    with progress("measuring", measurements(given, counts, repeats), "inputs") as advance:
        measured = profiled(known, found, given, rows=counts, warm_up=warm_up, repeats=repeats, progress=advance)
    all_times = CostDistributions.measured(measured.times, f"anytime profile {extractors}")
    costs = priced(known, {name: all_times.cost(name, quantile or 0.5) for name in all_times.groups})
    write_groups(costs, out)
    if distributions is not None:
        write_text(all_times.text(), distributions)
    if json:
        print_json(profile_values(measured, costs))
        return
    console = results()
    console.print(profile_table(measured, costs))
    unmeasured = [group.name for group in costs.groups if not group.features and group.cost > 0]
    if unmeasured:
        remark(f"not measured, as they have no extractor: {', '.join(unmeasured)}; their costs are unchanged")
    console.print(f"wrote {out}" + (f" and {distributions}" if distributions else ""), markup=False)
