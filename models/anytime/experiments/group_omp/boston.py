"""Table 2 of the Group-OMP paper, Boston Housing, run again beside what was published."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import Any

import numpy as np

from anytime.experiments.drawing import panels
from anytime.experiments.experiment import (
    Cell,
    Estimate,
    Experiment,
    Figure,
    Finding,
    Result,
    Results,
    Run,
    Section,
    Setting,
    Table,
)
from anytime.experiments.group_omp.agreement import Compared
from anytime.experiments.group_omp.methods import METHODS
from anytime.experiments.group_omp.pictures import LOOKS
from anytime.experiments.group_omp.published import TABLE_2
from anytime.experiments.group_omp.splits import READINGS, splits

__all__ = ["BOSTON"]

BATCHES, BATCH, QUICK_BATCH = 10, 10, 3
"""100 splits, ten to a batch; and the one batch of a quick look."""

DECIDED = 2.0
"""Standard errors of a paired difference from which one method is told to be better."""

SIDES = (("error", "test prediction error"), ("variables", "number of original variables"))

Scores = Mapping[str, Mapping[str, Many[float]]]
"""By method, errors and numbers of variables."""


def _runs(setting: Setting) -> list[Run]:
    batches, size = (1, QUICK_BATCH) if setting.quick else (BATCHES, BATCH)
    return [
        Run(f"{reading}-{batch}", splits, {"reading": reading, "first": batch * size, "count": size})
        for reading in READINGS
        for batch in range(batches)
    ]


def _gathered(parts: Many[Result]) -> Scores:
    """Errors and numbers of variables of all splits in one list."""
    return {m: {k: [x for part in parts for x in part["methods"][m][k]] for k, _ in SIDES} for m in METHODS}


def _section(_: Setting, results: Results) -> Section:
    by_reading = {r: [results[name] for name in results if name.rpartition("-")[0] == r] for r in READINGS}
    parts = by_reading["read"]
    scores, others = _gathered(parts), {r: _gathered(found) for r, found in by_reading.items()}
    ols = {key: [x for part in parts for x in part["ols"][key]] for key in parts[0]["ols"]}
    what, real = str(parts[0]["what"]), bool(parts[0]["real"])
    findings = [*([*_reproduced(scores), *_explained(others)] if real else [_stand_in(what)])]
    findings += [_ols(scores, ols), *_claim(scores)]
    tables = (_table(scores, what, real), _paired(scores), _readings(others))
    return Section(tuple(findings), _text(scores, what, parts[0]["variables"]), tables, (_figure(scores, what, real),))


def _stand_in(what: str) -> Finding:
    return Finding(f"Ran on {what} in the place of Boston Housing: nothing here stands beside a published figure.")


def _compared(scores: Scores) -> list[Compared]:
    return [
        Compared(words, method, TABLE_2[method][side], Estimate.of(scores[method][key]), rounding=0.005)
        for side, (key, words) in enumerate(SIDES)
        for method in METHODS
    ]


def _reproduced(scores: Scores) -> list[Finding]:
    """A line for each of the two columns of Table 2."""
    findings = []
    for _, words in SIDES:
        cells = [c for c in _compared(scores) if c.where == words]
        strict, agree = sum(c.strict for c in cells), sum(c.agrees for c in cells)
        told = ", ".join(f"{c.row} {c.ours.mean:.2f} ({c.published.mean:.2f})" for c in cells)
        findings.append(
            Finding(
                f"The {words}: {strict} of {len(cells)} published means lie within three of our standard errors, "
                f"{agree} when the published errors count too. Ours (published): {told}.",
                agrees=agree == len(cells),
            )
        )
    return findings


def _explained(others: Mapping[str, Scores]) -> list[Finding]:
    """Other readings of the paper, where ours does not agree with all that was published."""
    counts = {reading: sum(c.agrees for c in _compared(scores)) for reading, scores in others.items()}
    ours, cells = counts["read"], 2 * len(METHODS)
    if ours == cells:
        return []
    told = "; ".join(
        f"{words}: {counts[reading]} of {cells}, {np.mean(others[reading]['Group-OMP']['error']):.2f}"
        for reading, words in READINGS.items()
    )
    best = max(counts, key=lambda reading: counts[reading])
    verdict = "none agrees with more than ours" if counts[best] == ours else f"nearest: {READINGS[best]}"
    return [
        Finding(
            "Ours and other readings of the paper, cells of Table 2 that agree and the error of Group-OMP "
            f"(published {TABLE_2['Group-OMP'][0].mean:.2f}): {told}. Of these {verdict}.",
            agrees=counts[best] == cells,
        )
    ]


def _readings(others: Mapping[str, Scores]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (READINGS[reading], m, *(Estimate.of(scores[m][key]) for key, _ in SIDES))
        for reading, scores in others.items()
        for m in METHODS
    ]
    return Table(
        "boston-readings",
        "The same splits by other readings of the paper.",
        ("reading", "method", *(words for _, words in SIDES)),
        tuple(rows),
        digits=2,
    )


def _ols(scores: Scores, ols: Mapping[str, Many[float]]) -> Finding:
    """Where OLS has its error from."""
    errors = np.array(scores["OLS"]["error"])
    apart = float(np.max(np.abs(np.array(ols["unscaled"]) / errors - 1.0)))
    scaling = (
        f"The scales of x^3 are not the cause: unscaled columns change no error by more than {apart:.0e} of it."
        if apart < 1e-3
        else f"Unscaled columns change an error by {apart:.1%} of it: a part is rounding."
    )
    worst = int(np.argmax(errors))
    return Finding(
        f"The error of OLS is a mean of few: its median over splits is {np.median(errors):.2f}, its mean "
        f"{errors.mean():.2f}, its largest {errors[worst]:.1f}, of which one test row has {ols['top'][worst]:.0%}. On "
        f"test rows within the range of the training rows its mean is {np.mean(ols['inside']):.2f} "
        f"({np.mean(ols['outside']):.1f} rows a split are beyond): cubes extrapolate badly. {scaling}"
    )


def _claim(scores: Scores) -> list[Finding]:
    """The paper: Group-OMP has the highest prediction accuracy, and the sparsest model."""
    findings = []
    for (key, words), praise in zip(SIDES, ("most accurate", "sparsest"), strict=True):
        found = {m: _difference(scores, m, key) for m in METHODS if m != "Group-OMP"}
        worse = [m for m, d in found.items() if d.mean > DECIDED * (d.error or 0.0)]
        better = [m for m, d in found.items() if d.mean < -DECIDED * (d.error or 0.0)]
        open_ = [m for m in found if m not in worse and m not in better]
        told = [f"{side} {', '.join(names)}" for side, names in (("less than", better), ("more than", worse)) if names]
        told += [f"not told apart from {', '.join(open_)}"] if open_ else []
        findings.append(
            Finding(
                f"The paper's claim that Group-OMP is {praise}: its {words} over the same splits is {'; '.join(told)}"
                f" ({DECIDED:g} standard errors tell methods apart).",
                agrees=all(d.mean < 0.0 for d in found.values()),
            )
        )
    return findings


def _difference(scores: Scores, rival: str, key: str) -> Estimate:
    return Estimate.of_difference(scores["Group-OMP"][key], scores[rival][key])


def _table(scores: Scores, what: str, real: bool) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for method in METHODS:
        cells: list[Cell] = [method]
        for side, (key, _) in enumerate(SIDES):
            cells += [TABLE_2[method][side], Estimate.of(scores[method][key])]
        rows.append((*cells, float(np.median(scores[method]["error"]))))
    return Table(
        "boston",
        f"Table 2: {len(scores['OLS']['error'])} random splits of {what}, chosen by hold-out"
        + ("." if real else "; the published figures are of Boston Housing."),
        ("method", "error, published", "error, ours", "variables, published", "variables, ours", "median error, ours"),
        tuple(rows),
        digits=2,
    )


def _paired(scores: Scores) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (m, *(_difference(scores, m, key) for key, _ in SIDES)) for m in METHODS if m != "Group-OMP"
    ]
    return Table(
        "boston-paired",
        "Group-OMP less each rival over the same splits; below 0 is better.",
        ("rival", *(words for _, words in SIDES)),
        tuple(rows),
        digits=2,
    )


def _text(scores: Scores, what: str, variables: int) -> tuple[str, ...]:
    means = {key: {float(np.mean(scores[m][key])): m for m in METHODS} for key, _ in SIDES}
    nearest, fewest = means["error"][min(means["error"])], means["variables"][min(means["variables"])]
    return (
        f"Table 2 of the Group-OMP paper on {what}: {len(scores['OLS']['error'])} random splits into half to train "
        f"on, a quarter to choose the tuning parameter and a quarter to test. Each of the {variables} variables is a "
        "group: x, x^2 and x^3, or x alone where it is binary (CHAS); RAD and ZN count as continuous. Rows are centred "
        "by their training means, which is an intercept.",
        f"On these rows the fewest variables are asked for by {fewest}, and the least error is that of {nearest}; the "
        "paired table tells what the one costs in terms of the other. Take Group-OMP where what costs is the number of "
        "variables asked for. Least squares on all powers is fine for most splits, and useless where a test row lies "
        "beyond what it was trained on.",
    )


def _figure(scores: Scores, what: str, real: bool) -> Figure:
    def draw() -> Any:
        figure, axes = panels(2, width=3.6, height=3.2)
        for side, (axis, (key, words)) in enumerate(zip(axes, SIDES, strict=True)):
            for x, (method, (shade, marker)) in enumerate(LOOKS.items()):
                look = {"color": shade, "marker": marker, "markersize": 6, "linestyle": "none"}
                found, printed = Estimate.of(scores[method][key]), TABLE_2[method][side]
                axis.errorbar(x - 0.12, found.mean, found.error or 0.0, **look)
                if real:
                    axis.errorbar(x + 0.12, printed.mean, printed.error, markerfacecolor="white", **look)
            axis.set_xticks(range(len(LOOKS)), LOOKS, rotation=30, ha="right")
            axis.set_ylabel(words)
        return figure

    beside = "ours (filled) beside the published means (hollow)" if real else "means"
    caption = f"Table 2 on {what}: {beside}, with standard errors."
    return Figure("boston", caption, draw)


BOSTON = Experiment(
    "boston",
    "Boston Housing, as in the Group-OMP paper",
    "Lozano, Swirszcz and Abe (2009), Table 2",
    _runs,
    _section,
)
"""Five methods on cubic expansions, 100 splits."""
