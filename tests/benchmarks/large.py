"""A table many times larger than the memory limit: `python tests/benchmarks/large.py [--gigabytes 8] [--folder D]`.

The table is written in chunks as Parquet. Then, interleaved and each in its own process: `anytime train` under a hard
limit of 1 GiB (of a control group: above it the kernel kills the process), and the floor: the same chunks read, and
`X.T @ X` of each with as many threads. Rates are printed as shares of the floor's. Exits with 1 if training is slower
than 60% of it. Linux, as root.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import HIDDEN, conclude, script_options, spent

CHUNK_ROWS = 16_384
GROUP = 10
LIMIT = 2**30
SHARE = 0.6
THREADS = 2
BOTH_THREADS = {"OMP_NUM_THREADS": str(THREADS), "OPENBLAS_NUM_THREADS": str(THREADS)}


OPTIONS: dict[str, dict[str, Any]] = {
    "gigabytes": {"type": float, "default": 8.0},
    "columns": {"type": int, "default": 500},
    "repeats": {"type": int, "default": 3},
    "folder": {"type": Path, "help": "folder of the table; a temporary folder by default"},
}


def write(folder: Path, gigabytes: float, columns: int) -> tuple[Path, Path]:
    """Write a regression as a table, one row group at a time, and its groups."""
    names = [f"x{j}" for j in range(columns)]
    groups = folder / "groups.json"
    costed = [
        {"name": f"g{j // GROUP}", "features": names[j : j + GROUP], "cost": 1.0 + j % 7}
        for j in range(0, columns, GROUP)
    ]
    groups.write_text(json.dumps({"cost_unit": "ms", "groups": costed}))
    table = folder / "table.parquet"
    if table.exists():
        return table, groups
    rng = np.random.default_rng(0)
    truth = rng.standard_normal(columns) * (np.arange(columns) % 7 == 0)
    schema = pa.schema([(name, pa.float64()) for name in [*names, "y"]])
    chunks = max(round(gigabytes * 1e9 / (8 * (columns + 1) * CHUNK_ROWS)), 1)
    with pq.ParquetWriter(table, schema, compression="NONE", use_dictionary=False) as file:
        for _ in range(chunks):
            X = rng.standard_normal((CHUNK_ROWS, columns))
            X[:, 1:] += 0.5 * X[:, :-1]
            y = X @ truth + 5.0 * rng.standard_normal(CHUNK_ROWS)
            file.write_batch(pa.RecordBatch.from_arrays([pa.array(c) for c in [*X.T, y]], schema=schema))
    return table, groups


@contextmanager
def table_of(folder: Path | None, gigabytes: float, columns: int) -> Iterator[tuple[Path, Path]]:
    """Yield a table and its groups in a folder, by default a temporary one."""
    with tempfile.TemporaryDirectory() as temporary:
        place = folder or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        yield write(place, gigabytes, columns)


def floor(table: Path) -> None:
    """Read the chunks and multiply each by itself; print the seconds."""
    started = time.perf_counter()
    with pq.ParquetFile(table, pre_buffer=False, buffer_size=1 << 16) as file:
        total = 0.0
        for batch in file.iter_batches(CHUNK_ROWS):
            X = np.column_stack([column.to_numpy() for column in batch.columns])
            total = total + X.T @ X
    print(time.perf_counter() - started)


@contextmanager
def memory_limit(limit: int) -> Iterator[list[str]]:
    """Create a control group with a hard memory limit that includes swap; yield the command prefix to run in it."""
    first = Path("/sys/fs/cgroup/memory")
    group = (first if first.is_dir() else Path("/sys/fs/cgroup")) / f"anytime-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if first.is_dir() else "memory.max")).write_text(str(limit))
    except OSError as error:
        raise SystemExit(f"cannot create a control group with a memory limit ({error})") from error
    try:
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        group.rmdir()


def main() -> None:
    args = script_options(__doc__, None, **OPTIONS, floor={"type": Path, "help": HIDDEN})
    if args.floor:
        floor(args.floor)
        return
    with table_of(args.folder, args.gigabytes, args.columns) as (table, groups):
        rows = pq.ParquetFile(table).metadata.num_rows
        size = table.stat().st_size
        print(f"{rows:,} rows of {args.columns} features, {size / 1e9:.2f} GB, {THREADS} threads")
        command = [sys.executable, "-m", "anytime", "train", str(table), "--groups", str(groups), "--target", "y"]
        command += ["--basis", "linear", "--out", str(groups.with_name("large.safetensors")), "--n-jobs", str(THREADS)]
        ways = {
            "one penalty, no folds": [*command, "--alpha", "1e-5", "--folds", "0"],
            "20 penalties, 5 folds": command,
        }
        shares: dict[str, list[float]] = {name: [] for name in ways}
        peaks = dict.fromkeys(ways, 0.0)
        for _ in range(args.repeats):
            floor_s = float(spent([sys.executable, __file__, "--floor", table], **BOTH_THREADS).output)
            print(f"reading and X.T @ X: {rows / floor_s:,.0f} rows/s, {size / floor_s / 1e6:,.0f} MB/s", flush=True)
            for name, way in ways.items():
                with memory_limit(LIMIT) as prefix:
                    found = spent([*prefix, *way], **BOTH_THREADS)
                shares[name].append(floor_s / found.seconds)
                peaks[name] = max(peaks[name], found.peak_mib)
                speed = f"{rows / found.seconds:,.0f} rows/s, {floor_s / found.seconds:.0%}"
                print(f"  {name}: {speed}, {found.peak_mib:.0f} MiB", flush=True)
    missed = []
    for name, each in shares.items():
        share, limit = statistics.median(each), LIMIT / 2**20
        rate = f"{share:.0%} of the floor's rate ({min(each):.0%} to {max(each):.0%})"
        print(f"{name}: {rate}, peak {peaks[name]:.0f} of {limit:.0f} MiB")
        missed += [f"{name}: missed"] if share < SHARE or peaks[name] > limit else []
    conclude(missed)


if __name__ == "__main__":
    main()
