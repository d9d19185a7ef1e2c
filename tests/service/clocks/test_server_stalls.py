"""A server that stood still: the answer uses every group that its client had sent by then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from service.commands import Command, command
from service.raw_stream import raw, read_frame, text
from service.serving import VALUES, Running, small_model
from waiting import until

DEADLINE_MS = 200
Groups = Mapping[str, Any]
Served = tuple[Command, Running]
SIZES = (2_000, 8_000, 20_000, 200_000)
"""Bytes of a group. A read of the socket returns up to 256,000, which the server parses in slices of 2,000 or more."""
GROUPS: dict[str, Groups] = {
    "every group": VALUES,
    **{f"{size} bytes": {"hog": [[0.12345678, 0.62345678]] * (size // 24)} for size in SIZES},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path: Path = tmp_path_factory.mktemp("models") / "brake.safetensors"
    small_model().save(path)
    # Standing still is what these servers do: they are not to refuse predictions for it.
    with command(path, ANYTIME_MAX_LATENESS_MS="10000") as served:
        yield served


@contextmanager
def stopped(served: Served) -> Iterator[None]:
    """Stop the server once a prediction is open, and let it go on long after the deadline."""
    command, service = served
    until(lambda: service.metric("anytime_open_predictions") == 1)
    command.process.send_signal(signal.SIGSTOP)
    try:
        yield
        sleep(1.5 * DEADLINE_MS / 1000)
    finally:
        command.process.send_signal(signal.SIGCONT)


def over_a_websocket(served: Served, groups: Groups) -> Any:
    with raw(served[1]) as stream:
        stream.send(text({"type": "begin", "id": 1, "deadline_ms": DEADLINE_MS}))
        with stopped(served):
            for name, values in groups.items():
                stream.send(text({"type": "group", "id": 1, "group": name, "values": values}))
        return json.loads(read_frame(stream)[1])


def by_lines(served: Served, groups: Groups) -> Any:
    with served[1].connect() as client:
        client.head(f"deadline_ms={DEADLINE_MS}", content_type="application/x-ndjson")
        with stopped(served):
            for name, values in groups.items():
                line = json.dumps({"group": name, "values": values}).encode() + b"\n"
                client.send(b"%x\r\n%b\r\n" % (len(line), line))
        return client.response()[2]


def by_post(served: Served, groups: Groups) -> Any:
    content = json.dumps({"groups": groups}).encode()
    with served[1].connect() as client:
        client.head(f"deadline_ms={DEADLINE_MS}", len(content))
        with stopped(served):
            client.send(content)
        return client.response()[2]


@pytest.mark.parametrize(
    ("predict", "name"), [*product([over_a_websocket, by_lines], GROUPS), (by_post, "every group")]
)
def test_groups_that_were_sent_while_the_server_stood_still_are_used(
    served: Served, predict: Callable[[Served, Groups], Any], name: str
) -> None:
    """One of five times: the server reads for 2 ms at most, and another process may have its core meanwhile."""
    groups = GROUPS[name]
    used = list(VALUES) if groups is VALUES else []  # hog alone is no prefix
    answers = (predict(served, groups) for _ in range(5))
    assert any(
        (answer["reason"], answer["late_groups"], answer["groups"]) == ("deadline", list(groups), used)
        and answer["elapsed_ms"] >= DEADLINE_MS
        for answer in answers
    )


# Clients whose process is stopped for longer than the deadline.


CLIENT_DEADLINE_MS = 1500.0
MAX_RUNS = 3


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_answer_that_arrived_while_the_client_was_stopped_is_used(
    kind: str, server: Running, tmp_path: Path
) -> None:
    command = ["-m", "service.stalling_client", server.url, kind, str(CLIENT_DEADLINE_MS)]
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
    assert all(answer["elapsed_ms"] > CLIENT_DEADLINE_MS for answer in answers), "the stall outlasts the deadline"
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
    sleep(1.1 * CLIENT_DEADLINE_MS / 1e3)
    child.send_signal(signal.SIGCONT)
    assert child.stdout is not None
    answer: dict[str, Any] = json.loads(child.stdout.readline())
    (folder / "lab").write_text("[0.5]\n")  # and the extractor ends
    return answer
