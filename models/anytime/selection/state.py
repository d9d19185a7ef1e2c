"""The selection state: the remaining groups and their gradients, which a criterion scores.

Rows refer to the columns of the remaining groups (and of those selected since the last flush), in an order internal to
the search; `columns` maps them to columns of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anytime.types import Float, Index

__all__ = [
    "SelectionState",
    "SizeClass",
]


@dataclass
class SizeClass:
    """The remaining groups with the same number of columns, stacked.

    Attributes
    ----------
    groups : (k,) indices of the groups.
    rows : (k, d) their rows.
    blocks : (k, d, d) their conditional covariances, or None where the criterion does not need them. The block of a
        group selected since the last flush is the identity, and its gradient is zero.
    """

    groups: Index
    rows: Index
    blocks: Float | None

    def conditional(self) -> Float:
        """Return the blocks; raise if the search does not store them."""
        if self.blocks is None:
            raise RuntimeError("this search stores no conditional blocks")
        return self.blocks


class SelectionState:
    """The remaining groups, with their gradients.

    Parameters
    ----------
    slices : columns of each group.
    b : (D, P) the gradient of the explained variance in each column.
    reference : (D,) the diagonal with which pivots are compared.
    """

    def __init__(self, slices: Sequence[slice], b: Float, reference: Float) -> None:
        self.b, self.reference = b, reference
        self.columns = np.arange(len(b))
        self.sizes = np.array([s.stop - s.start for s in slices], dtype=np.intp)
        self.starts = np.array([s.start for s in slices], dtype=np.intp)
        self.selected = np.zeros(len(slices), dtype=np.bool_)
        self.stack()

    def rows(self, group: int) -> slice:
        """Return the rows of a remaining group."""
        return slice(int(self.starts[group]), int(self.starts[group] + self.sizes[group]))

    def stack(self) -> None:
        """Sort the remaining groups into classes of one size."""
        remaining = ~self.selected & (self.sizes > 0)
        self.remaining_groups: Index = np.flatnonzero(remaining)
        self.classes: list[SizeClass] = []
        for size in np.unique(self.sizes[remaining]):
            groups = np.flatnonzero(remaining & (self.sizes == size))
            rows = self.starts[groups, np.newaxis] + np.arange(size)
            self.classes.append(SizeClass(groups, rows, self._blocks(rows)))

    def _blocks(self, rows: Index) -> Float | None:  # noqa: ARG002  (subclasses with blocks use it)
        """Return the conditional blocks of stacked groups, if they are stored."""
        return None

    def conditional(self, rows: Index | slice) -> Float:
        """Return the conditional covariance of some rows given the selection, (d, d)."""
        raise RuntimeError(f"gradients alone have no covariance of {rows}")
