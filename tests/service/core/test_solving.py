"""Solving beside the event loop, on a model whose sets are too wide to be solved on the spot."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anytime.inference import subsets as arrived
from anytime.inference.subsets import ArrivedModel, arrived_model, cached_arrived_model
from anytime.model.model import Model
from anytime_service.core import solver as solving
from anytime_service.core.solver import MAX_SMALL, Solver
from anytime_service.limits.tuning import Tuning
from service.loops import run
from service.serving import logged, trained_model

WIDTH = 40


@cache
def order() -> tuple[str, ...]:
    return trained_model("wide", width=WIDTH).order("abcd")


def some(*places: int) -> frozenset[str]:
    return frozenset(order()[place] for place in places)


def fresh() -> Model:
    """A model for which nothing has been solved."""
    return trained_model.__wrapped__("wide", 0, WIDTH)


@contextmanager
def solver(max_ms: float = 250.0, **tuning: int) -> Iterator[Solver]:
    solver = Solver(max_ms, Tuning(**tuning))
    try:
        yield solver
    finally:
        solver.close()
        solver._thread.shutdown()


class Gate:
    """Solves when it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.solved: list[frozenset[str]] = []
        monkeypatch.setattr(solving, "arrived_model", self)

    def __call__(self, model: Model, groups: frozenset[str]) -> ArrivedModel:
        assert self.open.wait(20)
        self.solved.append(groups)
        return arrived_model(model, groups)


async def filled(results: list[Any], count: int) -> None:
    while len(results) < count:
        await asyncio.sleep(0.001)


async def test_prefixes_and_what_was_solved_before_are_told_at_once() -> None:
    model = fresh()
    known = arrived_model(model, some(1, 2))

    with solver(0.0) as here:
        for groups in (frozenset(), some(0), frozenset("abcd"), some(1, 2)):
            results: list[Any] = []
            here.find(model, groups, results.append)
            assert [found.groups for found in results] == [groups]
        assert results == [known]


async def test_small_sets_are_solved_at_once_whatever_waits() -> None:
    model = fresh()
    small = some(2)
    assert model.places[order()[2]].stop - model.places[order()[2]].start <= MAX_SMALL

    with solver(0.0, max_solving=0) as here:
        results: list[Any] = []
        here.find(model, small, results.append)
        assert results == [cached_arrived_model(model, small)]


async def test_wide_sets_are_solved_beside_the_loop() -> None:
    model = fresh()

    with solver() as here:
        results: list[ArrivedModel | None] = []
        here.find(model, some(1, 2), results.append)
        assert not results
        await asyncio.wait_for(filled(results, 1), 20)
        found = results[0]
        assert found is not None
        np.testing.assert_array_equal(found.coef, arrived_model(fresh(), some(1, 2)).coef)
        assert cached_arrived_model(model, some(1, 2)) is found
        here.find(model, some(1, 2), results.append)
        assert results == [found, found]


async def test_a_set_is_solved_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, model = Gate(monkeypatch), fresh()

    with solver() as here:
        results: list[Any] = []
        for _ in range(5):
            here.find(model, some(1, 2), results.append)
        gate.open.set()
        await asyncio.wait_for(filled(results, 5), 20)
        assert len(set(map(id, results))) == 1
    assert gate.solved == [some(1, 2)]


async def test_a_set_that_would_take_too_long_is_refused_at_once() -> None:
    model = fresh()

    with solver(0.0) as here:
        results: list[Any] = []
        here.find(model, some(1, 2), results.append)
        assert results == [None]
    assert cached_arrived_model(model, some(1, 2)) is None


async def test_a_set_is_refused_when_too_many_wait_and_taken_when_they_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, model = Gate(monkeypatch), fresh()

    with solver(max_solving=2) as here:
        results: dict[str, list[Any]] = {"first": [], "second": [], "third": []}
        here.find(model, some(1, 2), results["first"].append)
        here.find(model, some(2, 3), results["second"].append)
        here.find(model, some(1, 3), results["third"].append)
        assert results == {"first": [], "second": [], "third": [None]}
        here.find(model, some(1, 2), results["first"].append)
        gate.open.set()
        await asyncio.wait_for(filled(results["first"], 2), 20)
        await asyncio.wait_for(filled(results["second"], 1), 20)
        here.find(model, some(1, 3), results["third"].append)
        await asyncio.wait_for(filled(results["third"], 2), 20)
        assert None not in results["first"] + results["second"] + results["third"][1:]


def test_a_set_that_cannot_be_solved_is_logged_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_model: Model, _groups: frozenset[str]) -> ArrivedModel:
        raise FloatingPointError("no optimum")

    model = fresh()

    async def main() -> None:
        with solver() as here:
            results: list[Any] = []
            with monkeypatch.context() as patched:
                patched.setattr(solving, "arrived_model", fail)
                here.find(model, some(1, 2), results.append)
                here.find(model, some(1, 2), results.append)
                await asyncio.wait_for(filled(results, 2), 20)
            assert results == [None, None]
            here.find(model, some(1, 2), results.append)
            await asyncio.wait_for(filled(results, 3), 20)
            assert results[2] is not None, "the next one may be solved"

    with logged() as records:
        run(main())
    assert [record.exc_info is not None and "failed" in record.getMessage() for record in records] == [True]


async def test_a_solver_that_is_closed_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, model = Gate(monkeypatch), fresh()

    results: list[Any] = []
    with solver() as here:
        here.find(model, some(1, 2), results.append)
        here.find(model, some(2, 3), results.append)
        here.close()
        gate.open.set()
    await asyncio.sleep(0.05)
    assert not results


def test_what_is_at_hand_is_told_while_another_set_is_being_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh()
    known = arrived_model(model, some(2, 3))
    inside, let = threading.Event(), threading.Event()
    solve: Any = arrived._solve

    def gated(*arguments: Any) -> Any:
        inside.set()
        assert let.wait(20)
        return solve(*arguments)

    monkeypatch.setattr(arrived, "_solve", gated)
    thread = threading.Thread(target=arrived_model, args=(model, some(1, 2)))
    thread.start()
    try:
        assert inside.wait(20)
        assert cached_arrived_model(model, some(2, 3)) is known
        assert cached_arrived_model(model, some(0)) is not None
        assert cached_arrived_model(model, some(1, 2)) is None
    finally:
        let.set()
        thread.join()
    assert cached_arrived_model(model, some(1, 2)) is not None


@pytest.mark.parametrize("took_ms", [1e-3, 1.0, 1e3])
def test_what_wide_sets_took_says_what_the_next_would_take(monkeypatch: pytest.MonkeyPatch, took_ms: float) -> None:
    """Quick ones are believed at once; slow ones, which a busy machine makes, a little more each time."""
    monkeypatch.setattr(arrived, "time", SimpleNamespace(perf_counter=count(0.0, took_ms / 1e3).__next__))
    model, wide = fresh(), some(1, 2)
    solved = arrived.solved_sets(model)
    begun = solved.ms_per_cube
    arrived_model(model, wide)
    assert solved.ms_per_cube == begun, "other work dominates sets of few columns"
    monkeypatch.setattr(arrived, "MIN_TIMED_COLUMNS", 2 * WIDTH)
    for times in range(1, 4):
        solved.sets.clear()
        arrived_model(model, wide)
        assert solved.ms_per_cube == pytest.approx(min(took_ms / (2 * WIDTH) ** 3, begun * 1.1**times))
    assert arrived.expected_ms(model, wide) == pytest.approx(solved.ms_per_cube * (2 * WIDTH) ** 3)
