"""Workers that compute feature groups in threads or processes while the caller watches the clock.

`Workers(extractors, worker).start(order, x)` returns an `Extraction`; its `arrivals(until)` yields the groups as they
arrive. Workers know no model: the runner turns arrivals into an answer, and a client of the service sends them on.

Every worker has a daemon thread. An extraction goes to an idle worker. If all are busy, the pool starts a new one in
the background, up to `max_workers`, and the extraction waits in the queue for the first free worker.

A worker process and its thread, which owns the parent's end of the pipe, send

    parent -> child    extractors, then for each job (job, order) and x
    child -> parent    None (ready) or the error, then for each job the fields of each `Arrival`, and None at its end

All messages are pickled by `packed`: `Connection.send` pickles too, at several times the cost. `stop` is shared memory:
jobs with numbers up to its value are cancelled. The child checks it before each extractor.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import multiprocessing.process
import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from ctypes import c_longlong
from multiprocessing.connection import Connection
from threading import Condition, Lock, Thread, current_thread
from typing import Any, Literal, Self, get_args
from weakref import WeakSet

from anytime._linalg import single_blas_thread
from anytime.errors import ExtractorError, suggestion, summary
from anytime.inference.extraction import Arrival, Extraction, computed

Worker = Literal["thread", "process"]

STARTED = {"thread": 1, "process": 2}
"""Workers started by the constructor: a process takes most of a second to start, so there is a spare."""

GRACE_SECONDS = {"thread": 0.05, "process": 5.0}
"""How long `close` waits for the threads: a process can be terminated, a thread inside an extractor cannot."""

START_SECONDS = 120.0
"""Time limit for a process to import its extractors."""

TICK_SECONDS = 0.05
"""How often the parent of a silent process checks whether its extraction was cancelled too long ago."""

END_SECONDS = 2.0
"""How long a process may take to end after SIGTERM, before SIGKILL."""

_log = logging.getLogger("anytime.workers")

_pools: WeakSet[Workers] = WeakSet()


def packed(message: object) -> bytes:
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def packed_for_process(message: object, what: str, remedy: str = "") -> bytes:
    try:
        return packed(message)
    except Exception as error:  # pickling a foreign object may raise anything
        why = f"{what} is not picklable for a process ({summary(error)})"
        raise ExtractorError(f"{why}; {remedy}use worker='thread'") from error


def packed_extractors(extractors: Mapping[str, Callable[[Any], Any]]) -> bytes:
    remedy = "define it at the top level of a module, not as a lambda or inside a function, or "
    for group, extractor in extractors.items():
        packed_for_process(extractor, f"the extractor of group {group!r}", remedy)
    return packed(dict(extractors))


def serve(pipe: Connection[Any, Any], stop: c_longlong) -> None:
    """Run the child: compute jobs until the other end of the pipe is closed."""
    # Ctrl-C reaches every process of a terminal; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        extractors = pipe.recv()
    except Exception as error:  # importing a foreign module may raise anything
        pipe.send_bytes(packed(summary(error)))
        return
    pipe.send_bytes(packed(None))
    # The other cores belong to the process that answers; spinning BLAS threads would occupy them.
    with single_blas_thread(), suppress(EOFError, OSError):
        while True:
            _serve_job(pipe, extractors, stop)


def _serve_job(pipe: Connection[Any, Any], extractors: Mapping[str, Callable[[Any], Any]], stop: c_longlong) -> None:
    job, order = pipe.recv()
    try:
        x = pipe.recv()
    except (EOFError, OSError):
        raise
    except Exception as error:  # unpickling a foreign class may raise anything
        _send(pipe, Arrival(order[0], None, 0.0, f"the input does not load in the worker: {summary(error)}"))
    else:
        for arrival in computed(order, extractors, x, lambda: stop.value >= job):
            _send(pipe, arrival)
    pipe.send_bytes(packed(None))


def _send(pipe: Connection[Any, Any], arrival: Arrival) -> None:
    try:
        message = packed((arrival.group, arrival.values, arrival.took_ms, arrival.error))
    except Exception as error:  # pickling foreign values may raise anything
        reason = f"its values are not picklable: {summary(error)}"
        message = packed((arrival.group, None, arrival.took_ms, reason))
    pipe.send_bytes(message)


class WorkerLostError(Exception):
    """The worker stopped and must be replaced."""


_processes: WeakSet[multiprocessing.process.BaseProcess] = WeakSet()


class ProcessWorker:
    """The parent's side of a worker process, which is started by spawn and ready when the constructor returns.

    A cancelled extractor may continue for `patience_ms` before its process is killed. Raises ExtractorError if the
    process ended or failed to import the extractors.
    """

    def __init__(self, extractors: bytes, patience_ms: float) -> None:
        self._kill_after = patience_ms / 1e3
        self._job = 0
        self._forwarding = False
        self._lock = Lock()
        self._closed = False
        context = multiprocessing.get_context("spawn")
        # No lock around the value: one side writes, the other reads, and eight aligned bytes are written at once.
        self._stop = context.RawValue(c_longlong, 0)
        self._pipe, child_end = context.Pipe()
        self._process = context.Process(target=serve, args=(child_end, self._stop), name="anytime-worker", daemon=True)
        _processes.add(self._process)
        try:
            try:
                self._process.start()
            finally:
                child_end.close()
            self._prepare(extractors)
        except BaseException:
            self.close()
            raise

    def _prepare(self, extractors: bytes) -> None:
        try:
            self._pipe.send_bytes(extractors)
            refusal = self._pipe.recv() if self._pipe.poll(START_SECONDS) else f"not ready after {START_SECONDS:g} s"
        except (EOFError, OSError):
            raise ExtractorError(
                f"the worker process ended while starting ({self._ending()}); a script must do its work under "
                "\"if __name__ == '__main__':\", since worker processes import it"
            ) from None
        if refusal is not None:
            raise ExtractorError(
                f"the extractors do not load in a worker process ({refusal}); define them in a module "
                "that it can import, or use worker='thread'"
            )

    def alive(self) -> bool:
        return self._process.is_alive()

    def compute(self, extraction: Extraction) -> None:
        """Send the job and put each arriving group.

        Raises WorkerLostError if the process died, and the group that it was computing has been put as failed; or if it
        stays busy too long after a cancellation, and the caller must close it.
        """
        self._job += 1
        job = self._job
        self._forwarding = False
        extraction.begin(lambda: setattr(self._stop, "value", job), self._pending)
        groups = iter(extraction.order)
        group = next(groups, None)
        try:
            self._pipe.send_bytes(packed((job, extraction.order)))
            self._pipe.send_bytes(extraction.x)
            while (arrival := self._receive(extraction, group)) is not None:
                extraction.put(arrival)
                self._forwarding = False
                group = next(groups, None)
        except (EOFError, OSError):
            reason = f"the worker process ended ({self._ending()})"
            if group is not None:
                extraction.put(Arrival(group, None, 0.0, reason))
            raise WorkerLostError(reason) from None

    def _receive(self, extraction: Extraction, group: str | None) -> Arrival | None:
        """Return the next message, which belongs to `group`, or None at the end of the job."""
        while not self._pipe.poll(TICK_SECONDS):
            since = extraction.cancelled_at
            if since is not None and time.perf_counter() - since > self._kill_after:
                raise WorkerLostError(f"killed: still busy {self._kill_after * 1e3:g} ms after it was cancelled")
        self._forwarding = True
        try:
            message = self._pipe.recv()
        except (EOFError, OSError):
            raise
        except Exception as error:  # unpickling foreign values may raise anything
            return Arrival(str(group), None, 0.0, f"its values do not load: {summary(error)}")
        return None if message is None else Arrival(*message)

    def _pending(self) -> bool:
        """Return whether a message has not been put yet; called from any thread."""
        # The order matters: the flag is set before a message leaves the pipe and cleared after its group is put.
        return self._pipe.poll() or self._forwarding

    def _ending(self) -> str:
        self._process.join(END_SECONDS)
        code = self._process.exitcode
        if code is None:
            return "its pipe is closed"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def abort(self) -> None:
        """Terminate the process, which ends a running `compute` soon; called from any thread."""
        with self._lock:
            if not self._closed:
                self._process.terminate()

    def close(self) -> None:
        """Terminate the process, wait for it, and close the pipe; called from the thread that computes."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._pipe.close()
        if self._process.pid is None:  # it was never started
            return
        self._process.terminate()
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(END_SECONDS)
        with suppress(ValueError):  # SIGKILL did not end it in time; it is a daemon, and the system ends it
            self._process.close()


