"""Workers that compute feature groups while the caller watches the clock.

`Workers(extractors, worker).start(order, x)` returns an `Extraction`; its `arrivals(until)` yields the groups as they
arrive. Workers know no model: the runner turns arrivals into an answer, and a client of the service sends them on.
"""

from __future__ import annotations

from anytime.inference.workers.extraction import Arrival, Extraction
from anytime.inference.workers.pool import Worker, Workers

__all__ = [
    "Arrival",
    "Extraction",
    "Worker",
    "Workers",
]
