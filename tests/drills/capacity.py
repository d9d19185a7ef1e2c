"""Capacity of a server: predictions per second in a closed loop, and processor time per prediction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anytime.model.model import Model
from benchmarks.load.child import Child
from benchmarks.load.closed_loop import saturate_websocket
from benchmarks.load.models import values_of

WINDOW = 8
"""Open predictions per connection."""

WARM_S = 1.0


@dataclass(frozen=True)
class Capacity:
    """Predictions per second, and the share of the server's core that they use, 0 to 1."""

    rate: float
    busy: float

    @property
    def cost_us(self) -> float:
        """Processor time of the server per prediction."""
        return self.busy / self.rate * 1e6


def saturate(model: Model, child: Child, length_s: float) -> Capacity:
    """Measure the answer rate when clients never wait; the windows bound the load."""
    rng = np.random.default_rng(5)
    row = {name: values_of(model, name, rng) for name in model.places}
    saturate_websocket(child.port, row, WARM_S, WINDOW)
    cpu = child.cpu_us
    answered, took = saturate_websocket(child.port, row, length_s, WINDOW)
    return Capacity(answered / took, (child.cpu_us - cpu) / took / 1e6)
