"""Sequencing: the order in which the groups are computed."""

from __future__ import annotations

from anytime.selection.criteria import Criterion, Path, SelectionMethod
from anytime.selection.greedy import GroupOrder, SolvedOrder, Step, greedy, oracle_order
from anytime.selection.least_squares import (
    Factored,
    FactoredOrder,
    factored,
    given_sequence,
    sequence,
    sequencer,
    swept,
)
from anytime.selection.requirements import Candidates
from anytime.selection.rule import METHODS, Rule, method_of
from anytime.selection.sparse import Entries, shrunken_curve, sparse_entries

__all__ = [
    "METHODS",
    "Candidates",
    "Criterion",
    "Entries",
    "Factored",
    "FactoredOrder",
    "GroupOrder",
    "Path",
    "Rule",
    "SelectionMethod",
    "SolvedOrder",
    "Step",
    "factored",
    "given_sequence",
    "greedy",
    "method_of",
    "oracle_order",
    "sequence",
    "sequencer",
    "shrunken_curve",
    "sparse_entries",
    "swept",
]
