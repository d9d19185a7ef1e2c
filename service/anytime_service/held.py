"""How many bytes clients have the server hold: values of groups, bodies and messages half read, replies not taken.

Whoever keeps bytes for a client adds them here and subtracts them when it lets go of them.
"""

from __future__ import annotations

from collections.abc import Callable

from anytime_service.errors import OverloadedError

__all__ = ["Held"]


class Held:
    """One number, and the most that it may be.

    Parameters
    ----------
    most : bytes that may be held at once.
    refused : called when more would have been.
    """

    __slots__ = ("bytes", "most", "refused")

    def __init__(self, most: int, refused: Callable[[], None] = lambda: None) -> None:
        self.bytes = 0
        self.most = most
        self.refused = refused

    def fits(self, more: int) -> bool:
        """Whether so many bytes more may be held."""
        return self.bytes + more <= self.most

    def check(self, more: int, field: str | None = None) -> None:
        """Check that so many bytes more may be held.

        Raises
        ------
        OverloadedError
            They may not; `field` is what they belong to.
        """
        if self.bytes + more > self.most:
            self.refused()
            raise OverloadedError(
                f"{self.bytes} bytes are held already, and {more} more would be over the limit of {self.most};"
                " ask again in a second, or another replica",
                field,
            )
