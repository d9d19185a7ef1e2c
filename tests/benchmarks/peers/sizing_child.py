"""Training and its floors at one size, in a separate process.

`python -m benchmarks.peers.sizing_child N D SIZE ROUNDS THREADS` prints JSON: interleaved seconds of each. The floors
are reading the table once (a sum over all numbers, with as many threads as the rest) and `X.T @ X`. Rows repeat after
the first thousands: their values do not affect the time.
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
from benchmarks.peers.adapters.with_ours import coefficients
from benchmarks.peers.adapters.worker import peak_mib

__all__ = ["main", "table"]

UNIQUE_ROWS = 8_192
PIECE = 65_536
"""Rows that one thread reads at once."""


def table(n: int, D: int) -> tuple[Float, Float]:
    """Return correlated columns and a response."""
    rng = np.random.default_rng(0)
    rows = min(n, UNIQUE_ROWS)
    unique = rng.standard_normal((rows, D))
    unique[:, 1:] += 0.5 * unique[:, :-1]
    target = unique @ rng.standard_normal(D) + 5 * rng.standard_normal(rows)
    X, y = np.empty((n, D)), np.empty(n)
    for start in range(0, n, rows):
        end = min(start + rows, n)
        X[start:end], y[start:end] = unique[: end - start], target[: end - start]
    return X, y


def main() -> None:
    n, D, size, rounds, threads = map(int, sys.argv[1:])
    X, y = table(n, D)
    names = [f"x{j}" for j in range(D)]
    rng = np.random.default_rng(1)
    costed = [
        {"name": f"g{j}", "features": names[j : j + size], "cost": float(rng.uniform(1, 10))} for j in range(0, D, size)
    ]
    groups = load_groups({"cost_unit": "ms", "groups": costed})
    gram = Gram.of(moments_of(X[:UNIQUE_ROWS], y[:UNIQUE_ROWS]))
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
