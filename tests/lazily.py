"""What is made when it is first used, so that no test module trains a model when it is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Lazy(Mapping[K, V], Generic[K, V]):
    """Values by name; each is made once, when it is first asked for."""

    def __init__(self, makers: Mapping[K, Callable[[], V]]) -> None:
        self._makers = makers
        self._made: dict[K, V] = {}

    def __getitem__(self, key: K) -> V:
        if key not in self._made:
            self._made[key] = self._makers[key]()
        return self._made[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)
