"""`anytime resequence`: reorder the groups of a model; least squares needs no data. `what-if`: what it would lose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from anytime._files import check_writable
from anytime.cli.console import Done, as_json, print_results, remark, remark_missing, working
from anytime.cli.options import AsJson, Costs, First, ModelFile, Out, RefitOptions, Without, parsed_costs, spread
from anytime.cli.summary import steps_table, summary
from anytime.errors import TrainingError, clipped, listed, refuse
from anytime.groups import FeatureGroups, load_groups
from anytime.loaded import load
from anytime.model.model import Model
from anytime.selection import Rule
from anytime.tabulated import Series, Tabulated
from anytime.training import resequencing
from anytime.types import Method


@spread
def resequence(
    model: ModelFile,
    out: Out,
    costs: Annotated[Path | None, typer.Option(help="Read the new costs from this groups file (JSON or YAML).")] = None,
    cost: Costs = None,
    method: Annotated[Method | None, typer.Option(help="Select the next group by this method.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Set the penalty of all prefixes: a number >= 0.")] = None,
    cost_blind: Annotated[
        bool | None, typer.Option("--cost-blind/--no-cost-blind", help="Ignore costs in selection, or use them.")
    ] = None,
    doubling: Annotated[
        bool | None,
        typer.Option(
            "--doubling/--no-doubling",
            help="Limit the cost of each step to the cost of all steps before it, or do not.",
        ),
    ] = None,
    first: First = None,
    no_first: Annotated[
        bool, typer.Option("--no-first", help="Select all groups, also those that the model places first.")
    ] = False,
    without: Without = None,
    *,
    refit: RefitOptions,
) -> None:
    """Reorder the groups of a model: for other costs, by another criterion, with some first, without some.

    Least squares needs no data, only the moments in the model. Omitted options stay as in the model.

    Example: anytime resequence model.safetensors --costs cheaper.yaml --out cheaper.safetensors
    """
    check_writable(out, (".safetensors",))
    if first and no_first:
        raise TrainingError("both --first and --no-first are given; expected one of them")
    leading = () if no_first else tuple(first) if first else None
    changes = resequencing.Changes(method, alpha, cost_blind, doubling, leading, tuple(without or ()))
    stated = parsed_costs(cost)
    if costs is None and not stated and changes == resequencing.Changes():
        raise TrainingError(
            "no change requested; give --cost, --costs, --method, --alpha, --first, --without or others"
        )
    loaded = load(model)
    groups = None if costs is None else load_groups(costs)
    if groups is not None and (ignored := resequencing.left_out(loaded, groups)):
        remark(f"ignored: {listed(ignored, 10)} (left out of the model)")
    if stated:
        groups = (loaded.groups if groups is None else groups).with_stated_costs(stated)
    kept = changes.options(loaded.manifest).remaining(loaded.groups)
    retrained = open_refit(loaded, kept, refit)
    with working(f"ordering {len(kept)} groups and fitting every prefix"):
        changed = resequencing.resequence(loaded, groups, name=out.stem, data=retrained, changes=changes).save(out)
    remark("one penalty for all prefixes, without cross-validation: a model stores no folds")
    if loaded.manifest.calibration is not None:
        remark("not calibrated: the prefixes changed")
    if loaded.manifest.certificate is not None:
        remark("not certified: the costs or the order changed")
    Done([out]).print(steps_table(changed), summary(changed), f"wrote {out}")


@spread
def what_if(
    model: ModelFile,
    cost: Costs = None,
    without: Without = None,
    budget: Annotated[
        list[float] | None,
        typer.Option(
            help="Compare at this budget, in the model's cost unit; repeat for several. Default: the cost of all "
            "groups, and half of it."
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
    orders = bool(costs or without) and (retrained is not None or loaded.moments is not None)
    with working("ordering the groups of the changed model") if orders else nullcontext():
        found = resequencing.what_if(loaded, costs=costs, without=without or (), budgets=budget or (), data=retrained)
    if json:
        print_results(as_json(_values(found)))
    else:
        curves = () if found.after is found.before else (_curves(found), "")
        print_results(found.table.caption, "", *curves, replace(found.table, caption=""))


def open_refit(model: Model, groups: FeatureGroups, refit: RefitOptions) -> resequencing.Retrained | None:
    """Open the rows for refitting a model's likelihood on some of its groups; None for least squares or no data."""
    without_rows = f"--weights is {refit.weights!r} without rows to weight; add --data TABLE"
    refuse({without_rows: refit.weights is not None and refit.data is None})
    if refit.data is None:
        return None
    found = resequencing.open_retrained(
        model,
        refit.open(refit.data),
        groups,
        weights=refit.weights,
        drop_missing=refit.missing_target == "drop",
        n_jobs=refit.n_jobs,
    )
    if found is None:
        remark("--data is ignored: the model contains its moments")
    elif found.found is not None:
        remark_missing(found.found)
    return found


def _curves(found: resequencing.WhatIf) -> Tabulated:
    """Return both curves, a step a line; the order of one may differ from that of the other."""

    def side(model: Model, new: str, heading: str) -> Iterator[Series]:
        _, adds, _, total, r2, *_ = model.table.columns
        yield replace(total, heading=f"{new}total")
        yield replace(r2, heading=f"{new}r2")
        yield replace(adds, heading=heading, values=list(map(clipped, adds)))

    steps = Series("step", range(max(found.before.steps, found.after.steps) + 1))
    return Tabulated.of(steps, *side(found.before, "", "before"), *side(found.after, "new ", "after"))


def _values(found: resequencing.WhatIf) -> dict[str, Any]:
    curves = {
        name: [
            {"prefix": k, "cost": float(model.costs[k]), "r2": model.expected(k).r2, "adds": list(adds)}
            for k, adds in enumerate([(), *(step.adds for step in model.manifest.steps)])
        ]
        for name, model in (("before", found.before), ("after", found.after))
    }
    budgets = [asdict(each) for each in found.budgets]
    return {"model": found.before.name, "changes": found.changes, **curves, "budgets": budgets}
