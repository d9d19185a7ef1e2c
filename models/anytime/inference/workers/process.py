"""A worker process: its loop, and the parent's side of it.

The process and the parent's thread that owns the other end of its pipe send

    parent -> child    extractors, then each `_Job`, the descriptor of new shared memory, and b"written"
    child -> parent    None and a clock reading (ready) or the error, then packed arrivals, and `END` or `KEPT`
                       after the last of a job
    child -> parent    on a second pipe, the bell: one message a job, at its end or as soon as the parent must read

A parent that has time does not wait for arrivals but for the bell: a message that wakes a thread costs both sides
.1 ms, and one that stays in the pipe a tenth of that.

All messages are pickled by `packed`: `Connection.send` pickles too, at several times the cost. Large arrays of an input
do not travel through the pipe: the parent copies them into anonymous shared memory, which ends with its last process,
however it ends. The child computes on them there. Extractors may keep an input, such as the last frame: the child then
reports it at the end of the job, the parent writes its next input to new memory, and the child copies later inputs.

`stop` is shared memory, too: jobs with numbers up to its value are cancelled. The child checks it before each group.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import multiprocessing.process
import os
import pickle
import select
import signal
import socket
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from multiprocessing.connection import Connection
from threading import Lock, Thread
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anytime._linalg import single_blas_thread
from anytime.errors import ExtractorError, summary
from anytime.inference.extraction import Arrival, Extraction, Seat, Task, computed

START_SECONDS = 120.0
"""Time limit for a process to import its extractors."""

TICK_SECONDS = 0.05
"""How often the parent of a silent process checks whether its extraction was cancelled too long ago."""

END_SECONDS = 2.0
"""How long a process may take to end after SIGTERM, before SIGKILL."""

ALIGNMENT = 64
"""Of arrays in shared memory, in bytes."""

LARGE = 1 << 16
"""Bytes of an array from which it goes through shared memory, not through the pipe."""

MAPPED = (1 << 25) - (1 << 16)
"""Bytes that a process allocates and frees once, just below the largest mapping threshold of glibc's malloc (32 MiB).

