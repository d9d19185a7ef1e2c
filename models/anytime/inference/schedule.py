"""Which groups a run starts, and what became of each group so far; shared by a runner and the client of a service."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from threading import RLock

from anytime.inference.deadline import Durations, is_hanging
from anytime.inference.extraction import Task

_log = logging.getLogger("anytime.runner")

LOG_SECONDS = 60.0
"""A failing group is logged at most once in this time."""

FIRST_S, LONGEST_S = 1.0, 60.0
"""A group that hangs is left out for 1, 2, 4, ... 60 seconds, and then tried again."""

MAX_FAILURES = 256


@dataclass(frozen=True)
class Failure:
    """A group that did not arrive, and the reason in one line."""

    group: str
    error: str

    def __str__(self) -> str:
        return f"group {self.group!r} failed: {self.error}"


@dataclass(frozen=True)
class GroupCounts:
    """What became of one group in all runs, and how long it is expected to take."""

    computed: int
    failed: int
    skipped: int
    """Runs that did not start it, since it could not end in time."""
    hung: int
    """Times that it was found hanging."""
    expected_ms: float


class _Group:
    def __init__(self, prior_ms: float | None) -> None:
        self.durations = Durations(prior_ms)
        self.computed = self.failed = self.skipped = self.hung = self.unlogged = 0
        self.hanging_since = self.logged = -math.inf


class Schedule:
    """Durations and counts of groups, and the tasks of a run that follow from them; thread-safe.

    Times are in seconds of `time.perf_counter`; `priors_ms` has the duration of each group that is expected before its
    first measurement, None if it is unknown.
    """

    def __init__(self, priors_ms: Mapping[str, float | None]) -> None:
        self._groups = {name: _Group(prior) for name, prior in priors_ms.items()}
        self._hanging: dict[str, tuple[int, float]] = {}
        """How often in a row each group was found hanging, and until when it is left out."""
        self._failures: deque[Failure] = deque(maxlen=MAX_FAILURES)
        self._lock = RLock()

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(self._failures)

    def counts(self, now: float) -> dict[str, GroupCounts]:
        return {
            name: GroupCounts(each.computed, each.failed, each.skipped, each.hung, each.durations.expected_ms(now))
            for name, each in self._groups.items()
        }

    def tasks(
        self,
        steps: Sequence[Sequence[Task]],
        left_out: Collection[str],
        *,
        now: float,
        until: float | None,
        whole_steps: bool,
        continues: bool,
    ) -> list[Task]:
        """Return the tasks of some steps, with the times by which they must start so as to end by `until`.

        Groups that are left out have none, nor have those that use their results. Unless the run `continues` after a
        failed group, nor have the steps from theirs on. None as `until` is no limit. With `whole_steps`, the remaining
        tasks of a step must end by `until` too: the policy "prefix" uses no part of one.
        """
        if left_out:
            if not continues:
                steps = list(takewhile(lambda step: all(task.group not in left_out for task in step), steps))
            steps = [[task for task in step if not {task.group, *task.uses}.intersection(left_out)] for step in steps]
        if until is None:
            return list(chain.from_iterable(steps))
        found: list[Task] = []
        for step in steps:
            took_s = [self._groups[task.group].durations.expected_ms(now) / 1e3 for task in step]
            for i, task in enumerate(step):
                start_by = until - (sum(took_s[i:]) if whole_steps else took_s[i])
                found.append(Task(task.group, start_by, task.uses, task.needs, task.shared))
        return found

    def left_out(self, abandoned: Mapping[str, float], now: float, seconds: float) -> dict[str, str]:
        """Return the groups that hang or are overdue, and why each is left out of a run of so many seconds.

        `abandoned` has the groups that still run for an earlier input, and the time at which each started. One is
        overdue if it has run for longer than the deadline and than three times its duration: a worker that starts it
        again would probably be lost, too.
        """
        found: dict[str, str] = {}
        with self._lock:
            for name, started in abandoned.items():
                group, running_s = self._groups[name], now - started
                expected_ms = group.durations.expected_ms(now)
                if running_s > max(3e-3 * expected_ms, seconds):
                    running = f"it has been running for {running_s * 1e3:.0f} ms"
                    found[name] = f"group {name!r} is left out: {running} for an earlier input"
                    if group.hanging_since != started and is_hanging(running_s, expected_ms):
                        group.hanging_since = started
                        self.failed(name, running, now, hung=True)
            for name, (_, until) in self._hanging.items():
                if until > now:
                    found.setdefault(
                        name, f"group {name!r} is left out: it hung, and is tried again in {until - now:.1f} s"
                    )
        return found

    def hangs(self, running: Mapping[str, float], now: float) -> bool:
        """Return whether one of some running groups, with the times at which they started, hangs."""
        return any(is_hanging(now - at, self._groups[name].durations.expected_ms(now)) for name, at in running.items())

    def measured(self, name: str, took_ms: float, now: float) -> None:
        """Record the duration of a group."""
        self._groups[name].durations.add(took_ms, now)

    def arrived(self, name: str) -> None:
        """Record that a group was computed and accepted."""
        with self._lock:
            self._groups[name].computed += 1
            self._hanging.pop(name, None)

    def held_up(self, names: Iterable[str], now: float) -> None:
        """Record groups that were running when a caller could not answer in time."""
        for name in names:
            self._groups[name].durations.hold_up(now)

    def failed(self, name: str, error: str, now: float, *, hung: bool = False) -> Failure:
        """Record that a group failed or hangs, and log it if no failure of it was logged in the last minute."""
        failure, group = Failure(name, error), self._groups[name]
        with self._lock:
            group.failed += 1
            if hung:
                group.hung += 1
                times, _ = self._hanging.get(name, (0, now))
                self._hanging[name] = times + 1, now + min(FIRST_S * 2.0 ** min(times, 30), LONGEST_S)
            self._failures.append(failure)
            due = now - group.logged >= LOG_SECONDS
            unlogged, group.unlogged = (group.unlogged, 0) if due else (0, group.unlogged + 1)
            if due:
                group.logged = now
        if due:
            _log.warning("%s%s", failure, f" ({unlogged} more since the last message)" if unlogged else "")
        return failure

    def skipped(self, names: Iterable[str], now: float) -> str | None:
        """Record the groups that a run did not start; return a note about them."""
        notes = []
        with self._lock:
            for name in names:
                durations = self._groups[name].durations
                notes.append(f"{name!r} ({durations.expected_ms(now):.3g} ms)")
                self._groups[name].skipped += 1
                durations.refuse(now)
        return f"not started, since it could not end in time: {', '.join(notes)}" if notes else None
