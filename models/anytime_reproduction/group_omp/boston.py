"""Table 2 of the Group-OMP paper (section 4.2), Boston Housing, reproduced and compared with the published figures.

Each split is expanded, divided into training, validation and test rows, fitted, tuned by hold-out, and tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import numpy as np

from anytime._linalg import single_blas_thread
from anytime.groups import FeatureGroup, FeatureGroups
from anytime.types import Bool, Float
from anytime_reproduction.experiment import (
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
from anytime_reproduction.group_omp.designs import METHODS, Rows
from anytime_reproduction.group_omp.published import (
    LOOKS,
    MIN_RUNS,
    TABLE_2,
    Compared,
    batched,
    by_name,
    direction,
    verdict,
)
from anytime_reproduction.group_omp.trials import groups_with, held_out_errors
from anytime_reproduction.report import panels
from anytime_reproduction.sets import load_set

__all__ = [
    "BOSTON",
    "READINGS",
    "Expanded",
    "expanded",
    "splits",
]

POWERS = 3

READINGS: dict[str, str] = {
    "read": "an intercept, and every variable of more than two values expanded",
    "no-intercept": "no intercept",
    "refitted": "fitted again, at the point chosen, on the rows for training and validation together",
    "index-plain": "the index RAD and the share ZN, which take few values, not expanded",
    "standardised": "variables centred and scaled before their powers are taken",
    "by-test": "the tuning parameter chosen by the test rows themselves",
}
"""Interpretations of section 4.2, ours first."""

FEW_VALUES = 30
"""Maximum number of values of a variable that the reading "index-plain" does not expand: RAD has 9 and ZN 26."""


@dataclass(frozen=True, eq=False)
class Expanded:
    """Columns x, x^2, x^3 of each continuous variable as one group; a binary variable is a group of one column."""

    X: Float
    groups: FeatureGroups


def expanded(X: Float, names: tuple[str, ...], few: int = 2) -> Expanded:
    """Expand the columns of X (n, D) that have more than `few` values; the powers of a binary variable add nothing."""
    columns: list[Float] = []
    groups: list[FeatureGroup] = []
    for name, x in zip(names, X.T, strict=True):
        powers = POWERS if len(np.unique(x)) > few else 1
        columns += [x**power for power in range(1, powers + 1)]
        features = tuple(f"{name}^{power}" for power in range(1, powers + 1))
        groups.append(FeatureGroup(name=name, features=features, cost=1.0))
    return Expanded(np.column_stack(columns), FeatureGroups(groups=tuple(groups)))


def splits(setting: Setting, reading: str, first: int, count: int) -> Result:
    """Return results of some splits: test errors and numbers of variables of each method, and details of OLS.

    `"inside"` are OLS's errors on the test rows within the training range of every variable, `"top"` is the share of
    its squared error that comes from one row, `"unscaled"` its errors on unscaled columns.
    """
    data = load_set("boston_housing", setting)
    X = (data.X - data.X.mean(axis=0)) / data.X.std(axis=0) if reading == "standardised" else data.X
    table = expanded(X, data.groups.features, FEW_VALUES if reading == "index-plain" else 2)
    with single_blas_thread():
        found = [
            _split(table, data.y, np.random.default_rng([setting.seed, 5, first + i]), reading) for i in range(count)
        ]
    return {
        "what": data.what,
        "real": setting.data is not None,
        "variables": len(table.groups),
        "methods": {
            method: {key: [one[0][method][k] for one in found] for k, key in enumerate(("error", "variables"))}
            for method in METHODS
        },
        "ols": {key: [one[1][key] for one in found] for key in ("inside", "outside", "top", "unscaled")},
    }


def _split(
    table: Expanded, y: Float, rng: np.random.Generator, reading: str
) -> tuple[dict[str, tuple[float, int]], dict[str, float]]:
    """Return test error and number of variables of each method, and the details of OLS, on one random split."""
    order = rng.permutation(len(y))
    train, validation, test = np.split(order, [len(y) // 2, len(y) // 2 + len(y) // 4])
    X, target = table.X, y
    if reading != "no-intercept":
        X, target = X - X[train].mean(axis=0), y - y[train].mean()
    rows, both = (Rows(X[some], target[some], table.groups) for some in (train, np.concatenate([train, validation])))
    scored: dict[str, tuple[float, int]] = {}
    details: dict[str, float] = {}
    for method, fitted in METHODS.items():
        path = fitted(rows)
        chooser = test if reading == "by-test" else validation
        point = int(np.argmin(held_out_errors(path, X[chooser], target[chooser])))
        w = (fitted(both) if reading == "refitted" else path)[point]
        error = float(held_out_errors(w[np.newaxis], X[test], target[test])[0])
        scored[method] = (error, int(groups_with(w != 0.0, table.groups).sum()))
        if method == "OLS":
            details = _details(w, rows, X[test], target[test])
    return scored, details


def _details(w: Float, rows: Rows, X: Float, y: Float) -> dict[str, float]:
    squares = (y - X @ w) ** 2
    outside = _beyond(X, rows.X)
    plain = np.linalg.lstsq(rows.X, rows.y, rcond=None)[0]
    return {
        "inside": float(squares[~outside].mean()),
        "outside": int(outside.sum()),
        "top": float(squares.max() / squares.sum()),
        "unscaled": float(np.mean((y - X @ plain) ** 2)),
    }


def _beyond(X: Float, known: Float) -> Bool:
    """Return the rows (n,) that have a value below the smallest or above the largest known one."""
    beyond: Bool = ((known.min(axis=0) > X) | (known.max(axis=0) < X)).any(axis=1)
    return beyond


QUICK_BATCH = 3
"""Number of splits in a quick run."""

BEYOND = 0.8
"""OLS's error comes from rows beyond the training range if its mean without them is below this share of it."""