From then on glibc reuses the memory of arrays up to that size. Before, it returned it to the system, and each frame's
arrays caused page faults: optical flow of 640 x 480 took a quarter longer than in the parent.
"""

END, KEPT = b"", b"kept"
"""The end of a job; with `KEPT`, the memory of its input is still in use."""

READING_S = 3e-4
"""How long before a time the parent begins to read what must have been added by then."""

FD_SETSIZE = 1024
"""Descriptors from this number on are beyond what select(2) accepts."""

UNREAD = 1 << 16
"""Bytes of messages that the parent may leave in the pipe; a pipe has more, and the child waits while it is full."""

_SHARED_MEMORY = hasattr(os, "memfd_create") and hasattr(socket, "send_fds")


def packed(message: object) -> bytes:
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


@dataclass(frozen=True)
class PackedInput:
    """A pickled input, and its large arrays as bytes."""

    data: bytes
    arrays: tuple[memoryview, ...]


class _SentInput(NamedTuple):
    """An input as its child receives it: the pickle, and where its arrays lie in the shared memory."""

    data: bytes
    spans: Sequence[tuple[int, int]]
    memory: int
    """Size of the shared memory if it is new, and its descriptor follows; else 0."""


class _Job(NamedTuple):
    number: int
    tasks: Sequence[Task]
    in_order: bool
    x: _SentInput | None
    """None if the input is that of the previous job."""
    results: Mapping[str, Any]
    skipped: tuple[str, ...]
    returns_results: bool
    """Whether to send the results of groups without features."""


class _SharedMemory:
    """Memory that the parent writes and the child reads; it grows to the largest input."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self.received = _SentInput(b"", (), 0)
        self._arrays: list[weakref.ref[NDArray[np.uint8]]] = []
        """What the arrays of the input that the child read are views of."""
        self._copies = False
        """Whether extractors kept an input: new memory for each would cost 1 ms for 2 MB, a copy costs half as much."""

    def reserve(self, x: PackedInput) -> _SentInput:
        """Return what to send for an input; `send` follows."""
        begins = [*accumulate((array.nbytes + -array.nbytes % ALIGNMENT for array in x.arrays), initial=0)]
        spans, size = [(at, at + array.nbytes) for at, array in zip(begins, x.arrays, strict=False)], begins[-1]
        is_new = bool(size) and (self._memory is None or len(self._memory) < size)
        return _SentInput(x.data, spans, size if is_new else 0)

    def send(self, x: PackedInput, sent: _SentInput, pipe: Connection[Any, Any]) -> None:
        """Write the arrays, after what `reserve` returned has been sent: the child wakes up meanwhile."""
        if sent.memory:
            descriptor = os.memfd_create("anytime-input")
            try:
                os.ftruncate(descriptor, sent.memory)
                self._memory = mmap.mmap(descriptor, sent.memory)
                with _socket(pipe) as sending:
                    socket.send_fds(sending, [b"\0"], [descriptor])
            finally:
                os.close(descriptor)
        for array, (begin, end) in zip(x.arrays, sent.spans, strict=True):
            assert self._memory is not None  # noqa: S101
            self._memory[begin:end] = array
        if sent.spans:
            pipe.send_bytes(b"written")

    def receive(self, x: _SentInput, pipe: Connection[Any, Any]) -> None:
        """Receive what `send` sends."""
        self.received = x
        if x.memory:
            with _socket(pipe) as receiving:
                _, descriptors, _, _ = socket.recv_fds(receiving, 1, 1)
            try:
                self._memory = mmap.mmap(descriptors[0], x.memory)
            finally:
                os.close(descriptors[0])
        if x.spans:
            pipe.recv_bytes()

    def read(self) -> Any:
        """Return the received input, whose arrays are in this memory; raise what unpickling raises."""
        x, memory = self.received, self._memory or b""
        arrays = [np.frombuffer(memory, np.uint8, end - begin, begin) for begin, end in x.spans]
        if self._copies:
            return pickle.loads(x.data, buffers=[bytearray(array) for array in arrays])  # noqa: S301
        self._arrays = [weakref.ref(array) for array in arrays]
        return pickle.loads(x.data, buffers=[array.data for array in arrays])  # noqa: S301  (from the parent)

    def in_use(self) -> bool:
        """Return whether the child still uses the memory of the input that it read; it copies later ones then."""
        kept = any(array() is not None for array in self._arrays)
        self._arrays = []
        self._copies = self._copies or kept
        return kept

    def forget(self) -> None:
        """Use new memory for the next input; the memory ends with the last array in it."""
        self._memory = None


def _poller(pipe: Connection[Any, Any]) -> Callable[[float], bool]:
    """Return a function that waits for a message, at most so many seconds; `Connection.poll` takes 15 us more."""
    if not hasattr(select, "poll"):  # Windows
        return pipe.poll
    number = pipe.fileno()
    if number < FD_SETSIZE:
        return lambda seconds: bool(select.select([number], (), (), seconds)[0])
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return lambda seconds: bool(poll.poll(int(seconds * 1e3)))  # whole milliseconds: it returns early, not late


def _socket(pipe: Connection[Any, Any]) -> socket.socket:
    return socket.socket(fileno=os.dup(pipe.fileno()))


def packed_input(x: object) -> PackedInput:
    """Return an input in the form that a process accepts; raise ExtractorError if it is not picklable."""
    arrays: list[memoryview] = []

    def in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= LARGE:
            arrays.append(raw)
        return raw.nbytes < LARGE

    try:
        data = pickle.dumps(x, pickle.HIGHEST_PROTOCOL, buffer_callback=in_band if _SHARED_MEMORY else None)
    except Exception as error:  # pickling a foreign object may raise anything
        raise _unpicklable(f"input of type {type(x).__name__}", error) from error
    return PackedInput(data, tuple(arrays))


