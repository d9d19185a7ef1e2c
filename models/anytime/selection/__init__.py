"""Sequencing: the order in which the groups are computed."""

from anytime.selection.criteria import Criterion, PathMethod, SelectionMethod, method_of, methods
from anytime.selection.greedy import GroupOrder, Rule, Search, Step, greedy
from anytime.selection.least_squares import (
    Factored,
    FactoredOrder,
    SweepSearch,
    given_sequence,
    sequence,
    sequencer,
    swept,
)

__all__ = [
    "Criterion",
    "Factored",
    "FactoredOrder",
    "GroupOrder",
    "PathMethod",
    "Rule",
    "Search",
    "SelectionMethod",
    "Step",
    "SweepSearch",
    "given_sequence",
    "greedy",
    "method_of",
    "methods",
    "sequence",
    "sequencer",
    "swept",
]
