"""Sequencing: in which order the groups are computed."""

from __future__ import annotations

from anytime.sequencing.candidates import Candidates
from anytime.sequencing.greedy import Search, greedy
from anytime.sequencing.least_squares import sequence
from anytime.sequencing.likelihood import LikelihoodSequence, base_rate, likelihood_sequence, separated
from anytime.sequencing.oracle import oracle_order
from anytime.sequencing.steps import FactoredSequence, Sequence, Step

__all__ = [
    "Candidates",
    "FactoredSequence",
    "LikelihoodSequence",
    "Search",
    "Sequence",
    "Step",
    "base_rate",
    "greedy",
    "likelihood_sequence",
    "oracle_order",
    "separated",
    "sequence",
]
