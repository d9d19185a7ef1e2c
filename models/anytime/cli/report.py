"""Models, evaluations and certificates, as tables and as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from anytime.errors import listed
from anytime.evaluation.certificate import at_least
from anytime.evaluation.evaluate import Evaluation
from anytime.model.manifest import Stopped
from anytime.model.model import Model
from anytime.training.guarantee import doubling_bound
from anytime.types import Float

__all__ = [
    "certificate_line",
    "certificate_values",
    "described",
    "evaluation_table",
    "evaluation_values",
    "steps_table",
    "summary",
]

BEST = 1 - 1e-9
"""Shares of the best possible from here on count as 1: bounds are known to this tolerance."""

OWN = ("step", "cost", "total", "r2", "cv error", "alpha")
"""Columns that come from the model itself."""


def described(model: Model) -> dict[str, Any]:
    """Return the output of `show --json`: the manifest without the features of the groups."""
    values = model.manifest.model_dump(mode="json")
    values["cost_unit"] = model.groups.cost_unit
    values["features"] = len(model.groups.features)
    values["moments"] = model.moments is not None
    return values


def _table(model: Model, own: Many[str], measures: Mapping[str, Many[float] | Many[str] | Float]) -> Table:
    """Return a table of the prefixes with some of their own columns, and with measures."""
    table = Table(box=None, pad_edge=False)
    for name in (*own, *measures):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(escape(f"adds ({model.groups.cost_unit})"), overflow="fold")
    for k, (cells, adds) in enumerate(_rows(model)):
        table.add_row(*(cells[name] for name in own), *(_cell(values[k]) for values in measures.values()), adds)
    return table


def steps_table(model: Model) -> Table:
    """Return a table of the prefixes of a model, one row each."""
    found = model.manifest.calibration
    measures: dict[str, Many[float] | Many[str]] = {}
    if model.manifest.certificate is not None:
        measures["of best"] = [_of_best(model, prefix) for prefix in range(model.steps + 1)]
    if found is not None:
        measures[_size(model)] = found.sizes
        if found.reliability is not None:
            measures["ECE"] = found.reliability
    return _table(model, OWN, measures)


def evaluation_table(model: Model, evaluated: Evaluation) -> Table:
    """Return a table of the prefixes of a model with their measures on a data set."""
    undefined = ["-"] * len(evaluated.costs)
    measures: dict[str, Many[str] | Float] = {"test r2": undefined if evaluated.r2 is None else evaluated.r2}
    if evaluated.deviance is None:
        measures["test mse"] = evaluated.mse
    else:
        measures["test deviance"] = evaluated.deviance
    if evaluated.accuracy is not None:
        measures["accuracy"] = evaluated.accuracy
    if evaluated.ndcg is not None:
        measures["NDCG@5"] = evaluated.ndcg
    if evaluated.coverage is not None and evaluated.size is not None:
        measures |= {"coverage": evaluated.coverage, _size(model): evaluated.size}
    # A narrow terminal must not cut off the measures; `show` prints the columns omitted here.
    return _table(model, [name for name in OWN if name not in ("cost", "alpha")], measures)


def _cell(value: float | str) -> str:
    return escape(value) if isinstance(value, str) else f"{value:.4g}"


def _of_best(model: Model, prefix: int) -> str:
    """Return a prefix's share of the best possible, rounded down."""
    shares, found = model.certified_shares, model.manifest.certificate
    assert shares is not None  # noqa: S101
    assert found is not None  # noqa: S101
    if shares[prefix] >= BEST:
        return "best"
    share = at_least(shares[prefix])
    return share if found.exact[prefix] else f">= {share}"


def certificate_line(model: Model) -> str:
    """Return the summary of a model's certificate, in one line."""
    found, shares = model.manifest.certificate, model.certified_shares
    if found is None or shares is None:
        return "not certified"
    cells = [_of_best(model, prefix) for prefix in range(1, model.steps + 1)]
    among = " of the retained groups" if _left_out(model) else ""
    limits = f"{found.nodes} node{'s' * (found.nodes != 1)} for each"
    limits += "" if found.seconds is None else f", {found.seconds:g} s for all"
    best = cells.count("best")
    if best == len(cells):
        return f"certified: every step is the best set{among} at its cost on the training data ({limits})"
    least = at_least(min(shares[1:]))
    return (
        f"certified: every step explains at least {least} of the best set{among} at its cost on the training data; "
        f"{best} of {len(cells)} are the best set ({limits})"
    )


def certificate_values(model: Model) -> dict[str, Any]:
    """Return the output of `certify --json`."""
    found, shares = model.manifest.certificate, model.certified_shares
    if found is None or shares is None:
        return {}
    reached = [model.expected(prefix).explained_variance for prefix in range(model.steps + 1)]
    columns = {
        "prefix": range(model.steps + 1),
        "cost": model.costs.tolist(),
        "explained_variance": reached,
        "bound": found.bounds,
        "share": shares,
        "exact": found.exact,
    }
    rows = zip(*columns.values(), strict=True)
    prefixes = [dict(zip(columns, row, strict=True)) for row in rows]
    return {"version": model.version, "nodes": found.nodes, "seconds": found.seconds, "prefixes": prefixes}


def _size(model: Model) -> str:
    return "width" if model.manifest.classes is None else "set size"


