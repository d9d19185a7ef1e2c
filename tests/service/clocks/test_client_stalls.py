"""Promises of the clients when their process is stopped for longer than the deadline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from service.serving import Running
from waiting import until

DEADLINE_MS = 1500.0
MAX_RUNS = 3


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_answer_that_arrived_while_the_client_was_stopped_is_used(
    kind: str, server: Running, tmp_path: Path
) -> None:
    command = ["-m", "service.stalling_client", server.url, kind, str(DEADLINE_MS)]
    answers: list[dict[str, Any]] = []
    with subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        # One of them is enough: the client reads for 2 ms at most, and the machine may pause it for longer.
        while len(answers) < MAX_RUNS and not (answers and used(answers[-1])):
            folder = tmp_path / str(len(answers))
            folder.mkdir()
            os.mkfifo(folder / "lab")
            answers.append(stalled(child, folder, server))
    assert child.returncode == 0
    assert all(answer["elapsed_ms"] > DEADLINE_MS for answer in answers), "the stall outlasts the deadline"
    assert used(answers[-1]), answers
    assert all("lab" in answer["missing"] for answer in answers)


def used(answer: dict[str, Any]) -> bool:
    return (answer["groups"], answer["note"]) == (["speed", "hog"], None)


def stalled(child: subprocess.Popen[str], folder: Path, server: Running) -> dict[str, Any]:
    """Stop a client that waits for the last group, and continue it after the answer and the deadline."""

    def count(name: str, **labels: str) -> float:
        return server.metric(name, model="brake", **labels)

    def answered() -> float:
        return count("anytime_predictions_total", reason="deadline")

    received, before = count("anytime_group_seconds_count", group="hog"), answered()
    print(folder, file=child.stdin, flush=True)
    until(lambda: count("anytime_group_seconds_count", group="hog") > received)
    child.send_signal(signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
    until(lambda: answered() > before)
    sleep(1.1 * DEADLINE_MS / 1e3)
    child.send_signal(signal.SIGCONT)
    assert child.stdout is not None
    answer: dict[str, Any] = json.loads(child.stdout.readline())
    (folder / "lab").write_text("[0.5]\n")  # and the extractor ends
    return answer
