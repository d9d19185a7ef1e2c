"""Where an extraction is computed: in the thread that was given it, or in a process that this thread attends.

A server belongs to one thread of the pool and computes one extraction at a time.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import select
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from ctypes import c_longlong
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any, Protocol
from weakref import WeakSet

from anytime.errors import ExtractorError, summary
from anytime.inference.workers.child import packed, serve
from anytime.inference.workers.extraction import Arrival, Extraction, computed

__all__ = [
    "ProcessServer",
    "Server",
    "ServerLostError",
    "ThreadServer",
    "disown_processes",
    "packed_extractors",
    "packed_input",
]

START_SECONDS = 120.0
"""A process that has not imported its extractors by then is given up."""

TICK_SECONDS = 0.05
"""How often the attendant of a silent process looks whether its extraction has been cancelled for too long."""

END_SECONDS = 2.0
"""How long a process may take to end after SIGTERM, before SIGKILL."""

_processes: WeakSet[multiprocessing.process.BaseProcess] = WeakSet()


class ServerLostError(Exception):
    """The server can compute no more; another takes its place."""


class Server(Protocol):
    """Computes extractions; `compute` blocks until one is done or cancelled."""

    def alive(self) -> bool:
        """Whether it can take an extraction."""

    def compute(self, extraction: Extraction) -> None:
        """Put every group; ServerLostError when it cannot go on."""

    def abort(self) -> None:
        """Make a running `compute` end soon, if that is possible; from any thread."""

    def close(self) -> None:
        """Release everything; from the thread that computes."""


class ThreadServer:
    """Computes in the calling thread."""

    def __init__(self, extractors: Mapping[str, Callable[[Any], Any]]) -> None:
        self._extractors = extractors

    def alive(self) -> bool:
        """Threads do not die."""
        return True

    def compute(self, extraction: Extraction) -> None:
        """Call one extractor after another until cancelled."""
        for arrival in computed(extraction.order, self._extractors, extraction.x, lambda: extraction.cancelled):
            extraction.put(arrival)

    def abort(self) -> None:
        """Nothing can stop a thread inside an extractor."""

    def close(self) -> None:
        """Nothing is held."""


class ProcessServer:
    """Attends a process of its own, started afresh (spawn) and ready when the constructor returns.

    Parameters
    ----------
    extractors : pickled, as `packed_extractors` makes them.
    patience_ms : how long a cancelled extractor may go on before its process is killed.

    Raises
    ------
    ExtractorError
        The process ended or failed to import the extractors.
    """

    def __init__(self, extractors: bytes, patience_ms: float) -> None:
        self._patience = patience_ms / 1e3
        self._job = 0
        self._lock = Lock()
        self._closed = False
        context = multiprocessing.get_context("spawn")
        # No lock around the value: one side writes, the other reads, and eight aligned bytes are written at once.
        self._stop = context.RawValue(c_longlong, 0)
        self._pipe, theirs = context.Pipe()
        self._readable = _waiting(self._pipe)
        self._unread = _waiting(self._pipe)  # for the other thread: an object of `select.poll` serves one at a time
        self._passing_on = False
        self._process = context.Process(target=serve, args=(theirs, self._stop), name="anytime-worker", daemon=True)
        _processes.add(self._process)
        try:
            try:
                self._process.start()
            finally:
                theirs.close()
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
        """Whether the process is still there."""
        return self._process.is_alive()

    def compute(self, extraction: Extraction) -> None:
        """Send the job and put each group that arrives; kill the process if it works on for too long after a cancel.

        Raises
        ------
        ServerLostError
            The process died, or was killed; the group that it was computing has been put as failed.
        """
        self._job += 1
        job = self._job
        self._passing_on = False
        extraction.begin(lambda: setattr(self._stop, "value", job), self._pending)
        groups = iter(extraction.order)
        group = next(groups, None)
        try:
            self._pipe.send_bytes(packed((job, extraction.order)))
            self._pipe.send_bytes(extraction.x)
            while (arrival := self._receive(extraction, group)) is not None:
                extraction.put(arrival)
                self._passing_on = False
                group = next(groups, None)
        except (EOFError, OSError):
            reason = f"the worker process ended ({self._ending()})"
            if group is not None:
                extraction.put(Arrival(group, None, 0.0, reason))
            raise ServerLostError(reason) from None

    def _receive(self, extraction: Extraction, group: str | None) -> Arrival | None:
        """Read the next message, which is about `group`, or None at the end of the job."""
        while not self._readable(TICK_SECONDS):
            since = extraction.cancelled_at
            if since is not None and time.perf_counter() - since > self._patience:
                raise ServerLostError(f"killed: still busy {self._patience * 1e3:g} ms after it was cancelled")
        self._passing_on = True
        try:
            message = self._pipe.recv()
        except (EOFError, OSError):
            raise
        except Exception as error:  # whatever unpickling somebody's values raises
            return Arrival(str(group), None, 0.0, f"its values do not load: {summary(error)}")
        return None if message is None else Arrival(*message)

    def _pending(self) -> bool:
        """Whether a message has not been put yet; from any thread."""
        # In this order: the flag is set before a message leaves the pipe and cleared after its group has been put.
        return self._unread(0.0) or self._passing_on

    def _ending(self) -> str:
        self._process.join(END_SECONDS)
        code = self._process.exitcode
        if code is None:
            return "its pipe is closed"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def abort(self) -> None:
        """End the process."""
        with self._lock:
            if not self._closed:
                self._process.terminate()

    def close(self) -> None:
        """End the process, wait for it, and close the pipe."""
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
        with suppress(ValueError):  # not even SIGKILL ended it within the time; it is a daemon, and left to the system
            self._process.close()


def disown_processes() -> None:
    """In a child that was forked off: have multiprocessing not end, when the child exits, what its parent started."""
    multiprocessing.process._children.difference_update(_processes)  # type: ignore[attr-defined]


def _waiting(pipe: Connection[Any, Any]) -> Callable[[float], bool]:
    """Find how to wait, at most some seconds, for a pipe to be readable: `pipe.poll` prepares anew at each call."""
    if not hasattr(select, "poll"):  # Windows
        return pipe.poll
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    return lambda seconds: bool(poller.poll(seconds * 1e3))


def packed_extractors(extractors: Mapping[str, Callable[[Any], Any]]) -> bytes:
    """Pickle the extractors, by reference, for a process.

    Raises
    ------
    ExtractorError
        One of them, named, cannot be pickled.
    """
    for group, extractor in extractors.items():
        try:
            packed(extractor)
        except Exception as error:  # whatever pickling somebody's callable raises
            raise ExtractorError(
                f"the extractor of group {group!r} cannot be sent to a process ({summary(error)}); define it "
                "at the top level of a module, not as a lambda or inside a function, or use worker='thread'"
            ) from error
    return packed(dict(extractors))


def packed_input(x: Any) -> bytes:
    """Pickle the input, for a process.

    Raises
    ------
    ExtractorError
        It cannot be pickled.
    """
    try:
        return packed(x)
    except Exception as error:  # whatever pickling somebody's object raises
        raise ExtractorError(
            f"an input of type {type(x).__name__} cannot be sent to a process ({summary(error)}); use worker='thread'"
        ) from error
