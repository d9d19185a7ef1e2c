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
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import HIDDEN, script_options

CHUNK_ROWS = 16_384
GROUP = 10
LIMIT = 2**30
SHARE = 0.6
THREADS = 2


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


def floor(table: Path) -> None:
    """Read the chunks and multiply each by itself; print rows and seconds."""
    started, rows = time.perf_counter(), 0
    with pq.ParquetFile(table, pre_buffer=False, buffer_size=1 << 16) as file:
        total = 0.0
        for batch in file.iter_batches(CHUNK_ROWS):
            X = np.column_stack([column.to_numpy() for column in batch.columns])
            total = total + X.T @ X
            rows += len(X)
    print(json.dumps({"rows": rows, "seconds": time.perf_counter() - started}))


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


def run(command: list[str]) -> tuple[float, float, str]:
    """Return seconds, peak resident MiB and output of a command."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "OPENBLAS_NUM_THREADS": str(THREADS)}
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        output = out.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{output}")
    return time.perf_counter() - started, usage.ru_maxrss / 1024, output


def main() -> None:
    args = script_options(
        __doc__,
        gigabytes={"type": float, "default": 8.0},
        columns={"type": int, "default": 500},
        repeats={"type": int, "default": 3},
        folder={"type": Path, "help": "folder of the table; a temporary folder by default"},
        floor={"type": Path, "help": HIDDEN},
    )
    if args.floor:
        floor(args.floor)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if args.folder is None else args.folder
        folder.mkdir(parents=True, exist_ok=True)
        table, groups = write(folder, args.gigabytes, args.columns)
        rows = pq.ParquetFile(table).metadata.num_rows
        size = table.stat().st_size
        print(f"{rows:,} rows of {args.columns} features, {size / 1e9:.2f} GB, {THREADS} threads")
        command = [sys.executable, "-m", "anytime", "train", str(table), "--groups", str(groups), "--target", "y"]
        command += ["--basis", "linear", "--out", str(folder / "large.safetensors"), "--n-jobs", str(THREADS)]
        ways = {
            "one penalty, no folds": [*command, "--alpha", "1e-5", "--folds", "0"],
            "20 penalties, 5 folds": command,
        }
        shares: dict[str, list[float]] = {name: [] for name in ways}
        peaks = dict.fromkeys(ways, 0.0)
        for _ in range(args.repeats):
            floor_s = json.loads(run([sys.executable, __file__, "--floor", str(table)])[2])["seconds"]
            print(f"reading and X.T @ X: {rows / floor_s:,.0f} rows/s, {size / floor_s / 1e6:,.0f} MB/s", flush=True)
            for name, way in ways.items():
                with memory_limit(LIMIT) as prefix:
                    seconds, peak, _ = run([*prefix, *way])
                shares[name].append(floor_s / seconds)
                peaks[name] = max(peaks[name], peak)
                print(f"  {name}: {rows / seconds:,.0f} rows/s, {floor_s / seconds:.0%}, {peak:.0f} MiB", flush=True)
    passed = True
    for name, found in shares.items():
        good = statistics.median(found) >= SHARE and peaks[name] <= LIMIT / 2**20
        passed &= good
        print(
            f"{name}: {statistics.median(found):.0%} of the floor's rate ({min(found):.0%} to {max(found):.0%}), "
            f"peak {peaks[name]:.0f} of {LIMIT / 2**20:.0f} MiB{'' if good else '  missed'}"
        )
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