def packed_extractors(extractors: Mapping[str, Callable[..., Any]]) -> bytes:
    remedy = "define it at the top level of a module, not as a lambda or inside a function, or "
    for group, extractor in extractors.items():
        try:
            packed(extractor)
        except Exception as error:
            raise _unpicklable(f"the extractor of group {group!r}", error, remedy) from error
    return packed(dict(extractors))


def _unpicklable(what: str, error: Exception, remedy: str = "") -> ExtractorError:
    return ExtractorError(f"{what} is not picklable for a process ({summary(error)}); {remedy}use worker='thread'")


PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process receives when the thread that started it ends."""


def _end_with_parent() -> None:
    """Let this process end with its parent, whatever its extractor does.

    On Linux the kernel ends it with the parent's thread, which lives as long as this process, even while C code keeps
    the GIL. On other systems, and where the parent ended before, a thread does.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    Thread(target=_await_parent, name="anytime-parent", daemon=True).start()


def _await_parent() -> None:
    if (parent := multiprocessing.process.parent_process()) is not None:
        parent.join()
        os._exit(1)


def serve(pipe: Connection[Any, Any], bell: Connection[Any, Any], stop: ctypes.c_longlong) -> None:
    """Run the child: compute jobs until the other end of the pipe is closed, or the parent has ended."""
    _end_with_parent()
    # Ctrl-C reaches every process of a terminal; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bytearray(MAPPED)
    try:
        extractors = pipe.recv()
    except Exception as error:  # importing a foreign module may raise anything
        pipe.send_bytes(packed((summary(error), 0.0)))
        return
    pipe.send_bytes(packed((None, time.perf_counter())))
    memory, outbox, x = _SharedMemory(), _Outbox(pipe, bell), None
    # The other cores belong to the process that answers; spinning BLAS threads would occupy them.
    with single_blas_thread(), suppress(EOFError, OSError):
        while True:
            job: _Job = pipe.recv()
            if job.x is not None:
                memory.receive(job.x, pipe)
                x = None
            try:
                x = memory.read() if x is None else x
            except Exception as error:  # unpickling a foreign class may raise anything
                outbox.add(
                    Arrival(job.tasks[0].group, error=f"the input does not load in the worker: {summary(error)}")
                )
            else:
                _compute(outbox, extractors, job, x, stop)
            if memory.received.spans:
                x = None
            outbox.end(KEPT if memory.in_use() else END)


def _compute(
    outbox: _Outbox, extractors: Mapping[str, Callable[..., Any]], job: _Job, x: Any, stop: ctypes.c_longlong
) -> None:
    silent = set() if job.returns_results else {task.group for task in job.tasks if task.shared}
    if stop.value >= job.number:
        return
    for arrival in computed(job.tasks, extractors, x, dict(job.results), job.skipped, in_order=job.in_order):
        outbox.add(arrival._replace(values=None) if arrival.group in silent else arrival)
        if stop.value >= job.number:
            return


class _Outbox:
    """The child's way to the parent."""

    def __init__(self, pipe: Connection[Any, Any], bell: Connection[Any, Any]) -> None:
        self._pipe = pipe
        self._bell = bell
        self._rung = False
        self._unread = 0

    def add(self, arrival: Arrival) -> None:
        """Send an arrival; ring if it is an error, or before the pipe is full."""
        try:
            message = packed(tuple(arrival))
        except Exception as error:  # pickling foreign values may raise anything
            message = packed((arrival.group, None, arrival.took_ms, f"its values are not picklable: {summary(error)}"))
        self._unread += len(message)
        if arrival.error is not None or self._unread > UNREAD:
            self._ring()
        self._pipe.send_bytes(message)

    def end(self, message: bytes) -> None:
        self._pipe.send_bytes(message)
        self._ring()
        self._rung, self._unread = False, 0

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            self._bell.send_bytes(b"")


class WorkerLostError(Exception):
    """The worker stopped and must be replaced; `tasks` are those that it took and did not begin."""

    def __init__(self, reason: str, tasks: Sequence[Task] = ()) -> None:
        super().__init__(reason)
        self.tasks = tasks


