"""How properties are tried: the same examples in every run, without a clock."""

from __future__ import annotations

from functools import partial

from hypothesis import HealthCheck, settings

__all__ = ["quick"]

quick = partial(settings, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
