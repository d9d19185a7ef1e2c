"""Training and its floors at one size, in a process of its own.

`python -m benchmarks.peers.sizing_child N D SIZE ROUNDS THREADS` prints JSON: seconds of each in turns. The floors are
reading the table once (a sum over all numbers, by as many threads as the rest has) and `X.T @ X`. Rows recur after the
first thousands: what they hold takes no part in the time.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from anytime.groups import load_groups
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.selection import sequence
from anytime.types import Float
from benchmarks.peers.rivals.with_ours import coefficients
from benchmarks.peers.rivals.worker import peak_mib

__all__ = ["main", "table"]

RECUR = 8_192
PIECE = 65_536
"""Rows that one thread reads at once."""


def table(n: int, D: int) -> tuple[Float, Float]:
    """Correlated columns and a response."""
    rng = np.random.default_rng(0)
    rows = min(n, RECUR)
    some = rng.standard_normal((rows, D))
    some[:, 1:] += 0.5 * some[:, :-1]
    target = some @ rng.standard_normal(D) + 5 * rng.standard_normal(rows)
    X, y = np.empty((n, D)), np.empty(n)
    for start in range(0, n, rows):
        end = min(start + rows, n)
        X[start:end], y[start:end] = some[: end - start], target[: end - start]
    return X, y


def main() -> None:
    """Measure one size."""
    n, D, size, rounds, threads = map(int, sys.argv[1:])
    X, y = table(n, D)
    names = [f"x{j}" for j in range(D)]
    rng = np.random.default_rng(1)
    told = [
        {"name": f"g{j}", "features": names[j : j + size], "cost": float(rng.uniform(1, 10))} for j in range(0, D, size)
    ]
    groups = load_groups({"cost_unit": "ms", "groups": told})
    gram = Gram.of(moments_of(X[:RECUR], y[:RECUR]))
    before = peak_mib()
    pool = ThreadPoolExecutor(threads)

    def read() -> None:
        list(pool.map(lambda start: X[start : start + PIECE].sum(), range(0, n, PIECE)))

    def path(of: Gram) -> None:
        coefficients(of, sequence(of, groups, "fr"))

    def train() -> None:
        path(Gram.of(moments_of(X, y, n_jobs=threads)))

    seconds: dict[str, list[float]] = {}
    measures: dict[str, Callable[[], object]] = {
        "reading": read,
        "X.T @ X": lambda: X.T @ X,
        "moments": lambda: moments_of(X, y, n_jobs=threads),
        "path": lambda: path(gram),
        "training": train,
    }
    for turn in range(rounds + 1):
        for name, act in measures.items():
            gc.collect()
            start = time.perf_counter()
            act()
            if turn or rounds == 0:
                seconds.setdefault(name, []).append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds, "data_mib": X.nbytes / 2**20, "beyond_mib": peak_mib() - before}))


if __name__ == "__main__":
    main()
