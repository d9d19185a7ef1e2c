"""Each run is executed once and stored at once, and executed again when anything that it depends on changes."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anytime.errors import AnytimeError
from anytime_reproduction import running
from anytime_reproduction.experiment import Setting
from anytime_reproduction.running import results_of
from models.refusals import assert_refused
from reproduction.runs_for_tests import executed, experiment, failing, writing

SETTING = Setting(seed=7)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    return folder


def test_every_run_is_executed_once_and_its_result_is_reused_and_no_other_files_remain(
    tmp_path: Path, traces: Path
) -> None:
    first = results_of([experiment(traces)], SETTING, tmp_path / "runs")
    assert first == {"squares": {f"run{n}": {"square": n**2, "seed": 7} for n in (1, 2, 3)}}
    assert results_of([experiment(traces)], SETTING, tmp_path / "runs") == first
    assert executed(traces) == [1, 2, 3]
    assert {path.name for path in (tmp_path / "runs" / "squares").iterdir()} == {f"run{n}.json" for n in (1, 2, 3)}


@pytest.mark.parametrize(
    ("changed", "fresh"), [(replace(SETTING, seed=8), False), (replace(SETTING, quick=True), False), (SETTING, True)]
)
def test_another_setting_or_fresh_executes_all_runs_again(
    tmp_path: Path, traces: Path, changed: Setting, fresh: bool
) -> None:
    results_of([experiment(traces)], SETTING, tmp_path / "runs")
    found = results_of([experiment(traces)], changed, tmp_path / "runs", fresh=fresh)
    assert found["squares"]["run1"]["seed"] == changed.seed
    assert executed(traces) == [1, 1, 2, 2, 3, 3]


def test_another_library_executes_all_runs_again(tmp_path: Path, traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results_of([experiment(traces)], SETTING, tmp_path / "runs")
    monkeypatch.setattr(running, "_library", lambda: "a line was changed somewhere")
    results_of([experiment(traces)], SETTING, tmp_path / "runs")
    assert executed(traces) == [1, 1, 2, 2, 3, 3]


def test_other_arguments_execute_that_run_again(tmp_path: Path, traces: Path) -> None:
    results_of([experiment(traces)], SETTING, tmp_path / "runs")
    changed = experiment(traces, run2={"arguments": {"traces": str(traces), "number": 20}})
    assert results_of([changed], SETTING, tmp_path / "runs")["squares"]["run2"]["square"] == 400
    assert executed(traces) == [1, 2, 3, 20]


def test_other_data_execute_all_runs_again(tmp_path: Path, traces: Path) -> None:
    data = tmp_path / "data"
    (data / "set").mkdir(parents=True)
    table = data / "set" / "table.csv"
    table.write_text("1", encoding="utf-8")
    setting = replace(SETTING, data=data)
    for _ in range(2):
        results_of([experiment(traces)], setting, tmp_path / "runs")
    assert executed(traces) == [1, 2, 3]
    table.write_text("2", encoding="utf-8")
    os.utime(table, ns=(0, 0))
    results_of([experiment(traces)], setting, tmp_path / "runs")
    assert executed(traces) == [1, 1, 2, 2, 3, 3]


def test_results_before_an_interruption_are_stored(tmp_path: Path, traces: Path) -> None:
    def interrupt(done: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        results_of([experiment(traces)], SETTING, tmp_path / "runs", progress=interrupt)
    assert (tmp_path / "runs" / "squares" / "run1.json").exists()
    reported: list[int] = []
    results_of([experiment(traces)], SETTING, tmp_path / "runs", progress=reported.append)
    assert reported == [1, 1, 1]
    assert executed(traces).count(1) == 1


def test_in_parallel_the_results_are_those_in_turn_runs_that_must_be_alone_come_last_and_one_that_fails_is_named(
    tmp_path: Path, traces: Path
) -> None:
    special: dict[str, dict[str, Any]] = {f"run{n}": {"work": writing, "alone": True} for n in (1, 3)}
    eight = experiment(traces, range(1, 9), run2={"work": failing}, **special)
    expected = "run 'run2' of experiment 'squares' failed: ZeroDivisionError: nothing to divide by"
    with pytest.raises(RuntimeError, match=expected) as error:
        results_of([eight], SETTING, tmp_path / "runs", n_jobs=2)
    assert any("Traceback" in note for note in error.value.__notes__)
    assert not multiprocessing.active_children()
    assert executed(traces) == [1, 3, 4, 5, 6, 7, 8]
    (traces / "fixed").touch()
    found = dict(results_of([eight], SETTING, tmp_path / "runs")["squares"])
    assert executed(traces) == list(range(1, 9))
    assert list(found) == [f"run{n}" for n in range(1, 9)]
    assert all(found[f"run{n}"] == {"square": n**2, "seed": 7} for n in (2, 4, 5, 6, 7, 8))
    assert found["run1"] == {"alone": True, "before": [4, 5, 6, 7, 8]}
    assert found["run3"] == {"alone": True, "before": [1, 4, 5, 6, 7, 8]}
    processes = {path.read_text(encoding="utf-8") for path in traces.glob("*-*")}
    assert processes - {str(os.getpid())}, "no other process executed a run"


def no_data(setting: Setting) -> dict[str, float]:
    raise AnytimeError("there is no data set")


def not_a_number(setting: Setting) -> dict[str, float]:
    return {"value": float("nan")}


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        (not_a_number, RuntimeError, "run 'run1' of experiment 'squares' failed: ValueError"),
        (no_data, AnytimeError, "run 'run1' of experiment 'squares' failed: there is no data set"),
    ],
)
def test_a_result_that_json_cannot_hold_fails_its_run_and_what_is_wrong_with_the_data_is_an_error_of_the_users(
    work: Any, error: type[Exception], message: str, tmp_path: Path, traces: Path
) -> None:
    broken = experiment(traces, run1={"work": work, "arguments": {}})
    assert_refused(lambda: results_of([broken], SETTING, tmp_path / "runs"), message, error=error)
    assert executed(traces) == [2, 3]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"result": {"square": 99}}', None])
def test_a_damaged_file_or_one_without_its_result_is_recomputed(
    tmp_path: Path, traces: Path, content: bytes | None
) -> None:
    first = results_of([experiment(traces)], SETTING, tmp_path / "runs")
    path = tmp_path / "runs" / "squares" / "run2.json"
    without = {name: value for name, value in json.loads(path.read_bytes()).items() if name != "result"}
    path.write_bytes(json.dumps(without).encode() if content is None else content)
    assert results_of([experiment(traces)], SETTING, tmp_path / "runs") == first
    assert executed(traces) == [1, 2, 2, 3]


def test_a_folder_that_is_not_writable_is_an_error(tmp_path: Path, traces: Path) -> None:
    (tmp_path / "runs").write_text("a file", encoding="utf-8")
    assert_refused(
        lambda: results_of([experiment(traces)], SETTING, tmp_path / "runs"), "cannot write", error=AnytimeError
    )
