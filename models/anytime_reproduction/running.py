"""Working the runs off: those that measure nothing by the clock side by side, each result kept in a file at once.

A result is used again where the library's version and source, the run's arguments, the setting and the data files are
those that it was made with; everything else is run anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from joblib import Parallel, delayed, effective_n_jobs
from joblib.externals.loky import get_reusable_executor

from anytime.errors import AnytimeError, file_error
from anytime_reproduction.experiment import Experiment, Result, Results, Run, Setting

__all__ = [
    "results_of",
]

Told = Callable[[int], None]
"""Called with the number of runs just done."""


@dataclass(frozen=True)
class _Task:
    """A run, the file that keeps its result, and what the result depends on."""

    experiment: str
    run: Run
    path: Path
    fingerprint: str


def results_of(
    experiments: Many[Experiment],
    setting: Setting,
    folder: Path,
    *,
    n_jobs: int = 1,
    fresh: bool = False,
    told: Told = lambda _: None,
) -> dict[str, Results]:
    """Results of all runs of some experiments, by experiment and run.

    Parameters
    ----------
    folder : where results are kept, a file each.
    n_jobs : processes, as joblib counts them.
    fresh : use no kept result.
    told : called as runs are done, first with the number of those kept from before.

    Raises
    ------
    AnytimeError
        The folder cannot be written, or a run raised one, which is named.
    RuntimeError
        A run raised anything else.

    Notes
    -----
    Where runs fail the others are worked off and kept; the first failure is raised, with its traceback as a note.
    """
    marks = _marks(setting)
    tasks = [
        _task(experiment.name, run, setting, folder, marks)
        for experiment in experiments
        for run in experiment.runs(setting)
    ]
    found: dict[tuple[str, str], Result] = {}
    pending: list[_Task] = []
    for task in tasks:
        kept = None if fresh else _kept(task)
        if kept is None:
            pending.append(task)
        else:
            found[task.experiment, task.run.name] = kept
    told(len(found))
    failed: list[Exception] = []
    for task, result in _worked(pending, setting, n_jobs):
        if isinstance(result, Exception):
            failed.append(result)
            continue
        _keep(task, result)
        found[task.experiment, task.run.name] = result
        told(1)
    if failed:
        raise failed[0]
    return {
        e.name: {t.run.name: found[e.name, t.run.name] for t in tasks if t.experiment == e.name} for e in experiments
    }


def _worked(tasks: Many[_Task], setting: Setting, n_jobs: int) -> Iterator[tuple[_Task, Result | Exception]]:
    """Work tasks off, in whatever order they end; those that must be alone come last, one after another."""
    together = [task for task in tasks if not task.run.alone]
    worked = Parallel(n_jobs=n_jobs, return_as="generator_unordered")(
        delayed(_work)(number, task.experiment, task.run, setting) for number, task in enumerate(together)
    )
    for number, result in worked:
        yield together[number], result
    if together and effective_n_jobs(n_jobs) > 1:
        # Idle processes would keep the data sets in memory beside the runs that measure time.
        get_reusable_executor().shutdown(wait=True)
    for task in tasks:
        if task.run.alone:
            yield task, _work(0, task.experiment, task.run, setting)[1]


def _work(number: int, experiment: str, run: Run, setting: Setting) -> tuple[int, Result | Exception]:
    """The result of a run, or an error that says which run failed: a value, so that the other runs go on."""
    try:
        # By way of JSON, so that a result is the same whether it was kept or has just been made.
        return number, json.loads(json.dumps(run.work(setting, **run.arguments), allow_nan=False))
    except Exception as error:  # whatever a run raises is told, with its name
        expected = isinstance(error, AnytimeError)
        what = str(error) if expected else f"{type(error).__name__}: {error}"
        told = f"run {run.name!r} of experiment {experiment!r} failed: {what}"
        failure = AnytimeError(told) if expected else RuntimeError(told)
        failure.add_note(traceback.format_exc())
        return number, failure


def _task(experiment: str, run: Run, setting: Setting, folder: Path, marks: Many[str]) -> _Task:
    own = Path(str(sys.modules[run.work.__module__].__file__)).read_text(encoding="utf-8")
    what = [_library(), own, run.work.__qualname__, dict(run.arguments), setting.quick, setting.seed, *marks]
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
    return _Task(experiment, run, folder / experiment / f"{run.name}.json", digest)


@cache
def _library() -> str:
    """Digest of the library's source, less its commands: any change to it may change a result."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        if root / "cli" not in path.parents:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _marks(setting: Setting) -> list[str]:
    """The library's version, and name, size and time of every data file."""
    try:
        marks = [version("anytime-linear")]
    except PackageNotFoundError:  # run from a source tree that is not installed
        marks = ["unknown"]
    folders = [setting.data, *(setting.yahoo or ())]
    for path in (path for path in folders if path is not None):
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        marks += [f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files if file.is_file()]
    return marks


def _kept(task: _Task) -> Result | None:
    """The result on file, where it is of just this run."""
    try:
        record = json.loads(task.path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("fingerprint") != task.fingerprint:
        return None
    result: Result | None = record.get("result")
    return result


def _keep(task: _Task, result: Result) -> None:
    """Write a result aside, then give it its name: an interruption leaves no half of one."""
    record = {"fingerprint": task.fingerprint, "done": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "result": result}
    aside = task.path.with_suffix(f".{os.getpid()}.tmp")
    try:
        task.path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(record), encoding="utf-8")
        aside.replace(task.path)
    except OSError as error:
        raise file_error(AnytimeError, f"write {str(task.path)!r}", error) from error