SKEWED = 0.8
"""A mean rests on few splits if the median is below this share of it."""

SIDES = (("error", "test prediction error"), ("variables", "number of original variables"))

Scores = Mapping[str, Mapping[str, Many[float]]]
"""Errors and numbers of variables by method."""


def _runs(setting: Setting) -> list[Run]:
    return batched(setting, splits, "reading", READINGS, quick=QUICK_BATCH)


def _gathered(parts: Many[Result]) -> Scores:
    """Return errors and numbers of variables of all splits in one list."""
    return {m: {k: [x for part in parts for x in part["methods"][m][k]] for k, _ in SIDES} for m in METHODS}


def _section(_: Setting, results: Results) -> Section:
    by_reading = by_name(results, READINGS)
    parts = by_reading["read"]
    scores, others = _gathered(parts), {r: _gathered(found) for r, found in by_reading.items()}
    ols = {key: [x for part in parts for x in part["ols"][key]] for key in parts[0]["ols"]}
    what, real = str(parts[0]["what"]), bool(parts[0]["real"])
    findings = [*([*_reproduced(scores), *_explained(others)] if real else [_stand_in(what)])]
    findings += [_ols(scores, ols), *_claim(scores)]
    tables = (_table(scores, what, real), _paired(scores), _readings(others))
    return Section(
        tuple(findings), _text(scores, what, parts[0]["variables"], real), tables, (_figure(scores, what, real),)
    )


def _stand_in(what: str) -> Finding:
    return Finding(f"Ran on {what} instead of Boston Housing: no result here is comparable with a published figure.")


def _compared(scores: Scores) -> list[Compared]:
    return [
        Compared(words, method, TABLE_2[method][side], Estimate.of(scores[method][key]), rounding=0.005)
        for side, (key, words) in enumerate(SIDES)
        for method in METHODS
    ]


