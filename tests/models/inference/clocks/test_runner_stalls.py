"""Promises of the runner when its process is stopped for longer than the deadline: what is complete is used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from anytime.inference.workers import Worker
from models.inference.test_runner import FULL, WORKERS, X, a_model
from waiting import until

DEADLINE_MS = 500.0
MAX_RUNS = 3
"""One whole answer is enough: the effort after a stall is bounded by time, and a busy machine may fail some runs."""

VALUES = {"a": X[:1], "b": X[1:2], "c": X[2:]}


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
@pytest.mark.parametrize("worker", WORKERS)
def test_groups_that_are_complete_after_a_stall_are_used(worker: Worker, tmp_path: Path) -> None:
    a_model().save(tmp_path / "toy.safetensors")
    command = ["-m", "models.stalling", str(tmp_path / "toy.safetensors"), worker, str(DEADLINE_MS)]
    answers: list[dict[str, Any]] = []
    with subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        while len(answers) < MAX_RUNS and not (answers and whole(answers[-1], worker)):
            folder = tmp_path / str(len(answers))
            folder.mkdir()
            for group in VALUES:
                os.mkfifo(folder / group)
            answers.append(stalled(child, folder))
    assert child.returncode == 0
    assert all(answer["elapsed_ms"] > DEADLINE_MS for answer in answers), "the stall outlasts the deadline"
    for answer in answers:
        assert answer["late_groups"] == answer["groups"] == ["a", "b", "c"][: answer["prefix"]]
    assert whole(answers[-1], worker), answers


def whole(answer: dict[str, Any], worker: Worker) -> bool:
    """Whether every group counts that was computed: a process computes all while its parent is stopped."""
    expected = (FULL, "complete") if worker == "process" else (1.5, "deadline")
    return (answer["prediction"], answer["reason"], answer["unused_groups"]) == (*expected, [])


def stalled(child: subprocess.Popen[str], folder: Path) -> dict[str, Any]:
    """Stop a program that is at work on the first group, complete all groups, continue it after the deadline."""
    print(folder, file=child.stdin, flush=True)
    until((folder / "started").exists)
    child.send_signal(signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
    with ExitStack() as pipes:
        for group, values in VALUES.items():
            pipe = os.open(folder / group, os.O_RDWR)  # which does not wait for a reader
            pipes.callback(os.close, pipe)
            os.write(pipe, json.dumps(values.tolist()).encode() + b"\n")
        time.sleep(1.2 * DEADLINE_MS / 1e3)
        child.send_signal(signal.SIGCONT)
        assert child.stdout is not None
        answer: dict[str, Any] = json.loads(child.stdout.readline())
    return answer
