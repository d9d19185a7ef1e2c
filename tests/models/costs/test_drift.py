"""What is lost by leaving a sequence as it is when costs have changed."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, product
from typing import Any

import numpy as np
import pytest

from anytime.costs.drift import drift
from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.groups import FeatureGroups, load_groups
from anytime.model.curve import timeliness
from anytime.model.model import Model
from anytime.moments.accumulate import Block, moments_of
from anytime.target import Target
from anytime.training.likelihood import Observed
from anytime.training.resequencing import Changes, Retrained, resequence

NAMES = ("a", "b", "c", "d")


def groups(**costs: float) -> FeatureGroups:
    entries = [
        {
            "name": name,
            "features": [f"x{g}"],
            "cost": costs.get(name, 1.0 + g),
            "requires": ["b"] if name == "d" else [],
        }
        for g, name in enumerate(NAMES)
    ]
    return load_groups({"cost_unit": "ms", "groups": entries})


def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4))
    return X, X @ [1.0, 1.5, 1.2, 2.5] + rng.normal(size=400)


def model(**options: Any) -> Model:
    return AnytimeRegressor(groups(), alpha=1e-3, **options).fit(*table()).model_


def with_penalties() -> Model:
    """A model whose prefixes have other penalties than the whole."""
    X, y = table()
    chosen = AnytimeRegressor(groups(), alpha="cv", one_se=True).fit(X[:60], y[:60]).model_
    assert {step.alpha for step in chosen.manifest.steps} != {chosen.manifest.alpha}
    return chosen


def test_penalties_of_the_prefixes_are_not_counted_as_a_loss_of_the_order() -> None:
    chosen = with_penalties()
    found = drift(chosen, groups())
    assert (found.changes, found.lost) == (False, 0)
    assert found.current.at(100.0) == found.relearned.at(100.0) == chosen.expected(chosen.steps).r2


def test_equal_sets_lose_nothing_whatever_the_penalties_and_the_order() -> None:
    """Another order of the same groups reaches the same sets, which the current model has fitted by other penalties."""
    found = drift(with_penalties(), groups(a=1.0, b=20.0, c=0.5, d=1.0))
    assert found.changes
    current, relearned = found.current, found.relearned
    compared = 0
    for prefix, other in product(range(len(current.costs)), range(len(relearned.costs))):
        if {*chain(*current.steps[:prefix])} == {*chain(*relearned.steps[:other])}:
            compared += 1
            assert relearned.costs[other] == pytest.approx(current.costs[prefix])
            assert np.asarray(relearned.r2)[other] == np.asarray(current.r2)[prefix]
            assert relearned.explained[other] == current.explained[prefix]
    assert compared >= 2, "at least the base rate and all groups"


def test_other_costs_are_compared_with_what_resequencing_gives_both_at_the_new_costs() -> None:
    trained, new = model(), groups(a=30.0, b=0.5)
    found = drift(trained, new)
    relearned = resequence(trained, new)
    assert found.changes
    assert list(found.current.steps) == [step.adds for step in trained.manifest.steps]
    assert list(found.relearned.steps) == [step.adds for step in relearned.manifest.steps]
    np.testing.assert_allclose(found.relearned.costs, relearned.costs)
    spent = [sum(new.costs[new.position(name)] for name in adds) for adds in found.current.steps]
    np.testing.assert_allclose(found.current.costs, np.cumsum([0.0, *spent]))
    for order, of in ((found.current, trained), (found.relearned, relearned)):
        assert order.r2 is not None
        assert order.r2[1:].tolist() == [step.r2 for step in of.manifest.steps]
        explained = [2 * step.explained_variance for step in of.manifest.steps]
        np.testing.assert_allclose(order.explained[1:], explained, rtol=1e-12)
    for order, share in zip((found.current, found.relearned), found.timeliness, strict=True):
        assert share == timeliness(order.costs, order.explained, found.stop, 1.0, "step")
    assert found.lost == pytest.approx(found.timeliness[1] - found.timeliness[0])
    assert found.lost > 0.1
    assert found.current.at(1.0) == 0
    assert found.relearned.at(0.5) == relearned.expected(1).r2


def literal_order(trained: Model, new: FeatureGroups) -> list[tuple[str, ...]]:
    """The steps by gain for the new costs, one after the other of those that may be taken."""
    left = list(trained.manifest.steps)
    F = np.diff([0.0, *(step.explained_variance for step in left)]).tolist()
    gains = dict(zip([step.adds for step in left], F, strict=True))
    had: set[str] = set()
    order = []
    while left:
        may = [step for step in left if ("d" not in step.adds or "b" in had or "b" in step.adds)]
        best = max(may, key=lambda step: gains[step.adds] / sum(new.costs[new.position(n)] for n in step.adds))
        order.append(best.adds)
        had |= set(best.adds)
        left.remove(best)
    return order


def test_without_moments_it_is_estimated_from_what_the_steps_gained() -> None:
    trained = replace(model(), moments=None)
    for costs in ({"a": 30.0}, {"b": 40.0, "d": 0.1}, {"c": 0.1}):
        new = groups(**costs)
        found = drift(trained, new)
        assert found.estimated
        assert list(found.relearned.steps) == literal_order(trained, new)
        assert found.relearned.at(100.0) == pytest.approx(found.current.at(100.0))
        assert found.relearned.costs[-1] == pytest.approx(new.costs.sum())
    assert not drift(trained, groups()).lost


@pytest.mark.parametrize("moments", [True, False], ids=["learned", "estimated"])
def test_groups_that_the_user_placed_first_are_no_drift(moments: bool) -> None:
    free = model()
    led = resequence(free, changes=Changes(first=(free.manifest.steps[-1].group,)))
    assert [step.adds for step in led.manifest.steps] != [step.adds for step in free.manifest.steps]
    found = drift(led if moments else replace(led, moments=None), groups())
    assert found.estimated is not moments
    assert found.relearned.steps[0] == led.manifest.steps[0].adds
    if moments:
        assert not found.changes


def test_a_cost_blind_order_stays() -> None:
    blind = model(cost_blind=True)
    assert not drift(blind, groups(a=30.0)).changes
    assert not drift(replace(blind, moments=None), groups(a=30.0)).changes


def test_a_likelihood_is_estimated_or_ordered_by_its_rows() -> None:
    X, y = table()
    trained = AnytimeClassifier(groups(), alpha=0.01).fit(X, y > 0).model_
    new = groups(a=30.0, b=0.5)
    assert drift(trained, new).estimated
    Y = (y > 0).astype(float)[:, np.newaxis]
    data = Retrained("rows.csv", moments_of(X, Y), Observed([Block(X, Y)], Target("binary", ("y",), (False, True)), 1))
    found = drift(trained, new, data)
    assert not found.estimated
    assert found.changes
    assert found.lost > 0


def test_steps_that_come_to_require_each_other_are_estimated_as_they_stand() -> None:
    def rooms(costs: tuple[float, float, float, float, float], *, tied: bool) -> FeatureGroups:
        visit, lab, scan, blood, age = costs
        entries = [
            {"name": "visit", "features": [], "cost": visit},
            {"name": "scan", "features": ["x0"], "cost": scan, "requires": ["lab" if tied else "visit"]},
            {"name": "lab", "features": [], "cost": lab},
            {"name": "blood", "features": ["x1"], "cost": blood, "requires": ["visit" if tied else "lab"]},
            {"name": "age", "features": ["x2"], "cost": age},
            {"name": "weight", "features": ["x3"], "cost": 1.0, "requires": ["age"]},
        ]
        return load_groups({"groups": entries})

    X = np.random.default_rng(0).normal(size=(400, 4))
    trained = AnytimeRegressor(rooms((1, 1, 1, 1, 1), tied=False), alpha=1e-3).fit(X, X @ [9.0, 5.0, 2.0, 1.0]).model_
    steps = [("visit", "scan"), ("lab", "blood"), ("age",), ("weight",)]
    assert [step.adds for step in trained.manifest.steps] == steps
    found = drift(replace(trained, moments=None), rooms((1, 0.1, 9, 0.1, 1), tied=True))
    assert found.estimated
    assert list(found.relearned.steps) == [("age",), ("weight",), ("visit", "scan"), ("lab", "blood")]
    assert found.relearned.at(100.0) == pytest.approx(found.current.at(100.0))
