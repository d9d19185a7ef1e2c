"""Load beyond the capacity of the server: `python tests/drills/overload.py [--quick] [--rounds N] [--only NAME]`.

The server runs on one core, the load on another, in an open loop: predictions start at their due times, whether or not
earlier ones are answered. First the capacity is found, the maximum rate of answers in time; then shares of it are
offered in random order, round after round: a shared machine is slower for seconds at a time, so the loads are
interleaved, and medians over the rounds are shown. An answer is in time if it is received at most 2 ms after its
deadline (`ALLOWANCE_MS`), counted from the request. At twice the capacity the server must answer in time at least 90%
of its peak, and health probes must be answered within 100 ms at any load. Over WebSocket this holds for clients that
reduce their rate when they are refused, as ours does (`anytime_service.client.engine`): the server must read the
groups in transit after a refusal, which costs about a quarter of an answer. Results of other clients are only shown.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from anytime.model.model import Model
from benchmarks.harness import CLIENT_CORE, flag, script_options, set_priority
from benchmarks.load.child import Child, server
from benchmarks.load.frames import post
from benchmarks.load.models import temporary_model, values_of
from drills.open_loop.loop import Client, Counts, OpenLoop
from drills.open_loop.posts import Posts
from drills.open_loop.probes import Probes
from drills.open_loop.streams import Streams

SENT = 10
"""Groups sent per prediction, half of those in the model."""

DEADLINE_MS = 20.0
CONNECTIONS = 16
NEAR = (0.7, 0.85, 1.0, 1.2)
SHARES = (0.5, 1.0, 1.5, 2.0, 3.0)
MIN_SHARE = 0.9
PROBED_MS = 100.0
WARM_UP_S = 0.3
SLIP_MS = 1.0
"""Above this lateness of the load generator, at the 99th percentile, a result says little about the server."""


class ClosableClient(Client, Protocol):
    """A client that can be closed."""

    def close(self) -> None:
        """Close every connection."""


class Slot(NamedTuple):
    """Results of one offered rate; counts per second, times in milliseconds."""

    offered: float
    good: float
    late: float
    refused: float
    prior: float
    odd: float
    steps: float
    p50_ms: float
    p99_ms: float
    busy: float
    slip_ms: float
    probe_ms: float


class Drill:
    """One kind of request, offered beyond the capacity of the server.

    Parameters
    ----------
    start : a rate that the server can surely answer.
    binding : whether the promise applies; otherwise the result is only shown.
    """

    def __init__(self, name: str, make: Callable[[int], ClosableClient], start: float, *, binding: bool = True) -> None:
        self.name, self.make, self.start, self.binding = name, make, start, binding

    def run(self, child: Child, seconds: float, rounds: int, rng: np.random.Generator) -> bool:
        """Find the capacity, offer shares of it, and print; return whether the promises were kept."""
        print(f"\n{self.name}: deadline {DEADLINE_MS:g} ms, in time until {DEADLINE_MS:g} + 2 ms", flush=True)
        print(_HEAD)
        best = self._search(child, seconds, rng)
        near = self._rounds(child, best, NEAR, seconds, rounds, rng)
        for slot in near.values():
            _print_slot("near", slot, best)
        capacity = max(slot.good for slot in near.values())
        shown = self._rounds(child, capacity, SHARES, seconds, rounds, rng)
        peak = max(capacity, *(slot.good for slot in shown.values()))
        for share, slot in shown.items():
            _print_slot(f"{share:.0%}", slot, peak)
        share_of_peak = shown[2.0].good / peak
        worst = max(slot.probe_ms for slot in shown.values())
        passed = share_of_peak >= MIN_SHARE or not self.binding
        print(
            f"    at 200 %: {share_of_peak:.0%} of the peak of {peak:.0f}/s{'' if passed else '  under 90 %'}", end=""
        )
        print(f"; slowest probe {worst:.1f} ms{'' if worst <= PROBED_MS else '  over 100 ms'}", flush=True)
        return passed and worst <= PROBED_MS

    def _rounds(
        self, child: Child, base: float, shares: Sequence[float], seconds: float, rounds: int, rng: np.random.Generator
    ) -> dict[float, Slot]:
        """Offer shares of a rate in random order in every round; return medians."""
        slots: dict[float, list[Slot]] = {share: [] for share in shares}
        for _ in range(rounds):
            for share in rng.permutation(shares):
                slots[float(share)].append(self._offer(child, share * base, seconds, rng))
        return {share: _median(each) for share, each in slots.items()}

    def _search(self, child: Child, seconds: float, rng: np.random.Generator) -> float:
        """Raise the rate until three steps do not increase the answers in time; return the maximum."""
        rate, best, unsuccessful = self.start, 0.0, 0
        while unsuccessful < 3:
            slot = self._offer(child, rate, seconds, rng)
            _print_slot("search", slot, best)
            unsuccessful = 0 if slot.good > 1.02 * best else unsuccessful + 1
            best = max(best, slot.good)
            rate *= 1.5 if slot.good > 0.97 * rate else 1.15
        return max(best, 1.0)

    def _offer(self, child: Child, rate: float, seconds: float, rng: np.random.Generator) -> Slot:
        client, probes = self.make(child.port), Probes(child.port)
        loop = OpenLoop(client, probes)
        loop.offer(rate, WARM_UP_S, rng)  # not measured: the start of a load
        probes.worst_ms()
        cpu, started = child.cpu_us, time.perf_counter()
        counts = loop.offer(rate, seconds, rng)
        busy = (child.cpu_us - cpu) / 1e6 / (time.perf_counter() - started)
        slot = _slot(rate, counts, seconds, busy, probes.worst_ms())
        loop.close()
        client.close()
        gc.collect()
        return slot


def _slot(rate: float, counts: Counts, seconds: float, busy: float, probe_ms: float) -> Slot:
    good, late, refused, prior = (n / seconds for n in (counts.good, counts.late, counts.refused, counts.priors))
    odd = (counts.odd + counts.unsent) / seconds
    p50, p99 = (float(each) for each in np.percentile(counts.took_ms or [float("nan")], (50, 99)))
    slip = float(np.percentile(counts.slip_ms, 99))
    return Slot(
        rate, good, late, refused, prior, odd, counts.steps / max(counts.good, 1), p50, p99, busy, slip, probe_ms
    )


def _median(slots: list[Slot]) -> Slot:
    """Return medians of all fields, but the maximum of the probes."""
    return Slot(*(float(np.median(each)) for each in zip(*slots, strict=True)))._replace(
        probe_ms=max(slot.probe_ms for slot in slots)
    )


_COLUMNS = ("offered", "a second", "in time", "of peak", "late", "refused", "prior", "odd", "steps", "p50", "p99")
_HEAD = "".join(f"{name:>9}" for name in (*_COLUMNS, "busy", "slip", "probe"))


def _print_slot(offered: str, slot: Slot, peak: float) -> None:
    of_peak = slot.good / peak if peak else float("nan")
    cells = [f"{offered:>9}{slot.offered:9.0f}{slot.good:9.0f}{of_peak:9.0%}"]
    cells += [f"{count:9.0f}" for count in (slot.late, slot.refused, slot.prior, slot.odd)]
    cells += [f"{slot.steps:9.1f}{slot.p50_ms:9.1f}{slot.p99_ms:9.1f}{slot.busy:9.0%}"]
    cells += [f"{slot.slip_ms:9.2f}{slot.probe_ms:9.1f}"]
    print("".join(cells) + ("  the load generator was late" if slot.slip_ms > SLIP_MS else ""), flush=True)


def drills(model: Model) -> dict[str, Drill]:
    """Return the drill of every kind of request."""
    rng = np.random.default_rng(4)
    names = list(model.places)[:SENT]

    def body(rows: int) -> bytes:
        one = {name: [values_of(model, name, rng) for _ in range(rows)] for name in names}
        return json.dumps({"groups": {name: each[0] if rows == 1 else each for name, each in one.items()}}).encode()

    def posts(rows: int, query: str = "") -> Callable[[int], Posts]:
        request = post(f"/predict?deadline_ms={DEADLINE_MS:g}{query}", body(rows))
        return lambda port: Posts(port, request, DEADLINE_MS)

    groups = [(name, json.dumps(values_of(model, name, rng))) for name in names]

    def streams(stops: Callable[[int], bool], *, throttled: bool = False) -> Callable[[int], Streams]:
        return lambda port: Streams(port, groups, DEADLINE_MS, CONNECTIONS, stops, throttled)

    return {
        "post": Drill(f"POST, {SENT} groups", posts(1), 1000),
        "rows": Drill(f"POST, {SENT} groups of 100 rows", posts(100), 100),
        "prior": Drill(f"POST, {SENT} groups, overload=prior", posts(1, "&overload=prior"), 1000),
        "websocket": Drill(
            f"WebSocket, {SENT} groups, clients reduce their rate when refused, as ours does",
            streams(lambda _: True, throttled=True),
            500,
        ),
        "stubborn": Drill(
            f"WebSocket, {SENT} groups, clients ignore refusals", streams(lambda _: True), 500, binding=False
        ),
        "brutal": Drill(
            f"WebSocket, {SENT} groups, half of the clients go on sending refused groups",
            streams(lambda n: n % 2 == 0),
            500,
            binding=False,
        ),
    }


def _raise_priority(pid: int, *, real_time: bool) -> None:
    """Raise the priority of a process."""
    set_priority(pid, real_time=real_time)
    if not real_time:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, pid, -20)


def main() -> None:
    """Run and print; exit with 1 if a promise is broken."""
    args = script_options(
        __doc__.splitlines()[0] if __doc__ else None,
        quick=flag("two rounds"),
        rounds={"type": int, "default": 9},
        seconds={"type": float, "default": 1.0, "help": "for each share in each round"},
        only={"help": "post, rows, prior, websocket, stubborn or brutal"},
        real_time=flag("for a shared machine; a server that is always busy is then stopped for 50 ms per second"),
    )
    os.sched_setaffinity(0, {CLIENT_CORE})
    _raise_priority(0, real_time=args.real_time)
    gc.disable()
    passed = True
    with temporary_model(groups=2 * SENT) as (path, model):
        for name, drill in drills(model).items():
            if args.only in (None, name):
                with server("service", path) as child:
                    _raise_priority(child.pid, real_time=args.real_time)
                    rounds = 2 if args.quick else args.rounds
                    passed &= drill.run(child, args.seconds, rounds, np.random.default_rng(5))
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
