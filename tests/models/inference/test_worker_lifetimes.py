"""Nobody waits for a worker that cannot start, and no worker process outlives its parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from operator import itemgetter
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from anytime.errors import ExtractorError
from anytime.inference.extraction import Extraction
from anytime.inference.runner import Runner
from anytime.inference.workers import Worker, Workers
from models.inference.test_runner import WORKERS, X, a_model, collected, extractors
from waiting import WAIT_S

PROGRAM = """
import ctypes, os, socket, sys, time
from multiprocessing import Process
from anytime.inference.extraction import Extraction, Task
from anytime.inference.workers import Workers

def connected(address):
    global connection  # stays open as long as this process
    connection = socket.create_connection(address)

def sleeping(address):
    connected(address)
    time.sleep(3600)

def keeping_the_interpreter(address):
    connected(address)
    ctypes.PyDLL(None).sleep(3600)

def ignoring_signals(address):
    import signal
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    sleeping(address)

def idle(address):
    connected(address)

if __name__ == "__main__":
    workers = Workers({"a": globals()[sys.argv[1]]}, "process", max_workers=1)
    if sys.argv[3] == "forked" and not os.fork():  # keeps the pipes of the worker open
        time.sleep(3600)
    address = "127.0.0.1", int(sys.argv[2])
    workers.start(Extraction([Task("a")], address, lambda _: True))
    time.sleep(3600)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the signals are those of POSIX")
@pytest.mark.parametrize(
    ("extractor", "also", "number"),
    [
        ("sleeping", "", signal.SIGKILL),
        ("sleeping", "", signal.SIGTERM),
        ("sleeping", "forked", signal.SIGKILL),
        ("ignoring_signals", "", signal.SIGTERM),
        ("idle", "", signal.SIGKILL),
        pytest.param(
            "keeping_the_interpreter",
            "",
            signal.SIGKILL,
            marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends it without the interpreter"),
        ),
    ],
)
def test_a_worker_process_ends_with_its_parent(
    extractor: str, also: str, number: signal.Signals, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(WAIT_S)
        parent = subprocess.Popen(
            [sys.executable, str(program), extractor, str(listening.getsockname()[1]), also],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,
        )
        try:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(WAIT_S)
                parent.send_signal(number)
                parent.wait(WAIT_S)
                assert connection.recv(1) == b"", "the connection of the worker ends with the worker"
        finally:
            os.killpg(parent.pid, signal.SIGKILL)
            parent.wait(WAIT_S)


def ended(extraction: Extraction) -> bool:
    return extraction.wait(time.perf_counter() + WAIT_S) is None


def _daemonic(results: Any, runner: Runner[Any] | None) -> None:
    """Make or use a runner in a daemonic process."""
    try:
        runner = runner or Runner(a_model(), extractors(), "process")
    except ExtractorError as error:
        results.put(str(error))
    else:
        runner.warm_up(X)
        answer = runner.run(X, WAIT_S * 1e3)
        results.put(f"{answer.reason} {answer.prefix} {answer.note}")
    with Runner(a_model(), extractors(), "thread") as threads:
        results.put(threads.run(X, WAIT_S * 1e3).reason)


@pytest.mark.parametrize("inherited", [False, True])
def test_a_daemonic_process_gets_one_clear_error_and_may_use_threads(*, inherited: bool) -> None:
    if inherited and sys.platform != "linux":
        pytest.skip("only a forked process inherits a runner")
    context: Any = multiprocessing.get_context("fork" if inherited else "spawn")
    results = context.Queue()
    runner = Runner(a_model(), extractors(), "process", max_workers=1) if inherited else None
    try:
        process = context.Process(target=_daemonic, args=(results, runner), daemon=True)
        process.start()
        first_result, second_result = results.get(timeout=WAIT_S), results.get(timeout=WAIT_S)
        process.join(WAIT_S)
    finally:
        if runner is not None:
            runner.close()
    assert first_result.startswith("end 0 " if inherited else "a daemonic process")
    assert "may not start worker processes; use worker='thread'" in first_result
    assert second_result == "complete"


@pytest.mark.parametrize("worker", WORKERS)
def test_without_a_free_thread_the_constructor_raises(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Thread, "start", _no_thread)
    with pytest.raises(ExtractorError, match=r"a worker's thread does not start: RuntimeError: can't start new thread"):
        Workers(extractors(), worker)


def test_a_caller_does_not_wait_for_workers_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with Workers(extractors(), max_workers=2) as workers:
        workers._renew()  # as after a fork: no worker, and the next one starts on demand
        with monkeypatch.context() as without:
            without.setattr(Thread, "start", _no_thread)
            for count in (1, 2):
                extraction, arrivals = collected("a", "b", workers=count)
                workers.start(extraction)
                assert ended(extraction)
                (arrival,) = arrivals
                why = "no worker starts: ExtractorError: a worker's thread does not start"
                assert str(arrival.error).startswith(why)
            assert workers.count == 0
        extraction, arrivals = collected("a")
        workers.start(extraction)
        assert ended(extraction)
        assert [(arrival.group, arrival.error) for arrival in arrivals] == [("a", None)]


def test_what_a_busy_worker_can_compute_waits_for_it_where_no_other_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    release = Event()
    with Workers({"a": lambda _: release.wait(WAIT_S), "b": itemgetter(0)}, max_workers=2) as workers:
        started = Event()
        busy, _ = collected("a")
        monkeypatch.setattr(busy, "starting", lambda _: started.set())
        workers.start(busy)
        assert started.wait(WAIT_S)
        waiting, arrivals = collected("b")
        with monkeypatch.context() as without:
            without.setattr(Thread, "start", _no_thread)
            workers.start(waiting)
        assert not waiting.finished
        release.set()
        assert ended(waiting)
        assert [(arrival.group, arrival.error) for arrival in arrivals] == [("b", None)]


def _no_thread(self: Thread) -> None:
    raise RuntimeError("can't start new thread")
