"""The demonstration says when the machine was late."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anytime.testing import FakeClock
from anytime_service.demo import story


def test_a_late_answer_is_due_to_the_machine_if_a_bare_timer_fired_no_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    scripted = [(0.9, 1.1), (1.5, 1.6), (1.5, 1.55), (1.5, 1.1)]  # answer and timer, as multiples of the deadline
    turns = iter([turn for _ in story.DEADLINES_MS for turn in scripted])

    class Timed:
        """A runner and a timer on the fake clock: each takes its scripted time."""

        def run(self, _: Any, deadline_ms: float) -> SimpleNamespace:
            answer, self.fires = (share * deadline_ms for share in next(turns))
            clock.advance(answer)
            return SimpleNamespace(prediction=7, prefix=2)

        def timer(self, _: float, fire: Callable[[], None]) -> SimpleNamespace:
            begun = clock.ms

            def join() -> None:
                clock.ms = begun + self.fires
                fire()

            return SimpleNamespace(start=lambda: None, join=join)

    runner: Any = Timed()
    monkeypatch.setattr(story, "Timer", runner.timer)
    fake = SimpleNamespace(sleep=lambda s: clock.advance(1e3 * s), perf_counter=lambda: clock.ms / 1e3)
    monkeypatch.setattr(story, "time", fake)
    table = story.counts(runner, np.zeros((4, 8, 8)), [7, 7, 7, 1])
    columns = {each.heading: [*each.values] for each in table.columns}
    assert columns["in time"] == ["1 of 4"] * 3
    assert columns["late with timer"] == ["2"] * 3
    assert columns["late alone"] == ["1"] * 3
    assert columns["accuracy"] == ["0.750"] * 3
    assert columns["slowest"] == [f"{1.5 * deadline:.2f} ms" for deadline in story.DEADLINES_MS]
