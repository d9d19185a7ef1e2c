"""How many messages a second one connection may send: a bucket that fills at the rate and is emptied by messages."""

from __future__ import annotations

__all__ = ["Pace"]

BURST_S = 0.1
"""Messages of so much time may come at once."""

LEAST = 100.0
"""As many may come at once however low the rate is."""


class Pace:
    """The bucket of one connection.

    Parameters
    ----------
    rate : messages a second; 0 is no limit.
    """

    __slots__ = ("_at_ms", "_left", "_most", "_rate_ms")

    def __init__(self, rate: float) -> None:
        self._rate_ms = rate / 1000.0
        self._most = self._left = max(rate * BURST_S, LEAST)
        self._at_ms = 0.0

    def spend(self, count: int, now_ms: float) -> float:
        """Take out messages that have come; the milliseconds to wait before more are taken, 0 for none."""
        if self._rate_ms == 0.0:
            return 0.0
        self._left = min(self._left + (now_ms - self._at_ms) * self._rate_ms, self._most) - count
        self._at_ms = now_ms
        return 0.0 if self._left >= 0.0 else -self._left / self._rate_ms
