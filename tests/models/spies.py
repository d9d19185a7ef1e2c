"""Methods whose calls a test counts."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

__all__ = ["spied"]


def spied(owner: type, name: str) -> Any:
    """Record the calls of a method, with the object as first argument, until the end of the block."""
    return patch.object(owner, name, autospec=True, side_effect=getattr(owner, name))
