"""`anytime what-if`: a model at other costs or without some groups, next to the model as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from anytime.cli.console import print_json, print_results, remark, working
from anytime.cli.options import AsJson, Costs, ModelFile, RefitOptions, Without, parsed_costs, spread
from anytime.cli.sources import open_refit
from anytime.errors import clipped
from anytime.loaded import load
from anytime.model.model import Model
from anytime.selection import Rule
from anytime.tabulated import Series, Tabulated
from anytime.training.resequencing import WhatIf
from anytime.training.resequencing import what_if as compared


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
    curves = () if found.after is found.before else (_curves(found), "")
    print_results(found.table.caption, "", *curves, replace(found.table, caption=""))


def _curves(found: WhatIf) -> Tabulated:
    """Return both curves, a step a line; the order of one may differ from that of the other."""

    def side(model: Model, new: str, heading: str) -> Iterator[Series]:
        _, adds, _, total, r2, *_ = model.table.columns
        yield replace(total, heading=f"{new}total")
        yield replace(r2, heading=f"{new}r2")
        yield replace(adds, heading=heading, values=list(map(clipped, adds)))

    steps = Series("step", range(max(found.before.steps, found.after.steps) + 1))
    return Tabulated.of(steps, *side(found.before, "", "before"), *side(found.after, "new ", "after"))


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
