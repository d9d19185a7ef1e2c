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
from service.serving import Gate, logged, trained_model
from waiting import until_async

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


def found(here: Solver, model: Model, groups: frozenset[str], times: int = 1) -> list[Any]:
    """Results of as many requests, as they arrive."""
    results: list[Any] = []
    for _ in range(times):
        here.find(model, groups, results.append)
    return results


async def test_prefixes_and_what_was_solved_before_are_told_at_once() -> None:
    model = fresh()
    known = arrived_model(model, some(1, 2))
    with solver(0.0) as here:
        for groups in (frozenset[str](), some(0), frozenset("abcd"), some(1, 2)):
            assert [each.groups for each in found(here, model, groups)] == [groups]
        assert found(here, model, some(1, 2)) == [known]


async def test_small_sets_are_solved_at_once_whatever_waits() -> None:
    model = fresh()
    assert model.places[order()[2]].stop - model.places[order()[2]].start <= MAX_SMALL
    with solver(0.0, max_solving=0) as here:
        assert found(here, model, some(2)) == [cached_arrived_model(model, some(2))]
        assert found(here, model, some(1, 2)) == [None], "a wide one is refused"


async def test_wide_sets_are_solved_beside_the_loop() -> None:
    model = fresh()
    with solver() as here:
        results = found(here, model, some(1, 2))
        assert not results
        await until_async(lambda: results)
        np.testing.assert_array_equal(results[0].coef, arrived_model(fresh(), some(1, 2)).coef)
        assert cached_arrived_model(model, some(1, 2)) is results[0]
        assert found(here, model, some(1, 2)) == results


async def test_a_set_is_solved_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, solving, "arrived_model")
    with solver() as here:
        results = found(here, fresh(), some(1, 2), times=5)
        gate.opened.set()
        await until_async(lambda: len(results) == 5)
        assert len(set(map(id, results))) == 1
    assert [groups for _, groups in gate.calls] == [some(1, 2)]


async def test_a_set_is_refused_when_too_many_wait_and_taken_when_they_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, model = Gate(monkeypatch, solving, "arrived_model"), fresh()
    with solver(max_solving=2) as here:
        waiting = [found(here, model, groups) for groups in (some(1, 2), some(2, 3), some(1, 3), some(1, 2))]
        assert waiting == [[], [], [None], []]
        gate.opened.set()
        await until_async(lambda: all(waiting))
        waiting[2] = found(here, model, some(1, 3))
        await until_async(lambda: all(waiting))
        assert not [results for results in waiting if None in results]


async def test_a_set_that_cannot_be_solved_is_logged_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_model: Model, _groups: frozenset[str]) -> ArrivedModel:
        raise FloatingPointError("no optimum")

    model = fresh()
    with logged() as records, solver() as here:
        with monkeypatch.context() as patched:
            patched.setattr(solving, "arrived_model", fail)
            results = found(here, model, some(1, 2), times=2)
            await until_async(lambda: results == [None, None])
        results = found(here, model, some(1, 2))
        await until_async(lambda: results)
        assert results[0] is not None, "the next one may be solved"
    assert [record.exc_info is not None and "failed" in record.getMessage() for record in records] == [True]


async def test_a_solver_that_is_closed_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, model = Gate(monkeypatch, solving, "arrived_model"), fresh()
    with solver() as here:
        waiting = [found(here, model, groups) for groups in (some(1, 2), some(2, 3))]
        here.close()
        gate.opened.set()
    await asyncio.sleep(0.05)
    assert waiting == [[], []]


def test_what_is_at_hand_is_told_while_another_set_is_being_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh()
    known = arrived_model(model, some(2, 3))
    gate = Gate(monkeypatch, arrived, "_solve")
    thread = threading.Thread(target=arrived_model, args=(model, some(1, 2)))
    thread.start()
    try:
        assert gate.reached.wait(60)
        assert cached_arrived_model(model, some(2, 3)) is known
        assert cached_arrived_model(model, some(0)) is not None
        assert cached_arrived_model(model, some(1, 2)) is None
    finally:
        gate.opened.set()
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
