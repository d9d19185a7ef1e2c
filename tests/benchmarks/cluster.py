"""A table summed by one worker process and by two: `python tests/benchmarks/cluster.py [--gigabytes 2] [--folder D]`.

Each worker has one thread. Interleaved: one worker, two workers, and two with one killed after the first part.
Prints the rate of each, the efficiency of two (half their rate divided by that of one), and the difference of moments
and model from those of one process; exits with 1 if moments differ by more than 1e-12, relative, or sequences differ.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from distributed import Client, LocalCluster

from anytime.data.dataset import Dataset
from anytime.data.formats import open_table
from anytime.data.survey import settle_target, survey
from anytime.groups import load_groups
from anytime.moments.moments import Moments
from anytime.training.dask import Cluster
from anytime.training.fit import fit
from anytime.training.options import Options
from benchmarks.harness import script_options
from benchmarks.large import OPTIONS, table_of

FOLDS = 5
TOLERANCE = 1e-12


def sum_moments(data: Dataset, workers: int, on_first_part: Callable[[Client], None]) -> tuple[float, list[Moments]]:
    """Return the seconds that a cluster takes and its moments; `on_first_part` is called after the first part."""
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as local,  # type: ignore[no-untyped-call]
        Client(local) as client,  # type: ignore[no-untyped-call]
    ):
        client.wait_for_workers(workers)
        client.run(_import)
        parts: list[int] = []

        def progress(rows: int) -> None:
            parts.append(rows)
            if len(parts) == 1:
                on_first_part(client)

        started = time.perf_counter()
        found = Cluster(client).moments(data, FOLDS, progress=progress)
        return time.perf_counter() - started, found


def _import() -> None:
    """Import what tasks need, which takes as long as some of them."""
    import pyarrow.parquet  # noqa: F401, PLC0415

    import anytime.training.dask  # noqa: F401, PLC0415


def kill_worker(client: Client) -> None:
    """Kill a worker, as the kernel does when memory is exhausted."""
    pids: dict[str, int] = client.run(os.getpid)
    os.kill(min(pids.values()), signal.SIGKILL)


def difference(found: list[Moments], expected: list[Moments]) -> float:
    """Return the maximum difference of moments, relative to the deviations of the columns."""
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        scale = np.sqrt(np.diagonal(b.scatter))
        worst = max(worst, float((np.abs(a.scatter - b.scatter) / np.outer(scale, scale)).max()))
        worst = max(worst, float((np.abs(a.mean - b.mean) * np.sqrt(b.weight) / scale).max()))
    return worst


def main() -> None:
    args = script_options(__doc__, None, **OPTIONS | {"gigabytes": {"type": float, "default": 2.0}})
    with table_of(args.folder, args.gigabytes, args.columns) as (path, groups_file):
        table, groups = open_table(path), load_groups(groups_file)
        rows = survey(table, ["y"])
        data = Dataset(table, groups, settle_target(rows))
        print(f"{rows.rows:,} rows of {args.columns} features, {path.stat().st_size / 1e9:.2f} GB, {FOLDS} folds")
        expected = data.moments(FOLDS)
        order = fit(expected, groups, Options(alpha="cv")).sequence.columns.tolist()
        ways: dict[str, tuple[int, Callable[[Client], None]]] = {
            "one worker": (1, lambda _: None),
            "two workers": (2, lambda _: None),
            "two, one killed": (2, kill_worker),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        worst, same = 0.0, True
        for _ in range(args.repeats):
            for name, (workers, on_first_part) in ways.items():
                seconds_taken, found = sum_moments(data, workers, on_first_part)
                seconds[name].append(seconds_taken)
                worst = max(worst, difference(found, expected))
                same &= fit(found, groups, Options(alpha="cv")).sequence.columns.tolist() == order
                print(f"  {name}: {rows.rows / seconds_taken:,.0f} rows/s", flush=True)
    one, two, killed = map(statistics.median, seconds.values())
    print(f"efficiency of two workers {one / (2 * two):.0%}; a killed one costs {killed / two - 1:.0%} of the time")
    print(f"moments differ by at most {worst:.1e}, {'the same' if same else 'a different'} sequence")
    sys.exit(0 if worst <= TOLERANCE and same else 1)


if __name__ == "__main__":
    main()