class _ThreadWorker:
    """A worker that computes in the calling thread. No caller can stop a thread inside an extractor."""

    def __init__(self, extractors: Mapping[str, Callable[[Any], Any]]) -> None:
        self._extractors = extractors

    def alive(self) -> bool:
        return True

    def compute(self, extraction: Extraction) -> None:
        for arrival in computed(extraction.order, self._extractors, extraction.x, lambda: extraction.cancelled):
            extraction.put(arrival)

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


class Workers:
    """Threads or processes that compute feature groups; a context manager. The arguments are those of `Runner`.

    A hanging extractor occupies its thread. An extractor that blocks the interpreter delays the whole process,
    including the answer: loops in Python by the interpreter's switch interval (5 ms by default), C code that keeps the
    GIL by its full duration.
    """

    def __init__(
        self,
        extractors: Mapping[str, Callable[[Any], Any]],
        worker: Worker = "thread",
        *,
        max_workers: int = 4,
        patience_ms: float = 1000.0,
    ) -> None:
        if worker not in get_args(Worker):
            raise ExtractorError(f"worker is {worker!r}; {suggestion(str(worker), get_args(Worker))}")
        if isinstance(max_workers, bool) or not isinstance(max_workers, int) or max_workers < 1:
            raise ExtractorError(f"max_workers is {max_workers!r}; expected a whole number, 1 or more")
        if not patience_ms >= 0:
            raise ExtractorError(f"patience_ms is {patience_ms!r}; expected milliseconds, 0 or more")
        self.worker = worker
        self.max_workers = max_workers
        self._make: Callable[[], ProcessWorker | _ThreadWorker]
        self._pack: Callable[[Any], Any]
        if worker == "process":
            packed = packed_extractors(extractors)
            self._make = lambda: ProcessWorker(packed, patience_ms)
            self._pack = lambda x: packed_for_process(x, f"input of type {type(x).__name__}")
        else:
            own = dict(extractors)
            self._make, self._pack = lambda: _ThreadWorker(own), lambda x: x
        self._closed = False
        self._renew()
        _pools.add(self)
        # Registered after multiprocessing's own hook, so run before it: processes must not appear to have died.
        atexit.register(self.close)
        with self._changed:
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
        # A garbage collection may close a pool from a thread with this lock; Condition's lock is reentrant.
        self._changed = Condition()
        self._queue: deque[Extraction] = deque()
        self._threads: dict[Thread, ProcessWorker | _ThreadWorker | None] = {}  # None while starting
        self._idle = 0

    def start(self, order: Sequence[str], x: Any) -> Extraction:
        """Queue the groups of `x` for computation in order and return at once. Cancel the extraction to abandon it.

        Raises ExtractorError if the workers are closed, or `x` is not picklable for a process.
        """
        extraction = Extraction(order, self._pack(x))
        with self._changed:
            if self._closed:
                raise ExtractorError("these workers are closed; create new ones")
            if self._queue:  # extractions cancelled in the queue would pile up behind hanging extractors
                self._queue = deque(waiting for waiting in self._queue if not waiting.cancelled)
            self._queue.append(extraction)
            starting = sum(worker is None for worker in self._threads.values())
            if len(self._queue) > self._idle + starting and self.count < self.max_workers:
                self._grow().add_done_callback(_log_refusal)
            self._changed.notify()
        return extraction

    def close(self) -> None:
        """Stop the workers; running extractions end where they are. Idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            for extraction in self._queue:
                extraction.finish()
            self._queue.clear()
            self._changed.notify_all()
            threads = dict(self._threads)
        atexit.unregister(self.close)
        for worker in threads.values():
            if worker is not None:
                worker.abort()
        until = time.monotonic() + GRACE_SECONDS[self.worker]
        for thread in threads:
            if thread is not current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def _grow(self) -> Future[None]:
        """Start a worker in its own thread, with the lock held; the future completes when it is ready, or fails."""
        started: Future[None] = Future()
        thread = Thread(target=self._run_thread, args=(started,), name="anytime-worker", daemon=True)
        self._threads[thread] = None
        thread.start()
        return started

    def _run_thread(self, started: Future[None]) -> None:
        """Run one thread: create a worker, give it one extraction after another, and replace it when it is lost."""
        try:
            worker = self._make()
        except BaseException as error:  # reported by the future
            with self._changed:
                del self._threads[current_thread()]
            started.set_exception(error)
            return
        with self._changed:
            self._threads[current_thread()] = worker
        started.set_result(None)
        lost = True
        try:
            lost = self._serve(worker)
        finally:
            with self._changed:
                del self._threads[current_thread()]
                if lost and not self._closed:
                    self._grow().add_done_callback(_log_refusal)
            worker.close()

    def _serve(self, worker: ProcessWorker | _ThreadWorker) -> bool:
        """Compute extractions until the pool closes (False) or the worker is lost (True)."""
        while (extraction := self._next()) is not None:
            if not worker.alive():  # it died between two extractions; this one did not cause it
                with self._changed:
                    self._queue.appendleft(extraction)
                    self._changed.notify()
                return True
            try:
                worker.compute(extraction)
            except WorkerLostError as error:
                if not self._closed:
                    _log.warning("a worker is replaced: %s", error)
                return True
            finally:
                extraction.finish()
        return False

    def _next(self) -> Extraction | None:
        with self._changed:
            self._idle += 1
            try:
                while not self._closed:
                    if not self._queue:
                        self._changed.wait()
                    elif not (extraction := self._queue.popleft()).cancelled:
                        return extraction
            finally:
                self._idle -= 1
        return None


def _renew_pools() -> None:
    """Reset the pools in a forked child: its parent keeps the workers, and the child starts its own on demand."""
    # Otherwise multiprocessing ends the parent's processes when the child exits.
    multiprocessing.process._children.difference_update(_processes)  # type: ignore[attr-defined]
    for pool in _pools:
        pool._renew()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_pools)


def _log_refusal(started: Future[None]) -> None:
    """Log a worker that failed to start in the background, where no caller waits for it."""
    error = started.exception()
    if error is not None:
        _log.warning("a worker did not start: %s", error)
