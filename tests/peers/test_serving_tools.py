"""The client of the serving benchmark counts only right answers, and sends at a fixed rate."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import on_core
from benchmarks.peers.environments import ours
from benchmarks.peers.measurements import FailedError
from benchmarks.peers.serving import LAUNCHERS, check_answer, launched, measure_latency, saturate_posts

ROW = {"group": [1.0, 2.0]}
REQUEST = LAUNCHERS[0].request(ROW)
check = partial(check_answer, LAUNCHERS[0].read, 8.5)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of the bare server with 1.5 x_0 + 3 x_1 + 1."""
    folder = tmp_path_factory.mktemp("bare")
    np.savez(folder / "model.npz", coef=np.array([1.5, 3.0]), intercept=1.0)
    with launched(LAUNCHERS[0], ours(), folder / "model.npz", folder / "server", ROW) as server:
        assert server.memory_mib > 1
        assert server.total_cpu_us > 0
        yield server.port


def test_a_server_that_ends_is_reported(tmp_path: Path) -> None:
    server = launched(LAUNCHERS[0], ours(), tmp_path, tmp_path / "server", ROW)
    with pytest.raises(FailedError, match="Is a directory"), server:
        pass


def test_right_answers_are_counted(port: int) -> None:
    count, seconds = saturate_posts(port, REQUEST, check, 0.3)
    assert count > 16
    assert seconds >= 0.3


def test_a_wrong_answer_is_reported(port: int) -> None:
    with pytest.raises(FailedError, match=r"answered 8\.5, expected 9"):
        saturate_posts(port, REQUEST, partial(check_answer, LAUNCHERS[0].read, 9.0), 0.3)


def test_a_response_without_a_prediction_is_reported() -> None:
    with pytest.raises(FailedError, match="no prediction"):
        check(b'{"detail": "busy"}')


def test_requests_are_sent_at_their_rate(port: int) -> None:
    took = measure_latency(port, REQUEST, check, 100.0, 0.5)
    assert len(took) == 50
    assert all(ms > 0 for ms in took)


def test_the_cores_are_restored() -> None:
    before = os.sched_getaffinity(0)
    with on_core(min(before)):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
