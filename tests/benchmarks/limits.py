"""Ratios with their limits, as every benchmark reports them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["SLACK", "Row", "report", "verdict"]

SLACK = 1.15
"""A benchmark fails above this multiple of a limit: ratios on a shared machine vary."""


class Row(NamedTuple):
    """A measured ratio; without a limit it is only shown."""

    name: str
    ratio: float
    limit: float | None = None

    @property
    def kept(self) -> bool:
        """Whether the ratio is at most the limit, but for the noise of the machine."""
        return self.limit is None or self.ratio <= SLACK * self.limit


def verdict(row: Row) -> str:
    """Return the limit, and whether it is exceeded."""
    if row.limit is None:
        return ""
    state = "" if row.ratio <= row.limit else "  over" if row.kept else "  FAILED"
    return f"{row.limit:8.2f}{state}"


def report(rows: Sequence[Row]) -> bool:
    """Print ratios with their limits; return whether all are kept."""
    print(f"{'measured':<72}{'ratio':>8}{'limit':>8}")
    for row in rows:
        print(f"{row.name:<72}{row.ratio:8.3f}{verdict(row)}", flush=True)
    return all(row.kept for row in rows)
