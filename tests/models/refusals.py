"""Errors that a user reads: one line, in plain words."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anytime.errors import TableError

__all__ = ["assert_refused"]


def assert_refused(
    act: Callable[[], object], *words: str, error: type[Exception] | tuple[type[Exception], ...] = TableError
) -> str:
    """Assert that a call raises an error of one line, with these words and no internal names; return its message."""
    with pytest.raises(error) as caught:
        act()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600, message
    assert not [name for name in ("np.", "pydantic") if name in message], message
    assert not [word for word in words if word not in message], message
    return message
