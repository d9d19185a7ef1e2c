"""Processes of rivals, asked one at a time: arrays by files, everything else by lines of JSON."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.environments import Environment
from benchmarks.peers.turns import FailedError

__all__ = ["Process", "write_arrays"]

TESTS = Path(__file__).parents[2]
PATIENCE_S = 120.0
"""A rival that has not answered by then is given up."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "LOKY_MAX_CPU_COUNT")


def write_arrays(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write each array into a file of its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)


class Process(AbstractContextManager["Process"]):
    """One rival, or our own library, held to some threads and as many cores.

    Parameters
    ----------
    environment : where it runs.
    module : the file of `rivals` with its calls.
    threads : cores that it may use; every library in it is told to use as many threads.
    log : where what it prints goes.
    """

    def __init__(self, environment: Environment, module: str, threads: int, log: Path) -> None:
        self.name, self.log, self.threads = f"{environment.name}/{module}", log, threads
        paths = [str(TESTS)] + ([os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [])
        told = os.environ | {name: str(threads) for name in THREADS} | {"PYTHONPATH": os.pathsep.join(paths)}
        with log.open("ab") as printed:
            self._process = subprocess.Popen(
                [str(environment.python), "-m", "benchmarks.peers.rivals.worker", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                env=told,
                cwd=log.parent,
            )
        os.sched_setaffinity(self._process.pid, set(range(min(threads, os.cpu_count() or 1))))

    def load(self, folder: Path, arrays: Sequence[str]) -> float:
        """Read some arrays of a folder; the peak of memory in MiB after that."""
        return float(self._ask({"do": "load", "folder": str(folder), "arrays": list(arrays)}, PATIENCE_S)["peak_mib"])

    def run(
        self, call: str, options: Mapping[str, Any] | None = None, patience_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """Do what is timed once; `seconds`, `peak_mib` and what the call tells.

        Raises
        ------
        FailedError
            The rival raised, crashed, or took too long.
        """
        return self._ask({"do": "run", "call": call, "options": dict(options or {})}, patience_s)

    def arrays(
        self, call: str, options: Mapping[str, Any] | None = None, patience_s: float = PATIENCE_S
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """As `run`, with the arrays of the result."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.npz"
            asked = {"do": "run", "call": call, "options": dict(options or {}), "out": str(out)}
            told = self._ask(asked, patience_s)
            with np.load(out, allow_pickle=False) as file:
                return told, {name: file[name] for name in file.files}

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, asked: Mapping[str, Any], patience_s: float) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(asked).encode() + b"\n")
            stdin.flush()
        except OSError as error:
            raise FailedError(self._ended()) from error
        if not select.select([stdout], (), (), patience_s)[0]:
            self.close()
            raise FailedError(f"no answer within {patience_s:g} s")
        line = stdout.readline()
        if not line:
            raise FailedError(self._ended())
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise FailedError(told["error"])
        return told

    def _ended(self) -> str:
        """How the process ended, and the last thing that it printed."""
        code = self._process.wait()
        lines = [line.strip() for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines()]
        last = next((line for line in reversed(lines) if line), "nothing was printed")
        return f"its process ended with {code}: {last[:200]}"
