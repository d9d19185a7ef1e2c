"""Rows that a worker keeps for the passes of a likelihood.

They do not travel: who is handed them, or has lost them, reads them again from the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anytime.cluster.parts import Part, settled
from anytime.gram import Gram
from anytime.slabs import slabs_of

__all__ = ["HeldRows", "held_rows"]


class HeldRows:
    """The slabs of a part, in the units of a table's normal equations."""

    def __init__(self, part: Part, gram: Gram) -> None:
        self._recipe = part, gram
        self.slabs = slabs_of(part.blocks(), gram, held_bytes=0)  # mapped: a worker may hold many parts

    def __reduce__(self) -> tuple[Callable[..., HeldRows], tuple[Any, ...]]:
        return HeldRows, self._recipe

    def __sizeof__(self) -> int:
        return sum(slab.Y.nbytes for slab in self.slabs)


def held_rows(part: Part, gram: Gram) -> HeldRows:
    """Read a part and keep it."""
    settled()
    return HeldRows(part, gram)
