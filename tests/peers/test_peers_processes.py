"""Peers in their own processes return arrays and numbers, and report errors."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers.environments import REQUIREMENTS, Absent, ours, prepared, reason, wanted
from benchmarks.peers.measurements import FailedError
from benchmarks.peers.problems import SyntheticProblem, make_problem
from benchmarks.peers.solvers import Worker, loaded

ARRAYS = ("X", "y", "S", "q", "sizes", "costs", "rows")


@pytest.fixture
def small(tmp_path: Path) -> SyntheticProblem:
    return make_problem(300, 12, 3, tmp_path / "arrays")


@pytest.fixture
def process(small: SyntheticProblem, tmp_path: Path) -> Iterator[Worker]:
    with Worker(ours(), "with_ours", 1, tmp_path / "log") as started:
        started.load(small.folder, ARRAYS)
        yield started


def test_a_process_returns_seconds_memory_and_arrays(process: Worker, small: SyntheticProblem) -> None:
    numbers, arrays = process.arrays("gram")
    assert numbers["seconds"] > 0
    assert numbers["peak_mib"] >= numbers["before_mib"] > 0
    assert sorted(arrays["order"].tolist()) == [0, 1, 2, 3]
    from_rows = process.arrays("rows", {"threads": 1})[1]
    np.testing.assert_array_equal(arrays["order"], from_rows["order"])
    np.testing.assert_allclose(arrays["explained"], from_rows["explained"], atol=1e-10)
    assert process.run("product")["seconds"] > 0


def test_an_error_of_a_peer_is_reported_and_its_process_continues(process: Worker) -> None:
    with pytest.raises(FailedError, match="KeyError: 'nothing'"):
        process.run("nothing")
    assert process.run("gram")["seconds"] > 0


def test_a_pursuit_of_all_columns_equals_the_direct_solution(small: SyntheticProblem) -> None:
    with loaded(ours(), "solvers", {"S": small.S, "q": small.q}) as started:
        coef = started.arrays("pursuit", {"path": True})[1]["coef"]
    assert coef.shape == (12, 12)
    np.testing.assert_allclose(coef[-1], np.linalg.solve(small.S + 1e-5 * np.eye(12), small.q), atol=1e-8)


def test_every_requirement_is_pinned() -> None:
    names = sorted(file.stem for file in REQUIREMENTS.glob("*.txt"))
    assert len(names) == 15
    for name in names:
        lines = (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        assert wanted(name) == [name for name, _ in (line.split("==") for line in lines)] != []


def test_a_peer_that_cannot_be_installed_is_absent_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(
            1, command, stderr="Looking\nERROR: No matching distribution found for peer\n"
        )

    monkeypatch.setattr(subprocess, "run", refuses)
    (tmp_path / "peer.txt").write_text("peer==1.0\n", encoding="utf-8")
    found = prepared("peer", tmp_path / "envs", tmp_path)
    assert found == Absent("peer", "No matching distribution found for peer")


def test_a_reason_is_one_line() -> None:
    assert reason(subprocess.TimeoutExpired("pip", 10.0)) == "not ready after 10 s"
    assert reason(OSError("disk full")) == "disk full"
