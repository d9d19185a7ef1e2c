"""How properties are tried: the same examples in every run, without a clock."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

__all__ = ["quick"]

SHARE = float(os.environ.get("TEST_EXAMPLES") or 0.25)
"""Share of the examples of each test that is tried; `.ci/run` and `make test-kernels` try all."""

# Hypothesis draws constants of the modules loaded so far: the examples would depend on the tests that ran before.
providers._get_local_constants = lambda: providers._local_constants


def quick(max_examples: int = 100) -> settings:
    """Return the settings of a property."""
    return settings(max_examples=max(5, round(SHARE * max_examples)), suppress_health_check=[HealthCheck.too_slow])
