"""The paper's claim that Group-OMP "performs consistently better", judged cell by cell of Table 1."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass

from anytime.experiments.experiment import Estimate, Finding
from anytime.experiments.group_omp.agreement import direction
from anytime.experiments.group_omp.designs import DESIGNS
from anytime.experiments.group_omp.explanations import Scores
from anytime.experiments.group_omp.methods import TUNED
from anytime.experiments.group_omp.published import TABLE_1
from anytime.experiments.group_omp.trials import MEASURES, row_names

__all__ = ["advice", "claim", "paired"]

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
