"""Explanations of what does not agree with Table 1, each tested by running the experiment with it.

The paper's claim that Group-OMP "performs consistently better", judged cell by cell of Table 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

from anytime_reproduction.experiment import Estimate, Finding, Table
from anytime_reproduction.group_omp.designs import DESIGNS
from anytime_reproduction.group_omp.methods import METHODS, TUNED
from anytime_reproduction.group_omp.published import MIN_RUNS, TABLE_1, Compared, direction
from anytime_reproduction.group_omp.trials import MEASURES, VARIATIONS, row_names

__all__ = [
    "EXPLANATIONS",
    "ROWS",
    "Explanation",
    "Scores",
    "advice",
    "cells",
    "claim",
    "explained",
    "explanation_table",
    "paired",
]

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
    if runs < MIN_RUNS:
        return [Finding(f"{runs} runs are too few to weigh explanations of what differs; {MIN_RUNS} are asked for.")]
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


OURS = "Group-OMP"

RIVALS = tuple(method for method in TUNED if method != OURS)


@dataclass(frozen=True)
class _Cell:
    """Group-OMP beside a rival: which way Table 1 has it, and which way our runs have it (1 better, -1 worse)."""

    number: int
    rival: str
    measure: str
    published: int
    ours: int

    def __str__(self) -> str:
        return f"{self.rival} on {self.measure} in experiment {self.number}"


def paired(scores: Scores, number: int, kind: str, rival: str, measure: str) -> Estimate:
    """Group-OMP less a rival, run by run; a rise of F1 and a fall of the model error are better."""
    found = scores[f"printed-{number}"]["printed"]
    ours, other = (found[row_names(method).get(kind, method)][measure] for method in (OURS, rival))
    return Estimate.of_difference(ours, other)


def claim(scores: Scores, kind: str) -> Finding:
    """Whether our runs have every cell the way that Table 1 has it.

    False where one is the other way, beyond its 95 % interval by Student's t; None where none is, but some are not
    told apart.
    """
    cells = list(_cells(scores, kind))
    same = [cell for cell in cells if cell.ours == cell.published]
    other = [cell for cell in cells if cell.ours == -cell.published]
    still_open = len(cells) - len(same) - len(other)
    text = (
        f'The paper: Group-OMP performs "consistently better". Chosen by {_words(kind)}, {_against(cells)}. Ours, run '
        f"by run and by 95 % intervals: {len(same)} of {len(cells)} cells go the way that Table 1 has them, "
        f"{still_open} are not told apart, {len(other)} go the other way{_sides(other)}."
    )
    return Finding(text, agrees=False if other else None if still_open else True)


def _sides(cells: Many[_Cell]) -> str:
    """For and against whom some cells of ours are."""
    sides = (("for Group-OMP", [c for c in cells if c.ours > 0]), ("against it", [c for c in cells if c.ours < 0]))
    told = [f"{words}: {', '.join(map(str, found))}" for words, found in sides if found]
    return f" ({'; '.join(told)})" if told else ""


def _against(cells: Many[_Cell]) -> str:
    """How many published cells are themselves against the claim, and what ours make of them."""
    against = [cell for cell in cells if cell.published < 0]
    if not against:
        return f"all {len(cells)} published cells say so"
    alike = sum(cell.ours < 0 for cell in against)
    return (
        f"{len(against)} of {len(cells)} published cells say otherwise ({', '.join(map(str, against))}), "
        f"of which {alike} {'does' if alike == 1 else 'do'} so here"
    )


def advice(scores: Scores) -> str:
    """Where Group-OMP was ahead of every rival by hold-out, and where a rival was ahead of it."""
    cells = list(_cells(scores, "Holdout"))
    told = []
    for measure, words in (("F1 (Group)", "in finding the groups"), ("ME", "in the model error")):
        mine = [cell for cell in cells if cell.measure == measure]
        first = [d.number for d in DESIGNS if all(c.ours > 0 for c in mine if c.number == d.number)]
        ahead = f"ahead of every rival in {_numbers(first)}" if first else "ahead of every rival in no experiment"
        behind = [f"the {c.rival} in experiment {c.number}" for c in mine if c.ours < 0]
        told.append(f"{words} it is {ahead}" + (f", and behind {', '.join(behind)}" if behind else ""))
    return f"Of Group-OMP, chosen by hold-out, these runs say: {'; '.join(told)}."


def _cells(scores: Scores, kind: str) -> Iterator[_Cell]:
    for design in DESIGNS:
        for rival in RIVALS:
            for measure in MEASURES:
                better = -1 if measure == "ME" else 1
                mine, other = (TABLE_1[measure][row_names(m)[kind]][design.number - 1].mean for m in (OURS, rival))
                ours = direction(paired(scores, design.number, kind, rival, measure))
                yield _Cell(design.number, rival, measure, better if mine > other else -better, better * ours)


def _words(kind: str) -> str:
    return "hold-out" if kind == "Holdout" else kind.lower()


def _numbers(numbers: Many[int]) -> str:
    return f"experiment{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
