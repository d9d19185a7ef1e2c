"""Doubles for the tests of programs that use this library: a model, a clock, and a runner whose time is scripted.

Nothing here waits, starts a worker or reads a clock, so that a test with a deadline is quick and always the same.
"""

from __future__ import annotations

from anytime.testing.doubles import FakeClock, ScriptedRunner, linear_model

__all__ = ["FakeClock", "ScriptedRunner", "linear_model"]
