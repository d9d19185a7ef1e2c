"""Deadlines under random costs: against a slow literal simulation, the step curve, and closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime.costs.distributions import CostDistributions, RandomTimes, Samples, completions, simulate
from anytime.errors import GroupsError
from anytime.estimators import AnytimeRegressor
from anytime.model.curve import timeliness
from anytime.model.model import Model
from models.properties import quick


def literal(steps: list[list[int]], costs: np.ndarray, values: np.ndarray, deadline: float) -> np.ndarray:
    """The value of each draw at a deadline, group by group."""
    reached = []
    for draw in costs:
        clock, prefix = 0.0, 0
        for step in steps:
            for group in step:
                clock += draw[group]
            if clock > deadline:
                break
            prefix += 1
        reached.append(values[prefix])
    return np.array(reached)


def literal_area(steps: list[list[int]], draw: np.ndarray, values: np.ndarray, stop: float) -> float:
    """Area under the step curve of one draw, by walking along it."""
    area, clock, value = 0.0, 0.0, float(values[0])
    for k, step in enumerate(steps, start=1):
        until = clock + sum(float(draw[group]) for group in step)
        area += value * (min(until, stop) - min(clock, stop))
        clock, value = until, float(values[k])
    return area + value * max(stop - clock, 0.0)


@quick(max_examples=40)
@given(seed=st.integers(0, 10_000), deadline=st.floats(0.0, 6.0), stop=st.floats(0.1, 6.0))
def test_it_is_the_literal_simulation(seed: int, deadline: float, stop: float) -> None:
    rng = np.random.default_rng(seed)
    steps = [[2], [0, 3], [1]]
    costs = np.round(rng.exponential(size=(30, 4)), 2) * (rng.random((30, 4)) > 0.2)
    values = np.cumsum([0.0, *rng.random(3)])
    times = completions(steps, costs)
    expected = literal(steps, costs, values, deadline)
    found = times.expected(values, np.array([deadline]))
    assert found.mean[0] == pytest.approx(expected.mean())
    assert found.error[0] == pytest.approx(expected.std(ddof=1) / np.sqrt(30))
    areas = np.array([literal_area(steps, draw, values, stop) for draw in costs]) / stop
    mean, error = times.timeliness(values, stop)
    assert mean == pytest.approx(areas.mean())
    assert error == pytest.approx(areas.std(ddof=1) / np.sqrt(30))


def test_costs_that_are_certain_give_the_step_curve() -> None:
    costs, values = np.array([1.0, 0.0, 2.5, 1.0]), np.array([0.0, 0.2, 0.3, 0.6, 0.8])
    times = completions([[0], [1], [2], [3]], np.tile(costs, (5, 1)))
    cumulative = np.cumsum([0.0, *costs])
    for deadline in (0.0, 0.5, 1.0, 3.4, 3.5, 4.5, 9.0):
        last = np.flatnonzero(cumulative <= deadline)[-1]
        found = times.expected(values, np.array([deadline]))
        assert (found.mean[0], found.error[0]) == (values[last], 0.0)
        assert times.prefixes(np.array([deadline])).mean[0] == last
    for stop in (0.5, 3.0, 4.5, 7.0):
        mean, error = times.timeliness(values, stop)
        assert mean == pytest.approx(timeliness(cumulative, values, stop, 1.0, "step"))
        assert error == pytest.approx(0.0, abs=1e-12)


def test_one_draw_has_no_error() -> None:
    found = RandomTimes(np.array([[0.0, 1.0]])).expected(np.array([0.0, 1.0]), np.array([2.0]))
    assert (found.mean[0], found.error[0]) == (1.0, 0.0)


def model(unit: str = "ms", draw: float = 2.0) -> Model:
    content: dict[str, Any] = {
        "cost_unit": unit,
        "groups": [
            {"name": "a", "features": ["a0"], "cost": 1.0},
            {"name": "draw", "features": [], "cost": draw},
            {"name": "b", "features": ["b0"], "cost": 1.0, "requires": ["draw"]},
        ],
    }
    X = np.random.default_rng(0).normal(size=(40, 2))
    return AnytimeRegressor(content).fit(X, X @ [1.0, 2.0]).model_


def test_a_model_is_simulated_from_the_costs_of_its_groups_and_what_nobody_computes_costs_what_the_model_says() -> None:
    samples = CostDistributions.measured({"a": np.array([1.0, 3.0]), "b": np.array([5.0, 7.0])}, "")
    found = model()
    times = simulate(found, samples, 1000, np.random.default_rng(0))
    steps = [step.adds for step in found.manifest.steps]
    ends = {(1.0, 5.0): 0, (3.0, 7.0): 0}
    for row in np.diff(times.times, axis=1):
        took = dict(zip(steps, row.tolist(), strict=True))
        ends[took["a",], took["draw", "b"] - 2.0] += 1
    assert len(ends) == 2, "samples of one input belong together"
    assert min(ends.values()) > 400
    seconds = simulate(model("s"), samples, 10, np.random.default_rng(0))
    assert seconds.times[:, -1].min() == pytest.approx(2006.0)


def test_what_cannot_be_simulated_is_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(GroupsError, match="no distribution for 'b'"):
        simulate(model(), CostDistributions(groups={"a": Samples(samples=(1.0,))}), 10, rng)
    both = CostDistributions(groups={name: Samples(samples=(1.0,)) for name in "ab"})
    with pytest.raises(GroupsError, match="group 'draw' without features costs 2 dollars, which is not a time"):
        simulate(model("dollars"), both, 10, rng)
    simulate(model("dollars", draw=0.0), both, 10, rng)
