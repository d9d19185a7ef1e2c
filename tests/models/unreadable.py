"""What numpy makes no array of."""

from __future__ import annotations

from typing import Any

__all__ = ["Unreadable"]


class Unreadable:
    """Like a tensor on a device, or one that requires its gradient."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("not without\na gradient")
