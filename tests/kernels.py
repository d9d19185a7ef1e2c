"""Run the numerical tests under every BLAS kernel that runs on this machine, with one thread and with two.

OpenBLAS selects a kernel by the processor, and each kernel sums in its own order. A tolerance below rounding can pass
under one kernel and fail under another. OpenBLAS splits only large products, and computes others as with one thread:
the first run with two threads records the files of tests in which the second thread works, and the runs of the other
kernels repeat those alone. Arguments are passed on to pytest.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

ROOT = Path(__file__).parents[1]

KERNELS = {
    "x86_64": "Prescott Nehalem Sandybridge Haswell Zen SkylakeX Cooperlake SapphireRapids",
    "aarch64": "ARMV8 NEOVERSEN1 NEOVERSEV1 NEOVERSEN2 A64FX",
}
"""Values of OPENBLAS_CORETYPE by machine, the oldest first."""

PROBE = """
import json, numpy, scipy.linalg, threadpoolctl
A = numpy.random.default_rng(0).normal(size=(200, 200))
scipy.linalg.cho_factor(A @ A.T)
print(json.dumps([pool["architecture"] for pool in threadpoolctl.threadpool_info() if "architecture" in pool]))
"""

NOT_NUMERICAL = (
    "models/cli models/training/test_dask.py models/test_groups.py models/evaluation/test_plots.py "
    "models/costs/test_profiling.py models/inference/test_runner.py "
    "models/data/test_formats.py models/data/test_tables_as_users_have_them.py models/data/test_suspicions.py "
    "models/data/test_column_types.py models/data/test_draft.py models/testing models/training/test_warnings.py"
)
"""Tests of commands, processes, files, types of columns and messages, and those that take minutes."""

OTHERS = (
    "reproduction/test_group_lasso.py reproduction/test_sparse.py service/api/test_calibrated.py "
    "service/api/test_likelihoods.py service/api/test_oip.py service/api/test_oip_client.py "
    "service/api/test_stopped.py service/core/test_solving.py"
)
"""Tests of the papers' baseline, and tests of the service that compare numbers of two processes."""

SPLIT = "KERNELS_SPLIT"
"""The variable that names the file to which a run adds the files of tests whose products are split."""

IDLE_S = 0.2
"""OpenBLAS's threads go on looking for work for up to a tenth of a second."""


@cache
def blas_threads() -> list[Path]:
    """Return the threads of OpenBLAS, which work when a large product is computed."""
    tasks = [each for each in Path("/proc/self/task").iterdir() if each.name != str(threading.get_native_id())]
    before = [_processor_ns(each) for each in tasks]
    large = np.ones((1000, 1000), order="F")
    scipy.linalg.blas.dgemm(1.0, large @ large, large)
    return [each for each, ns in zip(tasks, before, strict=True) if _processor_ns(each) > ns]


def _processor_ns(task: Path) -> int:
    return int((task / "schedstat").read_text(encoding="ascii").split()[0])


def work_of_threads() -> list[int]:
    """Return the processor time of OpenBLAS's threads; nothing after a fork, which stops them: the next are others."""
    try:
        return [_processor_ns(each) for each in blas_threads()]
    except FileNotFoundError:
        blas_threads.cache_clear()
        return []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Record the file of a test in which OpenBLAS's threads work. This file is a plugin of the runs that it starts."""
    if SPLIT not in os.environ:
        return (yield)
    before = work_of_threads()
    try:
        return (yield)
    finally:
        if work_of_threads() != before:
            with Path(os.environ[SPLIT]).open("a", encoding="utf-8") as file:
                file.write(f"{item.path}\n")
        if nextitem is None or nextitem.path != item.path:
            time.sleep(IDLE_S)


def runnable_kernels() -> dict[str, str]:
    """Return the value of OPENBLAS_CORETYPE for each kernel that runs here, by the name that OpenBLAS reports."""
    found: dict[str, str] = {}
    for name in KERNELS.get(platform.machine(), "").split():
        probe = subprocess.run(
            [sys.executable, "-c", PROBE],
            env=os.environ | {"OPENBLAS_CORETYPE": name},
            capture_output=True,
            check=False,
        )
        if probe.returncode == 0:  # else the processor lacks an instruction that the kernel uses
            found.setdefault(" and ".join(sorted(set(json.loads(probe.stdout)))), name)
    return found


def run(kernel: str, threads: int, files: Sequence[object], arguments: Sequence[str], **variables: str) -> int:
    """Run pytest on files with a kernel and a number of threads; return its exit code."""
    command = [sys.executable, "-m", "pytest", "-p", "kernels", "--numprocesses=2", "--dist=loadfile"]
    ignored = [f"--ignore={ROOT / 'tests' / name}" for name in NOT_NUMERICAL.split()]
    path = os.pathsep.join(filter(None, (str(ROOT / "tests"), os.environ.get("PYTHONPATH"))))
    chosen = {"OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": str(threads), "TEST_EXAMPLES": "1"}
    environment = os.environ | chosen | variables | {"PYTHONPATH": path}
    return subprocess.call([*command, *map(str, files), *ignored, *arguments], cwd=ROOT, env=environment)


def main(arguments: Sequence[str]) -> int:
    """Run pytest for each kernel and number of threads, report each run in one line; 0 if all passed."""
    kernels = runnable_kernels()
    if not kernels:
        print(
            "error: OPENBLAS_CORETYPE selects no kernel here; expected numpy and scipy with OpenBLAS on x86-64 or ARM"
        )
        return 1
    every = [ROOT / "tests" / name for name in ("models", *OTHERS.split())]
    codes: dict[str, int] = {}
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as split:
        files: list[str] = []
        for kernel, name in kernels.items():
            codes[f"{kernel}, 1 thread"] = run(name, 1, every, arguments)
            variables = {} if files else {SPLIT: split.name}
            codes[f"{kernel}, 2 threads"] = run(name, 2, files or every, arguments, **variables)
            files = files or sorted(set(split.read().split("\n")) - {""})
    for each, code in codes.items():
        print(f"make test-kernels: {each}: {'passed' if code == 0 else f'FAILED (exit code {code})'}")
    return 1 if any(codes.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
