"""Sequencing: the order in which the groups are computed."""

from anytime.selection.criteria import Criterion, PathMethod, SelectionMethod
from anytime.selection.greedy import Candidates, GroupOrder, SolvedOrder, Step, greedy
from anytime.selection.least_squares import (
    Factored,
    FactoredOrder,
    factored,
    given_sequence,
    sequence,
    sequencer,
    swept,
)
from anytime.selection.rule import Rule, method_of, methods

__all__ = [
    "Candidates",
    "Criterion",
    "Factored",
    "FactoredOrder",
    "GroupOrder",
    "PathMethod",
    "Rule",
    "SelectionMethod",
    "SolvedOrder",
    "Step",
    "factored",
    "given_sequence",
    "greedy",
    "method_of",
    "methods",
    "sequence",
    "sequencer",
    "swept",
]
