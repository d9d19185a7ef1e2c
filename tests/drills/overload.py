"""Load beyond the capacity of the server: `python tests/drills/overload.py [--quick] [--rounds N] [--only NAME]`.

The server runs on one core, the load on another, in an open loop: predictions start at their due times, whether or not
earlier ones are answered. First the capacity is found, the maximum rate of answers in time; then shares of it are
offered in random order, round after round, and medians over the rounds are shown. A shared machine is slower for
seconds or minutes at a time, so only loads of the same rounds are compared. An answer is in time if it is received at
most 2 ms after its deadline (`ALLOWANCE_MS`), counted from the request. At twice the capacity the server must answer in
time at least 90% of its peak, the maximum over the loads, and health probes must be answered within 100 ms at any load.
Over WebSocket this holds for clients that reduce their rate when they are refused, as ours does
(`anytime_service.client.engine`): the server must read the groups in transit after a refusal, which costs about a
quarter of an answer. Results of other clients are only shown.

The part "goodput" compares two servers that compute the groups themselves, at shares of the capacity of the one that
computes all groups of a request or refuses it. The other has `Runner`, and must answer at least as many in time.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from anytime.model.model import Model
from benchmarks.harness import CLIENT_CORE, Table, conclude, flag, percentiles, script_options, set_priority, violations
from benchmarks.load.child import DEADLINE_MS, TOTAL_MS, Child, request, server
from benchmarks.load.engine import Counts, Load, Posts, Probes, Requesting, Streams
from benchmarks.load.frames import post
from benchmarks.load.models import temporary_model, values_of
from drills.cluster import raise_priority

SENT = 10
"""Groups sent per prediction, half of those in the model."""

NEAR = (0.7, 0.85, 1.0, 1.2)
SHARES = (0.5, 1.0, 1.5, 2.0, 3.0)
MIN_SHARE = 0.9
PROBED_MS = 100.0
WARM_UP_S = 0.3
DRAIN_S = 0.3
"""Time to wait for the last answers."""

SLIP_MS = 1.0
"""Above this lateness of the load generator, at the 99th percentile, a result says little about the server."""

Key = TypeVar("Key", bound=Hashable)

COLUMNS = {
    "a second": ".0f",
    "in time": ".0f",
    "late": ".0f",
    "refused": ".0f",
    "prior": ".0f",
    "odd": ".0f",
    "steps": ".1f",
    "p50": ".1f",
    "p99": ".1f",
    "busy": ".0%",
    "slip": ".2f",
    "probe": ".1f",
}
"""What is measured at one offered rate, with its format: counts per second, times in milliseconds."""

SLOTS = Table(("offered", ">11"), ("of peak", ">9.0%"), *((name, f">9{form}") for name, form in COLUMNS.items()))

Slot = dict[str, float]
"""The value of each column."""


@dataclass(frozen=True)
class Offering:
    """Clients of one kind that request predictions from a server."""

    child: Child
    make: Callable[[Load, int], Requesting]
    seconds: float
    rng: np.random.Generator

    def offer(self, rate: float) -> Slot:
        """Request predictions at random times, `rate` per second on average, and count the results."""
        with closing(Load()) as load:
            client, probes = self.make(load, self.child.port), Probes(load, self.child.port)
            self._run(load, client, rate, WARM_UP_S)  # not measured: the start of a load
            probes.worst_ms()
            load.late_ms.clear()
            cpu, started = self.child.cpu_us, time.perf_counter()
            counts = self._run(load, client, rate, self.seconds)
            busy = (self.child.cpu_us - cpu) / 1e6 / (time.perf_counter() - started)
            worst = probes.worst_ms()
        gc.collect()
        answers = {"in time": counts.good, "late": counts.late, "refused": counts.refused, "prior": counts.priors}
        found = {name: n / self.seconds for name, n in (answers | {"odd": counts.odd + counts.unsent}).items()}
        (p50, p99), (slip,) = percentiles(counts.took_ms, 50, 99), percentiles(load.late_ms, 99)
        times = {"p50": p50, "p99": p99, "busy": busy, "slip": slip, "probe": worst}
        return {"a second": rate, "steps": counts.steps / max(counts.good, 1)} | found | times

    def _run(self, load: Load, client: Requesting, rate: float, seconds: float) -> Counts:
        counts, now = Counts(), time.perf_counter()
        due = now + 0.01 + np.cumsum(self.rng.exponential(1.0 / rate, max(int(rate * seconds), 1)))
        for at in due.tolist():
            load.at(at, partial(client.begin, counts))
        load.run_for(due[-1] - now + DRAIN_S)
        return counts

    def search(self, rate: float) -> float:
        """Raise the rate until three steps do not increase the answers in time; return the maximum."""
        best, unsuccessful = 0.0, 0
        while unsuccessful < 3:
            slot = self.offer(rate)
            print_slot("search", slot, best)
            unsuccessful = 0 if slot["in time"] > 1.02 * best else unsuccessful + 1
            best = max(best, slot["in time"])
            rate *= 1.5 if slot["in time"] > 0.97 * rate else 1.15
        return max(best, 1.0)


def medians(offers: Mapping[Key, Callable[[], Slot]], rounds: int, rng: np.random.Generator) -> dict[Key, Slot]:
    """Offer loads in random order in every round; return medians of all fields, but the maximum of the probes."""
    slots: dict[Key, list[Slot]] = {key: [] for key in offers}
    for _ in range(rounds):
        for number in rng.permutation(len(slots)):
            key = list(offers)[number]
            slots[key].append(offers[key]())
    of = {name: max if name == "probe" else statistics.median for name in COLUMNS}
    return {
        key: {name: summary([slot[name] for slot in each]) for name, summary in of.items()}
        for key, each in slots.items()
    }


def print_slot(offered: str, slot: Slot, peak: float) -> None:
    of_peak = slot["in time"] / peak if peak else float("nan")
    late = "  the load generator was late" if slot["slip"] > SLIP_MS else ""
    print(SLOTS.row(offered, of_peak, *(slot[name] for name in COLUMNS)) + late, flush=True)


@dataclass(frozen=True)
class Drill:
    """One kind of request, offered beyond the capacity of the server.

    Attributes
    ----------
    start : a rate that the server can surely answer.
    binding : whether the promise applies; otherwise the result is only shown.
    """

    title: str
    make: Callable[[Load, int], Requesting]
    start: float
    binding: bool = True

    def run(self, path: Path, seconds: float, rounds: int) -> list[str]:
        """Find the capacity, offer shares of it, and print; return the broken promises."""
        print(f"\n{self.title}: deadline {DEADLINE_MS:g} ms, in time until {DEADLINE_MS:g} + 2 ms\n{SLOTS.head}")
        rng = np.random.default_rng(5)
        with server("service", path) as child:
            raise_priority(child.pid)
            offering = Offering(child, self.make, seconds, rng)
            best = offering.search(self.start)
            near = medians({share: partial(offering.offer, share * best) for share in NEAR}, rounds, rng)
            for slot in near.values():
                print_slot("near", slot, best)
            capacity = max(slot["in time"] for slot in near.values())
            shown = medians({share: partial(offering.offer, share * capacity) for share in SHARES}, rounds, rng)
        peak = max(slot["in time"] for slot in shown.values())
        for share, slot in shown.items():
            print_slot(f"{share:.0%}", slot, peak)
        share_of_peak, worst = shown[2.0]["in time"] / peak, max(slot["probe"] for slot in shown.values())
        reached = f"at 200 %, {share_of_peak:.0%} of the peak of {peak:.0f}/s are in time"
        print(f"    {reached}; slowest probe {worst:.1f} ms")
        broken = violations(
            (self.binding and share_of_peak < MIN_SHARE, f"{reached}, at least {MIN_SHARE:.0%}"),
            (not worst <= PROBED_MS, f"a probe took {worst:.1f} ms, at most {PROBED_MS:g}"),
        )
        return [f"{self.title}: {each}" for each in broken]


def goodput(path: Path, seconds: float, rounds: int) -> list[str]:
    """Offer the same rates to `Runner` and to a server that computes all groups or refuses; print both, and compare."""
    print(
        f"\nGoodput of servers that compute groups, {TOTAL_MS:g} ms in all: deadline {DEADLINE_MS:g} ms\n{SLOTS.head}"
    )
    rng = np.random.default_rng(5)
    with server("runner", path) as ours, server("whole", path) as whole:
        of = {}
        for name, child in (("ours", ours), ("whole", whole)):
            raise_priority(child.pid)
            of[name] = Offering(child, lambda load, port: Posts(load, port, request, DEADLINE_MS), seconds, rng)
        capacity = of["whole"].search(0.3 * 1e3 / TOTAL_MS)
        offers = {(share, name): partial(of[name].offer, share * capacity) for share in SHARES for name in of}
        shown = medians(offers, rounds, rng)
    peak = max(slot["in time"] for (_, name), slot in shown.items() if name == "whole")
    for (share, name), slot in shown.items():
        print_slot(f"{name} {share:.0%}", slot, peak)
    least = min(shown[share, "ours"]["in time"] - shown[share, "whole"]["in time"] for share in SHARES if share > 1)
    text = f"beyond the capacity, ours answers at least {least:+.0f}/s more in time"
    print(f"    {text}")
    return violations((least < 0, text))


def drills(model: Model) -> dict[str, Drill]:
    """Return the drill of every kind of request."""
    rng = np.random.default_rng(4)
    names = list(model.places)[:SENT]

    def body(rows: int) -> bytes:
        one = {name: [values_of(model, name, rng) for _ in range(rows)] for name in names}
        return json.dumps({"groups": {name: each[0] if rows == 1 else each for name, each in one.items()}}).encode()

    def posts(rows: int, query: str = "") -> Callable[[Load, int], Posts]:
        content = post(f"/predict?deadline_ms={DEADLINE_MS:g}{query}", body(rows))
        return lambda load, port: Posts(load, port, lambda: content, DEADLINE_MS)

    groups = [(name, json.dumps(values_of(model, name, rng))) for name in names]

    def streams(stops: Callable[[int], bool], *, throttled: bool = False) -> Callable[[Load, int], Streams]:
        return lambda load, port: Streams(load, port, groups, DEADLINE_MS, stops, throttled)

    stubborn, brutal = streams(lambda _: True), streams(lambda n: n % 2 == 0)
    of = f"WebSocket, {SENT} groups, "
    return {
        "post": Drill(f"POST, {SENT} groups", posts(1), 1000),
        "rows": Drill(f"POST, {SENT} groups of 100 rows", posts(100), 100),
        "prior": Drill(f"POST, {SENT} groups, overload=prior", posts(1, "&overload=prior"), 1000),
        "websocket": Drill(
            f"{of}clients reduce their rate when refused, as ours does", streams(lambda _: True, throttled=True), 500
        ),
        "stubborn": Drill(f"{of}clients ignore refusals", stubborn, 500, binding=False),
        "brutal": Drill(f"{of}half of the clients go on sending refused groups", brutal, 500, binding=False),
    }


def main() -> None:
    """Run and print; exit with 1 if a promise is broken."""
    args = script_options(
        __doc__.splitlines()[0] if __doc__ else None,
        quick=flag("two rounds"),
        rounds={"type": int, "default": 9},
        seconds={"type": float, "default": 1.0, "help": "for each share in each round"},
        only={"choices": ["post", "rows", "prior", "websocket", "stubborn", "brutal", "goodput"], "help": "one part"},
        real_time=flag("for a shared machine; a server that is always busy is then stopped for 50 ms per second"),
    )
    os.sched_setaffinity(0, {CLIENT_CORE})
    set_priority(real_time=args.real_time)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    gc.disable()
    broken: list[str] = []
    with temporary_model(groups=2 * SENT) as (path, model):
        parts = {name: drill.run for name, drill in drills(model).items()} | {"goodput": goodput}
        for name, run in parts.items():
            if args.only in (None, name):
                broken += run(path, args.seconds, 2 if args.quick else args.rounds)
    conclude(broken)


if __name__ == "__main__":
    main()
