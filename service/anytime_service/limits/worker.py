"""One thread for work that would occupy the event loop for more than about 2 ms: pages, and answers of many rows.

Jobs run one at a time, so that they use one core at most and their memory does not add up. Answers come before pages.
An answer has reserved its memory before (`Account.reserve_answer`), so no answer is refused here. The jobs must release
the interpreter every millisecond or so: long lists are converted in pieces.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any, NamedTuple, TypeVar

from anytime_service.errors import OverloadedError
from anytime_service.limits.costs import PAGES

Result = TypeVar("Result")


class _Job(NamedTuple):
    work: Callable[[], Any]
    future: asyncio.Future[Any]
    context: Context


class Worker:
    """The thread and the jobs that wait for it; `refused` is called when too many pages wait."""

    def __init__(self, refused: Callable[[], None] = lambda: None) -> None:
        self._answers: deque[_Job] = deque()
        self._pages: deque[_Job] = deque()
        self._refused = refused
        self._busy = False
        self._thread = ThreadPoolExecutor(1, "anytime-worker")

    @property
    def waiting(self) -> int:
        """Number of answers that wait."""
        return len(self._answers) + self._busy

    async def page(self, work: Callable[[], Result]) -> Result:
        """Return the result of a job for a page; raise OverloadedError if too many wait."""
        if len(self._pages) >= int(PAGES):
            self._refused()
            raise OverloadedError(f"{int(PAGES)} pages are being made; retry in a second, or use another replica")
        result: Result = await self._add(self._pages, work)
        return result

    def answer(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        """Return the future result of a job for an answer."""
        return self._add(self._answers, work)

    async def idle(self) -> None:
        """Wait until no answer waits."""
        while self.waiting:
            await asyncio.sleep(0.005)

    def close(self) -> None:
        """End the thread; jobs that wait are discarded."""
        self._answers.clear()
        self._pages.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _add(self, queue: deque[_Job], work: Callable[[], Any]) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        queue.append(_Job(work, future, copy_context()))
        self._next()
        return future

    def _next(self) -> None:
        while not self._busy and (self._answers or self._pages):
            job = (self._answers or self._pages).popleft()
            if job.future.cancelled():
                continue
            self._busy = True
            running = asyncio.get_running_loop().run_in_executor(self._thread, job.context.run, job.work)
            running.add_done_callback(partial(self._done, job))

    def _done(self, job: _Job, running: asyncio.Future[Any]) -> None:
        self._busy = False
        if running.cancelled():
            job.future.cancel()
        elif not job.future.cancelled():
            error = running.exception()
            if error is None:
                job.future.set_result(running.result())
            else:
                job.future.set_exception(error)
        self._next()
