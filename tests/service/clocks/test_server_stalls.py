"""A server that stood still: the answer uses every group that its client had sent by then."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from service.commands import Command, command
from service.raw_stream import raw, read_frame, text
from service.serving import VALUES, Running, small_model
from waiting import until

DEADLINE_MS = 1000
LINE = {name: json.dumps({"group": name, "values": values}).encode() + b"\n" for name, values in VALUES.items()}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Command, Running]]:
    path: Path = tmp_path_factory.mktemp("models") / "brake.safetensors"
    small_model().save(path)
    # Standing still is what these servers do: they are not to refuse predictions for it.
    with command(path, ANYTIME_MAX_LATENESS_MS="10000") as served:
        yield served


@contextmanager
def stopped(command: Command, deadline_ms: float = DEADLINE_MS) -> Iterator[None]:
    """Stop the server now, and let it go on long after the deadline."""
    command.process.send_signal(signal.SIGSTOP)
    try:
        yield
        sleep(1.5 * deadline_ms / 1000)
    finally:
        command.process.send_signal(signal.SIGCONT)


def check_whole(answered: Callable[[], dict[str, Any]]) -> None:
    """Require one whole answer of five: the server reads for 2 ms at most, and the machine may pause it for longer."""
    groups = list(VALUES)
    for _ in range(5):
        answer = answered()
        assert (answer["reason"], answer["elapsed_ms"] >= DEADLINE_MS) == ("deadline", True)
        if (answer["prefix"], answer["groups"], answer["late_groups"]) == (3, groups, groups):
            return
    pytest.fail(f"five answers without all groups; the last has {answer['groups']}")


def test_over_a_websocket(served: tuple[Command, Running]) -> None:
    check_whole(lambda: over_a_websocket(served))


def over_a_websocket(served: tuple[Command, Running]) -> dict[str, Any]:
    with raw(served[1]) as stream:
        stream.send(text({"type": "begin", "id": 0, "deadline_ms": 0}))
        read_frame(stream)
        stream.send(text({"type": "begin", "id": 1, "deadline_ms": DEADLINE_MS}))
        stream.send(text({"type": "begin", "id": 2, "deadline_ms": 0}))
        read_frame(stream)  # 1 has begun
        with stopped(served[0]):
            for name, values in VALUES.items():
                stream.send(text({"type": "group", "id": 1, "group": name, "values": values}))
        answer: dict[str, Any] = json.loads(read_frame(stream)[1])
        return answer


def test_over_a_streamed_post(served: tuple[Command, Running]) -> None:
    check_whole(lambda: over_a_streamed_post(served))


def over_a_streamed_post(served: tuple[Command, Running]) -> dict[str, Any]:
    with served[1].connect() as client:
        client.head(f"deadline_ms={DEADLINE_MS}", content_type="application/x-ndjson")
        begun(served[1])
        with stopped(served[0]):
            for line in LINE.values():
                client.send(b"%x\r\n%b\r\n" % (len(line), line))
        answer: dict[str, Any] = client.response()[2]
        return answer


def test_over_a_session(served: tuple[Command, Running]) -> None:
    check_whole(lambda: over_a_session(served))


def over_a_session(served: tuple[Command, Running]) -> dict[str, Any]:
    name = served[1].post_to("/sessions").json()["id"]
    with served[1].connect() as asking, served[1].connect() as telling:
        telling.send(b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n")
        telling.response()
        asking.send(f"GET /sessions/{name}/predict?deadline_ms={DEADLINE_MS} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        begun(served[1])
        with stopped(served[0]):
            body = json.dumps(VALUES).encode()
            head = f"POST /sessions/{name}/groups HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
            telling.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer: dict[str, Any] = asking.response()[2]
        return answer


def begun(service: Running) -> None:
    """Wait until a prediction is open."""
    until(lambda: service.metric("anytime_open_predictions") == 1)


SIZES = [2_000, 8_000, 20_000, 200_000]
"""Bytes of a group. A read of the socket returns up to 256,000, which the server parses in slices of 2,000 or more."""

SOON_MS = 200


def _rows(size: int) -> list[list[float]]:
    """Return the values of `hog`, two a row, that take about so many bytes of JSON."""
    return [[0.12345678, 0.62345678]] * (size // 24)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("binding", ["websocket", "lines", "post"])
def test_a_group_of_any_size_that_was_sent_during_a_pause_is_used(
    served: tuple[Command, Running], binding: str, size: int
) -> None:
    """One of five: the server reads for 2 ms at most, and another process may have its core meanwhile."""
    answers = (_paused(served, binding, _rows(size)) for _ in range(5))
    assert any(answer["late_groups"] == ["hog"] and answer["reason"] == "deadline" for answer in answers)


def _paused(served: tuple[Command, Running], binding: str, values: list[list[float]]) -> dict[str, Any]:
    answer: dict[str, Any]
    if binding == "websocket":
        with raw(served[1]) as stream:
            stream.send(text({"type": "begin", "id": 1, "deadline_ms": SOON_MS}))
            begun(served[1])
            with stopped(served[0], SOON_MS):
                stream.send(text({"type": "group", "id": 1, "group": "hog", "values": values}))
            answer = json.loads(read_frame(stream)[1])
            return answer
    with served[1].connect() as client:
        if binding == "lines":
            client.head(f"deadline_ms={SOON_MS}", content_type="application/x-ndjson")
            line = json.dumps({"group": "hog", "values": values}).encode() + b"\n"
            content = b"%x\r\n%b\r\n" % (len(line), line)
        else:
            content = json.dumps({"groups": {"hog": values}}).encode()
            head = (
                f"POST /predict?deadline_ms={SOON_MS} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(content)}\r\n\r\n"
            )
            client.send(head.encode())
        begun(served[1])
        with stopped(served[0], SOON_MS):
            client.send(content)
        answer = client.response()[2]
        return answer
