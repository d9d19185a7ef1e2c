"""The worker threads: the most urgent answer is next, in its time slot, and no page holds it up; bounded pages."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import pytest

from anytime_service.errors import OverloadedError
from anytime_service.limits.table import PAGES
from anytime_service.limits.worker import Slot, Worker
from waiting import WAIT_S


@asynccontextmanager
async def working() -> AsyncIterator[Worker]:
    worker = Worker()
    try:
        async with asyncio.timeout(WAIT_S):
            yield worker
    finally:
        worker.close()


def latest(slots: list[Slot], due_ms: float, took_ms: float) -> float:
    """The latest begin of so long a time by a deadline that overlaps no slot."""
    begins = [due_ms - took_ms, *(begin_ms - took_ms for begin_ms, _ in slots if begin_ms <= due_ms)]
    return max(at for at in begins if all(end <= at or at + took_ms <= begin for begin, end in slots))


async def test_slots_end_by_their_deadlines_as_late_as_they_can_and_do_not_overlap() -> None:
    async with working() as worker:
        rng, made = np.random.default_rng(0), list[Slot]()
        for _ in range(300):
            due, took = float(rng.integers(0, 500)), float(rng.integers(1, 6))  # so that sums are exact
            assert worker.begin_ms(due, took) == latest(made, due, took)
            made.append(worker.reserve(due, took))
            assert made[-1] == (latest(made[:-1], due, took), latest(made[:-1], due, took) + took)
            if rng.random() < 0.3:
                worker.free(made.pop(int(rng.integers(len(made)))))


async def test_the_answer_with_the_nearest_deadline_is_next_and_no_page_holds_it_up() -> None:
    order: list[str] = []
    page, first = threading.Event(), threading.Event()
    async with working() as worker:
        slow = asyncio.create_task(worker.page(lambda: order.extend(["page"] * page.wait(60))))
        await asyncio.sleep(0)
        later: list[Any] = [worker.answer(lambda: first.wait(60), 1.0, 3.0)]
        for name, due in (("third", 30.0), ("second", 20.0), ("also second", 20.0), ("last", np.inf)):
            later.append(worker.answer(partial(order.append, name), due, 2.0))
        last = asyncio.create_task(worker.page(partial(order.append, "another page")))
        await asyncio.sleep(0)
        assert worker.queued_ms == 11.0
        first.set()
        await asyncio.gather(*later)
        assert (worker.queued_ms, worker.waiting) == (0.0, 0)
        page.set()
        await asyncio.gather(slow, last)
    assert order == ["second", "also second", "third", "last", "page", "another page"]


async def test_a_cancelled_answer_is_not_made_and_does_not_count() -> None:
    gate, made = threading.Event(), list[int]()
    async with working() as worker:
        running = worker.answer(lambda: gate.wait(60), 1.0, 5.0)
        worker.answer(partial(made.append, 1), 2.0, 5.0).cancel()
        after = worker.answer(partial(made.append, 2), 3.0, 5.0)
        gate.set()
        await asyncio.gather(running, after)
        assert (worker.queued_ms, made) == (0.0, [2])


class Result:
    """A result that can be watched."""


async def test_a_result_is_released_at_once() -> None:
    gc.disable()
    try:
        async with working() as worker:
            jobs = [worker.answer(Result)]
            await asyncio.wait(jobs)
            result = weakref.ref(jobs[0].result())
            jobs.clear()
            await asyncio.sleep(0)
            assert result() is None
    finally:
        gc.enable()


async def test_more_pages_than_the_limit_are_refused_and_cancelled_ones_are_not_made() -> None:
    gate, made, refused = threading.Event(), [], []
    async with working() as worker:
        worker._refused = lambda: refused.append(1)
        first = asyncio.create_task(worker.page(lambda: gate.wait(60.0)))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(worker.page(lambda: made.append(1))) for _ in range(int(PAGES))]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="pages are being made"):
            await worker.page(lambda: None)
        for each in waiting[1:]:
            each.cancel()
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, waiting[0])
    assert (len(made), len(refused)) == (1, 1)


async def test_a_job_has_the_context_of_its_request() -> None:
    request: ContextVar[str] = ContextVar("request")
    async with working() as worker:
        request.set("7")
        assert await worker.page(request.get) == "7"
