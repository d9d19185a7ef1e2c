"""`anytime what-if`: a model at other costs or without some groups, next to the model as it is."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from anytime.cli.console import blank_table, print_json, print_results, remark, working
from anytime.cli.options import AsJson, Costs, ModelFile, RefitOptions, Without, parsed_costs, spread
from anytime.cli.report import numbers, share
from anytime.cli.sources import open_refit
from anytime.errors import clipped
from anytime.loaded import load
from anytime.model.model import Model
from anytime.selection import Rule
from anytime.training.what_if import WhatIf
from anytime.training.what_if import what_if as compared


@spread
def what_if(
    model: ModelFile,
    cost: Costs = None,
    without: Without = None,
    budget: Annotated[
        list[float] | None,
        typer.Option(
            help="Compare at this budget, in the model's cost unit; repeat for several. Default: half and all."
        ),
    ] = None,
    json: AsJson = False,
    *,
    refit: RefitOptions,
) -> None:
    """Show what a model would lose if a group cost more, or were not there: both curves, and both at some budgets.

    Example: anytime what-if model.safetensors --without cuff --cost scales=4 --budget 10
    """
    loaded, costs = load(model), parsed_costs(cost)
    kept = Rule(without=tuple(without or ())).remaining(loaded.groups.with_stated_costs(costs))
    retrained = open_refit(loaded, kept, refit)
    if refit.data is not None and retrained is None:
        remark("--data is ignored: the model contains its moments")
    orders = bool(costs or without) and (retrained is not None or loaded.moments is not None)
    with working("ordering the groups of the changed model") if orders else nullcontext():
        found = compared(loaded, costs=costs, without=without or (), budgets=budget or (), data=retrained)
    if json:
        print_json(_values(found))
        return
    parts: list[Table | str] = [_budgets_table(found)]
    if found.after is not found.before:
        parts = [_curves(found), "", *parts]
    unit = loaded.groups.cost_unit
    print_results(f"{loaded.name}, {found.changes} ({unit}); r2 on the training rows", "", *parts)


def _curves(found: WhatIf) -> Table:
    """Return both curves, a step a line; the order of one may differ from that of the other."""
    table = blank_table("step", "total", "r2")
    table.add_column("before", overflow="fold")
    for name in ("new total", "new r2"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("after", overflow="fold")
    for k in range(max(found.before.steps, found.after.steps) + 1):
        table.add_row(str(k), *_step(found.before, k), *_step(found.after, k))
    return table


def _step(model: Model, k: int) -> list[str]:
    if k > model.steps:
        return ["", "", ""]
    adds = "(base rate)" if k == 0 else " + ".join(model.manifest.steps[k - 1].adds)
    return [*numbers([float(model.costs[k]), model.expected(k).r2]), escape(clipped(adds))]


def _budgets_table(found: WhatIf) -> Table:
    changed = found.after is not found.before
    table = blank_table("budget", "r2", "of full", *(("new r2", "of full", "loss") if changed else ()))
    for name in ("enters", "leaves") if changed else ("groups",):
        table.add_column(name, overflow="fold")
    for each in found.budgets:
        before = [f"{each.budget:g}", *numbers([each.r2[0]]), share(each.shares[0])]
        if not changed:
            table.add_row(*before, escape(", ".join(each.groups[0])) or "-")
            continue
        names = [escape(", ".join(names)) or "-" for names in (each.enters, each.leaves)]
        table.add_row(*before, *numbers([each.r2[1]]), share(each.shares[1]), *numbers([each.loss]), *names)
    return table


def _values(found: WhatIf) -> dict[str, Any]:
    def curve(model: Model) -> list[dict[str, Any]]:
        adds = [[], *(list(step.adds) for step in model.manifest.steps)]
        return [
            {"prefix": k, "cost": float(model.costs[k]), "r2": model.expected(k).r2, "adds": adds[k]}
            for k in range(model.steps + 1)
        ]

    budgets = [
        asdict(each) | {"enters": each.enters, "leaves": each.leaves, "loss": each.loss} for each in found.budgets
    ]
    return {
        "model": found.before.name,
        "changes": found.changes,
        "before": curve(found.before),
        "after": curve(found.after),
        "budgets": budgets,
    }
