"""Memory budget: bytes stored for clients are counted exactly, refused above the limit, and always released."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
from websockets.frames import Frame, Opcode

from anytime._files import memory_limit
from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime_service.settings import Settings
from service.in_session import begin, post_groups
from service.raw_stream import raw, read_frame, text
from service.serving import Running, expected, run_service, timeless, trained_model
from waiting import until

SPEED = [[1.0]] * 50
HOG = [[1.0, 2.0]] * 50
MOST = 2_800


@pytest.fixture(scope="module")
def tight(model: Model) -> Iterator[Running]:
    """A service that holds no more than the values of seven columns, with 50 rows each."""
    settings = Settings(port=0, max_rows=50, max_held_bytes=MOST, max_body_bytes=100_000)
    with run_service([model], settings) as service:
        yield service


@pytest.fixture(autouse=True)
def _nothing_is_left(tight: Running) -> Iterator[None]:
    yield
    until(lambda: held(tight) == 0)


def held(service: Running) -> float:
    return service.metric("anytime_held_bytes")


def test_values_are_counted_until_their_prediction_is_answered(tight: Running) -> None:
    with tight.stream() as stream:
        for name in (1, 2):
            stream.say("begin", name)
        for name, group, values, columns in ((1, "speed", SPEED, 1), (1, "speed", SPEED, 1), (1, "hog", HOG, 3)):
            stream.groups(name, {group: values})
            until(lambda n=columns: held(tight) == n * 50 * 8)  # type: ignore[misc]
        stream.groups(2, {"lab": SPEED})
        until(lambda: held(tight) == 4 * 50 * 8)
        assert stream.end(1)["replaced"] == ["speed"]
        assert held(tight) == 50 * 8


def test_a_group_that_does_not_fit_is_refused_and_the_prediction_continues(tight: Running, model: Model) -> None:
    refused = tight.metric("anytime_shed_total", how="refused", why="memory")
    with tight.stream() as stream:
        for name in (1, 2, 3):
            stream.say("begin", name)
            stream.groups(name, {"hog": HOG})
            until(lambda n=name: held(tight) == 800 * n)  # type: ignore[misc]
        stream.groups(1, {"lab": SPEED})
        until(lambda: held(tight) == MOST)
        for group in ("speed", "lab"):
            stream.groups(2, {group: SPEED})
            problem = stream.problem()
            assert (problem["id"], problem["status"], problem["field"]) == (2, 503, f"groups.{group}")
            assert f"its limit of {MOST}" in problem["detail"]
        stream.groups(2, {"hog": HOG})  # the same again takes no more
        assert timeless(stream.end(1)) == expected(model, {"hog": HOG, "lab": SPEED}, rows=None)
        stream.groups(2, {"speed": SPEED, "lab": SPEED})
        reported = expected(model, {"hog": HOG, "speed": SPEED, "lab": SPEED}, rows=None) | {"replaced": ["hog"]}
        assert timeless(stream.answer(2)) == reported
    assert tight.metric("anytime_shed_total", how="refused", why="memory") == refused + 2


def test_a_group_of_a_session_that_does_not_fit_is_refused_and_changes_nothing(tight: Running) -> None:
    first, second = begin(tight), begin(tight)
    for session in (first, second):
        assert post_groups(tight, session, {"hog": HOG}).status_code == 200
    refused = post_groups(tight, second, {"speed": SPEED, "lab": SPEED})
    assert (refused.status_code, refused.json()["field"], refused.headers["retry-after"]) == (503, "groups", "1")
    assert tight.get(f"/sessions/{second}/predict").json()["missing"] == ["speed", "lab"]
    tight.delete(f"/sessions/{first}")
    assert post_groups(tight, second, {"speed": SPEED, "lab": SPEED}).json()["prefix"] == 3
    assert held(tight) == 4 * 50 * 8
    tight.delete(f"/sessions/{second}")


def test_many_slow_senders_share_the_limit(tight: Running) -> None:
    line = b'{"group": "speed", "values": [' + b" " * 570  # 600 bytes, and no end
    with ExitStack() as stack:
        slow = [stack.enter_context(tight.connect()) for _ in range(5)]
        for number, connection in enumerate(slow):
            if number % 2:
                connection.head("deadline_ms=5000", length=10_000)
                connection.send(b'{"groups": '.ljust(600))
            else:
                connection.head("deadline_ms=5000", content_type="application/x-ndjson")
                connection.send(b"258\r\n" + line + b"\r\n")
            if number < 4:
                until(lambda n=number: 600 * (n + 1) <= held(tight) < 600 * (n + 1) + 10)  # type: ignore[misc]
        status, headers, problem = slow[-1].response()
        assert (status, headers["retry-after"]) == (503, "1")
        assert "the server stores 240" in problem["detail"], "and the line ends of chunks that are not complete"
        slow[0].send(b"4\r\n1]}\n\r\n0\r\n\r\n")
        assert slow[0].response()[2]["groups"] == ["speed"]


def test_a_body_that_does_not_fit_is_refused(tight: Running) -> None:
    assert tight.post({"groups": {"speed": SPEED}, "rows": 50}).status_code == 200
    refused = httpx.post(f"{tight.url}/predict", content=b" " * 60_000)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


def test_half_a_message_is_counted_and_one_that_does_not_fit_closes_its_connection(tight: Running) -> None:
    whole = text({"type": "begin", "id": 1, "model": "x" * 1_900})
    with raw(tight) as first, raw(tight) as second:
        first.send(whole[:1_800])
        until(lambda: held(tight) >= 1_700)
        second.send(whole[:1_800])
        opcode, content = read_frame(second)
        assert (opcode, int.from_bytes(content[:2], "big")) == (Opcode.CLOSE, 1013)
        assert second.at_end()
        first.send(whole[1_800:])
        assert json.loads(read_frame(first)[1])["problem"]["status"] == 404


def test_a_message_in_fragments_of_a_byte_counts_its_bytes_only(service: Running) -> None:
    content = json.dumps({"type": "begin", "id": 1, "deadline_ms": 0}).encode().ljust(1_500)
    pieces = [
        Frame(Opcode.CONT if at else Opcode.TEXT, content[at : at + 1], fin=at == len(content) - 1).serialize(mask=True)
        for at in range(len(content))
    ]
    with raw(service) as connection:
        connection.send(b"".join(pieces[:1_000]))
        until(lambda: held(service) == 1_000)
        connection.send(b"".join(pieces[1_000:]))
        assert json.loads(read_frame(connection)[1])["id"] == 1
        connection.send(text({"type": "begin", "id": 2, "deadline_ms": 0}))
        assert json.loads(read_frame(connection)[1])["id"] == 2


@pytest.mark.parametrize("end", ["deadline", "drop", "refuse"])
def test_nothing_is_counted_after_an_end_of_any_kind(tight: Running, end: str) -> None:
    with raw(tight) as connection:
        for name in range(3):  # which fit with all of their messages, if those arrive at once
            connection.send(text({"type": "begin", "id": name, "deadline_ms": 200 if end == "deadline" else 5_000}))
            connection.send(text({"type": "group", "id": name, "group": "speed", "values": SPEED}))
        if end == "deadline":
            assert all(json.loads(read_frame(connection)[1])["reason"] == "deadline" for _ in range(3))
            assert held(tight) == 0
        else:
            until(lambda: held(tight) == 1_200)
        if end == "refuse":
            connection.send(text({"type": "group", "id": 1, "group": "hog", "values": [[1.0, "x"]]}))
            assert json.loads(read_frame(connection)[1])["type"] == "error"
            connection.send(text(b"{" * 100)[:50])
    with tight.connect() as plain:
        plain.head("deadline_ms=5000", length=5_000)
        plain.send(b" " * 300)


def test_columns_that_never_arrive_use_no_memory() -> None:
    def resident() -> int:
        return 4096 * int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])

    model, values = trained_model("wide", width=40), np.zeros((10_000, 40))
    predictions = [Prediction(model, None) for _ in range(8)]
    before = resident()
    for prediction in predictions:
        prediction.add("a", values)
    assert resident() - before < 1.2 * sum(each.nbytes for each in predictions) + (8 << 20)


def test_the_memory_limit_is_that_of_the_container_or_else_of_the_machine(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None
    for folder in ("proc", "sys/fs/cgroup/memory"):
        (tmp_path / folder).mkdir(parents=True)
    for file, content, limit in (
        ("proc/meminfo", "MemFree: 1 kB\nMemTotal: 8 kB\n", 8192),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n", 8192),
        ("sys/fs/cgroup/memory.max", "max\n", 8192),
        ("sys/fs/cgroup/memory.max", "4096\n", 4096),
    ):
        (tmp_path / file).write_text(content)
        assert memory_limit(tmp_path) == limit
