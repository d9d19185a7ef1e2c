"""Measured costs, sequence changes and simulated deadlines, as tables and as JSON values."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any, NamedTuple

import numpy as np
from rich.markup import escape
from rich.table import Table

from anytime.costs.distributions import CostDistributions, Histogram, RandomTimes
from anytime.costs.drift import Drift
from anytime.costs.profiling import Profile
from anytime.evaluation.evaluate import Evaluation
from anytime.groups import FeatureGroups
from anytime.model.model import Model
from anytime.types import Float

__all__ = [
    "Learned",
    "budgets_of",
    "drift_table",
    "drift_values",
    "learned_table",
    "learned_values",
    "order_lines",
    "profile_table",
    "profile_values",
    "random_table",
    "random_values",
]

_PERCENTILES = (10, 90, 99)


class Learned(NamedTuple):
    """The measured cost of one group.

    Attributes
    ----------
    cost, old : in milliseconds; `old` is None if the model's cost is not a time.
    measured : number of values measured.
    bucket : the bucket that contains the cost, if it is a quantile of a histogram.
    why : why the old cost is unchanged, if it is.
    """

    group: str
    cost: float
    old: float | None
    measured: int
    bucket: tuple[float, float] | None = None
    why: str | None = None


def _blank(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def profile_table(measured: Profile, costs: FeatureGroups) -> Table:
    """Return the times of each group as a table, one row per group."""
    scaled = any(each.scaling is not None for each in measured.groups.values())
    names = ["cost (ms)", "median", *(f"p{q}" for q in _PERCENTILES), "timer"]
    table = _blank(*names, *(["a call", "a row"] if scaled else []))
    table.add_column("group", overflow="fold")
    for name, each in measured.groups.items():
        values = _percentiles(each.per_row)
        cells = [f"{costs.costs[costs.positions[name]]:.4g}", *(f"{value:.4g}" for value in values)]
        cells.append(f"{_share(measured.timer_ms, values[0]):.1%}")
        if each.scaling is not None:
            cells += [f"{value:.3g}" for value in each.scaling]
        table.add_row(*cells, escape(name))
    return table


def profile_values(measured: Profile, costs: FeatureGroups) -> dict[str, Any]:
    """Return the output of `profile --json`."""
    entries = []
    for name, each in measured.groups.items():
        median, *others = _percentiles(each.per_row)
        values = {"group": name, "cost": float(costs.costs[costs.positions[name]]), "median": median}
        values |= {f"p{q}": value for q, value in zip(_PERCENTILES, others, strict=True)}
        values |= {"calls": len(each.per_row), "timer_share": _share(measured.timer_ms, median)}
        if each.scaling is not None:
            values |= {"base": each.scaling.base, "per_row": each.scaling.per_row}
        entries.append(values)
    return {"cost_unit": "ms", "timer_ms": measured.timer_ms, "groups": entries}


def _percentiles(times: Float) -> list[float]:
    found: list[float] = np.percentile(times, (50, *_PERCENTILES)).tolist()
    return found


def _share(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole > 0 else 1.0


def learned_table(learned: Many[Learned]) -> Table:
    """Return the measured cost of each group as a table."""
    table = _blank("cost (ms)", "was", "measured")
    table.add_column("group", overflow="fold")
    table.add_column("", overflow="fold")
    for each in learned:
        was = "-" if each.old is None else f"{each.old:.4g}"
        table.add_row(f"{each.cost:.4g}", was, str(each.measured), escape(each.group), escape(_why(each)))
    return table


def _why(each: Learned) -> str:
    if each.why is not None:
        return each.why
    if each.bucket is None:
        return ""
    low, high = each.bucket
    return f"more than {low:g}" if np.isinf(high) else f"between {low:g} and {high:g}"


def learned_values(learned: Many[Learned]) -> list[dict[str, Any]]:
    """Return the measured cost of each group as JSON values."""
    entries = []
    for each in learned:
        bucket = None if each.bucket is None else [None if np.isinf(end) else end for end in each.bucket]
        entries.append(each._asdict() | {"bucket": bucket})
    return entries


def budgets_of(found: Drift, requested: Many[float]) -> list[float]:
    """Return the requested budgets; by default shares of the cost at which the new sequence reaches its plateau."""
    return list(requested) or [float(f"{share * found.stop:.3g}") for share in (0.1, 0.25, 0.5, 1.0)]


def drift_table(found: Drift, budgets: Many[float]) -> Table:
    """Return a table of what each budget explains with the current and with the new sequence."""
    table = _blank("budget (ms)", "r2 current", "r2 new", "lost")
    for budget in budgets:
        staying, moving = found.staying.at(budget), found.moving.at(budget)
        cells = ["-"] * 3
        if staying is not None and moving is not None:
            cells = [f"{value:.4f}" for value in (staying, moving, max(moving - staying, 0.0))]
        table.add_row(f"{budget:.4g}", *cells)
    return table


def order_lines(found: Drift) -> list[str]:
    """Return both orders as lines of text."""
    if not found.changes:
        return ["the sequence does not change"]
    orders = [" ".join("+".join(adds) for adds in order.steps) for order in (found.staying, found.moving)]
    return [f"current: {orders[0]}", f"new:     {orders[1]}"]


def drift_values(found: Drift, budgets: Many[float]) -> dict[str, Any]:
    """Return the part of the output of `costs --json` about the sequence."""
    staying, moving = found.timeliness
    return {
        "changes": found.changes,
        "estimated": found.estimated,
        "staying": [list(adds) for adds in found.staying.steps],
        "moving": [list(adds) for adds in found.moving.steps],
        "stop": found.stop,
        "timeliness": {"staying": staying, "moving": moving, "lost": found.lost},
        "budgets": [
            {"budget": budget, "r2_staying": found.staying.at(budget), "r2_moving": found.moving.at(budget)}
            for budget in budgets
        ],
    }


def _measures(evaluated: Evaluation) -> dict[str, Float]:
    """Return the measures that are simulated for a deadline, by name."""
    values = {
        "r2": evaluated.r2,
        "mse": evaluated.mse if evaluated.deviance is None else None,
        "deviance": evaluated.deviance,
        "accuracy": evaluated.accuracy,
        "ndcg@5": evaluated.ndcg,
    }
    return {name: value for name, value in values.items() if value is not None}


def random_values(evaluated: Evaluation, times: RandomTimes, deadlines: Float) -> list[dict[str, Any]]:
    """Return the expected measures at each deadline, with standard errors."""
    prefixes = times.prefixes(deadlines)
    found = {name: times.expected(values, deadlines) for name, values in _measures(evaluated).items()}
    entries = []
    for k, deadline in enumerate(deadlines.tolist()):
        values: dict[str, Any] = {"deadline_ms": deadline, "prefix": float(prefixes.mean[k])}
        for name, estimate in found.items():
            values |= {name: float(estimate.mean[k]), f"{name}_error": float(estimate.error[k])}
        entries.append(values)
    return entries


def random_table(model: Model, evaluated: Evaluation, times: RandomTimes, deadlines: Float) -> Table:
    """Return the expected measures at each deadline as a table."""
    rows = random_values(evaluated, times, deadlines)
    measures = list(_measures(evaluated))
    table = _blank("deadline (ms)", f"steps of {model.steps}", *(f"test {name}" for name in measures))
    for row in rows:
        cells = [f"{row[name]:.4g} ± {row[f'{name}_error']:.1g}" for name in measures]
        table.add_row(f"{row['deadline_ms']:.4g}", f"{row['prefix']:.2f}", *cells)
    return table


def histogram_bucket(distributions: CostDistributions, name: str, quantile: float | None) -> tuple[float, float] | None:
    """Return the bucket that contains a quantile; None for a mean, or for samples."""
    group = distributions.groups[name]
    return group.bucket(quantile) if isinstance(group, Histogram) and quantile is not None else None