def _reproduced(scores: Scores) -> list[Finding]:
    """Return a finding for each of the two columns of Table 2."""
    findings = []
    for _, words in SIDES:
        cells = [c for c in _compared(scores) if c.where == words]
        strict, agree = sum(c.strict for c in cells), sum(c.agrees for c in cells)
        details_text = ", ".join(f"{c.row} {c.ours.mean:.2f} ({c.published.mean:.2f})" for c in cells)
        findings.append(
            Finding(
                f"The {words}: {strict} of {len(cells)} published means lie within three of our standard errors, "
                f"{agree} if the published errors are included{_proviso(scores)}. Ours (published): {details_text}.",
                agrees=verdict(agree == len(cells), _count(scores)),
            )
        )
    return findings


def _count(scores: Scores) -> int:
    return len(scores["OLS"]["error"])


def _proviso(scores: Scores) -> str:
    return f" ({_count(scores)} splits are too few for a verdict)" if _count(scores) < MIN_RUNS else ""


def _explained(others: Mapping[str, Scores]) -> list[Finding]:
    """Return a finding on other readings of the paper, if ours does not agree with all published figures."""
    counts = {reading: sum(c.agrees for c in _compared(scores)) for reading, scores in others.items()}
    ours, cells = counts["read"], 2 * len(METHODS)
    if ours == cells:
        return []
    details_text = "; ".join(
        f"{words}: {counts[reading]} of {cells}, {np.mean(others[reading]['Group-OMP']['error']):.2f}"
        for reading, words in READINGS.items()
    )
    most = max(counts.values())
    nearest = " or ".join(words for reading, words in READINGS.items() if counts[reading] == most)
    best = "no reading agrees with more than ours" if most == ours else f"nearest: {nearest}"
    return [
        Finding(
            "Ours and other readings of the paper, cells of Table 2 that agree and the error of Group-OMP "
            f"(published {TABLE_2['Group-OMP'][0].mean:.2f}): {details_text}. Result: "
            f"{best}{_proviso(others['read'])}.",
            agrees=verdict(most == cells, _count(others["read"])),
        )
    ]


def _readings(others: Mapping[str, Scores]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for key, _ in SIDES:
        rows += [(r, key, *(Estimate.of(scores[m][key]) for m in METHODS)) for r, scores in others.items()]
    details_text = "; ".join(f"{reading}: {words}" for reading, words in READINGS.items())
    return Table(
        "boston-readings",
        "The same splits by other readings of the paper: test prediction error and number of variables. "
        f"{details_text}.",
        ("reading", "measure", *METHODS),
        tuple(rows),
        digits=2,
    )


def _ols(scores: Scores, ols: Mapping[str, Many[float]]) -> Finding:
    """Return a finding on the cause of the OLS error."""
    errors = np.array(scores["OLS"]["error"])
    mean, median, worst = float(errors.mean()), float(np.median(errors)), int(np.argmax(errors))
    few = "its mean rests on few splits" if median < SKEWED * mean else "its mean does not rest on few splits"
    inside, outside = float(np.mean(ols["inside"])), float(np.mean(ols["outside"]))
    why = "that is where the error comes from" if inside < BEYOND * mean else "that is not where the error comes from"
    return Finding(
        f"The error of OLS: {few}, as its median over splits is {median:.2f}, its mean {mean:.2f}, its largest "
        f"{errors[worst]:.1f}, {ols['top'][worst]:.0%} of it from one test row. {outside:.1f} test rows per split are "
        f"beyond the range of the training rows, where cubes extrapolate; without them its mean is {inside:.2f}: "
        f"{why}. {_scaling(errors, np.array(ols['unscaled']))}"
    )


def _scaling(errors: Float, unscaled: Float) -> str:
    """Return whether the scales of the powers matter, which they do only by rounding."""
    apart = float(np.max(np.abs(unscaled / errors - 1.0)))
    if apart < 1e-3:
        return f"The scales of x^3 are not the cause: unscaled columns change no error by more than {apart:.0e} of it."
    return f"Unscaled columns change an error by up to {apart:.1%}: part of it is rounding."


def _claim(scores: Scores) -> list[Finding]:
    """Return findings on the paper's claims that Group-OMP has the highest prediction accuracy and the sparsest model.

    True if Group-OMP has less than every rival, beyond the 95 % interval of the paired difference; False if a rival has
    less than Group-OMP; None if no rival has, but some differences are not significant.
    """
    findings = []
    for (key, words), praise in zip(SIDES, ("most accurate", "sparsest"), strict=True):
        less, more, open_ = (_rivals_by_direction(scores, key, side) for side in (-1, 1, 0))
        details_text = [
            f"{side} {', '.join(names)}"
            for side, names in (("less than that of", less), ("more than that of", more))
            if names
        ]
        details_text += [f"not significantly different from that of {', '.join(open_)}"] if open_ else []
        findings.append(
            Finding(
                f"The paper's claim that Group-OMP is {praise}: its {words} over the same splits is "
                f"{'; '.join(details_text)} (by 95 % intervals of the paired differences, Student's t).",
                agrees=False if more else None if open_ else True,
            )
        )
    return findings


def _rivals_by_direction(scores: Scores, key: str, side: int) -> list[str]:
    """Return the rivals that Group-OMP has significantly less than (-1), more than (1), or neither (0)."""
    return [m for m in METHODS if m != "Group-OMP" and direction(_difference(scores, m, key)) == side]


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
        f"Table 2: {_count(scores)} random splits of {what}, chosen by hold-out"
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
        "Group-OMP minus each rival over the same splits; below 0 is better.",
        ("rival", *(words for _, words in SIDES)),
        tuple(rows),
        digits=2,
    )


