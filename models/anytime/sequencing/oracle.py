"""The oracle curve: a sequence's own gains, sorted by gain per cost as if they stayed what they are (section 5.2)."""

from __future__ import annotations

import numpy as np

from anytime.arrays import Float, Index

__all__ = ["oracle_order"]


def oracle_order(gains: Float, costs: Float) -> Index:
    """Order of steps by falling gain per cost, ties as they came: a line to compare with, not a model.

    Parameters
    ----------
    gains, costs : (steps,) what each step of a sequence gained and cost; free steps come first.
    """
    density = np.divide(gains, costs, out=np.full(len(gains), np.inf), where=costs > 0)
    return np.argsort(-density, kind="stable")
