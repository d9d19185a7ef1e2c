"""A server that stood still: the answer uses every group that its client had sent by then."""

from __future__ import annotations

import json
import signal
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
    assert any(
        (answer["reason"], answer["late_groups"], answer["groups"]) == ("deadline", list(groups), used)
        and answer["elapsed_ms"] >= DEADLINE_MS
        for answer in (predict(served, groups) for _ in range(5))
    )
