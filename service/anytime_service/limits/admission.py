"""Admission control, and the measurements of the event loop that it uses.

The controller predicts how late an answer would be whose prediction starts now, and decides whether to admit it. The
event loop polls its sockets once per iteration, a *cycle*. An answer is therefore late by about one cycle plus the work
of admitted requests that still wait for their turn. If this lateness exceeds the limit of the operator, the controller
admits nothing. That bounds lateness. But an open prediction also causes work later: a server that admits whatever fits
at the moment is overloaded by the groups that arrive afterwards, refuses everything, runs idle, and oscillates. Near
saturation the controller therefore admits predictions at the rate that the event loop sustains:

- The loop does the work that arrives during one cycle in the next cycle. If work uses the share u of the time, cycles
  tend to last `floor / (1 - u)`, where `floor` is an empty cycle. So the cycle times give u, even if the loop never
  sleeps.
- Bursts of work and pauses of the machine make cycles longer than u does. The shorter the cycles are compared with
  their target, the more the controller estimates u from the processor time of the loop's thread. For long cycles it
  ignores the processor time: a thread that gets half a core looks idle by it while it is overloaded.
- A single cycle is no evidence: the machine pauses, and predictions arrive at random. If cycles stay long, the load
  exceeds the capacity. The overload then lasts as long as all requests, including the refused ones, use nearly all
  the time.
- With n predictions open on average, about `n / u` saturate the loop. The controller allows that many, reduced so that
  cycles stay short. By Little's law the admission rate is this number divided by the mean lifetime of a prediction. A
  token bucket spreads admissions evenly.

`Admission` is a sans-I/O state machine: every event carries its time, in milliseconds. `measure_cycles` measures
duration and processor time of a cycle a few hundred times per second, between two turns of a task that follow each
other by one iteration. The loop does not sleep in between, so a cycle contains only work: all events that were due at
that moment.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from time import thread_time

from anytime_service.clock import now_ms

PERIOD_MS = 2.0  # time from one measured cycle to the next while requests arrive
AIM = 1 / 8  # target of the cycle time under overload, as a share of the allowed lateness
QUICK_MS = 4.0  # time constant of the mean cycle time
STEADY_MS = 10.0  # time constant of the means that determine the allowed number of open predictions
MAX_WEIGHT = 0.5  # largest weight of one cycle: a single pause of the machine says little about the load
OVERLOADED = 0.9  # share of the time that all requests, refused or not, may use before they count as overload
OVERLOADED_MS = 50.0  # time constant of this share
LONG = 0.7  # share of the time in which cycles may exceed their target before they count as overload
LONG_MS = 30.0  # time constant of this share
REFUSED = 0.1  # share of requests above which refusals are more than chance
HOLD_MS = 100.0  # time for which the controller keeps limiting the rate after the last overload
FEW = 8  # up to this many open predictions do not overload the loop later
ALONE = 4  # up to this many open predictions, and requests in a cycle, with no waiting one, are no load at all
SLACK = 1.1  # open predictions allowed relative to the target
BURST_MS = 4.0  # time over which tokens accumulate
SPREAD = 1.05  # token rate relative to the mean
REST_MS = 1000.0  # the measurements stop after this time without requests and open predictions


class Admission:
    """Admission controller that decides for each prediction whether it begins.

    `max_lateness_ms` is the largest predicted lateness of an admitted prediction. `count_active` returns the number of
    open predictions. `wake` is called when a request arrives while no cycles are measured. `waiting` counts admitted
    requests that still wait for their turn. `busy` is the share of the time that work uses, 0 to 1: from cycle times,
    and for short cycles from the processor time.
    """

    def __init__(
        self, max_lateness_ms: float, count_active: Callable[[], int], wake: Callable[[], None] = lambda: None
    ) -> None:
        self.waiting = 0
        self.busy = 0.0
        self.max_lateness_ms = max_lateness_ms
        self._aim_ms = max_lateness_ms * AIM
        self._count_active = count_active
        self._wake = wake
        self._awake = False
        self._requested_ms = -math.inf
        self._cycled_ms = 0.0
        self._arrived = 0  # requests since the last cycle; one that is complete is answered in it, and never open
        self._last_ms = self._cycle_ms = 0.0
        self._floor_ms = 0.0
        self._log_cycle = 0.0
        self._run_ms = 0.1
        self._turned_ms = 0.0
        self._worked = 1.0
        self._load = 0.0
        self._long = 0.0
        self._requests = self._refusals = 0.0
        self._mean_active = 0.0
        self._lifetime_ms = 0.0
        self._capacity: float | None = None
        self._steady = 0.0
        self._tokens = 0.0
        self._filled_ms = 0.0
        self._overloaded_ms = -math.inf

    def predicted_ms(self, now_ms: float) -> float:
        """Return the predicted lateness of an answer whose prediction begins now."""
        # The duration of the last cycle, or of the current one if that is longer already.
        cycle_ms = max(self._last_ms, now_ms - self._cycled_ms - PERIOD_MS) if self._awake else 0.0
        return cycle_ms * self.busy + self.waiting * self._run_ms

    def admits(self, now_ms: float) -> bool:
        """Return whether a prediction requested now is admitted; call this once per prediction."""
        self._requested_ms = now_ms
        self._arrived += 1
        if not self._awake:
            self._awake, self._cycled_ms, self._last_ms = True, now_ms, 0.0
            self._wake()
        fits = self.predicted_ms(now_ms) <= self.max_lateness_ms and (
            self._capacity is None or self._sustains(now_ms, self._capacity)
        )
        # Without other requests a long cycle is a pause of the machine.
        fits = fits or (self.waiting == 0 and max(self._count_active(), self._arrived) <= ALONE)
        self._requests += 1.0
        self._refusals += not fits
        return fits

    def retry_after_s(self) -> int:
        """Return the seconds until all waiting requests are done, rounded up, at least 1: a client may then retry."""
        return max(1, math.ceil(self.waiting * self._run_ms / 1000.0))

    def record_cycle(self, now_ms: float, took_ms: float, worked_ms: float) -> bool:
        """Record a cycle of `took_ms` that has just ended; return whether to measure another one.

        `worked_ms` is the processor time of the loop's thread since the previous cycle.
        """
        gap_ms = max(now_ms - self._cycled_ms, 1e-3)
        self._cycled_ms, self._last_ms = now_ms, took_ms
        self._arrived = 0
        if self._floor_ms == 0.0:
            self._floor_ms, self._log_cycle = took_ms, math.log(took_ms)
        elif took_ms < 4 * self._floor_ms:  # an idle machine may also become slower
            self._floor_ms = min(took_ms, self._floor_ms + 1e-3 * (took_ms - self._floor_ms))
        self._cycle_ms += (took_ms - self._cycle_ms) * min(1 - math.exp(-gap_ms / QUICK_MS), MAX_WEIGHT)
        weight = min(1 - math.exp(-gap_ms / STEADY_MS), MAX_WEIGHT)
        self._log_cycle = max(
            self._log_cycle + weight * (math.log(took_ms) - self._log_cycle), math.log(self._floor_ms)
        )
        active = self._count_active()
        self._mean_active += weight * (active - self._mean_active)
        worked = min(worked_ms / gap_ms, 1.0)
        self._worked += weight * (worked - self._worked)
        by_cycles = 1.0 - self._floor_ms / math.exp(self._log_cycle)
        short = min(max(2.0 - 2.0 * self._cycle_ms / self._aim_ms, 0.0), 1.0)
        self.busy = by_cycles - short * max(by_cycles - self._worked, 0.0)
        if self._overloaded(gap_ms, took_ms, worked):
            self._overloaded_ms = now_ms
        self._update_capacity(now_ms, gap_ms)
        return active > 0 or now_ms - self._requested_ms < REST_MS

    def rest(self) -> None:
        """Record that no further cycle is measured; the next request calls `wake`."""
        self._awake = False

    def ended(self, lifetime_ms: float) -> None:
        self._lifetime_ms += (lifetime_ms - self._lifetime_ms) * 0.02 if self._lifetime_ms else lifetime_ms

    def had_turn(self, now_ms: float) -> None:
        """Record that a waiting request has had its turn; consecutive turns give the duration of one."""
        if self._turned_ms:
            self._run_ms += (min(now_ms - self._turned_ms, self.max_lateness_ms) - self._run_ms) * 0.05
        self.waiting -= 1
        self._turned_ms = now_ms if self.waiting else 0.0

    def _overloaded(self, gap_ms: float, took_ms: float, worked: float) -> bool:
        """Return whether the load exceeds the capacity: by the cycle times, and once limited also by the requests."""
        decay = math.exp(-gap_ms / OVERLOADED_MS)
        self._load += (1.0 - decay) * (worked - self._load)
        self._requests *= decay
        self._refusals *= decay
        weight = min(1.0 - math.exp(-gap_ms / LONG_MS), MAX_WEIGHT)
        self._long += weight * ((took_ms > self._aim_ms) - self._long)
        begun = 1.0 - self._refusals / max(self._requests, 1.0)
        some = self._capacity is not None or self._refusals > REFUSED * self._requests
        return self._long > LONG or (some and self._load > OVERLOADED * begun)

    def _update_capacity(self, now_ms: float, gap_ms: float) -> None:
        """Set capacity and rate from the load that the loop sustained; remove the limit `HOLD_MS` after an overload."""
        if now_ms - self._overloaded_ms > HOLD_MS:
            self._capacity = None
            return
        aim = 1.0 - min(self._floor_ms / self._aim_ms, 0.5)
        slower = min(max(1.0 + 0.1 * (1.0 - self._cycle_ms / self._aim_ms), 0.5), 1.0)
        capacity = self._mean_active * aim * slower / max(self.busy, 0.05)
        # Slowly, over the lifetime of a prediction: predictions that begin in waves end in waves.
        part = min(gap_ms / max(self._lifetime_ms, 20.0), 1.0)
        self._steady = capacity if self._capacity is None else self._steady + part * (capacity - self._steady)
        self._capacity = capacity

    def _sustains(self, now_ms: float, capacity: float) -> bool:
        """Return whether the loop sustains another prediction for its lifetime."""
        active = self._count_active()
        if active <= FEW:
            return True
        if active >= SLACK * capacity:
            return False
        if not self._lifetime_ms:
            return True
        rate = SPREAD * self._steady / self._lifetime_ms
        self._tokens = min(self._tokens + (now_ms - self._filled_ms) * rate, 1.0 + rate * BURST_MS)
        self._filled_ms = now_ms
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


async def measure_cycles(admission: Admission) -> None:
    """Measure cycles of the event loop until the controller needs no further one, or the loop ends."""
    goes_on, before_ms = True, thread_time() * 1000.0
    try:
        while goes_on:
            await asyncio.sleep(PERIOD_MS / 1000.0)
            begun_ms = now_ms()
            await asyncio.sleep(0)
            now, worked_ms = now_ms(), thread_time() * 1000.0
            goes_on = admission.record_cycle(now, now - begun_ms, worked_ms - before_ms)
            before_ms = worked_ms
    finally:
        admission.rest()
