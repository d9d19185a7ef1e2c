"""Run the numerical tests under every BLAS kernel that runs on this machine, with one thread and with two.

OpenBLAS selects a kernel by the processor, and each kernel sums in its own order. A tolerance below rounding can pass
under one kernel and fail under another. Arguments are passed on to pytest.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main", "runnable_kernels"]

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

THREADS = (1, 2)

NOT_NUMERICAL = (
    "models/cli models/training/test_dask.py models/test_groups.py models/evaluation/test_plots.py "
    "models/costs/test_profiling.py models/inference/test_runner.py "
    "models/data/test_formats.py"
)
"""Tests of commands, processes and files, and those that take minutes."""

OTHERS = (
    "reproduction/test_group_lasso.py reproduction/test_sparse.py service/api/test_calibrated.py "
    "service/api/test_likelihoods.py service/api/test_oip.py service/api/test_oip_client.py "
    "service/api/test_stopped.py service/core/test_solving.py"
)
"""Tests of the papers' baseline, and tests of the service that compare numbers of two processes."""


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


def main(arguments: Sequence[str]) -> int:
    """Run pytest for each kernel and number of threads, report each run in one line; 0 if all passed."""
    tests = [ROOT / "tests" / name for name in ("models", *OTHERS.split())]
    ignored = [f"--ignore={ROOT / 'tests' / name}" for name in NOT_NUMERICAL.split()]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--numprocesses=2",
        "--dist=loadfile",
        *map(str, tests),
        *ignored,
        *arguments,
    ]
    kernels = runnable_kernels()
    if not kernels:
        print(
            "error: OPENBLAS_CORETYPE selects no kernel here; expected numpy and scipy with OpenBLAS on x86-64 or ARM"
        )
        return 1
    codes: dict[str, int] = {}
    for kernel, name in kernels.items():
        for threads in THREADS:
            chosen = {"OPENBLAS_CORETYPE": name, "OPENBLAS_NUM_THREADS": str(threads), "TEST_EXAMPLES": "1"}
            codes[f"{kernel}, {threads} thread{'s' * (threads > 1)}"] = subprocess.call(
                command, cwd=ROOT, env=os.environ | chosen
            )
    for run, code in codes.items():
        print(f"make test-kernels: {run}: {'passed' if code == 0 else f'FAILED (exit code {code})'}")
    return 1 if any(codes.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
