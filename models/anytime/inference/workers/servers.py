"""Servers of extractions: one computes in its own thread, the other in a process that its thread supervises.

A server belongs to one thread of the pool and computes one extraction at a time.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import pickle
import select
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from ctypes import c_longlong
from functools import partial
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any, Protocol
from weakref import WeakSet

from anytime._linalg import single_blas_thread
from anytime.errors import ExtractorError, summary
from anytime.inference.workers.extraction import Arrival, Extraction, computed

__all__ = [
    "ProcessServer",
    "Server",
    "ServerLostError",
    "ThreadServer",
    "disown_processes",
    "packed",
    "packed_extractors",
    "packed_input",
    "serve",
]


def serve(pipe: Connection[Any, Any], stop: c_longlong) -> None:
    """Serve jobs until the other end of the pipe is closed."""
    # Ctrl-C reaches every process of a terminal; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        extractors = pipe.recv()
    except Exception as error:  # importing a foreign module may raise anything
        pipe.send_bytes(packed(summary(error)))
        return
    pipe.send_bytes(packed(None))
    # The other cores belong to the process that answers; spinning BLAS threads would occupy them.
    with single_blas_thread():
        _serve_jobs(pipe, extractors, stop)


def _serve_jobs(pipe: Connection[Any, Any], extractors: Mapping[str, Callable[[Any], Any]], stop: c_longlong) -> None:
    try:
        while True:
            job, order = pipe.recv()
            try:
                x = pipe.recv()
            except (EOFError, OSError):
                raise
            except Exception as error:  # unpickling a foreign class may raise anything
                _send(pipe, Arrival(order[0], None, 0.0, f"the input does not load in the worker: {summary(error)}"))
            else:
                for arrival in computed(order, extractors, x, partial(_stopped, stop, job)):
                    _send(pipe, arrival)
            pipe.send_bytes(packed(None))
    except (EOFError, OSError):
        return


def packed(message: object) -> bytes:
    """Return a pickled message, in the newest protocol."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def _stopped(stop: c_longlong, job: int) -> bool:
    return stop.value >= job


def _send(pipe: Connection[Any, Any], arrival: Arrival) -> None:
    try:
        message = packed((arrival.group, arrival.values, arrival.took_ms, arrival.error))
    except Exception as error:  # pickling foreign values may raise anything
        reason = f"its values are not picklable: {summary(error)}"
        message = packed((arrival.group, None, arrival.took_ms, reason))
    pipe.send_bytes(message)


START_SECONDS = 120.0
"""Time limit for a process to import its extractors."""

TICK_SECONDS = 0.05
"""How often the supervisor of a silent process checks whether its extraction was cancelled too long ago."""

END_SECONDS = 2.0
"""How long a process may take to end after SIGTERM, before SIGKILL."""

_processes: WeakSet[multiprocessing.process.BaseProcess] = WeakSet()


class ServerLostError(Exception):
    """The server stopped working and must be replaced."""


class Server(Protocol):
    """Computes extractions; `compute` blocks until one is finished or cancelled."""

    def alive(self) -> bool:
        """Return whether the server accepts an extraction."""

    def compute(self, extraction: Extraction) -> None:
        """Compute and put every group; raise ServerLostError if the server fails."""

    def abort(self) -> None:
        """End a running `compute` soon, if possible; called from any thread."""

    def close(self) -> None:
        """Release all resources; called from the thread that computes."""


class ThreadServer:
    """A server that computes in the calling thread."""

    def __init__(self, extractors: Mapping[str, Callable[[Any], Any]]) -> None:
        self._extractors = extractors

    def alive(self) -> bool:
        """Return True: threads do not die."""
        return True

    def compute(self, extraction: Extraction) -> None:
        """Call one extractor after another until cancelled."""
        for arrival in computed(extraction.order, self._extractors, extraction.x, lambda: extraction.cancelled):
            extraction.put(arrival)

    def abort(self) -> None:
        """Do nothing: there is no way to stop a thread inside an extractor."""

    def close(self) -> None:
        """Do nothing: there are no resources."""


class ProcessServer:
    """A server that supervises its own process, started by spawn and ready when the constructor returns.

    Parameters
    ----------
    extractors : pickled by `packed_extractors`.
    patience_ms : milliseconds that a cancelled extractor may continue before its process is killed.

    Raises
    ------
    ExtractorError
        The process ended or failed to import the extractors.
    """

    def __init__(self, extractors: bytes, patience_ms: float) -> None:
        self._kill_after = patience_ms / 1e3
        self._job = 0
        self._lock = Lock()
        self._closed = False
        context = multiprocessing.get_context("spawn")
        # No lock around the value: one side writes, the other reads, and eight aligned bytes are written at once.
        self._stop = context.RawValue(c_longlong, 0)
        self._pipe, child_end = context.Pipe()
        self._readable = _waiting(self._pipe)
        self._unread = _waiting(self._pipe)  # for the other thread: a `select.poll` object serves one thread at a time
        self._forwarding = False
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
        """Return whether the process is running."""
        return self._process.is_alive()

    def compute(self, extraction: Extraction) -> None:
        """Send the job and put each arriving group; kill the process if it stays busy too long after a cancellation.

        Raises
        ------
        ServerLostError
            The process died or was killed; the group that it was computing has been put as failed.
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
            raise ServerLostError(reason) from None

    def _receive(self, extraction: Extraction, group: str | None) -> Arrival | None:
        """Return the next message, which belongs to `group`, or None at the end of the job."""
        while not self._readable(TICK_SECONDS):
            since = extraction.cancelled_at
            if since is not None and time.perf_counter() - since > self._kill_after:
                raise ServerLostError(f"killed: still busy {self._kill_after * 1e3:g} ms after it was cancelled")
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
        return self._unread(0.0) or self._forwarding

    def _ending(self) -> str:
        self._process.join(END_SECONDS)
        code = self._process.exitcode
        if code is None:
            return "its pipe is closed"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def abort(self) -> None:
        """Terminate the process."""
        with self._lock:
            if not self._closed:
                self._process.terminate()

    def close(self) -> None:
        """Terminate the process, wait for it, and close the pipe."""
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


def disown_processes() -> None:
    """Stop multiprocessing in a forked child from ending the parent's processes when the child exits."""
    multiprocessing.process._children.difference_update(_processes)  # type: ignore[attr-defined]


def _waiting(pipe: Connection[Any, Any]) -> Callable[[float], bool]:
    """Return a function that waits, for at most some seconds, until a pipe is readable.

    It is `pipe.poll` without the setup that `pipe.poll` repeats at each call.
    """
    if not hasattr(select, "poll"):  # Windows
        return pipe.poll
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    return lambda seconds: bool(poller.poll(seconds * 1e3))


def packed_extractors(extractors: Mapping[str, Callable[[Any], Any]]) -> bytes:
    """Return the extractors pickled, by reference, for a process.

    Raises
    ------
    ExtractorError
        One of them, named in the message, is not picklable.
    """
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
    """Return the input pickled for a process.

    Raises
    ------
    ExtractorError
        The input is not picklable.
    """
    try:
        return packed(x)
    except Exception as error:  # pickling a foreign object may raise anything
        raise ExtractorError(
            f"input of type {type(x).__name__} is not picklable for a process ({summary(error)}); use worker='thread'"
        ) from error
