"""Explanations of what does not agree with Table 1, each tested by running the experiment with it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

from anytime.experiments.experiment import Estimate, Finding, Table
from anytime.experiments.group_omp.agreement import Compared
from anytime.experiments.group_omp.designs import DESIGNS
from anytime.experiments.group_omp.methods import METHODS
from anytime.experiments.group_omp.published import TABLE_1
from anytime.experiments.group_omp.trials import MEASURES, VARIATIONS, row_names

__all__ = ["EXPLANATIONS", "Explanation", "Scores", "cells", "explained", "explanation_table", "unexplained"]

Scores = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Many[float]]]]]
"""By variation, scoring, row of Table 1 and measure: a number for each run."""

ALL = tuple(METHODS)


@dataclass(frozen=True)
class Explanation:
    """Something that the authors may have done otherwise than printed.

    Attributes
    ----------
    what : in words.
    variation, scoring : the runs and the scores that have it.
    methods : whose cells it is to explain.
    kinds : which of their rows; "" is OLS's one row.
    """

    what: str
    variation: str
    scoring: str = "printed"
    methods: tuple[str, ...] = ALL
    kinds: tuple[str, ...] = ("", "Oracle", "Holdout")

    @property
    def design(self) -> int:
        """Number of the experiment."""
        return VARIATIONS[self.variation].design

    @property
    def rows(self) -> list[str]:
        """Its rows of Table 1."""
        return [row for m in self.methods for kind, row in row_names(m).items() if kind in self.kinds]


EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation("450 training rows in the place of 300", "rows-4"),
    Explanation("noise of deviation 15, as in experiment 3, in the place of 19.22", "noise-4"),
    Explanation("weights sqrt(d) of Yuan and Lin in the Group Lasso", "roots-3", methods=("Group Lasso",)),
    Explanation("an intercept in the Lasso", "intercept-1", methods=("Lasso",)),
    Explanation(
        "an intercept in every method but the Lasso", "intercept-1", methods=("OLS", "OMP", "Group Lasso", "Group-OMP")
    ),
    Explanation("an intercept in every method, errors by the covariance", "intercept-1", "covariance"),
    Explanation(
        "hold-out by responses less their mean, without an intercept", "printed-1", "deviations", kinds=("Holdout",)
    ),
    Explanation("an intercept in every method", "intercept-2"),
    Explanation("an intercept in every method, errors by the covariance", "intercept-2", "covariance"),
)


def cells(scores: Scores, variation: str, scoring: str, rows: Many[str]) -> list[Compared]:
    """Published cells of the variation's experiment beside ours, for some rows."""
    design, ours = VARIATIONS[variation].design, scores[variation][scoring]
    return [
        Compared(
            f"experiment {design}, {measure}",
            row,
            TABLE_1[measure][row][design - 1],
            Estimate.of(ours[row][measure]),
        )
        for measure in MEASURES
        for row in rows
        if row in ours
    ]


def _counts(scores: Scores, explanation: Explanation) -> tuple[int, int, int]:
    """Cells that agree as printed, cells that agree with the explanation, and how many there are."""
    printed = cells(scores, f"printed-{explanation.design}", "printed", explanation.rows)
    varied = cells(scores, explanation.variation, explanation.scoring, explanation.rows)
    return sum(cell.agrees for cell in printed), sum(cell.agrees for cell in varied), len(printed)


def explained(scores: Scores) -> list[Finding]:
    """A line for each explanation that helps, and one that names those that do not."""
    findings: list[Finding] = []
    idle: list[str] = []
    for explanation in EXPLANATIONS:
        before, after, count = _counts(scores, explanation)
        if before == count:
            continue
        if after <= before:
            idle.append(f"{explanation.what} (experiment {explanation.design}: {after} of {count}, was {before})")
            continue
        how = "explains the difference" if after == count else "explains a part of the difference"
        findings.append(
            Finding(
                f"Experiment {explanation.design}: {explanation.what} {how}: "
                f"{after} of {count} cells agree with it, {before} as printed.",
                agrees=after == count,
            )
        )
    if idle:
        findings.append(Finding(f"Tested, and no better than as printed: {'; '.join(idle)}.", agrees=False))
    return findings


def unexplained(scores: Scores) -> list[Finding]:
    """A line on the cells that agree neither as printed nor with an explanation that, all its cells told, helps.

    One that mends a cell by spoiling two others explains nothing.
    """
    left: dict[tuple[str, str], None] = {}
    for design in DESIGNS:
        rows = [row for method in ALL for row in row_names(method).values()]
        left |= {
            (c.where, c.row): None for c in cells(scores, f"printed-{design.number}", "printed", rows) if not c.agrees
        }
    for explanation in EXPLANATIONS:
        before, after, _ = _counts(scores, explanation)
        if after <= before:
            continue
        for cell in cells(scores, explanation.variation, explanation.scoring, explanation.rows):
            if cell.agrees:
                left.pop((cell.where, cell.row), None)
    if not left:
        return []
    told = "; ".join(f"{row}, {where}" for where, row in left)
    return [Finding(f"Cells of Table 1 that nothing explains that was tested, {len(left)}: {told}.", agrees=False)]


def explanation_table(scores: Scores) -> Table:
    """Every explanation, how many of its cells agree, and OLS or the first of its rows as an example."""
    rows = []
    for explanation in EXPLANATIONS:
        before, after, count = _counts(scores, explanation)
        row = explanation.rows[0]
        example = TABLE_1["ME"][row][explanation.design - 1]
        printed = Estimate.of(scores[f"printed-{explanation.design}"]["printed"][row]["ME"])
        varied = Estimate.of(scores[explanation.variation][explanation.scoring][row]["ME"])
        told = (explanation.design, explanation.what, f"{before} of {count}", f"{after} of {count}")
        rows.append((*told, row, example, printed, varied))
    return Table(
        "group-omp-explanations",
        "What the authors may have done otherwise than printed, each tested by as many runs. Cells agree within three "
        "standard errors of the difference; the model error of one row is the example.",
        ("experiment", "changed", "agree as printed", "agree so", "for example", "published", "as printed", "so"),
        tuple(rows),
        digits=3,
    )
