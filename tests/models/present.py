"""Optional values that a test needs."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["present"]

T = TypeVar("T")


def present(value: T | None) -> T:
    """Return a value that must not be None."""
    assert value is not None
    return value
