"""Explanations of what does not agree with Table 1, each tested by running the experiment with it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

from anytime.experiments.experiment import Estimate, Finding, Table
from anytime.experiments.group_omp.agreement import FEW, Compared
from anytime.experiments.group_omp.designs import DESIGNS
from anytime.experiments.group_omp.methods import METHODS
from anytime.experiments.group_omp.published import TABLE_1
from anytime.experiments.group_omp.trials import MEASURES, VARIATIONS, row_names

__all__ = ["EXPLANATIONS", "ROWS", "Explanation", "Scores", "cells", "explained", "explanation_table"]

Scores = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Many[float]]]]]
"""By variation, scoring, row of Table 1 and measure: a number for each run."""

ALL = tuple(METHODS)

ROWS = tuple(row for method in METHODS for row in row_names(method).values())
"""Of Table 1."""


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
    Explanation("noise of deviation 15, as in experiment 3", "noise-4"),
    Explanation("weights sqrt(d) of Yuan and Lin in the Group Lasso", "roots-3", methods=("Group Lasso",)),
    Explanation("an intercept in the Lasso", "intercept-1", methods=("Lasso",)),
    Explanation(
        "an intercept in every method but the Lasso", "intercept-1", methods=("OLS", "OMP", "Group Lasso", "Group-OMP")
    ),
    Explanation("an intercept in every method, errors by the covariance", "intercept-1", "covariance"),
    Explanation("hold-out by responses less their mean, no intercept", "printed-1", "deviations", kinds=("Holdout",)),
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


@dataclass(frozen=True)
class _Reading:
    """All of an experiment's cells where an explanation is taken, those that it does not touch as printed."""

    explanation: Explanation
    cells: tuple[Compared, ...]
    before: int

    @property
    def after(self) -> int:
        """Cells that agree."""
        return sum(cell.agrees for cell in self.cells)

    @property
    def told(self) -> str:
        """The explanation and what it comes to."""
        return f"{self.explanation.what} ({self.after} of {len(self.cells)})"


def _readings(scores: Scores, design: int) -> list[_Reading]:
    """Every explanation of an experiment, that under which most cells agree first."""
    printed = cells(scores, f"printed-{design}", "printed", ROWS)
    found = []
    for explanation in (e for e in EXPLANATIONS if e.design == design):
        varied = cells(scores, explanation.variation, explanation.scoring, explanation.rows)
        changed = {(cell.where, cell.row): cell for cell in varied}
        mixed = tuple(changed.get((cell.where, cell.row), cell) for cell in printed)
        found.append(_Reading(explanation, mixed, sum(cell.agrees for cell in printed)))
    return sorted(found, key=lambda reading: -reading.after)


def _taken(readings: Many[_Reading]) -> _Reading | None:
    """The one explanation that an experiment has: two would exclude each other. None where as printed is no worse."""
    best = next(iter(readings), None)
    return best if best is not None and best.after > best.before else None


def explained(scores: Scores) -> list[Finding]:
    """A line for each experiment that differs: the one explanation that is taken, and what else was tested."""
    runs = cells(scores, "printed-1", "printed", ROWS)[0].ours.runs
    if runs < FEW:
        return [Finding(f"{runs} runs are too few to weigh explanations of what differs; {FEW} are asked for.")]
    differing = {
        d.number: [c for c in cells(scores, f"printed-{d.number}", "printed", ROWS) if not c.agrees] for d in DESIGNS
    }
    findings = [_explained(scores, number, left) for number, left in differing.items() if left]
    return findings + _unexplained(scores, differing)


def _explained(scores: Scores, number: int, differing: Many[Compared]) -> Finding:
    readings = _readings(scores, number)
    best, others = _taken(readings), [reading.told for reading in readings]
    if best is None:
        agree = len(ROWS) * len(MEASURES) - len(differing)
        text = f"Experiment {number}: nothing that was tested has more cells agree than the {agree} that do as printed"
        return Finding(f"{text}: {'; '.join(others)}." if others else f"{text}.", agrees=False)
    whole = best.after == len(best.cells)
    mended = {(cell.where, cell.row): cell for cell in best.cells if cell.agrees}
    example = max((cell for cell in differing if (cell.where, cell.row) in mended), key=lambda cell: cell.away)
    so = mended[example.where, example.row]
    text = (
        f"Experiment {number}: {best.explanation.what} explains {'all' if whole else 'a part'} of the difference: "
        f"{best.after} of {len(best.cells)} cells agree, {best.before} as printed. For example {example.row}, "
        f"{example.where}: published {example.published.mean:.3f}, as printed {example.ours.mean:.3f}, "
        f"so {so.ours.mean:.3f}."
    )
    return Finding(text + (f" Tested as well: {'; '.join(others[1:])}." if others[1:] else ""), agrees=whole)


def _unexplained(scores: Scores, differing: Mapping[int, Many[Compared]]) -> list[Finding]:
    """A line on the cells that do not agree with the one explanation that is taken, or as printed where none is."""
    left: list[Compared] = []
    for number, cells_as_printed in differing.items():
        best = _taken(_readings(scores, number))
        left += cells_as_printed if best is None else [cell for cell in best.cells if not cell.agrees]
    if not left:
        return []
    told = "; ".join(f"{cell.row}, {cell.where}" for cell in left)
    text = f"Cells of Table 1 that differ still, with one explanation at most to an experiment, {len(left)}: {told}."
    return [Finding(text, agrees=False)]


def explanation_table(scores: Scores) -> Table:
    """Every explanation, how many cells of its experiment agree, and which is taken."""
    rows = []
    for design in DESIGNS:
        readings = _readings(scores, design.number)
        best = _taken(readings)
        for r in readings:
            count = len(r.cells)
            told = (f"{r.before} of {count}", f"{r.after} of {count}", "yes" if r is best else "")
            rows.append((r.explanation.what, design.number, *told))
    return Table(
        "group-omp-explanations",
        "What the authors may have done otherwise than printed, each tested by as many runs. Cells agree within three "
        "standard errors of the difference. At most one is taken for an experiment, as they exclude each other: that "
        "under which most cells agree, if they are more than as printed.",
        ("changed", "experiment", "agree as printed", "agree so", "taken"),
        tuple(rows),
    )
