"""What is remembered of things that are over: for a while, and not of too many."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["Remembered"]

Item = TypeVar("Item")


class Remembered(Generic[Item]):
    """Items by name, forgotten in the order in which they came.

    Parameters
    ----------
    most : how many there may be.
    for_ms : how long each is remembered at least, where that is not too many, and until another comes.
    """

    def __init__(self, most: int, for_ms: float) -> None:
        self._most = most
        self._for_ms = for_ms
        self._kept: OrderedDict[str | int, tuple[float, Item]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: object) -> bool:
        return name in self._kept

    def get(self, name: str | int) -> Item | None:
        """The item of a name, None if there is none or no more."""
        found = self._kept.get(name)
        return None if found is None else found[1]

    def add(self, name: str | int, item: Item, now_ms: float) -> None:
        """Remember an item, and forget what is old or too many."""
        kept = self._kept
        kept[name] = now_ms, item
        while len(kept) > self._most or next(iter(kept.values()))[0] < now_ms - self._for_ms:
            kept.popitem(last=False)

    def forget(self, name: str | int) -> None:
        """Forget a name, if it is known."""
        self._kept.pop(name, None)
