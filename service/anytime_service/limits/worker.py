"""Work that would occupy the event loop for more than about 2 ms: pages, and answers of many rows.

One thread makes answers, one at a time, so that they use one core at most and their memory does not add up. The answer
with the nearest deadline is next. Another thread makes pages, so that no answer waits for one; a page begins while no
answer waits. Jobs must release the interpreter every millisecond or so: long lists are converted in pieces.

An open prediction reserves a time slot of the answers' thread that ends by its deadline, and its answer begins with the
slot. Slots do not overlap: of several answers that are due together, most are made before their deadline.
"""

from __future__ import annotations

import asyncio
import math
from bisect import insort
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple, TypeAlias, TypeVar

from anytime_service.errors import OverloadedError
from anytime_service.limits.table import PAGES

Result = TypeVar("Result")


Slot: TypeAlias = tuple[float, float]
"""Begin and end of a reserved time, in milliseconds of the clock."""


class _Job(NamedTuple):
    due_ms: float
    number: int  # of jobs that are due together, the first is made first
    took_ms: float
    work: Callable[[], Any]
    future: asyncio.Future[Any]
    context: Context


class Worker:
    """The two threads and the jobs that wait for them; `refused` is called when too many pages wait.

    `queued_ms` is the expected time of the answers that wait or are being made.
    """

    def __init__(self, refused: Callable[[], None] = lambda: None) -> None:
        self.queued_ms = 0.0
        self._answers: list[_Job] = []
        self._pages: deque[_Job] = deque()
        self._slots: list[Slot] = []
        self._refused = refused
        self._numbers = count()
        self._threads = {kind: ThreadPoolExecutor(1, f"anytime-{kind}") for kind in ("answers", "pages")}
        self._busy: set[str] = set()

    @property
    def waiting(self) -> int:
        """Number of answers that wait or are being made."""
        return len(self._answers) + ("answers" in self._busy)

    def begin_ms(self, due_ms: float, took_ms: float) -> float:
        """Return when to begin an answer that takes `took_ms` and is due: as late as the slots permit."""
        begin = due_ms - took_ms
        for other in reversed(self._slots):
            if other[1] <= begin:
                break
            begin = min(begin, other[0] - took_ms) if other[0] < begin + took_ms else begin
        return begin

    def reserve(self, due_ms: float, took_ms: float) -> Slot:
        """Reserve a slot for an answer, until `free`."""
        begin = self.begin_ms(due_ms, took_ms)
        insort(self._slots, (begin, begin + took_ms))
        return begin, begin + took_ms

    def free(self, slot: Slot) -> None:
        self._slots.remove(slot)

    async def page(self, work: Callable[[], Result]) -> Result:
        """Return the result of a job for a page; raise OverloadedError if too many wait."""
        if len(self._pages) >= int(PAGES):
            self._refused()
            raise OverloadedError(f"{int(PAGES)} pages are being made; retry in a second, or use another replica")
        job = self._job(work)
        self._pages.append(job)
        self._next()
        result: Result = await job.future
        return result

    def answer(
        self, work: Callable[[], Result], due_ms: float = math.inf, took_ms: float = 0.0
    ) -> asyncio.Future[Result]:
        """Return the future result of a job for an answer that is due, and is expected to take `took_ms`."""
        job = self._job(work, due_ms, took_ms)
        heappush(self._answers, job)
        self.queued_ms += took_ms
        self._next()
        return job.future

    async def idle(self) -> None:
        """Wait until no answer waits."""
        while self.waiting:
            await asyncio.sleep(0.005)

    def close(self) -> None:
        """End the threads; jobs that wait are discarded."""
        self._answers.clear()
        self._pages.clear()
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)

    def _job(self, work: Callable[[], Any], due_ms: float = math.inf, took_ms: float = 0.0) -> _Job:
        future = asyncio.get_running_loop().create_future()
        return _Job(due_ms, next(self._numbers), took_ms, work, future, copy_context())

    def _next(self) -> None:
        while self._answers and "answers" not in self._busy:
            self._begin("answers", heappop(self._answers))
        while self._pages and not self._busy:
            self._begin("pages", self._pages.popleft())

    def _begin(self, kind: str, job: _Job) -> None:
        if job.future.cancelled():
            self.queued_ms -= job.took_ms
            return
        self._busy.add(kind)
        running = asyncio.get_running_loop().run_in_executor(self._threads[kind], job.context.run, job.work)
        running.add_done_callback(partial(self._done, kind, job))

    def _done(self, kind: str, job: _Job, running: asyncio.Future[Any]) -> None:
        self._busy.discard(kind)
        self.queued_ms -= job.took_ms
        if running.cancelled():
            job.future.cancel()
        elif not job.future.cancelled():
            error = running.exception()
            if error is None:
                job.future.set_result(running.result())
            else:
                job.future.set_exception(error)
        self._next()
