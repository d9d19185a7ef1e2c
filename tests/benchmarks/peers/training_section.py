"""The part of the report on training: from the Gram, from rows, explained variance at equal cost, forward selection."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from anytime.selection import sequence
from anytime_reproduction.report import curve, panels
from benchmarks.peers.adapters.with_ours import ALPHA, gram_of
from benchmarks.peers.environments import Environment, ours, prepared
from benchmarks.peers.equal_cost import Line, area, entry_order, explained, line_of, refitted
from benchmarks.peers.forward_selection import forward_selection
from benchmarks.peers.problems import SyntheticProblem, make_problem
from benchmarks.peers.section import (
    Cell,
    Finding,
    Picture,
    Section,
    Sheet,
    Verdict,
    cell,
    missing_peers,
    picture,
    within,
)
from benchmarks.peers.training import FROM_GRAM, FROM_ROWS, OURS, Round, measure, sheet

__all__ = ["rows", "training"]

ADELIE, EARLY, PURSUIT = (FROM_GRAM[i].label for i in (1, 2, 3))
PRODUCT = FROM_ROWS[1].label
LIMITS = {ADELIE: 0.45, PURSUIT: 0.25}
"""50 groups of 10. BLAS, LAPACK and copies of the matrix take three quarters of the time: the floor is about .35."""

SINGLE_LIMITS = {ADELIE: 0.75, PURSUIT: 1}
"""500 groups of one. A step is a product of the panel with a vector and a dozen passes over at most 500 numbers: 22 us
in numpy."""

WIDE_LIMITS = {ADELIE: 0.5, PURSUIT: 1}
"""200 groups of 10."""

SHARE = 0.1
"""The penalty of solvers of one penalty, as a share of the smallest with no active group."""

PEERS = ("adelie", "celer", "skglm", "abess", "spams", "mlxtend")

FEW_WIDE = 2
"""Rounds of slow measurements on 2,000 columns."""

WHAT = (
    "What is compared, exactly. Ours orders all groups by exact forward regression (the gain of each group left, at "
    "every step, per cost), and has the coefficients of every prefix at the end: a whole anytime model. adelie "
    "follows a path of the Group Lasso, weighted by the same costs, over 100 penalties down to a hundredth of the "
    "largest: other sets, shrunken coefficients, no sequence of all groups; by default it stops the path early, when "
    "further steps gain little. orthogonal_mp_gram adds all columns one by one, without groups or costs. celer, skglm "
    "and SPAMS solve one penalty of the same Group Lasso to a tolerance, from rows, and so does ours next to them. "
    "abess splices sets of groups without costs. No other method computes what ours computes; the ratios compare the "
    "time of each for its own result. Environments, compilation and loading are not timed; measurements of more than "
    "four seconds have fewer rounds. Memory is the peak of the process during the work minus its peak before: memory "
    "that a solver had already allocated is not shown."
)
FROM_THE_GRAM = "All use the same standardised X'X/n and X'y/n (the pursuit with our 1e-5 on the diagonal)."
FROM_THE_ROWS = (
    "All use the same standardised rows, in the memory order that each prefers. On one thread only adelie is "
    "compared, on 2,000 columns only the floor."
)


def training(quick: bool) -> Section:
    """Measure from the Gram, and return the section."""
    rounds, n = 9 if quick else 15, 50_000
    findings = missing_peers([prepared("adelie")])
    sheets: list[Sheet] = []
    pictures: list[Picture] = []
    with tempfile.TemporaryDirectory() as folder:
        main = make_problem(n, 500, 10, Path(folder) / "main")
        for threads in (2, 1):
            found = measure(FROM_GRAM, main, threads, rounds)
            _add(found, "From the Gram", findings, sheets, LIMITS)
            if threads == 2:
                cost_sheet, cost_picture = _at_equal_cost(main, found)
                sheets.append(cost_sheet)
                pictures.append(cost_picture)
        del main
        single = make_problem(n, 500, 1, Path(folder) / "single", seed=1)
        for threads in (2, 1):
            _add(measure(FROM_GRAM, single, threads, rounds), "From the Gram", findings, sheets, SINGLE_LIMITS)
        if not quick:
            wide = make_problem(n, 2000, 10, Path(folder) / "wide", seed=2)
            for threads in (2, 1):
                found = measure(FROM_GRAM[:4], wide, threads, 5, few=FEW_WIDE)
                _add(found, "From the Gram", findings, sheets, WIDE_LIMITS)
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
    """Measure from rows, and return the section."""
    n = 10_000 if quick else 50_000
    findings = missing_peers([prepared(name) for name in PEERS])
    sheets: list[Sheet] = []
    with tempfile.TemporaryDirectory() as folder:
        main = make_problem(n, 500, 10, Path(folder) / "main")
        mu = {"mu": main.penalty(SHARE)}
        for threads in (2, 1):
            peers = FROM_ROWS if threads == 2 else FROM_ROWS[:3]
            found = measure(peers, main, threads, 3 if quick else 7, mu)
            _add(found, "From rows", findings, sheets, {})
            findings += _from_rows(found)
            if threads == 2:
                sheets.append(_one_penalty(main, found, mu["mu"]))
        del main
        if not quick:
            wide = make_problem(n, 2000, 10, Path(folder) / "wide", seed=2)
            found = measure(FROM_ROWS[:2], wide, 2, 3)
            _add(found, "From rows", findings, sheets, {})
            findings += _from_rows(found)
            del wide
        selection_findings, table = forward_selection(Path(folder), 3)
    title = "Training from rows"
    return Section(
        "rows", title, "", _versions(*PEERS), (*findings, *selection_findings), (WHAT, FROM_THE_ROWS), (*sheets, table)
    )


def _versions(*names: str) -> tuple[str, ...]:
    """Return the versions of ours and of some peers."""
    environments = [ours(), *(each for each in map(prepared, names) if isinstance(each, Environment))]
    return tuple(f"{each.name}: {each.versions_text()}" for each in environments)


def _add(found: Round, caption: str, findings: list[Finding], sheets: list[Sheet], limits: dict[str, float]) -> None:
    """Add the table of a round, and its findings about limits."""
    table, absent = sheet(found, caption)
    sheets.append(table)
    findings += absent
    where = f"{found.problem}, {found.threads} thread{'s' if found.threads > 1 else ''}"
    findings += [within(f"ours / {label} ({where})", found.ratio(label), limit) for label, limit in limits.items()]
    early = found.ratio(EARLY)
    if limits and early is not None:
        lambdas = found.numbers[EARLY]["lambdas"]
        verdict: Verdict = "ahead" if early.median < 1 else "behind"
        findings.append(
            Finding(
                verdict, f"ours / adelie as it is by default, which stops after {lambdas} lambdas ({where}): {early}"
            )
        )


def _from_rows(found: Round) -> list[Finding]:
    """Compare ours from rows with the floor and with each peer."""
    where = f"{found.problem}, {found.threads} thread{'s' if found.threads > 1 else ''}"
    findings = []
    for label in found.seconds.values:
        ratio = found.ratio(label)
        if label == OURS or label.startswith("ours") or ratio is None:
            continue
        verdict: Verdict = "noted" if label == PRODUCT else "ahead" if ratio.median < 1 else "behind"
        findings.append(Finding(verdict, f"from rows, ours / {label} ({where}): {ratio}"))
    return findings


def _one_penalty(main: SyntheticProblem, found: Round, mu: float) -> Sheet:
    """Compare solvers of one penalty: distance from the minimum of the objective, and time."""
    ends = np.cumsum(main.sizes)

    def objective(w: Any) -> float:
        norms = np.sqrt(np.add.reduceat(np.square(w), ends - main.sizes))
        return float(0.5 - explained(w[np.newaxis], main.S, main.q)[0] + mu * (main.costs @ norms))

    labels = [label for label in found.results if "one lambda" in label and label in found.seconds.values]
    reached = {label: objective(found.results[label]["coef"]) for label in labels}
    minimum = min(reached.values(), default=0.0)
    mine = next((label for label in labels if label.startswith("ours")), None)
    rows = tuple(
        (
            label,
            f"{reached[label] - minimum:.1e}",
            cell(found.seconds.spread(label)),
            None if mine is None or label == mine else cell(found.seconds.ratio(mine, label)),
        )
        for label in labels
    )
    caption = f"One penalty of the Group Lasso from rows, {SHARE:g} of the largest; {found.problem}, 2 threads"
    return Sheet(caption, ("", "objective above the minimum", "seconds", "ours / theirs"), rows)


def _at_equal_cost(main: SyntheticProblem, found: Round) -> tuple[Sheet, Picture]:
    """Compare the training explained variance of each path at equal cost."""
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
    maximum, total = float(order.explained_variance[-1]), float(main.costs.sum())
    shares = (0.1, 0.25, 0.5, 1.0)
    rows: list[tuple[Cell, ...]] = []
    for name, line in lines.items():
        reached = float(line.explained.max())
        cells = [round(area(line, maximum, share * total), 4) for share in shares]
        rows.append((name, *cells, round(reached / maximum, 4)))
    figure, (axis,) = panels(1, width=6.5, height=4.0)
    for number, (name, line) in enumerate(lines.items()):
        curve(axis, line.costs / total, line.explained, name, number, drawstyle="steps-post")
    axis.set(xlabel="share of the cost of all groups", ylabel="explained variance F (training)", xlim=(0, 1))
    axis.legend(fontsize=8, loc="lower right")
    columns = ("", *(f"first {share:.0%} of the cost" for share in shares), "reached in the end")
    caption = "Mean explained variance over budgets up to a share of all costs, as a share of what all groups explain"
    return Sheet(f"{caption}; {main.name}", columns, tuple(rows)), picture(
        f"Explained variance by cost; {main.name}.", figure
    )
