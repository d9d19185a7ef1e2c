"""The worker thread: one job at a time, answers first, and bounded pages."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from anytime_service.errors import OverloadedError
from anytime_service.limits.table import PAGES
from anytime_service.limits.worker import Worker


def run(act: Callable[[Worker], Coroutine[Any, Any, None]]) -> None:
    async def running() -> None:
        worker = Worker()
        try:
            await asyncio.wait_for(act(worker), 30.0)
        finally:
            worker.close()

    asyncio.run(running())


def test_answers_come_before_pages() -> None:
    order: list[str] = []
    gate = threading.Event()

    async def act(worker: Worker) -> None:
        first = asyncio.create_task(worker.page(lambda: gate.wait(20.0)))
        await asyncio.sleep(0)
        pages = [asyncio.create_task(worker.page(lambda i=i: order.append(f"page {i}"))) for i in range(3)]  # type: ignore[misc]
        await asyncio.sleep(0)
        answers = [worker.answer(lambda i=i: order.append(f"answer {i}")) for i in range(3)]  # type: ignore[misc]
        assert worker.waiting == 3
        gate.set()
        await asyncio.gather(first, *pages, *answers)
        assert worker.waiting == 0

    run(act)
    assert order == [*(f"answer {i}" for i in range(3)), *(f"page {i}" for i in range(3))]


class Result:
    """A result that can be watched."""


def test_a_result_is_released_at_once() -> None:
    async def act(worker: Worker) -> None:
        jobs = [worker.answer(Result)]
        await asyncio.wait(jobs)
        result = weakref.ref(jobs[0].result())
        jobs.clear()
        await asyncio.sleep(0)
        assert result() is None

    gc.disable()
    try:
        run(act)
    finally:
        gc.enable()


def test_more_pages_than_the_limit_are_refused_and_cancelled_ones_are_not_made() -> None:
    gate, made, refused = threading.Event(), [], []

    async def act(worker: Worker) -> None:
        worker._refused = lambda: refused.append(1)
        first = asyncio.create_task(worker.page(lambda: gate.wait(20.0)))
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

    run(act)
    assert (len(made), len(refused)) == (1, 1)


def test_a_job_has_the_context_of_its_request() -> None:
    request: ContextVar[str] = ContextVar("request")

    async def act(worker: Worker) -> None:
        request.set("7")
        assert await worker.page(request.get) == "7"

    run(act)
