"""How a certified share is told: rounded down, so that nothing is said that is not known."""

from __future__ import annotations

import math

__all__ = ["at_least"]

ROUNDING = 1e-6
"""Tenths of a percent that are whole but for rounding are told as they are."""


def at_least(share: float) -> str:
    """A share as a percentage with one decimal at the most, no larger than it is."""
    return f"{math.floor(1000 * share + ROUNDING) / 10:g} %"
