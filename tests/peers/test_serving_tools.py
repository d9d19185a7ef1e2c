"""The client of the serving benchmark counts only right answers, and sends at a fixed rate."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import on_core
from benchmarks.load.frames import post
from benchmarks.peers.measurements import FailedError
from benchmarks.peers.serving import check_answer, measure_latency, saturate_posts
from system import answers, free_port, started

REQUEST = post("/", b'{"x": [1, 2]}')
check = partial(check_answer, lambda body: float(body["prediction"]), 8.5)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of the bare server with 1.5 x_0 + 3 x_1 + 1."""
    path = tmp_path_factory.mktemp("bare") / "model.npz"
    np.savez(path, coef=np.array([1.5, 3.0]), intercept=1.0)
    port = free_port()
    variables = [f"PEERS_MODEL={path}", f"PYTHONPATH={Path(__file__).parents[1]}"]
    server = [sys.executable, "-m", "benchmarks.peers.adapters.serve_bare", port]
    with started(["env", *variables, *server], lambda: answers(port), timeout_s=30.0):
        yield port


def test_right_answers_are_counted(port: int) -> None:
    count, seconds = saturate_posts(port, REQUEST, check, 0.3)
    assert count > 16
    assert seconds >= 0.3


def test_a_wrong_answer_is_reported(port: int) -> None:
    with pytest.raises(FailedError, match=r"answered 8\.5, expected 9"):
        saturate_posts(port, REQUEST, partial(check_answer, lambda body: float(body["prediction"]), 9.0), 0.3)


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