def _with_shared(tasks: Sequence[Task], waiting: Iterable[Task]) -> list[Task]:
    """Return the tasks that wait, after those whose results they use: these were in the process that ended."""
    found = list(waiting)
    used = {name for task in found for name in task.uses}
    for task in reversed(tasks):
        if task.shared and task.group in used and task not in found:
            found.insert(0, task)
            used.update(task.uses)
    return found


_processes: weakref.WeakSet[multiprocessing.process.BaseProcess] = weakref.WeakSet()


def disown_processes() -> None:
    """Forget the parent's processes in a forked child; otherwise multiprocessing ends them when the child exits."""
    multiprocessing.process._children.difference_update(_processes)  # type: ignore[attr-defined]


def _unpacked(message: bytes, group: str) -> Arrival:
    try:
        return Arrival(*pickle.loads(message))  # noqa: S301  (from the child)
    except Exception as error:  # unpickling foreign values may raise anything
        return Arrival(group, error=f"its values do not load: {summary(error)}")


class ProcessWorker(Seat):
    """The parent's side of a worker process, which is started by spawn and ready when the constructor returns.

    A cancelled extractor may continue for `patience_ms` before its process is killed. Raises ExtractorError if the
    process ended or failed to import the extractors.
    """

    def __init__(self, extractors: bytes, patience_ms: float) -> None:
        if multiprocessing.process.current_process().daemon:  # multiprocessing refuses it with an AssertionError
            raise ExtractorError(
                "a daemonic process, such as one of multiprocessing.Pool or Celery, may not start worker processes; "
                "use worker='thread'"
            )
        self._kill_after = patience_ms / 1e3
        self._job = 0
        self._forwarding = False
        self._latest: Callable[[], Extraction | None] = lambda: None
        self._clock_offset = 0.0
        self._lock = Lock()
        self._closed = False
        self._memory = _SharedMemory()
        context = multiprocessing.get_context("spawn")
        # No lock around the value: one side writes, the other reads, and eight aligned bytes are written at once.
        self._stop = context.RawValue(ctypes.c_longlong, 0)
        self._pipe, child_end = context.Pipe()
        self._bell, child_bell = context.Pipe(duplex=False)
        self._arriving, self._ringing = _poller(self._pipe), _poller(self._bell)
        self._rung = self.busy = False
        self._tasks: Sequence[Task] = ()
        self._waiting = deque[Task]()
        self._broken: OSError | None = None
        self._process = context.Process(
            target=serve, args=(child_end, child_bell, self._stop), name="anytime-worker", daemon=True
        )
        _processes.add(self._process)
        try:
            try:
                self._process.start()
            finally:
                child_end.close()
                child_bell.close()
            self._prepare(extractors)
        except BaseException:
            self.close()
            raise

    def _prepare(self, extractors: bytes) -> None:
        sent = time.perf_counter()
        try:
            self._pipe.send_bytes(extractors)
            refusal, reading = (
                self._pipe.recv() if self._pipe.poll(START_SECONDS) else (f"not ready after {START_SECONDS:g} s", 0.0)
            )
        except (EOFError, OSError):
            raise ExtractorError(
                f"the worker process ended while starting ({self._ending() or 'it closed its pipe'}); "
                "a script must do its work under \"if __name__ == '__main__':\", since worker processes import it"
            ) from None
        if refusal is not None:
            raise ExtractorError(
                f"the extractors do not load in a worker process ({refusal}); define them in a module "
                "that it can import, or use worker='thread'"
            )
        received = time.perf_counter()
        if not sent <= reading <= received:  # all processes of a machine usually share this clock
            self._clock_offset = reading - received

    def alive(self) -> bool:
        return self._process.is_alive()

    def compute(self, extraction: Extraction, tasks: Sequence[Task]) -> None:
        """Send a job and put each arriving group; raise as `collect`."""
        self.begin(extraction, tasks)
        self.collect(extraction)

    def begin(self, extraction: Extraction, tasks: Sequence[Task]) -> None:
        """Send a job, some tasks of an extraction; `collect` follows, and reports what fails."""
        self._job += 1
        self._forwarding = self._rung = False
        self._tasks, self._waiting, self._broken = tasks, deque(tasks), None
        self.busy = not extraction.cancelled  # else `stop` may have seen the number before
        if self.busy:
            extraction.starting(tasks[0].group)
            try:
                self._send_job(extraction, tasks)
            except Exception as error:  # the process may have ended, or pickling failed
                self._broken = OSError(summary(error))

    def collect(self, extraction: Extraction, until: float = math.inf) -> bool:
        """Put each arriving group of the job; return whether it has ended.

        False if it goes on at the time `until`, or needs the attention of the thread that calls `compute`. Without
        such a time, raise WorkerLostError if the process died, and the group that it was computing has been put as
        failed; or if it stays busy too long after a cancellation, and the caller must close it.
        """
        waiting = self._waiting
        try:
            while self.busy:
                if (message := self._receive(extraction, until)) is None:
                    return False
                if message in (END, KEPT):
                    if message == KEPT:
                        self._memory.forget()
                    self._bell.recv_bytes()
                    self.busy = False
                else:
                    arrival = _unpacked(message, waiting.popleft().group)
                    if waiting and not (arrival.skipped and extraction.in_order):
                        extraction.starting(waiting[0].group)
                    extraction.put(arrival)
                self._forwarding = False
        except (EOFError, OSError) as error:
            if until < math.inf:
                return False
            reason = f"the worker process ended ({self._ending() or summary(error)})"
            if waiting:
                extraction.put(Arrival(waiting.popleft().group, error=reason))
            raise WorkerLostError(reason, _with_shared(self._tasks, waiting)) from None
        return True

    def _send_job(self, extraction: Extraction, tasks: Sequence[Task]) -> None:
        sent = None
        if self._latest() is not extraction:
            sent = self._memory.reserve(extraction.x)
            self._latest = weakref.ref(extraction)
        if self._clock_offset:
            tasks = [task._replace(start_by=task.start_by + self._clock_offset) for task in tasks]
        used = {name: extraction.results[name] for task in tasks for name in task.uses if name in extraction.results}
        job = _Job(self._job, tasks, extraction.in_order, sent, used, tuple(extraction.skipped), extraction.workers > 1)
        self._pipe.send_bytes(packed(job))
        if sent is not None:
            self._memory.send(extraction.x, sent, self._pipe)

    def _receive(self, extraction: Extraction, until: float) -> bytes | None:
        """Return the next message: a packed arrival of the first task that waits; at the end `END` or `KEPT`.

        None at the time `until`, and if there is one, as soon as the extraction is finished.
        """
        if self._broken is not None:
            raise self._broken
        while True:
            now, arriving = time.perf_counter(), self._arriving
            over = until < math.inf and (now >= until or extraction.finished)
            wait_s = 0.0 if over else min(until - now, TICK_SECONDS)
            quiet_s = 0.0 if over or self._rung else extraction.read_by - READING_S - now
            if quiet_s > 0:
                wait_s, arriving = min(wait_s, quiet_s), self._ringing
            if arriving(wait_s):
                if quiet_s <= 0:
                    self._forwarding = True
                    return self._pipe.recv_bytes()
                self._rung = True
            elif over:
                return None
            elif until == math.inf and now - (extraction.cancelled_at or now) > self._kill_after:
                why = f"killed: still busy {self._kill_after * 1e3:g} ms after it was cancelled"
                extraction.put(Arrival(self._waiting[0].group, error=why, killed=True))
                raise WorkerLostError(why)

    def stop(self) -> None:
        self._stop.value = self._job

    def pending(self) -> bool:
        # The order matters: the flag is set before a message leaves the pipe and cleared after its group is put.
        return self.busy and (self._pipe.poll() or self._forwarding)

    def _ending(self) -> str | None:
        self._process.join(END_SECONDS)
        code = self._process.exitcode
        if code is None:
            return None
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
        self._bell.close()
        self._memory.forget()
        if self._process.pid is None:  # it was never started
            return
        self._process.terminate()
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(END_SECONDS)
        with suppress(ValueError):  # SIGKILL did not end it in time; it is a daemon, and the system ends it
            self._process.close()
