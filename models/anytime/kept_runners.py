"""Runners kept between calls of `AnytimeModel.run`, so that not every call starts a process.

At most four are kept, the least recently used goes first. Nothing here keeps a model: a runner goes with its model. A
runner that goes is closed as soon as nobody is inside its `run`, and all are closed when the interpreter ends. A child
that is forked off makes its own.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import RLock
from typing import Any

from anytime.model import AnytimeModel
from anytime.runner import Runner
from anytime.workers import Worker

__all__ = ["KEPT_RUNNERS", "kept_runner"]

KEPT_RUNNERS = 4


@dataclass(frozen=True, eq=False)
class _Kept:
    """A runner and what it is for; its own model is a weak proxy."""

    model: weakref.ref[AnytimeModel]
    extractors: dict[str, Callable[[Any], Any]]
    worker: Worker
    runner: Runner


_kept: list[_Kept] = []  # the least recently used first
_lock = RLock()  # a model may be collected, and `_forget` called, while this thread holds it


def kept_runner(model: AnytimeModel, extractors: Mapping[str, Callable[[Any], Any]], worker: Worker) -> Runner:
    """Find the runner for this model, these extractors (by equality) and this worker, or make it.

    Raises
    ------
    ExtractorError
        As `Runner` does.
    """
    own = dict(extractors)
    runner = _found(model, own, worker)
    if runner is not None:
        return runner
    # Outside the lock: a process that starts must not hold up runs that have their runner.
    made = Runner(weakref.proxy(model), own, worker)
    with _lock:
        runner = _found(model, own, worker)  # two threads may both have made one; the first stays
        if runner is None:
            _kept.append(_Kept(weakref.ref(model, _forget), own, worker, made))
            runner = made
        gone = _kept[:-KEPT_RUNNERS]
        del _kept[:-KEPT_RUNNERS]
    # Only here does the last reference go and the runner close, which takes a while; not while it is in use.
    del gone
    return runner


def _found(model: AnytimeModel, extractors: dict[str, Callable[[Any], Any]], worker: Worker) -> Runner | None:
    with _lock:
        for place, kept in enumerate(_kept):
            if kept.model() is model and kept.worker == worker and kept.extractors == extractors:
                _kept.append(_kept.pop(place))
                return kept.runner
    return None


def _forget(model: weakref.ref[AnytimeModel]) -> None:
    with _lock:
        gone = [kept for kept in _kept if kept.model is model]
        _kept[:] = [kept for kept in _kept if kept.model is not model]
    del gone


def _forget_all() -> None:
    """In a child that was forked off: its parent's workers are not there, and a thread that held the lock is not."""
    global _lock  # noqa: PLW0603
    _lock = RLock()
    _kept.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_all)
