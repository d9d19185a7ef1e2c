"""An event loop as arithmetic: what comes during one lap is worked off in the next. For tests of the admission."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from anytime_service.limits.admission import PERIOD_MS, Admission

EMPTY_MS = 0.01
"""A lap in which nothing is done."""

MARGIN_MS = 0.8
"""How much earlier than its deadline an answer is begun."""


class Work(NamedTuple):
    """What a prediction costs, in milliseconds: its beginning, each of its groups, its answer, and not to begin it.

    One without groups is answered in the lap that reads it if it is `direct`, as one that has arrived completely, and
    in the next one otherwise. The loop sends what it has written at the end of a lap.
    """

    begin: float
    group: float
    groups: int
    answer: float
    refuse: float
    direct: bool = False

    @property
    def whole(self) -> float:
        return self.begin + self.groups * self.group + self.answer


STREAM = Work(begin=0.03, group=0.014, groups=10, answer=0.06, refuse=0.02)
POST = Work(begin=0.013, group=0.0, groups=0, answer=0.137, refuse=0.013, direct=True)
WAITING = POST._replace(direct=False)


@dataclass
class Told:
    """When predictions were answered and how late, and when they were refused; by time."""

    answered: list[tuple[float, float]] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)

    def good(self, begin_ms: float, end_ms: float, late_ms: float = 2.0) -> float:
        """Answers in time, a millisecond."""
        return sum(begin_ms <= at < end_ms and late <= late_ms for at, late in self.answered) / (end_ms - begin_ms)

    def shed(self, begin_ms: float, end_ms: float) -> float:
        """Refusals a millisecond."""
        return sum(begin_ms <= at < end_ms for at in self.refused) / (end_ms - begin_ms)


class LoopModel:
    """A loop that answers predictions asked for at random times.

    Parameters
    ----------
    load : tells, for each time, the share of the loop's capacity that is offered.
    deadline_ms : of all; the groups of streams come evenly until then.
    pauses : every so many milliseconds on average the machine stands still for so many.
    burst_ms : what is sent leaves its clients together, once in so long; 0 for when it is due.
    core : share of a core that the loop's thread is given; by its own time it works no more than that.
    """

    def __init__(
        self,
        work: Work,
        load: Callable[[float], float],
        deadline_ms: float = 20.0,
        pauses: tuple[float, float] | None = None,
        seed: int = 0,
        burst_ms: float = 0.0,
        core: float = 1.0,
    ) -> None:
        self.work, self.deadline_ms, self.pauses = work, deadline_ms, pauses
        self.burst_ms, self.core = burst_ms, core
        self.reported = Told()
        self.open = 0
        self.admission = Admission(5.0, lambda: self.open)
        self._random = random.Random(seed)
        self._load = load
        self._numbers = itertools.count()
        self._inbox: list[tuple[float, int, bool]] = []
        self._due: list[tuple[float, int, float]] = []
        self._ready: list[float] = []
        self._now = 0.0
        self._idle_ms = 0.0

    def run(self, length_ms: float) -> Told:
        """Go on for so long."""
        self._offer(length_ms)
        beat, lap, marks, worked = 0.0, 0.0, 0, 0.0
        pause = self._random.expovariate(1 / self.pauses[0]) if self.pauses else length_ms
        while self._now < length_ms:
            begun = self._now
            if marks == 2:
                lap, marks = begun, 1
            elif marks == 1:
                before, worked = worked, begun - self._idle_ms
                self.admission.record_cycle(begun, begun - lap, (worked - before) * self.core)
                beat, marks = begun + PERIOD_MS, 0
            if marks == 0 and begun >= beat:
                marks = 2
            self._now += EMPTY_MS
            if self.pauses and self._now >= pause:
                self._idle_ms += self.pauses[1]
                self._now += self.pauses[1]
                pause = self._now + self._random.expovariate(1 / self.pauses[0])
            self._lap()
            if not self._ready and not marks:
                next_ms = min([beat, *(queue[0][0] for queue in (self._inbox, self._due) if queue)])
                self._idle_ms += max(next_ms - self._now, 0.0)
                self._now = max(self._now, next_ms)
        return self.reported

    def _offer(self, length_ms: float) -> None:
        at = 0.0
        while at < length_ms:
            at += self._random.expovariate(self._load(at) / self.work.whole)
            self._inbox.append((self._sent(at), next(self._numbers), True))
        heapq.heapify(self._inbox)

    def _lap(self) -> None:
        ready, self._ready = self._ready, []
        for asked in ready:
            self._now += self.work.answer
            self.admission.had_turn(self._now)
            self.admission.ended(self._now - asked)
            self.reported.answered.append((self._now, self._now - asked - self.deadline_ms))
        arrived, written = self._now, list[float]()
        while self._inbox and self._inbox[0][0] <= arrived:
            at, _, begins = heapq.heappop(self._inbox)
            if not begins:
                self._now += self.work.group
            elif self.admission.admits(self._now):
                self._now += self.work.begin
                if self.work.direct:
                    self._now += self.work.answer
                    written.append(at)
                else:
                    self._begin(at)
            else:
                self._now += self.work.refuse
                self.reported.refused.append(self._now)
        self.reported.answered += [(self._now, self._now - asked - self.deadline_ms) for asked in written]
        while self._due and self._due[0][0] <= self._now:
            self._now += self.work.answer
            self.open -= 1
            asked = heapq.heappop(self._due)[2]
            self.admission.ended(self.deadline_ms - MARGIN_MS)
            self.reported.answered.append((self._now, self._now - asked - self.deadline_ms))

    def _begin(self, asked: float) -> None:
        if not self.work.groups:
            self._ready.append(asked)
            self.admission.waiting += 1
            return
        self.open += 1
        heapq.heappush(self._due, (self._now + self.deadline_ms - MARGIN_MS, next(self._numbers), asked))
        for number in range(self.work.groups):
            at = asked + self.deadline_ms * (number + self._random.random()) / self.work.groups
            heapq.heappush(self._inbox, (self._sent(at), next(self._numbers), False))

    def _sent(self, due: float) -> float:
        return math.ceil(due / self.burst_ms) * self.burst_ms if self.burst_ms else due
