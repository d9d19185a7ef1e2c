"""Admission: how late an answer begun now would leave, and whether it is begun.

An event loop looks at what has come once each time round, a *lap*. So an answer leaves late by about a lap, and by the
work of requests that were let in and have not had their turn. Where this prediction exceeds what the operator allows,
nothing is begun. That bounds lateness, but a prediction also brings work for as long as it is open: a loop that lets in
whatever fits at the moment is swamped by the groups of it later, refuses everything, runs dry, and swings. So near
saturation predictions are let in at the rate that the loop can carry:

- Work that comes during one lap is done in the next. If work takes the share u of the time, laps tend to last
  `floor / (1 - u)`, where `floor` is an empty lap; so u is read off the laps, also where the loop never sleeps.
- Work that comes in bursts, and pauses of the machine, make laps longer than u does. So the shorter laps are, beside
  what is aimed at, the more u is read off the processor's time that the loop's thread has taken. Where laps are long
  it is not asked: a thread that gets half a core looks idle by it when it is swamped.
- One lap says nothing: the machine pauses, and predictions come by chance. Where laps stay long, more comes than can be
  carried; and then for as long as what is asked for, with all that is refused of it, takes nearly the whole time.
- With n predictions open on average, about `n / u` saturate the loop. So many may be open, less what leaves laps short;
  by Little's law they are begun at that number divided by how long they last. A bucket of tokens spreads them evenly.

This is a sans-I/O machine: time comes in with every event, in milliseconds. `pulse` measures the laps.

Laps of an event loop: how long it takes to come round once, and how much it works, a few hundred times a second.

A lap is measured between two callbacks that follow each other by one turn. Meanwhile the loop does not sleep, so that
what is measured is work alone: all that had come, and was due, at that moment.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from time import thread_time

from anytime_service.clock import now_ms

__all__ = [
    "PERIOD_MS",
    "Admission",
    "LoopMonitor",
]

PERIOD_MS = 2.0
"""Time from one measured lap to the next, while anything is asked for."""

AIM = 1 / 8
"""Share of the allowed lateness that laps are kept to when more is offered than can be carried."""

QUICK_MS, STEADY_MS = 4.0, 10.0
"""Time constants of the lap, and of the means that the number of open predictions is judged by."""

AT_MOST = 0.5
"""Weight that one lap may have: a single pause of the machine says little about what is asked for."""

SWAMPED, SWAMPED_MS = 0.9, 50.0
"""Share of the time that all that is asked for may take, refused or not, in the mean over so long."""

LONG, LONG_MS = 0.7, 30.0
"""Share of the time that laps may be longer than what is aimed at, in the mean over so long."""

REFUSED = 0.1
"""Share of what is asked for whose refusal is more than chance."""

HOLD_MS = 100.0
"""So long after more was last asked for than the loop can carry, the rate is held."""

FEW = 8
"""So few open predictions do not swamp the loop later."""

ALONE = 4
"""So few open predictions, with nothing that waits, are no load at all."""

SLACK, BURST_MS, SPREAD = 1.1, 4.0, 1.05
"""Open predictions above what is aimed at; time for which tokens are saved up; and their rate above the mean."""

REST_MS = 1000.0
"""Laps are measured no longer when nothing has been asked for, and nothing open, for so long."""


class Admission:
    """Decides, prediction by prediction, whether it is begun.

    Parameters
    ----------
    max_lateness_ms : the most that an answer begun now may be expected to be late.
    opened : tells how many predictions are open.
    wake : called when something is asked for while laps are not measured.

    Attributes
    ----------
    waiting : requests that were let in and have not had their turn.
    """

    def __init__(
        self, max_lateness_ms: float, opened: Callable[[], int], wake: Callable[[], None] = lambda: None
    ) -> None:
        self.waiting = 0
        self._most_ms = max_lateness_ms
        self._aim_ms = max_lateness_ms * AIM
        self._opened = opened
        self._wake = wake
        self._awake = False
        self._asked_ms = -math.inf
        self._lapped_ms = 0.0
        self._last_ms = self._lap_ms = 0.0
        self._floor_ms = 0.0
        self._log_lap = 0.0
        self._run_ms = 0.1
        self._turned_ms = 0.0
        self._worked = 1.0
        self._carried = 0.0
        self._long = 0.0
        self._asked = self._refused = 0.0
        self._open = 0.0
        self._life_ms = 0.0
        self._room: float | None = None
        self._steady = 0.0
        self._tokens = 0.0
        self._filled_ms = 0.0
        self._held_ms = -math.inf

    @property
    def busy(self) -> float:
        """Share of the time that work takes, 0 to 1: read off the laps, and the shorter they are off the processor."""
        if self._floor_ms == 0.0:
            return 0.0
        by_laps = 1.0 - self._floor_ms / math.exp(self._log_lap)
        short = min(max(2.0 - 2.0 * self._lap_ms / self._aim_ms, 0.0), 1.0)
        return by_laps - short * max(by_laps - self._worked, 0.0)

    def predicted_ms(self, now_ms: float) -> float:
        """How late an answer begun now would leave."""
        return self._lap_at(now_ms) * self.busy + self.waiting * self._run_ms

    def admits(self, now_ms: float) -> bool:
        """Whether a prediction asked for now is begun; to be asked once for each."""
        self._asked_ms = now_ms
        if not self._awake:
            self._awake, self._lapped_ms, self._last_ms = True, now_ms, 0.0
            self._wake()
        fits = self.predicted_ms(now_ms) <= self._most_ms and (self._room is None or self._carries(now_ms, self._room))
        if not fits and self.waiting == 0 and self._opened() <= ALONE:
            fits = True  # nobody else is asking: a lap that is long is a pause of the machine
        self._asked += 1.0
        self._refused += not fits
        return fits

    def retry_after_s(self, now_ms: float) -> int:
        """Whole seconds after which to ask again, 1 at least: in so long all that waits now is done."""
        return max(1, math.ceil(self.predicted_ms(now_ms) / 1000.0))

    def lapped(self, now_ms: float, took_ms: float, worked_ms: float) -> bool:
        """Hear of a lap that has just ended.

        Parameters
        ----------
        took_ms : how long it took.
        worked_ms : time of the processor that the loop's thread has taken since the lap before.

        Returns
        -------
        Whether another is to be measured.
        """
        gap_ms = max(now_ms - self._lapped_ms, 1e-3)
        self._lapped_ms, self._last_ms = now_ms, took_ms
        if self._floor_ms == 0.0:
            self._floor_ms, self._log_lap = took_ms, math.log(took_ms)
        elif took_ms < 4 * self._floor_ms:  # an idle machine may also become slower
            self._floor_ms = min(took_ms, self._floor_ms + 1e-3 * (took_ms - self._floor_ms))
        self._lap_ms += (took_ms - self._lap_ms) * min(1 - math.exp(-gap_ms / QUICK_MS), AT_MOST)
        weight = min(1 - math.exp(-gap_ms / STEADY_MS), AT_MOST)
        self._log_lap = max(self._log_lap + weight * (math.log(took_ms) - self._log_lap), math.log(self._floor_ms))
        opened = self._opened()
        self._open += weight * (opened - self._open)
        worked = min(worked_ms / gap_ms, 1.0)
        self._worked += weight * (worked - self._worked)
        if self._swamped(gap_ms, took_ms, worked):
            self._held_ms = now_ms
        self._hold(now_ms, gap_ms)
        self._awake = opened > 0 or now_ms - self._asked_ms < REST_MS
        return self._awake

    def ended(self, life_ms: float) -> None:
        """Hear how long a prediction was open."""
        self._life_ms += (life_ms - self._life_ms) * 0.02 if self._life_ms else life_ms

    def had_turn(self, now_ms: float) -> None:
        """Hear that a request which had waited has had its turn; those that follow each other tell how long that is."""
        if self._turned_ms:
            self._run_ms += (min(now_ms - self._turned_ms, self._most_ms) - self._run_ms) * 0.05
        self.waiting -= 1
        self._turned_ms = now_ms if self.waiting else 0.0

    def _lap_at(self, now_ms: float) -> float:
        """Length of the last lap, or of the one under way if that is longer already."""
        return max(self._last_ms, now_ms - self._lapped_ms - PERIOD_MS) if self._awake else 0.0

    def _swamped(self, gap_ms: float, took_ms: float, worked: float) -> bool:
        """Whether more comes than the loop can carry: by how long laps were, and once held by what is asked for."""
        kept = math.exp(-gap_ms / SWAMPED_MS)
        self._carried += (1.0 - kept) * (worked - self._carried)
        self._asked *= kept
        self._refused *= kept
        weight = min(1.0 - math.exp(-gap_ms / LONG_MS), AT_MOST)
        self._long += weight * ((took_ms > self._aim_ms) - self._long)
        begun = 1.0 - self._refused / max(self._asked, 1.0)
        some = self._room is not None or self._refused > REFUSED * self._asked
        return self._long > LONG or (some and self._carried > SWAMPED * begun)

    def _hold(self, now_ms: float, gap_ms: float) -> None:
        """Set room and rate by what the loop was seen to carry; or let everything in, after a while without need."""
        if now_ms - self._held_ms > HOLD_MS:
            self._room = None
            return
        aim = 1.0 - min(self._floor_ms / self._aim_ms, 0.5)
        slower = min(max(1.0 + 0.1 * (1.0 - self._lap_ms / self._aim_ms), 0.5), 1.0)
        room = self._open * aim * slower / max(self.busy, 0.05)
        # Slowly, over as long as predictions last: what is begun in waves ends in waves.
        part = min(gap_ms / max(self._life_ms, 20.0), 1.0)
        self._steady = room if self._room is None else self._steady + part * (room - self._steady)
        self._room = room

    def _carries(self, now_ms: float, room: float) -> bool:
        """Whether the loop can carry another prediction for as long as it lasts."""
        opened = self._opened()
        if opened <= FEW:
            return True
        if opened >= SLACK * room:
            return False
        if not self._life_ms:
            return True
        rate = SPREAD * self._steady / self._life_ms
        self._tokens = min(self._tokens + (now_ms - self._filled_ms) * rate, 1.0 + rate * BURST_MS)
        self._filled_ms = now_ms
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class LoopMonitor:
    """Measures laps for as long as it is told to go on.

    Parameters
    ----------
    lapped : called with the time, how long a lap took, and the time of the processor that the loop's thread has taken
        since the lap before; tells whether to measure another.
    """

    def __init__(self, lapped: Callable[[float, float, float], bool]) -> None:
        self._lapped = lapped
        self._begun_ms = 0.0
        self._worked_ms = 0.0

    def start(self) -> None:
        """Begin; in the event loop."""
        self._worked_ms = thread_time() * 1000.0
        self._wait()

    def _wait(self) -> None:
        asyncio.get_running_loop().call_later(PERIOD_MS / 1000.0, self._beat)

    def _beat(self) -> None:
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._begun_ms = now_ms()
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        now, worked_ms = now_ms(), thread_time() * 1000.0
        since_ms, self._worked_ms = worked_ms - self._worked_ms, worked_ms
        if self._lapped(now, now - self._begun_ms, since_ms):
            self._wait()
