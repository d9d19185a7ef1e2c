"""Sequencing: in which order the groups are computed."""

from __future__ import annotations

from anytime.sequencing.candidates import Candidates
from anytime.sequencing.given import given_sequence
from anytime.sequencing.greedy import Search, greedy
from anytime.sequencing.least_squares import sequence, sequencer
from anytime.sequencing.likelihood import LikelihoodSequence, base_rate, likelihood_sequence, separated
from anytime.sequencing.oracle import oracle_order
from anytime.sequencing.sparse import Entries, check_sparse, shrunken_curve, sparse_entries, sparse_sequence
from anytime.sequencing.steps import FactoredSequence, Sequence, Step

__all__ = [
    "Candidates",
    "Entries",
    "FactoredSequence",
    "LikelihoodSequence",
    "Search",
    "Sequence",
    "Step",
    "base_rate",
    "check_sparse",
    "given_sequence",
    "greedy",
    "likelihood_sequence",
    "oracle_order",
    "separated",
    "sequence",
    "sequencer",
    "shrunken_curve",
    "sparse_entries",
    "sparse_sequence",
]
