"""Sequencing: in which order the groups are computed."""

from __future__ import annotations

from anytime.sequencing.greedy import sequence
from anytime.sequencing.oracle import oracle_order
from anytime.sequencing.steps import Sequence, Step

__all__ = ["Sequence", "Step", "oracle_order", "sequence"]
