"""Tested explanations of disagreements with Table 1, and the claim that Group-OMP "performs consistently better".

Each explanation is tested by running the experiment with it. The claim is judged cell by cell of Table 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

from anytime_reproduction.experiment import Estimate, Finding, Table
from anytime_reproduction.group_omp.designs import DESIGNS, METHODS, TUNED
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
"""Rows of Table 1."""


@dataclass(frozen=True)
class Explanation:
    """A possible deviation of the authors' procedure from the paper.

    Attributes
    ----------
    what : description.
    variation, scoring : the runs and the scores that include it.
    methods : the methods whose cells it may explain.
    kinds : which of their rows; "" is OLS's only row.
    """

    what: str
    variation: str
    scoring: str = "printed"
    methods: tuple[str, ...] = ALL
    kinds: tuple[str, ...] = ("", "Oracle", "Holdout")

    @property
    def design(self) -> int:
        """Return the number of the experiment."""
        return VARIATIONS[self.variation].design

    @property
    def rows(self) -> list[str]:
        """Return its rows of Table 1."""
        return [row for m in self.methods for kind, row in row_names(m).items() if kind in self.kinds]


EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation("450 training rows instead of 300", "rows-4"),
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
    """Return the published cells of the variation's experiment with ours, for some rows."""
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
    """All cells of an experiment under an explanation; unaffected cells are as printed."""

    explanation: Explanation
    cells: tuple[Compared, ...]
    before: int

    @property
    def after(self) -> int:
        """Return the number of cells that agree."""
        return sum(cell.agrees for cell in self.cells)

    @property
    def summary(self) -> str:
        """Return the explanation and its result."""
        return f"{self.explanation.what} ({self.after} of {len(self.cells)})"


def _readings(scores: Scores, design: int) -> list[_Reading]:
    """Return every explanation of an experiment, the one with the most agreeing cells first."""
    printed = cells(scores, f"printed-{design}", "printed", ROWS)
    found = []
    for explanation in (e for e in EXPLANATIONS if e.design == design):
        varied = cells(scores, explanation.variation, explanation.scoring, explanation.rows)
        changed = {(cell.where, cell.row): cell for cell in varied}
        mixed = tuple(changed.get((cell.where, cell.row), cell) for cell in printed)
        found.append(_Reading(explanation, mixed, sum(cell.agrees for cell in printed)))
    return sorted(found, key=lambda reading: -reading.after)


def _accepted(readings: Many[_Reading]) -> _Reading | None:
    """Return the best explanation of an experiment, or None if it is not better than the printed procedure.

    At most one is accepted per experiment, because two would exclude each other.
    """
    best = next(iter(readings), None)
    return best if best is not None and best.after > best.before else None


def explained(scores: Scores) -> list[Finding]:
    """Return a finding for each experiment that differs: the accepted explanation, and the others tested."""
    runs = cells(scores, "printed-1", "printed", ROWS)[0].ours.runs
    if runs < MIN_RUNS:
        return [
            Finding(
                f"{runs} runs are too few to compare explanations of the differences; at least {MIN_RUNS} are needed."
            )
        ]
    differing = {
        d.number: [c for c in cells(scores, f"printed-{d.number}", "printed", ROWS) if not c.agrees] for d in DESIGNS
    }
    findings = [
        _explained(scores, number, differing_cells) for number, differing_cells in differing.items() if differing_cells
    ]
    return findings + _unexplained(scores, differing)


def _explained(scores: Scores, number: int, differing: Many[Compared]) -> Finding:
    readings = _readings(scores, number)
    best, others = _accepted(readings), [reading.summary for reading in readings]
    if best is None:
        agree = len(ROWS) * len(MEASURES) - len(differing)
        text = f"Experiment {number}: no tested explanation has more agreeing cells than the {agree} as printed"
        return Finding(f"{text}: {'; '.join(others)}." if others else f"{text}.", agrees=False)
    complete = best.after == len(best.cells)
    agreeing = {(cell.where, cell.row): cell for cell in best.cells if cell.agrees}
    example = max((cell for cell in differing if (cell.where, cell.row) in agreeing), key=lambda cell: cell.away)
    with_it = agreeing[example.where, example.row]
    text = (
        f"Experiment {number}: {best.explanation.what} explains {'all' if complete else 'part'} of the difference: "
        f"{best.after} of {len(best.cells)} cells agree, {best.before} as printed. For example {example.row}, "
        f"{example.where}: published {example.published.mean:.3f}, as printed {example.ours.mean:.3f}, "
        f"with it {with_it.ours.mean:.3f}."
    )
    return Finding(text + (f" Also tested: {'; '.join(others[1:])}." if others[1:] else ""), agrees=complete)


