"""A worker process that computes extractions: the child's loop, and the parent's side, which belongs to one thread.

    parent -> child    extractors, then for each job (job, order) and x
    child -> parent    None (ready) or the error, then for each job the fields of each `Arrival`, and None at its end

All messages are pickled by `packed`: `Connection.send` pickles too, at several times the cost.

`stop` is shared memory: jobs with numbers up to its value are cancelled. The child checks it before each extractor.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import pickle
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from ctypes import c_longlong
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any
from weakref import WeakSet

from anytime._linalg import single_blas_thread
from anytime.errors import ExtractorError, summary
from anytime.inference.extraction import Arrival, Extraction, computed

START_SECONDS = 120.0
"""Time limit for a process to import its extractors."""

TICK_SECONDS = 0.05
"""How often the parent of a silent process checks whether its extraction was cancelled too long ago."""

END_SECONDS = 2.0
"""How long a process may take to end after SIGTERM, before SIGKILL."""


def packed(message: object) -> bytes:
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def packed_extractors(extractors: Mapping[str, Callable[[Any], Any]]) -> bytes:
    for group, extractor in extractors.items():
        try:
            packed(extractor)
        except Exception as error:  # pickling a foreign callable may raise anything
            raise ExtractorError(
                f"the extractor of group {group!r} is not picklable for a process ({summary(error)}); define it "
                "at the top level of a module, not as a lambda or inside a function, or use worker='thread'"
            ) from error
    return packed(dict(extractors))


def packed_input(x: Any) -> bytes:
    """Return the input pickled; raise ExtractorError if it is not picklable."""
    try:
        return packed(x)
    except Exception as error:  # pickling a foreign object may raise anything
        raise ExtractorError(
            f"input of type {type(x).__name__} is not picklable for a process ({summary(error)}); use worker='thread'"
        ) from error


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


def disown_processes() -> None:
    """Stop multiprocessing in a forked child from ending the parent's processes when the child exits."""
    multiprocessing.process._children.difference_update(_processes)  # type: ignore[attr-defined]


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
