"""A pool of workers, which are threads or processes.

`Workers(extractors, worker).start(extraction)` has an extraction computed; see `Extraction` for how its results arrive.
Workers know no model: the runner turns arrivals into an answer, and a client of the service sends them on.

Every worker has a daemon thread. An extraction goes to as many idle workers as it may use, those that were busy last
first: their caches are warm. If all are busy, the pool starts new ones in the background, up to `max_workers`, and the
extraction waits in the queue for the first free one.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Condition, RLock, Thread, current_thread
from typing import Any, Literal, Self, get_args
from weakref import WeakSet

from anytime.errors import ExtractorError, refuse, suggestion, summary
from anytime.inference.extraction import Arrival, Extraction, Seat, Task, computed
from anytime.inference.workers.process import (
    ProcessWorker,
    WorkerLostError,
    disown_processes,
    packed_extractors,
    packed_input,
)

Worker = Literal["thread", "process"]

STARTED = {"thread": 1, "process": 2}
"""Workers started by the constructor: a process takes most of a second to start, so there is a spare."""

MOST = {"thread": 64, "process": max(4, os.cpu_count() or 1)}
"""Default of `max_workers`: the number of workers follows the callers."""

GRACE_SECONDS = {"thread": 0.05, "process": 5.0}
"""How long `close` waits for the threads: a process can be terminated, a thread inside an extractor cannot."""

_log = logging.getLogger("anytime.workers")

_pools: WeakSet[Workers] = WeakSet()


class _ThreadWorker(Seat):
    """A worker that computes in the calling thread. No caller can stop a thread inside an extractor."""

    def __init__(self, extractors: Mapping[str, Callable[..., Any]]) -> None:
        self._extractors = extractors

    def alive(self) -> bool:
        return True

    def compute(self, extraction: Extraction, tasks: Sequence[Task]) -> None:
        for arrival in computed(
            tasks,
            self._extractors,
            extraction.x,
            extraction.results,
            extraction.skipped,
            in_order=extraction.in_order,
            starting=extraction.starting,
        ):
            if not extraction.put(arrival):
                return

    def abort(self) -> None:
        """Do nothing: the thread ends with its extractor."""

    def close(self) -> None:
        """Do nothing: there is no process."""


class Workers:
    """Threads or processes that compute feature groups; a context manager. The arguments are those of `Runner`.

    By default there are up to 64 threads, or as many processes as cores, at least four. A hanging extractor occupies
    its thread. An extractor that blocks the interpreter delays the whole process, including the answer: loops in Python
    by the interpreter's switch interval (5 ms by default) each time that the answer needs the interpreter, C code that
    keeps the GIL by its full duration.
    """

    def __init__(
        self,
        extractors: Mapping[str, Callable[..., Any]],
        worker: Worker = "thread",
        *,
        max_workers: int | None = None,
        patience_ms: float = 1000.0,
    ) -> None:
        max_workers = MOST.get(str(worker), 1) if max_workers is None else max_workers
        is_count = isinstance(max_workers, int) and not isinstance(max_workers, bool) and max_workers > 0
        refuse(
            {
                f"worker is {worker!r}; {suggestion(str(worker), get_args(Worker))}": worker not in get_args(Worker),
                f"max_workers is {max_workers!r}; expected a whole number, 1 or more": not is_count,
                f"patience_ms is {patience_ms!r}; expected milliseconds, 0 or more": not patience_ms >= 0,
            },
            ExtractorError,
        )
        self.worker = worker
        self.max_workers = max_workers
        self._make: Callable[[], ProcessWorker | _ThreadWorker] = (
            partial(ProcessWorker, packed_extractors(extractors), patience_ms)
            if worker == "process"
            else partial(_ThreadWorker, dict(extractors))
        )
        self._closed = False
        self._renew()
        _pools.add(self)
        # Registered after multiprocessing's own hook, so run before it: processes must not appear to have died.
        atexit.register(self.close)
        with self._lock:
            starts = [self._grow() for _ in range(min(STARTED[worker], max_workers))]
        try:
            for start in starts:
                start.result()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def count(self) -> int:
        """Number of workers, including starting ones and those occupied by abandoned extractors."""
        return len(self._threads)

    def _renew(self) -> None:
        """Reset to no workers and no work, also after a fork: the child has none of its parent's other threads."""
        # A garbage collection may close a pool from a thread with this lock, so it is reentrant.
        self._lock = RLock()
        self._queue: deque[Extraction] = deque()
        self._threads: dict[Thread, ProcessWorker | _ThreadWorker | None] = {}  # None while starting
        self._idle: list[tuple[ProcessWorker | _ThreadWorker, Condition]] = []
        """Idle workers, and what the thread of each waits for; the one that was busy last is the last."""
        self._serving: dict[ProcessWorker | _ThreadWorker, Extraction] = {}

    def start(self, extraction: Extraction, until: float = -math.inf) -> None:
        """Queue an extraction and return at once. Cancel it to abandon it.

        A caller that would wait until some time may instead exchange the messages with an idle process itself, and this
        returns when that ends: each thread that a message wakes takes .1 ms.

        Raises ExtractorError if the workers are closed, or the input is not picklable for a process.
        """
        if self.worker == "process":
            extraction.x = packed_input(extraction.x)
        grown: list[Future[None]] = []
        own: tuple[ProcessWorker, Condition] | None = None
        with self._lock:
            if self._closed:
                raise ExtractorError("these workers are closed; create new ones")
            if self._queue:  # extractions cancelled in the queue would pile up behind hanging extractors
                self._queue = deque(waiting for waiting in self._queue if not waiting.finished)
            if math.isfinite(until) and self._idle and isinstance(worker := self._idle[-1][0], ProcessWorker):
                own = worker, self._idle.pop()[1]
                self._serving[worker] = extraction
            else:
                self._queue.extend([extraction] * extraction.workers)
                for _ in range(extraction.workers):
                    starting = sum([each is None for each in self._threads.values()])
                    if not self._wake() and len(self._queue) > starting and self.count < self.max_workers:
                        grown.append(self._grow())
        for started in grown:
            started.add_done_callback(self._refused)
        if own is not None:
            self._converse(*own, extraction, until)

    def compute_all(self, tasks: Sequence[Task], x: Any, receivers: Iterable[Callable[[Arrival], bool]]) -> None:
        """Compute the groups of an input once for each receiver, at the same time, and wait for all.

        Raises ExtractorError as `start`.
        """
        extractions = [Extraction(tasks, x, receive) for receive in receivers]
        for extraction in extractions:
            self.start(extraction)
        for extraction in extractions:
            extraction.wait(math.inf)

    def _converse(self, worker: ProcessWorker, woken: Condition, extraction: Extraction, until: float) -> None:
        """Exchange the messages of an extraction with an idle process until a time; then its thread continues."""
        ended = False
        try:
            if worker.alive():
                extraction.join(worker)
                worker.begin(extraction, extraction.take())
                if ended := worker.collect(extraction, until):
                    extraction.leave(worker)
        except BaseException:  # such as Ctrl-C: half a message may have been read
            worker.abort()
            raise
        finally:
            with self._lock:
                if ended:
                    del self._serving[worker]
                if not ended or self._queue or self._closed:
                    woken.notify()
                else:
                    self._idle.append((worker, woken))

    @property
    def shortage(self) -> str:
        """Why no worker begins an extraction."""
        with self._lock:
            starting = sum(worker is None for worker in self._threads.values())
            if self._idle:
                return "the deadline was too short for a worker to begin"
            if starting:
                return f"no worker was ready: {starting} of {self.count} are starting"
            return f"no worker was free: all {self.count} of at most {self.max_workers} are busy"

    def abandoned(self) -> dict[str, float]:
        """Return the groups that workers still compute for cancelled extractions, and the time at which each started.

        Times are in seconds of `time.perf_counter`.
        """
        with self._lock:
            return {
                group: started
                for extraction in self._serving.values()
                if extraction.cancelled
                for group, started in extraction.running.copy().items()
            }

    def close(self) -> None:
        """Stop the workers; running extractions end where they are. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for extraction in {*self._queue, *self._serving.values()}:
                extraction.close()
            self._queue.clear()
            while self._wake():
                pass
            threads = dict(self._threads)
        atexit.unregister(self.close)
        for worker in [each for each in threads.values() if each is not None]:
            worker.abort()
        until = time.monotonic() + GRACE_SECONDS[self.worker]
        for thread in threads.keys() - {current_thread()}:
            thread.join(max(0.0, until - time.monotonic()))

    def _grow(self) -> Future[None]:
        """Start a worker in its own thread, with the lock held; the future completes when it is ready, or fails."""
        started: Future[None] = Future()
        thread = Thread(target=self._run_thread, args=(started,), name="anytime-worker", daemon=True)
        self._threads[thread] = None
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            del self._threads[thread]
            started.set_exception(ExtractorError(f"a worker's thread does not start: {summary(error)}"))
        return started

    def _refused(self, started: Future[None]) -> None:
        """Log a worker that failed to start in the background; fail what waits if no other worker can compute it."""
        error = started.exception()
        if error is None:
            return
        _log.warning("a worker did not start: %s", error)
        with self._lock:
            waiting = {each for each in self._queue if not (self._threads or each.finished)}
        for extraction in waiting:  # without the lock: its caller may need it to answer
            extraction.put(Arrival(extraction.tasks[0].group, error=f"no worker starts: {summary(error)}"))
            extraction.cancel()

    def _run_thread(self, started: Future[None]) -> None:
        """Run one thread: create a worker, give it one extraction after another, and replace it when it is lost."""
        try:
            worker = self._make()
        except BaseException as error:  # reported by the future
            with self._lock:
                del self._threads[current_thread()]
            started.set_exception(error)
            return
        with self._lock:
            self._threads[current_thread()] = worker
        started.set_result(None)
        lost = True
        try:
            lost = self._serve(worker)
        finally:
            with self._lock:
                del self._threads[current_thread()]
                self._serving.pop(worker, None)
                replaced = self._grow() if lost and not self._closed else None
            if replaced is not None:
                replaced.add_done_callback(self._refused)
            worker.close()

    def _serve(self, worker: ProcessWorker | _ThreadWorker) -> bool:
        """Compute extractions until the pool closes (False) or the worker is lost (True)."""
        woken = Condition(self._lock)
        while (extraction := self._next(worker, woken)) is not None:
            begun = isinstance(worker, ProcessWorker) and worker.busy
            if not begun and not worker.alive():  # it died between two extractions; this one did not cause it
                self._return(extraction)
                return True
            if not begun:
                extraction.join(worker)
            try:
                if isinstance(worker, ProcessWorker):
                    worker.collect(extraction)
                while tasks := extraction.take():
                    worker.compute(extraction, tasks)
            except WorkerLostError as error:
                if not self._closed:
                    _log.warning("a worker is replaced: %s", error)
                if (error.tasks or extraction.workers > 1) and not extraction.finished:
                    extraction.give_back(error.tasks)
                    self._return(extraction)
                return True
            except BaseException:
                extraction.cancel()  # otherwise its other workers and its caller would wait
                raise
            finally:
                extraction.leave(worker)
        return False

    def _return(self, extraction: Extraction) -> None:
        with self._lock:
            self._queue.appendleft(extraction)
            self._wake()

    def _wake(self) -> bool:
        """Wake the idle worker that was busy last, with the lock held; return whether there is one."""
        if self._idle:
            self._idle.pop()[1].notify()
            return True
        return False

    def _next(self, worker: ProcessWorker | _ThreadWorker, woken: Condition) -> Extraction | None:
        """Return the next extraction for a worker, or one that a caller has begun."""
        with self._lock:
            self._serving.pop(worker, None)
            while not self._closed:
                if worker in self._serving:
                    return self._serving[worker]
                if not self._queue:
                    self._idle.append((worker, woken))
                    woken.wait()
                elif not (extraction := self._queue.popleft()).finished:
                    self._serving[worker] = extraction
        return None


def _renew_pools() -> None:
    """Reset the pools in a forked child: its parent keeps the workers, and the child starts its own on demand."""
    disown_processes()
    for pool in _pools:
        pool._renew()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_pools)
