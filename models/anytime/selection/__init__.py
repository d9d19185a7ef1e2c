"""Sequencing: the order in which the groups are computed."""

from __future__ import annotations

from anytime.selection.greedy import Candidates, Search, greedy
from anytime.selection.least_squares import sequence, sequencer
from anytime.selection.sequence import FactoredSequence, Sequence, Step, given_sequence, oracle_order
from anytime.selection.sparse import Entries, check_sparse, shrunken_curve, sparse_entries, sparse_sequence

__all__ = [
    "Candidates",
    "Entries",
    "FactoredSequence",
    "Search",
    "Sequence",
    "Step",
    "check_sparse",
    "given_sequence",
    "greedy",
    "oracle_order",
    "sequence",
    "sequencer",
    "shrunken_curve",
    "sparse_entries",
    "sparse_sequence",
]
