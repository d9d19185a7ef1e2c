"""The parts of the report on training: from the Gram, and from rows."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.peers.report import Finding, Part, Section, compared, within
from benchmarks.peers.solvers import FLOOR, FROM_GRAM, FROM_ROWS, OURS, make_problem, measure

ADELIE, EARLY, PURSUIT = (FROM_GRAM[i].label for i in (1, 2, 3))
LIMITS = {ADELIE: 0.45, PURSUIT: 0.25}
"""50 groups of 10. BLAS, LAPACK and copies of the matrix take three quarters of the time: the floor is about .35."""

SINGLE_LIMITS = {ADELIE: 0.75, PURSUIT: 1}
"""500 groups of one. A step is a product of the panel with a vector and a dozen passes over at most 500 numbers: 22 us
in numpy."""

WIDE_LIMITS = {ADELIE: 0.5, PURSUIT: 1}
"""200 groups of 10."""

WHAT = (
    "What is compared, exactly. Ours orders all groups by exact forward regression (the gain of each group left, at "
    "every step, per cost), and has the coefficients of every prefix at the end: a whole anytime model. adelie "
    "follows a path of the Group Lasso, weighted by the same costs, over 100 penalties down to a hundredth of the "
    "largest: other sets, shrunken coefficients, no sequence of all groups; by default it stops the path early, when "
    "further steps gain little. orthogonal_mp_gram adds all columns one by one, without groups or costs. No other "
    "method computes what ours computes; the ratios compare the time of each for its own result. Environments, "
    "compilation and loading are not timed; measurements of more than four seconds have fewer rounds. Memory is the "
    "peak of the process during the work minus its peak before: memory that a solver had already allocated is not "
    "shown."
)
FROM_THE_GRAM = "All use the same standardised X'X/n and X'y/n (the pursuit with our 1e-5 on the diagonal)."
FROM_THE_ROWS = (
    "All use the same standardised rows, in the memory order that each prefers. On 2,000 columns only the floor is "
    "compared."
)


def training(_data: Path, quick: bool) -> Section:
    """Measure from the Gram, and return the section."""
    part, rounds = Part("Training from the Gram", "ours", "adelie"), 9 if quick else 15
    sizes = [(500, 10, LIMITS), (500, 1, SINGLE_LIMITS), (2000, 10, WIDE_LIMITS)]
    for seed, (D, size, limits) in enumerate(sizes[: 2 if quick else 3]):
        with tempfile.TemporaryDirectory() as folder:
            what, wide = make_problem(50_000, D, size, Path(folder), seed), D == 2000
            for threads in (2, 1):
                found = measure(FROM_GRAM, what, Path(folder), threads, 5 if wide else rounds, few=2 if wide else 3)
                part.sheets.append(found.sheet("From the Gram"))
                part.findings += found.absent
                for label, limit in limits.items():
                    text = f"ours / {label} ({found.problem})"
                    part.findings.append(within(text, found.seconds.ratio(OURS, label), limit))
                early = found.seconds.ratio(OURS, EARLY)
                if early is not None:
                    stops = f"which stops after {found.numbers[EARLY]['lambdas']} lambdas ({found.problem})"
                    text = f"ours / adelie as it is by default, {stops}: {early}"
                    part.findings.append(compared(text, early.median < 1))
    return part.section(WHAT, FROM_THE_GRAM)


def rows(_data: Path, quick: bool) -> Section:
    """Measure from rows, and return the section."""
    part, n = Part("Training from rows", "ours", "adelie"), 10_000 if quick else 50_000
    sizes = [(500, 0, 2, 4, 7), (500, 0, 1, 3, 7), (2000, 2, 2, 2, 3)]
    for D, seed, threads, peers, rounds in sizes[: 2 if quick else 3]:
        with tempfile.TemporaryDirectory() as folder:
            what = make_problem(n, D, 10, Path(folder), seed)
            found = measure(FROM_ROWS[:peers], what, Path(folder), threads, 3 if quick else rounds)
        part.sheets.append(found.sheet("From rows"))
        part.findings += found.absent
        for label in found.seconds.values:
            ratio = found.seconds.ratio(OURS, label)
            if ratio is not None and label != OURS:
                finding = compared(f"from rows, ours / {label} ({found.problem}): {ratio}", ratio.median < 1)
                part.findings.append(Finding("noted", finding.text) if label == FLOOR else finding)
    return part.section(WHAT, FROM_THE_ROWS)
