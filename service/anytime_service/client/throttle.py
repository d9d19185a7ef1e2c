"""Client-side throttling, and the network margin.

`Throttle` sends fewer requests to a server that refuses them: a refusal is cheap but not free, and many refusals use
the time of answers. It implements adaptive throttling (Beyer, Jones, Petoff and Murphy, *Site Reliability Engineering*,
2016, chapter 21, "Handling Overload"). The client rejects the share

    max(0, (requests - K accepts - FEW) / (requests + 1))

of its requests itself. The server then receives about K times as many requests as it accepts, enough for the client to
notice when the overload ends.

`NetworkMargin` learns how much earlier than the caller's deadline the server must answer, from the delay of every
answer that a deadline interrupts, also of those that arrive too late. `anytime.inference.runner` tracks its quantile in
small steps. A network may change by much more than one step, so the margin uses the quantile of the most recent delays.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable

K = 1.2  # ratio of requests sent to requests accepted
FEW = 3.0  # number of refusals below which the client does not throttle
MEMORY_S = 2.0  # time constant of the counts: a request of this age has the weight exp(-1), about one third


class Throttle:
    """Decaying counts of recent requests and acceptances, by the clock `now` in seconds; for one event loop."""

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, chance: Callable[[], float] = random.random
    ) -> None:
        self._now, self._chance = now, chance
        self._at = now()
        self._requests = self._accepts = 0.0

    def rejects(self) -> bool:
        """Return whether to reject a prediction without sending it to the server."""
        self._fade()
        share = (self._requests - K * self._accepts - FEW) / (self._requests + 1.0)
        if share <= 0.0 or self._chance() >= share:
            return False
        self._requests += 1.0
        return True

    def record(self, *, accepted: bool) -> None:
        """Count a prediction that was sent; it is not accepted if the server refused it because of overload."""
        self._fade()
        self._requests += 1.0
        self._accepts += accepted

    def _fade(self) -> None:
        now = self._now()
        decay = math.exp((self._at - now) / MEMORY_S)
        self._at = now
        self._requests *= decay
        self._accepts *= decay


MAX_DELAYS = 64  # number of delays in the margin: few enough that two answers suffice to notice a slower network
SHARE_IN_TIME = 0.98
MAX_MARGIN_MS = 1000.0  # longest recorded delay: with a longer one, no deadline of the usual length is feasible


class NetworkMargin:
    """Delays of the most recent answers, and the margin that covers 98% of them; for one event loop."""

    def __init__(self) -> None:
        self.ms = 0.0
        self._delays: deque[float] = deque(maxlen=MAX_DELAYS)

    def guess(self, delay_ms: float) -> None:
        """Set the margin from the delay of an immediate answer, until `add` records the first delay."""
        if not self._delays:
            self.ms = min(max(delay_ms, 0.0), MAX_MARGIN_MS)

    def add(self, delay_ms: float) -> None:
        """Record the delay of an answer: its time of arrival minus the deadline sent to the server."""
        self._delays.append(min(max(delay_ms, 0.0), MAX_MARGIN_MS))
        ordered = sorted(self._delays)
        self.ms = ordered[min(int(SHARE_IN_TIME * len(ordered)), len(ordered) - 1)]

    def server_deadline_ms(self, remaining_ms: float) -> float:
        """Return the deadline to send to the server: the remaining time minus the margin, at least half of that time.

        With less than half, extractors could compute only few groups.
        """
        return max(remaining_ms - self.ms, remaining_ms / 2, 0.0)
