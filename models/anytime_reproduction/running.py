"""Execution of the runs: in parallel except for those that measure time, with each result stored in a file at once.

A stored result is reused if the library's version and source, the run's arguments, the setting and the data files are
unchanged. All other runs are executed.
"""

from __future__ import annotations

import hashlib
import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from joblib import Parallel, delayed, effective_n_jobs
from joblib.externals.loky import get_reusable_executor

import anytime
from anytime._files import write_atomically
from anytime._version import __version__
from anytime.errors import AnytimeError, file_error
from anytime_reproduction.experiment import Experiment, Result, Results, Run, Setting


class _Task(NamedTuple):
    """A run, the file that stores its result, and the fingerprint of everything that the result depends on."""

    experiment: str
    run: Run
    path: Path
    fingerprint: str


def results_of(
    experiments: Sequence[Experiment],
    setting: Setting,
    folder: Path,
    *,
    n_jobs: int = 1,
    fresh: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Results]:
    """Return the results of all runs of some experiments, by experiment and run, from a folder with one file per run.

    `fresh` ignores stored results. `progress` receives the number of runs just completed, first of those stored.

    If runs fail, the others are still executed and stored. The first failure is then raised, with its traceback as a
    note: an AnytimeError if the run raised one or the folder is not writable, otherwise a RuntimeError. Its message
    names the run.
    """
    inputs = _inputs(setting)
    tasks = [
        _Task(e.name, run, folder / e.name / f"{run.name}.json", _fingerprint(run, setting, inputs))
        for e in experiments
        for run in e.runs(setting)
    ]
    found = {task.path: stored for task in tasks if not fresh and (stored := _stored(task)) is not None}
    progress(len(found))
    failed: list[Exception] = []
    for task, result in _executed([task for task in tasks if task.path not in found], setting, n_jobs):
        if isinstance(result, Exception):
            failed.append(result)
        else:
            _store(task, result)
            found[task.path] = result
            progress(1)
    if failed:
        raise failed[0]
    return {e.name: {t.run.name: found[t.path] for t in tasks if t.experiment == e.name} for e in experiments}


def _executed(tasks: Sequence[_Task], setting: Setting, n_jobs: int) -> Iterator[tuple[_Task, Result | Exception]]:
    """Execute tasks, in the order in which they complete; tasks that must run alone come last, one after another."""
    together = [task for task in tasks if not task.run.alone]
    yield from Parallel(n_jobs=n_jobs, return_as="generator_unordered")(
        delayed(_work)(task, setting) for task in together
    )
    if together and effective_n_jobs(n_jobs) > 1:
        # Idle processes would keep the data sets in memory during the runs that measure time.
        get_reusable_executor().shutdown(wait=True)
    yield from (_work(task, setting) for task in tasks if task.run.alone)


def _work(task: _Task, setting: Setting) -> tuple[_Task, Result | Exception]:
    """Return the result of a run, or an error that names the failed run, as a value so that other runs continue."""
    try:
        # Convert through JSON, so that a new result is identical to a stored one.
        return task, json.loads(json.dumps(task.run.work(setting, **task.run.arguments), allow_nan=False))
    except Exception as error:  # any exception of a run is reported with the run's name
        expected = isinstance(error, AnytimeError)
        what = str(error) if expected else f"{type(error).__name__}: {error}"
        message = f"run {task.run.name!r} of experiment {task.experiment!r} failed: {what}"
        failure = AnytimeError(message) if expected else RuntimeError(message)
        failure.add_note(traceback.format_exc())
        return task, failure


def _fingerprint(run: Run, setting: Setting, inputs: Sequence[str]) -> str:
    what = [_library(), run.work.__qualname__, dict(run.arguments), setting.quick, setting.seed, *inputs]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


@cache
def _library() -> str:
    """Return a digest of the source of both packages without their commands: any change may change a result."""
    sources = (
        path.read_bytes()
        for root in (Path(anytime.__file__).parent, Path(__file__).parent)
        for path in sorted(root.rglob("*.py"))
        if root / "cli" not in path.parents and path != root / "cli.py"
    )
    return hashlib.sha256(b"".join(sources)).hexdigest()


def _inputs(setting: Setting) -> list[str]:
    """Return the library's version, and name, size and time of every data file."""
    roots = filter(None, [setting.data, *(setting.yahoo or ())])
    paths = (path for root in roots for path in (sorted(root.rglob("*")) if root.is_dir() else [root]))
    stats = ((path, path.stat()) for path in paths if path.is_file())
    return [__version__, *(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats)]


def _stored(task: _Task) -> Result | None:
    try:
        record = json.loads(task.path.read_text(encoding="utf-8"))
        known, result = record["fingerprint"], dict(record["result"])
    except (OSError, ValueError, TypeError, LookupError):  # there is no file, or one without a result
        return None
    return result if known == task.fingerprint else None


def _store(task: _Task, result: Result) -> None:
    """Write a result under a temporary name and rename it, so that an interruption leaves no partial file."""
    record = {"fingerprint": task.fingerprint, "done": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "result": result}
    try:
        task.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(task.path, json.dumps(record).encode())
    except OSError as error:
        raise file_error(AnytimeError, f"write {str(task.path)!r}", error) from error
