"""A table summed by one worker process and by two: `python tests/benchmarks/cluster.py [--gigabytes 2] [--folder D]`.

Each worker has one thread. In turns: one worker, two workers, and two of which one is killed when the first part is
done. Tells the rate of each, the efficiency of two (half their rate by that of one), and how far moments and model are
from those of one process; exits with 1 where moments differ by more than 1e-12, relative, or sequences at all.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from distributed import Client, LocalCluster

from anytime.data.dataset import Dataset, settle_target, survey_target
from anytime.data.formats import open_table
from anytime.groups import load_groups
from anytime.moments.moments import Moments
from anytime.training.dask import Cluster
from anytime.training.fit import fit
from anytime.training.options import Options
from benchmarks.large import write

FOLDS = 5
CLOSE = 1e-12


def summed(data: Dataset, workers: int, told: Callable[[Client], None] = lambda _: None) -> tuple[float, list[Moments]]:
    """Seconds that a cluster takes, and what it finds; `told` hears of the first part that is done."""
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as local,  # type: ignore[no-untyped-call]
        Client(local) as client,  # type: ignore[no-untyped-call]
    ):
        client.wait_for_workers(workers)
        client.run(_ready)
        seen: list[int] = []

        def progress(rows: int) -> None:
            seen.append(rows)
            if len(seen) == 1:
                told(client)

        begun = time.perf_counter()
        found = Cluster(client).moments(data, FOLDS, progress=progress)
        return time.perf_counter() - begun, found


def _ready() -> None:
    """Import what tasks need, which takes as long as some of them."""
    import pyarrow.parquet  # noqa: F401, PLC0415

    import anytime.training.dask  # noqa: F401, PLC0415


def killed(client: Client) -> None:
    """End a worker, as the kernel does where memory is gone."""
    pids: dict[str, int] = client.run(os.getpid)
    os.kill(min(pids.values()), signal.SIGKILL)


def apart(found: list[Moments], expected: list[Moments]) -> float:
    """How far moments are from each other, as a share of the columns' deviations."""
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        scale = np.sqrt(np.diagonal(b.scatter))
        worst = max(worst, float((np.abs(a.scatter - b.scatter) / np.outer(scale, scale)).max()))
        worst = max(worst, float((np.abs(a.mean - b.mean) * np.sqrt(b.weight) / scale).max()))
    return worst


def main() -> None:
    """Write, measure in turns, and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--columns", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the table is kept; a temporary folder unless told")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if given.folder is None else given.folder
        folder.mkdir(parents=True, exist_ok=True)
        path, groups_file = write(folder, given.gigabytes, given.columns)
        table, groups = open_table(path), load_groups(groups_file)
        survey = survey_target(table, ["y"])
        data = Dataset(table, groups, settle_target(survey))
        print(f"{survey.rows:,} rows of {given.columns} features, {path.stat().st_size / 1e9:.2f} GB, {FOLDS} folds")
        expected = data.moments(FOLDS)
        order = fit(expected, groups, Options(alpha="cv")).sequence.columns.tolist()
        ways: dict[str, tuple[int, Any]] = {
            "one worker": (1, lambda _: None),
            "two workers": (2, lambda _: None),
            "two, one killed": (2, killed),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        worst, same = 0.0, True
        for _ in range(given.repeats):
            for name, (workers, told) in ways.items():
                took, found = summed(data, workers, told)
                seconds[name].append(took)
                worst = max(worst, apart(found, expected))
                same &= fit(found, groups, Options(alpha="cv")).sequence.columns.tolist() == order
                print(f"  {name}: {survey.rows / took:,.0f} rows/s", flush=True)
    one, two = (statistics.median(seconds[name]) for name in ("one worker", "two workers"))
    print(
        f"efficiency of two workers {one / (2 * two):.0%}; a killed one costs "
        f"{statistics.median(seconds['two, one killed']) / two - 1:.0%} of the time"
    )
    print(f"moments at most {worst:.1e} apart, {'the same' if same else 'another'} sequence")
    sys.exit(0 if worst <= CLOSE and same else 1)


if __name__ == "__main__":
    main()
