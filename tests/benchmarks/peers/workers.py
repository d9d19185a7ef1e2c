"""Processes of the peers, called one at a time: arrays in files, everything else as lines of JSON."""

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
from benchmarks.peers.measurements import FailedError

__all__ = ["Process", "write_arrays"]

TESTS = Path(__file__).parents[2]
TIMEOUT_S = 120.0
"""Timeout of a peer's answer."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "LOKY_MAX_CPU_COUNT")


def write_arrays(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write each array to a file of its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)


class Process(AbstractContextManager["Process"]):
    """One peer, or our own library, limited to some threads and as many cores.

    Parameters
    ----------
    environment : its Python.
    module : the file of `adapters` with its calls.
    threads : number of cores, and of threads of every library in it.
    log : file for its output.
    """

    def __init__(self, environment: Environment, module: str, threads: int, log: Path) -> None:
        self.name, self.log, self.threads = f"{environment.name}/{module}", log, threads
        paths = [str(TESTS)] + ([os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [])
        variables = os.environ | {name: str(threads) for name in THREADS} | {"PYTHONPATH": os.pathsep.join(paths)}
        with log.open("ab") as printed:
            self._process = subprocess.Popen(
                [str(environment.python), "-m", "benchmarks.peers.adapters.worker", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                env=variables,
                cwd=log.parent,
            )
        os.sched_setaffinity(self._process.pid, set(range(min(threads, os.cpu_count() or 1))))

    def load(self, folder: Path, arrays: Sequence[str]) -> float:
        """Read some arrays of a folder; return the peak memory in MiB after that."""
        return float(
            self._request({"do": "load", "folder": str(folder), "arrays": list(arrays)}, TIMEOUT_S)["peak_mib"]
        )

    def run(self, call: str, options: Mapping[str, Any] | None = None, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """Run the timed call once; return `seconds`, `peak_mib` and the numbers of the call.

        Raises
        ------
        FailedError
            The peer raised, crashed, or timed out.
        """
        return self._request({"do": "run", "call": call, "options": dict(options or {})}, timeout_s)

    def arrays(
        self, call: str, options: Mapping[str, Any] | None = None, timeout_s: float = TIMEOUT_S
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """As `run`, with the arrays of the result."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.npz"
            request = {"do": "run", "call": call, "options": dict(options or {}), "out": str(out)}
            reply = self._request(request, timeout_s)
            with np.load(out, allow_pickle=False) as file:
                return reply, {name: file[name] for name in file.files}

    def close(self) -> None:
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

    def _request(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
        except OSError as error:
            raise FailedError(self._ended()) from error
        if not select.select([stdout], (), (), timeout_s)[0]:
            self.close()
            raise FailedError(f"no answer within {timeout_s:g} s")
        line = stdout.readline()
        if not line:
            raise FailedError(self._ended())
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise FailedError(reply["error"])
        return reply

    def _ended(self) -> str:
        """Describe how the process ended, with its last output."""
        code = self._process.wait()
        lines = [line.strip() for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines()]
        last = next((line for line in reversed(lines) if line), "nothing was printed")
        return f"its process ended with {code}: {last[:200]}"
