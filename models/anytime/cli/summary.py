"""Models, with their evaluations and certificates, as tables and lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from anytime.errors import clipped, listed
from anytime.features.bases import FINEST, OCTILES
from anytime.model.manifest import Candidate, Selected, Stopped
from anytime.model.model import Model, at_least
from anytime.tabulated import SHARE, Series, Tabulated, shown
from anytime.training.guarantee import buys_no_group, doubling_bound

if TYPE_CHECKING:
    from anytime.evaluation.evaluate import Evaluation
    from anytime.evaluation.shapes import ColumnShape

LEAST_GAMMA = 1e-3
"""A smaller constant bounds nothing: the bound is below .1 % of the best."""


def steps_table(model: Model, evaluation: Evaluation | None = None) -> Tabulated:
    """Return a table of the prefixes, with their measures on a table if it was evaluated there."""
    step, adds, cost, total, r2, cv_error, *others = model.table.columns
    if evaluation is None:
        return Tabulated.of(step, cost, total, r2, cv_error, *others, adds)
    # A narrow terminal has no space for all columns; `show` prints those omitted here. F is in JSON only.
    measured = evaluation.table
    return Tabulated.of(step, total, r2, cv_error, *measured.columns[3:], adds, notes=measured.notes)


def budget_lines(model: Model, budget: float) -> list[str]:
    """Return lines on the prefix that answers within a budget: its groups, its quality, and what the next step adds."""
    amount, prefix = model.groups.amount, model.affordable(budget)
    groups, r2, full = model.computed[prefix], model.expected(prefix).r2, model.expected(model.steps).r2
    part = "" if not full or r2 is None else f", {shown(r2 / full, SHARE)} of {full:.4g} with all groups"
    lines = [
        f"budget {amount(budget)}: {listed(groups, 20) or 'no group (the base rate)'}",
        f"cost {amount(model.costs[prefix])}, r2 {shown(r2)} on the training rows{part}",
    ]
    if prefix == model.steps:
        return [*lines, "these are all steps"]
    step, after = model.manifest.steps[prefix], model.expected(prefix + 1).r2
    gain = "" if r2 is None or after is None else f" and adds {after - r2:.2g} to r2"
    following = f"next: {' + '.join(step.adds)} costs {amount(step.cost)}{gain}"
    return [*lines, f"{following}; the budget lacks {amount(model.costs[prefix + 1] - budget)}"]


def shapes_table(shapes: Sequence[ColumnShape]) -> Tabulated:
    """Return a table of columns, the strongest first; of several scores, the strength is the root mean square."""
    return Tabulated.of(
        Series("column", [each.name for each in shapes]),
        Series("group", [each.group for each in shapes]),
        Series("basis", [each.basis for each in shapes]),
        Series("strength", [float(np.sqrt(np.mean(np.square(each.strength)))) for each in shapes]),
        Series("alone", [each.unique for each in shapes]),
        Series("shared", [each.shared for each in shapes], form=SHARE),
    )


def certificate_line(model: Model) -> str:
    certificate, shares, words = model.manifest.certificate, model.certified_shares, model.certified
    if certificate is None or shares is None or words is None:
        return "not certified"
    best = words[1:].count("best")
    among = " of the retained groups" if _of_groups(model) else ""
    time = "" if certificate.seconds is None else f", {certificate.seconds:g} s for all"
    limits = f"{certificate.nodes} node{'s' * (certificate.nodes != 1)} for each{time}"
    if best == model.steps:
        return f"certified: every step is the best set{among} at its cost on the training data ({limits})"
    return (
        f"certified: every step explains at least {at_least(min(shares[1:]))} of the best set{among} at its cost on "
        f"the training data; {best} of {model.steps} are the best set ({limits})"
    )


def summary(model: Model) -> str:
    manifest = model.manifest
    origin, redundant = manifest.provenance, manifest.redundant
    selected, calibration = manifest.selected, manifest.calibration
    first = f", {listed(manifest.first)} first" if manifest.first else ""
    columns, terms = len(model.groups.features), model.expansion.column_terms
    size = f"{columns} columns" + ("" if model.expansion.is_identity else f", {terms} terms")
    used = terms - len(redundant.constant) - len(redundant.collinear)
    pairs = [" * ".join(pair) for step in manifest.steps for pair in step.pairs]
    dates = [column for column in model.expansion.columns if column.type == "date" and column.range]
    but = " (their months, weekdays and hours do not)" * any(
        term.operation.raw for each in dates for term in each.terms
    )
    sets = "intervals" if manifest.classes is None else "sets of classes"
    features = {
        "constant, so they add nothing": redundant.constant,
        "collinear with others, so they add nothing": redundant.collinear,
        "missing values imputed by the training mean": origin.imputed,
    }
    lines = [
        f"model {model.name} {model.version}".rstrip()
        + f": {manifest.task}, {manifest.family} by {model.rule_in_words}{first}, alpha {manifest.alpha:.3g}",
        f"learned from {origin.rows} rows of {origin.data}; {size}: "
        f"{used} informative, {len(redundant.constant)} constant, {len(redundant.collinear)} collinear with others",
        f"cross-validated errors: nested, each of {origin.folds} folds learned its own order" if origin.nested else "",
        f"costs are per row, {model.groups.shared_by}" if model.groups.shared_by else "",
        f"pairs: {listed(map(clipped, pairs), 20)} ({model.expansion.size - terms} terms)" if pairs else "",
        *(f"{what}: {listed(map(clipped, names), 20)}" for what, names in features.items() if names),
        f"dates outside the training range move to its nearest end{but}: {listed([each.name for each in dates], 20)}"
        if dates
        else "",
        *manifest.decisions,
        "" if selected is None or (selected.hinges, selected.clamp) == (None, None) else _selected(selected),
        "" if manifest.stopped is None else _stop(manifest.stopped),
        f"guarantee: {_guarantee(model)}",
        *(f"warning: {text}" for text in manifest.warnings),
        "" if manifest.certificate is None else certificate_line(model),
        ""
        if calibration is None
        else f"calibrated on {calibration.rows} rows of {calibration.data}: {100 * calibration.coverage:.10g}% {sets}",
    ]
    return "\n".join(filter(None, lines))


def _selected(selected: Selected) -> str:
    """Return a line on the terms that cross-validation selected, and the errors of the others."""
    least: dict[tuple[int | None, str | None], Candidate] = {}
    for each in sorted(selected.candidates, key=attrgetter("error")):
        least.setdefault((each.hinges, each.clamp), each)
    least.pop((selected.hinges, selected.clamp), None)
    simple = [each for key, each in least.items() if key in ((0, "off"), (0, None), (None, "off"))]
    compared = [selected, *[*simple, *least.values()][:1]]
    hinges = {None: "", 0: "straight lines", 1: "curves of 1 hinge", FINEST: f"curves of {OCTILES} or {FINEST} hinges"}
    clamps = {None: "", "off": "not clamped", "range": "clamped to the training range", "outliers": "outliers clamped"}
    names = [
        ", ".join(filter(None, (hinges.get(each.hinges, f"curves of {each.hinges} hinges"), clamps[each.clamp])))
        for each in compared
    ]
    than = (
        f" ({names[1]}: {shown(compared[1].error)}{', not clearly less' * (compared[1].error < selected.error)})"
        if len(compared) > 1
        else ""
    )
    return f"numbers are {names[0]}, by cross-validation: mean error over all budgets {shown(selected.error)}{than}"


def _stop(stopped: Stopped) -> str:
    excluded = f"left out: {listed(stopped.left_out, 20)}" if stopped.left_out else "no group left out"
    if stopped.rule == "epsilon":
        return (
            f"stopped by epsilon {stopped.epsilon:g}: the longest remaining projection is {stopped.longest:.3g}; "
            f"{excluded}"
        )
    if stopped.rule == "validation" and stopped.errors is not None:
        chosen = f"step {stopped.steps} of {len(stopped.errors) - 1} has the least error"
        best, last = shown(stopped.errors[stopped.steps]), shown(stopped.errors[-1])
        return f"stopped by {stopped.validation}: {chosen}, {best} ({last} with all); {excluded}"
    rules = [*([f"epsilon {stopped.epsilon:g}"] if stopped.epsilon else []), *filter(None, [stopped.validation])]
    return f"not stopped by {' or '.join(rules)}; {excluded}" if rules else excluded


def _guarantee(model: Model) -> str:
    guarantee = model.manifest.guarantee
    if guarantee.gamma == 0:
        return "none (gamma is 0, since some groups are linear combinations of others; a penalty above 0 changes that)"
    if guarantee.gamma is not None and guarantee.gamma < LEAST_GAMMA:
        return (
            f"too weak to be useful (gamma is {guarantee.gamma:.1g}: groups are nearly linear combinations of others)"
        )
    if guarantee.gamma is not None:
        return (
            f"in training, a prefix of cost B explains at least 1 - exp(-{guarantee.gamma:.3g} B/K) of what any set "
            f"of cost K{_of_groups(model)} explains"
        )
    if guarantee.doubling_until is None:
        return f"none ({guarantee.why})"
    until = f"up to step {guarantee.doubling_until} of {model.steps}"
    if guarantee.doubling_gamma is None:
        doubled = f"; after the first with a cost, no step {until} costs more than all before it"
        return f"none ({guarantee.why})" + doubled * (guarantee.doubling_until > 1)
    if buys_no_group(model.costs, guarantee.doubling_until):
        spent = model.groups.amount(model.costs[guarantee.doubling_until])
        return f"none (the bound applies only {until}, to budgets of at most {spent}; a quarter of that buys no group)"
    return (
        f"in training, {until}, the groups within any budget B explain more than "
        f"{doubling_bound(guarantee.doubling_gamma):.3g} of what any set of cost B/4{_of_groups(model)} explains "
        f"(gamma {guarantee.doubling_gamma:.3g})"
    )


def _of_groups(model: Model) -> str:
    """Return the groups that the sets of a guarantee consist of, if the model leaves some out."""
    stopped = model.manifest.stopped
    if stopped is None or not stopped.left_out:
        return ""
    # Without a rule, the left-out groups did not take part in training.
    return " of the retained groups" if stopped.rule is None else " of all training groups"
