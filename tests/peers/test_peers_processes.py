"""Peers in their own processes return arrays and numbers, and report errors; servers of peers count right answers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anytime.selection import sequence
from benchmarks.peers.adapters.with_ours import ALPHA, coefficients, gram_of, groups_of
from benchmarks.peers.environments import REQUIREMENTS, Environment, FailedError, prepared, reason, wanted
from benchmarks.peers.serving import LAUNCHERS, check_answer, launched, measure_latency, saturate_posts
from benchmarks.peers.solvers import GRAM, ROWS, Worker, loaded, make_problem


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A problem of 14 columns in four groups."""
    folder = tmp_path_factory.mktemp("arrays")
    assert make_problem(300, 14, 4, folder) == "n=300 D=14, 4 groups of 3"
    return folder


@pytest.fixture(scope="module")
def problem(folder: Path) -> dict[str, Any]:
    return {name: np.load(folder / f"{name}.npy") for name in {*GRAM, *ROWS}}


@pytest.fixture(scope="module")
def process(folder: Path) -> Iterator[Worker]:
    with Worker(prepared("ours"), "with_ours", 1, folder / "log") as started:
        started.load(folder, (*GRAM, "X", "y"))
        yield started


def test_a_problem_is_standardised_and_its_groups_cover_all_columns(problem: dict[str, Any]) -> None:
    np.testing.assert_allclose(problem["S"], np.corrcoef(problem["X"].T))
    np.testing.assert_allclose(problem["q"], problem["X"].T @ problem["y"] / 300)
    assert (problem["sizes"].tolist(), int(problem["rows"])) == ([4, 4, 4, 2], 300)
    assert problem["costs"].shape == (4,)


def test_a_process_returns_seconds_memory_and_arrays_and_reports_errors(
    process: Worker, problem: dict[str, Any]
) -> None:
    numbers, arrays = process.arrays("gram")
    assert numbers["seconds"] > 0
    assert numbers["peak_mib"] >= numbers["before_mib"] > 0
    found = sequence(gram_of(problem), groups_of(problem), "fr", ALPHA)
    assert arrays["order"].tolist() == [step.adds[-1] for step in found.steps]
    from_rows = process.arrays("rows", {"threads": 1})[1]
    np.testing.assert_array_equal(arrays["order"], from_rows["order"])
    for each in (arrays, from_rows):
        np.testing.assert_allclose(each["explained"], found.explained_variance, atol=1e-10)
    with pytest.raises(FailedError, match="KeyError: 'nothing'"):
        process.run("nothing")
    assert process.run("product")["seconds"] > 0, "the process continues"


def test_the_coefficients_that_are_timed_explain_what_the_sequence_reports(problem: dict[str, Any]) -> None:
    gram, S, q = gram_of(problem), problem["S"], problem["q"]
    found = sequence(gram, groups_of(problem), "fr", ALPHA)
    models, w = coefficients(gram, found), np.zeros(14)
    w[models.columns] = models.coef(models.steps)[:, 0]
    assert q @ w - 0.5 * w @ S @ w == pytest.approx(found.explained_variance[-1], abs=1e-4)


def test_a_pursuit_of_all_columns_equals_the_direct_solution(problem: dict[str, Any]) -> None:
    with loaded("ours", "solvers", {"S": problem["S"], "q": problem["q"]}) as started:
        coef = started.arrays("pursuit")[1]["coef"]
    np.testing.assert_allclose(coef, np.linalg.solve(problem["S"] + 1e-5 * np.eye(14), problem["q"]), atol=1e-8)


def test_every_requirement_is_pinned() -> None:
    names = sorted(file.stem for file in REQUIREMENTS.glob("*.txt"))
    assert len(names) == 11
    for name in names:
        lines = (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        assert wanted(name) == [name for name, _ in (line.split("==") for line in lines)] != []


def test_a_peer_that_cannot_be_installed_has_the_reason_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(
            1, command, stderr="Looking\nERROR: No matching distribution found for peer\n"
        )

    monkeypatch.setattr(subprocess, "run", refuses)
    (tmp_path / "peer.txt").write_text("peer==1.0\n", encoding="utf-8")
    found = prepared("peer", tmp_path / "envs", tmp_path)
    assert found == Environment("peer", why="No matching distribution found for peer")
    assert reason(subprocess.TimeoutExpired("pip", 10.0)) == "not ready after 10 s"
    assert reason(OSError("disk full")) == "disk full"


ROW = {"group": [1.0, 2.0]}
REQUEST = LAUNCHERS[0].request(ROW)
check = partial(check_answer, LAUNCHERS[0].read, 8.5)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of the bare server with 1.5 x_0 + 3 x_1 + 1."""
    folder = tmp_path_factory.mktemp("bare")
    np.savez(folder / "model.npz", coef=np.array([1.5, 3.0]), intercept=1.0)
    with launched(LAUNCHERS[0], folder / "model.npz", folder / "server", ROW) as server:
        assert server.memory_mib > 1
        assert server.total_cpu_us > 0
        yield server.port


def test_a_server_that_ends_is_reported(tmp_path: Path) -> None:
    server = launched(LAUNCHERS[0], tmp_path, tmp_path / "server", ROW)
    with pytest.raises(FailedError, match="Is a directory"), server:
        pass


def test_right_answers_are_counted_and_others_are_reported(port: int) -> None:
    count, seconds = saturate_posts(port, REQUEST, check, 0.3)
    assert count > 16
    assert seconds >= 0.3
    with pytest.raises(FailedError, match=r"answered 8\.5, expected 9"):
        saturate_posts(port, REQUEST, partial(check_answer, LAUNCHERS[0].read, 9.0), 0.3)
    with pytest.raises(FailedError, match="no prediction"):
        check(b'{"detail": "busy"}')


def test_requests_are_sent_at_their_rate(port: int) -> None:
    took = measure_latency(port, REQUEST, check, 100.0, 0.3)
    assert len(took) == 30
    assert all(ms > 0 for ms in took)
