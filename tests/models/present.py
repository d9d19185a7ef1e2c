"""Values that must be there."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["present"]

T = TypeVar("T")


def present(value: T | None) -> T:
    """Return a value that may be None by its type only."""
    assert value is not None
    return value