def _text(scores: Scores, what: str, variables: int, real: bool) -> tuple[str, ...]:
    binary = " (CHAS); RAD and ZN count as continuous" if real else ""
    return (
        f"Table 2 of the Group-OMP paper on {what}: {_count(scores)} random splits into half to train "
        f"on, a quarter to choose the tuning parameter and a quarter to test. Each of the {variables} variables is a "
        f"group: x, x^2 and x^3, or x only if it is binary{binary}. Rows are centred by their training means: "
        "an intercept.",
        _advice(scores),
    )


def _advice(scores: Scores) -> str:
    """Return advice on which method to use, from these splits."""
    nearest, fewest = (min(METHODS, key=lambda m: float(np.mean(scores[m][key]))) for key, _ in SIDES)
    text = f"On these rows {fewest} uses the fewest variables on average, and {nearest} has the smallest error. "
    behind, sparser = _rivals_by_direction(scores, "error", 1), not _rivals_by_direction(scores, "variables", 0)
    sparser = sparser and not _rivals_by_direction(scores, "variables", 1)
    if sparser and behind:
        text += (
            "Use Group-OMP if the number of variables determines the cost, and "
            f"{' or '.join(behind)} if only the error matters; the paired table shows the trade-off."
        )
    elif sparser:
        text += "Group-OMP uses fewer variables than any other, and no other has a significantly smaller error: use it."
    else:
        text += "These splits do not show that Group-OMP uses fewer variables than all others."
    ols = np.array(scores["OLS"]["error"])
    if np.median(ols) < SKEWED * ols.mean():
        text += " Least squares on all powers has a far larger error on a few splits than on most."
    return text


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

    contents = "ours (filled) and the published means (hollow)" if real else "means"
    caption = f"Table 2 on {what}: {contents}, with standard errors."
    return Figure("boston", caption, draw)


BOSTON = Experiment(
    "boston",
    "Boston Housing, as in the Group-OMP paper",
    "Lozano, Swirszcz and Abe (2009), Table 2",
    _runs,
    _section,
    ("boston_housing",),
    of_the_sets=True,
)
"""Five methods on cubic expansions, 100 splits."""
