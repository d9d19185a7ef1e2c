"""Errors that a user reads: one line, in plain words."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anytime.errors import TableError

__all__ = ["complaint"]


def complaint(
    act: Callable[[], object], *words: str, error: type[Exception] | tuple[type[Exception], ...] = TableError
) -> str:
    """Return the message of a call that raises an error: one line with these words, and without internal names."""
    with pytest.raises(error) as caught:
        act()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600, message
    assert not [name for name in ("np.", "pydantic") if name in message], message
    assert not [word for word in words if word not in message], message
    return message
