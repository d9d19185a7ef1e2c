"""Sequencing: the order in which the groups are computed."""

from __future__ import annotations

from anytime.selection.greedy import Candidates, GroupOrder, Step, greedy, oracle_order
from anytime.selection.least_squares import FactoredOrder, factored, given_sequence, sequence, sequencer
from anytime.selection.sparse import Entries, check_sparse, shrunken_curve, sparse_entries

__all__ = [
    "Candidates",
    "Entries",
    "FactoredOrder",
    "GroupOrder",
    "Step",
    "check_sparse",
    "factored",
    "given_sequence",
    "greedy",
    "oracle_order",
    "sequence",
    "sequencer",
    "shrunken_curve",
    "sparse_entries",
]