def _rows(model: Model) -> list[tuple[dict[str, str], str]]:
    """Return the cells of each prefix by column, the base rate first, and the groups that it adds."""
    prior = model.manifest.prior_error
    base = "-" if model.expected(0).r2 is None else "0"
    rows = [(dict(zip(OWN, ("0", "0", "0", base, _number(prior), ""), strict=True)), "(base rate)")]
    for k, step in enumerate(model.manifest.steps, start=1):
        cells = (
            str(k),
            f"{step.cost:.4g}",
            f"{step.cumulative_cost:.4g}",
            "-" if step.r2 is None else f"{step.r2:.4f}",
            _number(step.cv_error),
            f"{step.alpha:.2g}",
        )
        rows.append((dict(zip(OWN, cells, strict=True)), escape(" + ".join(step.adds))))
    return rows


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def summary(model: Model) -> str:
    """Return a description of a model, in lines."""
    manifest = model.manifest
    origin, redundant = manifest.provenance, manifest.redundant
    kind = manifest.method + " cost-blind" * manifest.cost_blind + " with doubling" * manifest.doubling
    used = len(model.groups.features) - len(redundant.constant) - len(redundant.collinear)
    kind += f", {listed(manifest.first)} first" if manifest.first else ""
    lines = [
        f"model {model.name} {model.version}".rstrip()
        + f": {manifest.task}, {manifest.family} by {kind}, alpha {manifest.alpha:.3g}",
        f"learned from {origin.rows} rows of {origin.data}; {len(model.groups.features)} columns: "
        f"{used} informative, {len(redundant.constant)} constant, {len(redundant.collinear)} collinear with others",
    ]
    if redundant.constant:
        lines.append(f"constant: {listed(redundant.constant, 20)}")
    if redundant.collinear:
        lines.append(f"collinear: {listed(redundant.collinear, 20)}")
    if origin.imputed:
        lines.append(f"missing values imputed by the training mean: {listed(origin.imputed, 20)}")
    if manifest.stopped is not None:
        lines.append(_stop(manifest.stopped))
    lines.append(f"guarantee: {_promise(model)}")
    if manifest.certificate is not None:
        lines.append(certificate_line(model))
    if manifest.calibration is not None:
        found, what = manifest.calibration, "intervals" if manifest.classes is None else "sets of classes"
        lines.append(f"calibrated on {found.rows} rows of {found.data}: {100 * found.coverage:.10g}% {what}")
    return "\n".join(lines)


def _stop(stopped: Stopped) -> str:
    """Return a line that states where training stopped, why, and which groups are left out."""
    excluded = f"left out: {listed(stopped.left_out, 20)}" if stopped.left_out else "no group left out"
    if stopped.rule == "epsilon":
        return (
            f"stopped by epsilon {stopped.epsilon:g}: the longest remaining projection is {stopped.longest:.3g}; "
            f"{excluded}"
        )
    if stopped.rule == "validation" and stopped.errors is not None:
        chosen = f"step {stopped.steps} of {len(stopped.errors) - 1} has the least error"
        best, last = map(_number, (stopped.errors[stopped.steps], stopped.errors[-1]))
        return f"stopped by {stopped.validation}: {chosen}, {best} ({last} with all); {excluded}"
    rules = [*([f"epsilon {stopped.epsilon:g}"] if stopped.epsilon else []), *filter(None, [stopped.validation])]
    if not rules:
        return excluded
    return f"not stopped by {' or '.join(rules)}; {excluded}"


def _promise(model: Model) -> str:
    promised = model.manifest.guarantee
    if promised.gamma == 0:
        return "none (gamma is 0: some groups are linear combinations of others; a penalty separates them)"
    if promised.gamma is not None:
        sets = f"any set {_of_groups(model)}of cost K"
        return f"F(prefix of cost B) >= (1 - exp(-{promised.gamma:.3g} B/K)) F({sets})"
    if promised.doubling_until is None:
        return f"none ({promised.why})"
    until = f"up to step {promised.doubling_until} of {model.steps}"
    if promised.doubling_gamma is None:
        return f"cost at most doubles {until} ({promised.why})"
    share = doubling_bound(promised.doubling_gamma)
    sets = f"any set {_of_groups(model)}of cost B/4"
    return f"F(within any budget B) > {share:.3g} F({sets}), {until} (gamma {promised.doubling_gamma:.3g})"


def _left_out(model: Model) -> bool:
    """Return whether training left groups out."""
    return model.manifest.stopped is not None and len(model.manifest.stopped.left_out) > 0


def _of_groups(model: Model) -> str:
    """Return the groups that the sets of a guarantee consist of, if the model leaves some out."""
    stopped = model.manifest.stopped
    if stopped is None or not stopped.left_out:
        return ""
    # Without a rule, the left-out groups did not take part in training.
    return "of the retained groups, " if stopped.rule is None else "of all training groups, "


def evaluation_values(evaluated: Evaluation) -> dict[str, Any]:
    """Return the output of `evaluate --json`."""
    values: dict[str, Any] = {
        "rows": evaluated.rows,
        "stop": evaluated.stop,
        "timeliness": evaluated.timeliness,
        "timeliness_step": evaluated.timeliness_step,
    }
    arrays = {
        "cost": evaluated.costs,
        "explained_variance": evaluated.explained_variance,
        "r2": np.full(len(evaluated.costs), None) if evaluated.r2 is None else evaluated.r2,
        "mse": evaluated.mse,
        "deviance": evaluated.deviance,
        "accuracy": evaluated.accuracy,
        "ndcg@5": evaluated.ndcg,
        "coverage": evaluated.coverage,
        "size": evaluated.size,
    }
    columns = {name: array.tolist() for name, array in arrays.items() if array is not None}
    values["prefixes"] = [
        {"prefix": k} | {name: column[k] for name, column in columns.items()} for k in range(len(evaluated.costs))
    ]
    return values