def _unexplained(scores: Scores, differing: Mapping[int, Many[Compared]]) -> list[Finding]:
    """Return a finding on the cells that disagree even under the accepted explanation, or as printed without one."""
    differing_cells: list[Compared] = []
    for number, cells_as_printed in differing.items():
        best = _accepted(_readings(scores, number))
        differing_cells += cells_as_printed if best is None else [cell for cell in best.cells if not cell.agrees]
    if not differing_cells:
        return []
    parts = "; ".join(f"{cell.row}, {cell.where}" for cell in differing_cells)
    text = (
        "Cells of Table 1 that still differ, with at most one explanation per experiment, "
        f"{len(differing_cells)}: {parts}."
    )
    return [Finding(text, agrees=False)]


def explanation_table(scores: Scores) -> Table:
    """Return a table of every explanation: agreeing cells of its experiment, and whether it is accepted."""
    rows = []
    for design in DESIGNS:
        readings = _readings(scores, design.number)
        best = _accepted(readings)
        for r in readings:
            count = len(r.cells)
            parts = (f"{r.before} of {count}", f"{r.after} of {count}", "yes" if r is best else "")
            rows.append((r.explanation.what, design.number, *parts))
    return Table(
        "group-omp-explanations",
        "Possible deviations of the authors' procedure, each tested with as many runs. Cells agree within three "
        "standard errors of the difference. At most one per experiment is accepted, as they exclude each other: the "
        "one with the most agreeing cells, if there are more than as printed.",
        ("changed", "experiment", "agree as printed", "agree with it", "accepted"),
        tuple(rows),
    )


OURS = "Group-OMP"

RIVALS = tuple(method for method in TUNED if method != OURS)


@dataclass(frozen=True)
class _Cell:
    """Group-OMP against a rival: the direction in Table 1 and in our runs (1 better, -1 worse)."""

    number: int
    rival: str
    measure: str
    published: int
    ours: int

    def __str__(self) -> str:
        return f"{self.rival} on {self.measure} in experiment {self.number}"


def paired(scores: Scores, number: int, kind: str, rival: str, measure: str) -> Estimate:
    """Return Group-OMP minus a rival, run by run; larger F1 and smaller model error are better."""
    found = scores[f"printed-{number}"]["printed"]
    ours, other = (found[row_names(method).get(kind, method)][measure] for method in (OURS, rival))
    return Estimate.of_difference(ours, other)


def claim(scores: Scores, kind: str) -> Finding:
    """Return whether our runs have the same direction as Table 1 in every cell.

    False if one has the opposite direction, beyond its 95 % interval by Student's t; None if none has, but some
    differences are not significant.
    """
    cells = list(_cells(scores, kind))
    same = [cell for cell in cells if cell.ours == cell.published]
    other = [cell for cell in cells if cell.ours == -cell.published]
    still_open = len(cells) - len(same) - len(other)
    text = (
        f'The paper: Group-OMP performs "consistently better". Chosen by {_words(kind)}, {_against(cells)}. Ours, run '
        f"by run and by 95 % intervals: {len(same)} of {len(cells)} cells have the direction of Table 1, "
        f"{still_open} are not significant, {len(other)} have the opposite direction{_sides(other)}."
    )
    return Finding(text, agrees=False if other else None if still_open else True)


def _sides(cells: Many[_Cell]) -> str:
    """Return the cells in favour of and against Group-OMP, in words."""
    sides = (("for Group-OMP", [c for c in cells if c.ours > 0]), ("against it", [c for c in cells if c.ours < 0]))
    parts = [f"{words}: {', '.join(map(str, found))}" for words, found in sides if found]
    return f" ({'; '.join(parts)})" if parts else ""


def _against(cells: Many[_Cell]) -> str:
    """Return how many published cells themselves contradict the claim, and our result for them."""
    against = [cell for cell in cells if cell.published < 0]
    if not against:
        return f"all {len(cells)} published cells support it"
    alike = sum(cell.ours < 0 for cell in against)
    return (
        f"{len(against)} of {len(cells)} published cells contradict it ({', '.join(map(str, against))}), "
        f"{alike} of them also here"
    )


def advice(scores: Scores) -> str:
    """Return where Group-OMP is ahead of every rival by hold-out, and where a rival is ahead of it."""
    cells = list(_cells(scores, "Holdout"))
    parts = []
    for measure, words in (("F1 (Group)", "in finding the groups"), ("ME", "in the model error")):
        mine = [cell for cell in cells if cell.measure == measure]
        first = [d.number for d in DESIGNS if all(c.ours > 0 for c in mine if c.number == d.number)]
        ahead = f"ahead of every rival in {_numbers(first)}" if first else "ahead of every rival in no experiment"
        behind = [f"the {c.rival} in experiment {c.number}" for c in mine if c.ours < 0]
        parts.append(f"{words} it is {ahead}" + (f", and behind {', '.join(behind)}" if behind else ""))
    return f"Group-OMP, chosen by hold-out, in these runs: {'; '.join(parts)}."


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
