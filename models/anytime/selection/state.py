"""The groups left to choose from, and the gradient of each: what a criterion sees of a search.

Rows are those of the columns of the groups left (of those selected lately, too), in some order of the search's own;
`columns` says which columns of the table they are.
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
    """The groups left that have the same number of columns, stacked.

    Attributes
    ----------
    groups : (k,) indices of the groups.
    rows : (k, d) their rows.
    blocks : (k, d, d) their conditional covariances, or None where the criterion does not ask for them. The block of a
        group selected since the last flush is the identity, and its gradient zero.
    """

    groups: Index
    rows: Index
    blocks: Float | None

    def conditional(self) -> Float:
        """The blocks, of a search that keeps them."""
        if self.blocks is None:
            raise RuntimeError("this search keeps no conditional blocks")
        return self.blocks


class SelectionState:
    """Groups not taken yet, with their gradients.

    Parameters
    ----------
    slices : columns of each group.
    b : (D, P) the gradient of the explained variance in each column.
    reference : (D,) the diagonal against which pivots are judged.
    """

    def __init__(self, slices: Sequence[slice], b: Float, reference: Float) -> None:
        self.b, self.reference = b, reference
        self.columns = np.arange(len(b))
        self.sizes = np.array([s.stop - s.start for s in slices], dtype=np.intp)
        self.starts = np.array([s.start for s in slices], dtype=np.intp)
        self.taken = np.zeros(len(slices), dtype=np.bool_)
        self.stack()

    def rows(self, group: int) -> slice:
        """Rows of a group that is left."""
        return slice(int(self.starts[group]), int(self.starts[group] + self.sizes[group]))

    def stack(self) -> None:
        """Sort the groups left into classes of one size."""
        left = ~self.taken & (self.sizes > 0)
        self.live: Index = np.flatnonzero(left)
        self.classes: list[SizeClass] = []
        for size in np.unique(self.sizes[left]):
            groups = np.flatnonzero(left & (self.sizes == size))
            rows = self.starts[groups, np.newaxis] + np.arange(size)
            self.classes.append(SizeClass(groups, rows, self._blocks(rows)))

    def _blocks(self, rows: Index) -> Float | None:  # noqa: ARG002  (for those that have blocks)
        """Conditional blocks of stacked groups, where they are kept."""
        return None

    def conditional(self, rows: Index | slice) -> Float:
        """Conditional covariance of some rows given what is selected, (d, d)."""
        raise RuntimeError(f"gradients alone have no covariance of {rows}")
