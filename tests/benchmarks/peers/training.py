"""The parts of the report on training: from the Gram, with the explained variance at equal cost, and from rows."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anytime.groups import FeatureGroups
from anytime.moments.moments import Gram
from anytime.selection import given_sequence, sequence
from anytime.types import Bool, Float, Index
from benchmarks.peers.adapters.with_ours import ALPHA, gram_of
from benchmarks.peers.environments import prepared
from benchmarks.peers.measurements import digits
from benchmarks.peers.problems import SyntheticProblem, make_problem
from benchmarks.peers.quality import mean_upto
from benchmarks.peers.report import (
    Cell,
    Finding,
    Picture,
    Section,
    Sheet,
    cell,
    compared,
    drawn,
    missing_peers,
    versions,
    within,
)
from benchmarks.peers.solvers import FROM_GRAM, FROM_ROWS, OURS, SELECTION, Round, measure

ADELIE, EARLY, PURSUIT = (FROM_GRAM[i].label for i in (1, 2, 3))
LIMITS = {ADELIE: 0.45, PURSUIT: 0.25}
"""50 groups of 10. BLAS, LAPACK and copies of the matrix take three quarters of the time: the floor is about .35."""

SINGLE_LIMITS = {ADELIE: 0.75, PURSUIT: 1}
"""500 groups of one. A step is a product of the panel with a vector and a dozen passes over at most 500 numbers: 22 us
in numpy."""

WIDE_LIMITS = {ADELIE: 0.5, PURSUIT: 1}
"""200 groups of 10."""

SHARE = 0.1
"""The penalty of solvers of one penalty, as a share of the smallest with no active group."""

COST_SHARES = (0.1, 0.25, 0.5, 1.0)
PEERS = ("adelie", "celer", "skglm", "abess", "spams", "mlxtend")

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


@dataclass(frozen=True, eq=False)
class Line:
    """Explained variance against cost; the first point is the empty set."""

    costs: Float
    explained: Float


def active_groups(coef: Float, sizes: Index) -> Bool:
    """Return which groups each row of coefficients (L, D) uses, (L, groups)."""
    used: Bool = np.add.reduceat(coef != 0, np.cumsum(sizes) - sizes, axis=1) > 0
    return used


def explained(coef: Float, S: Float, q: Float) -> Float:
    """Return F(w) = q'w - 1/2 w'S w, at most one half, of each row of coefficients (L, D), with their shrinkage."""
    found: Float = coef @ q - 0.5 * np.einsum("ld,ld->l", coef @ S, coef)
    return found


def line_of(coef: Float, sizes: Index, costs: Float, S: Float, q: Float) -> Line:
    """Return the curve of a path: at each cost its best point that costs no more."""
    spent, values = active_groups(coef, sizes) @ costs, explained(coef, S, q)
    order = np.argsort(spent, kind="stable")
    best = np.maximum.accumulate(np.concatenate([[0.0], values[order]]))
    return Line(np.concatenate([[0.0], spent[order]]), best)


def entry_order(coef: Float, sizes: Index, costs: Float) -> list[int]:
    """Return the groups in the order in which they enter a path; of simultaneous ones, the cheaper first."""
    active = active_groups(coef, sizes)
    first = active.argmax(axis=0)
    return sorted(np.flatnonzero(active.any(axis=0)).tolist(), key=lambda g: (int(first[g]), float(costs[g])))


def refitted(order: list[int], gram: Gram, groups: FeatureGroups, alpha: float) -> Line:
    """Return the curve of groups in some order, each prefix at its optimum."""
    found = given_sequence(gram, groups, [(g,) for g in order], alpha)
    return Line(found.costs, found.explained_variance)


def training(_data: Path, quick: bool) -> Section:
    """Measure from the Gram, and return the section."""
    rounds, n = 9 if quick else 15, 50_000
    findings, sheets, pictures = missing_peers([prepared("adelie")]), [], []
    sizes = [(500, 10, LIMITS), (500, 1, SINGLE_LIMITS), (2000, 10, WIDE_LIMITS)]
    for seed, (D, size, limits) in enumerate(sizes[: 2 if quick else 3]):
        with tempfile.TemporaryDirectory() as folder:
            problem = make_problem(n, D, size, Path(folder), seed)
            for threads in (2, 1):
                wide = D == 2000
                peers = FROM_GRAM[: 4 if wide else None]
                found = measure(peers, problem, threads, 5 if wide else rounds, few=2 if wide else 3)
                sheets.append(found.sheet("From the Gram"))
                findings += [*found.absent, *_limited(found, limits)]
                if seed == 0 and threads == 2:
                    cost_sheet, cost_picture = _at_equal_cost(problem, found)
                    sheets.append(cost_sheet)
                    pictures.append(cost_picture)
    title, text, used = "Training from the Gram", (WHAT, FROM_THE_GRAM), versions(map(prepared, ("ours", "adelie")))
    return Section(title, used, tuple(findings), text, tuple(sheets), tuple(pictures))


def rows(_data: Path, quick: bool) -> Section:
    """Measure from rows, and return the section."""
    n = 10_000 if quick else 50_000
    findings, sheets = missing_peers([prepared(name) for name in PEERS]), []
    sizes = [(500, 0, 2, 10, 7), (500, 0, 1, 3, 7), (2000, 2, 2, 2, 3)]
    for D, seed, threads, peers, rounds in sizes[: 2 if quick else 3]:
        with tempfile.TemporaryDirectory() as folder:
            problem = make_problem(n, D, 10, Path(folder), seed)
            mu = problem.penalty(SHARE)
            found = measure(FROM_ROWS[:peers], problem, threads, 3 if quick else rounds, {"mu": mu})
        sheets.append(found.sheet("From rows"))
        findings += [*found.absent, *_compared(found)]
        if peers == len(FROM_ROWS):
            sheets.append(_one_penalty(problem, found, mu))
    with tempfile.TemporaryDirectory() as folder:  # small, since mlxtend fits all rows for each candidate at each step
        found = measure(SELECTION, make_problem(2_000, 100, 5, Path(folder), seed=3), 2, 3)
    sheets.append(found.sheet("Forward selection of groups without costs", SELECTION[0].label))
    findings += [*found.absent, *_same_selection(found)]
    used = versions(map(prepared, ("ours", *PEERS)))
    return Section("Training from rows", used, tuple(findings), (WHAT, FROM_THE_ROWS), tuple(sheets))


def _limited(found: Round, limits: Mapping[str, float]) -> list[Finding]:
    """Compare ours from the Gram with the limits, and with adelie's default."""
    ratio = found.seconds.ratio
    findings = [
        within(f"ours / {label} ({found.problem})", ratio(OURS, label), limit) for label, limit in limits.items()
    ]
    early = ratio(OURS, EARLY)
    if early is not None:
        what = f"ours / adelie as it is by default, which stops after {found.numbers[EARLY]['lambdas']} lambdas"
        findings.append(compared(f"{what} ({found.problem}): {early}", early.median < 1))
    return findings


