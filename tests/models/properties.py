"""How properties are tried: the same examples in every run, without a clock."""

from __future__ import annotations

from functools import partial

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

__all__ = ["quick"]

# Hypothesis draws constants of the modules loaded so far: the examples would depend on the tests that ran before.
providers._get_local_constants = lambda: providers._local_constants

quick = partial(settings, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
