"""Workers that compute feature groups while somebody else watches the clock.

`Workers(extractors, worker).start(order, x)` gives an `Extraction`; its `arrivals(until)` are the groups as they come.
There is no model here: the runner turns arrivals into an answer, a client of the service sends them on.
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