def _compared(found: Round) -> list[Finding]:
    """Compare ours from rows with the floor and with each peer."""
    findings = []
    for label in found.seconds.values:
        ratio = found.seconds.ratio(OURS, label)
        if ratio is not None and not label.startswith("ours"):
            finding = compared(f"from rows, ours / {label} ({found.problem}): {ratio}", ratio.median < 1)
            findings.append(Finding("noted", finding.text) if label == FROM_ROWS[1].label else finding)
    return findings


def _same_selection(found: Round) -> list[Finding]:
    """Compare our forward selection with mlxtend's, which selects the same by fits on rows."""
    mine, theirs = (peer.label for peer in SELECTION)
    ratio = found.seconds.ratio(mine, theirs)
    if ratio is None:
        return []
    own, other = found.results[mine], found.results[theirs]
    equal, total = int(np.sum(own["order"] == other["order"])), len(own["order"])
    difference = float(np.abs(own["explained"][1:] - other["explained"]).max())
    factor = f"mlxtend takes {digits(1 / ratio.median)} times as long for the same selection ({found.problem})"
    steps = f"{equal} of {total} steps equal, F differs by {difference:.1e}"
    return [compared(f"{factor}: {steps}", ratio.median < 1)]


def _one_penalty(problem: SyntheticProblem, found: Round, mu: float) -> Sheet:
    """Compare solvers of one penalty: distance from the minimum of the objective, and time."""

    def objective(w: Float) -> float:
        shrunk = float(explained(w[np.newaxis], problem.S, problem.q)[0])
        return 0.5 - shrunk + mu * float(problem.costs @ problem.norms(w))

    labels = [label for label in found.results if "one lambda" in label and label in found.seconds.values]
    reached = {label: objective(found.results[label]["coef"]) for label in labels}
    mine = FROM_ROWS[4].label
    cells: tuple[tuple[Cell, ...], ...] = tuple(
        (
            label,
            f"{reached[label] - min(reached.values()):.1e}",
            cell(found.seconds.spread(label)),
            None if label == mine else cell(found.seconds.ratio(mine, label)),
        )
        for label in labels
    )
    caption = f"One penalty of the Group Lasso from rows, {SHARE:g} of the largest; {found.problem}"
    return Sheet(caption, ("", "objective above the minimum", "seconds", "ours / theirs"), cells)


def _at_equal_cost(main: SyntheticProblem, found: Round) -> tuple[Sheet, Picture]:
    """Compare the training explained variance of each path at equal cost."""
    gram = gram_of({"S": main.S, "q": main.q, "rows": len(main.y)})
    order = sequence(gram, main.groups, "fr", ALPHA)
    lines = {"ours (FR)": Line(order.costs, order.explained_variance)}
    if ADELIE in found.results:
        path = found.results[ADELIE]["coef"]
        entered = entry_order(path, main.sizes, main.costs)
        lines["adelie's order, refitted by us"] = refitted(entered, gram, main.groups, ALPHA)
        lines["adelie's path as it is"] = line_of(path, main.sizes, main.costs, main.S, main.q)
    if (every := found.results.get(FROM_GRAM[4].label)) is not None:
        lines["orthogonal_mp_gram"] = line_of(every["coef"], main.sizes, main.costs, main.S, main.q)
    maximum, total = float(order.explained_variance[-1]), float(main.costs.sum())
    cells: list[tuple[Cell, ...]] = []
    for name, line in lines.items():
        areas = [
            round(float(mean_upto(line.costs, line.explained, share * total)) / maximum, 4) for share in COST_SHARES
        ]
        cells.append((name, *areas, round(float(line.explained.max()) / maximum, 4)))
    columns = ("", *(f"first {share:.0%} of the cost" for share in COST_SHARES), "reached in the end")
    caption = "Mean explained variance over budgets up to a share of all costs, as a share of what all groups explain"
    curves = {"": {name: (line.costs / total, line.explained) for name, line in lines.items()}}
    labels = "share of the cost of all groups", "explained variance F (training)"
    image = drawn(f"Explained variance by cost; {main.name}.", curves, *labels)
    return Sheet(f"{caption}; {main.name}", columns, tuple(cells)), image
