"""The part of the report on training: from the Gram, from rows, what is explained at equal cost, forward selection."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from anytime.selection import sequence
from anytime_reproduction.report import curve, panels
from benchmarks.peers.environments import Environment, ours, prepared
from benchmarks.peers.equal_cost import Line, area, entry_order, explained, line_of, refitted
from benchmarks.peers.forward_selection import forward_selection
from benchmarks.peers.problems import Made, made
from benchmarks.peers.rivals.with_ours import ALPHA, gram_of
from benchmarks.peers.section import Cell, Finding, Picture, Section, Sheet, Verdict, absence, cell, picture, within
from benchmarks.peers.training import FROM_GRAM, FROM_ROWS, OURS, Round, measured, sheet

__all__ = ["rows", "training"]

ADELIE, EARLY, PURSUIT = (FROM_GRAM[i].label for i in (1, 2, 3))
PRODUCT = FROM_ROWS[1].label
LIMITS = {ADELIE: 0.5, PURSUIT: 0.25}
SHARE = 0.1
"""The one penalty of solvers that are given one, as a share of the smallest at which nothing is active."""

RIVALS = ("adelie", "celer", "skglm", "abess", "spams", "mlxtend")

FEW_WIDE = 2
"""Rounds of what takes long on 2,000 columns."""

WHAT = (
    "What is compared, exactly. Ours takes every group by exact forward regression (the gain of each group left, at "
    "every step, per cost), and has the coefficients of every prefix at the end: a whole anytime model. adelie "
    "follows a path of the Group Lasso, weighted by the same costs, over 100 penalties down to a hundredth of the "
    "largest: other sets, shrunken coefficients, no sequence of all groups; by default it leaves the path early, where "
    "more penalty buys little. orthogonal_mp_gram takes all columns one by one, without groups or costs. celer, skglm "
    "and SPAMS solve one penalty of the same Group Lasso to a tolerance, from rows; ours beside them does the same. "
    "abess splices sets of groups without costs. None of the others makes what ours makes; the ratios say what each "
    "takes for what it does. Environments, compilation and loading are not timed; what takes more than four seconds is "
    "measured in few rounds. Memory is the peak of the process while it worked, less its peak before: numbers that a "
    "solver had room for already show as nothing."
)
FROM_THE_GRAM = "All are given the same standardised X'X/n and X'y/n (the pursuit with our 1e-5 on the diagonal)."
FROM_THE_ROWS = (
    "All are given the same standardised rows, in the order in memory that each prefers. On one thread only adelie is "
    "beside us, on 2,000 columns only the floor."
)


def training(quick: bool) -> Section:
    """From the Gram: measure and tell."""
    rounds, n = (5, 10_000) if quick else (15, 50_000)
    findings = absence([prepared("adelie")])
    sheets: list[Sheet] = []
    pictures: list[Picture] = []
    with tempfile.TemporaryDirectory() as folder:
        main = made(n, 500, 10, Path(folder) / "main")
        for threads in (2, 1):
            found = measured(FROM_GRAM, main, threads, rounds)
            _add(found, "From the Gram", findings, sheets, LIMITS)
            if threads == 2:
                more, drawn = _at_equal_cost(main, found)
                sheets.append(more)
                pictures.append(drawn)
        del main
        others = [made(n, 500, 1, Path(folder) / "single", seed=1)]
        if not quick:
            others.append(made(n, 2000, 10, Path(folder) / "wide", seed=2))
        for other in others:
            wide = len(other.q) > 1000
            for threads in (2, 1):
                found = measured(FROM_GRAM[: 4 if wide else 5], other, threads, 5 if wide else rounds, few=FEW_WIDE)
                _add(found, "From the Gram", findings, sheets, {ADELIE: 1, PURSUIT: 1})
    title = "Training from the Gram"
    return Section(
        "training",
        title,
        "",
        _versions("adelie"),
        tuple(findings),
        (WHAT, FROM_THE_GRAM),
        tuple(sheets),
        tuple(pictures),
    )


def rows(quick: bool) -> Section:
    """From rows: measure and tell."""
    n = 10_000 if quick else 50_000
    findings = absence([prepared(name) for name in RIVALS])
    sheets: list[Sheet] = []
    with tempfile.TemporaryDirectory() as folder:
        main = made(n, 500, 10, Path(folder) / "main")
        mu = {"mu": main.penalty(SHARE)}
        for threads in (2, 1):
            some = FROM_ROWS if threads == 2 else FROM_ROWS[:3]
            found = measured(some, main, threads, 3 if quick else 7, mu)
            _add(found, "From rows", findings, sheets, {})
            findings += _from_rows(found)
            if threads == 2:
                sheets.append(_one_penalty(main, found, mu["mu"]))
        del main
        if not quick:
            wide = made(n, 2000, 10, Path(folder) / "wide", seed=2)
            found = measured(FROM_ROWS[:2], wide, 2, 3)
            _add(found, "From rows", findings, sheets, {})
            findings += _from_rows(found)
            del wide
        told, table = forward_selection(Path(folder), 3)
    title = "Training from rows"
    return Section("rows", title, "", _versions(*RIVALS), (*findings, *told), (WHAT, FROM_THE_ROWS), (*sheets, table))


def _versions(*names: str) -> tuple[str, ...]:
    """Of ours and of some rivals."""
    environments = [ours(), *(each for each in map(prepared, names) if isinstance(each, Environment))]
    return tuple(f"{each.name}: {each.told()}" for each in environments)


def _add(found: Round, caption: str, findings: list[Finding], sheets: list[Sheet], limits: dict[str, float]) -> None:
    """A round as a table, and what it says of limits."""
    table, absent = sheet(found, caption)
    sheets.append(table)
    findings += absent
    where = f"{found.problem}, {found.threads} thread{'s' if found.threads > 1 else ''}"
    findings += [within(f"ours / {label} ({where})", found.ratio(label), limit) for label, limit in limits.items()]
    early = found.ratio(EARLY)
    if limits and early is not None:
        lambdas = found.told[EARLY]["lambdas"]
        verdict: Verdict = "ahead" if early.median < 1 else "behind"
        findings.append(
            Finding(
                verdict, f"ours / adelie as it is by default, which stops after {lambdas} lambdas ({where}): {early}"
            )
        )


def _from_rows(found: Round) -> list[Finding]:
    """Ours from rows beside the floor and beside each rival."""
    where = f"{found.problem}, {found.threads} thread{'s' if found.threads > 1 else ''}"
    told = []
    for label in found.seconds.values:
        ratio = found.ratio(label)
        if label == OURS or label.startswith("ours") or ratio is None:
            continue
        verdict: Verdict = "noted" if label == PRODUCT else "ahead" if ratio.median < 1 else "behind"
        told.append(Finding(verdict, f"from rows, ours / {label} ({where}): {ratio}"))
    return told


def _one_penalty(main: Made, found: Round, mu: float) -> Sheet:
    """Solvers of one penalty of the same problem: how near they came to its least objective, and what they took."""
    ends = np.cumsum(main.sizes)

    def objective(w: Any) -> float:
        norms = np.sqrt(np.add.reduceat(np.square(w), ends - main.sizes))
        return float(0.5 - explained(w[np.newaxis], main.S, main.q)[0] + mu * (main.costs @ norms))

    labels = [label for label in found.results if "one lambda" in label and label in found.seconds.values]
    reached = {label: objective(found.results[label]["coef"]) for label in labels}
    least = min(reached.values(), default=0.0)
    mine = next((label for label in labels if label.startswith("ours")), None)
    rows = tuple(
        (
            label,
            f"{reached[label] - least:.1e}",
            cell(found.seconds.spread(label)),
            None if mine is None or label == mine else cell(found.seconds.ratio(mine, label)),
        )
        for label in labels
    )
    caption = f"One penalty of the Group Lasso from rows, {SHARE:g} of the largest; {found.problem}, 2 threads"
    return Sheet(caption, ("", "objective above the least", "seconds", "ours / theirs"), rows)


def _at_equal_cost(main: Made, found: Round) -> tuple[Sheet, Picture]:
    """What each path explains in training for what it costs."""
    problem = {"S": main.S, "q": main.q, "rows": len(main.y)}
    gram, groups = gram_of(problem), main.groups
    order = sequence(gram, groups, "fr", ALPHA)
    lines = {"ours (FR)": Line(order.costs, order.explained_variance)}
    path = found.results.get(ADELIE, {}).get("coef")
    if path is not None:
        entered = entry_order(path, main.sizes, main.costs)
        lines["adelie's order, refitted by us"] = refitted(entered, gram, groups, ALPHA)
        lines["adelie's path as it is"] = line_of(path, main.sizes, main.costs, main.S, main.q)
    every = found.results.get(FROM_GRAM[4].label, {}).get("coef")
    if every is not None:
        lines["orthogonal_mp_gram"] = line_of(every, main.sizes, main.costs, main.S, main.q)
    most, total = float(order.explained_variance[-1]), float(main.costs.sum())
    shares = (0.1, 0.25, 0.5, 1.0)
    rows: list[tuple[Cell, ...]] = []
    for name, line in lines.items():
        reached = float(line.explained.max())
        cells = [round(area(line, most, share * total), 4) for share in shares]
        rows.append((name, *cells, round(reached / most, 4)))
    figure, (axis,) = panels(1, width=6.5, height=4.0)
    for number, (name, line) in enumerate(lines.items()):
        curve(axis, line.costs / total, line.explained, name, number, drawstyle="steps-post")
    axis.set(xlabel="share of the cost of all groups", ylabel="explained variance F (training)", xlim=(0, 1))
    axis.legend(fontsize=8, loc="lower right")
    columns = ("", *(f"first {share:.0%} of the cost" for share in shares), "reached in the end")
    caption = "Mean explained variance over budgets up to a share of all costs, as a share of what all groups explain"
    return Sheet(f"{caption}; {main.name}", columns, tuple(rows)), picture(
        f"Explained for its cost; {main.name}.", figure
    )
