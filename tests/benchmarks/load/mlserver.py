"""MLServer for comparison, in a temporary environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.harness import SERVER_CORE, set_priority
from benchmarks.load.child import Child
from benchmarks.load.frames import HttpClient, post
from system import free_port

NAME = "sums"
_MODEL = """
from mlserver import MLModel
from mlserver.types import InferenceResponse, ResponseOutput


class Sums(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        total = sum(payload.inputs[0].data.root)
        output = ResponseOutput(name="sum", shape=[1, 1], datatype="FP64", data=[total])
        return InferenceResponse(model_name=self.name, outputs=[output])
"""


def sums(numbers: list[float]) -> bytes:
    """Return a request for the sum of numbers."""
    inputs = [{"name": "x", "shape": [1, len(numbers)], "datatype": "FP64", "data": numbers}]
    return post(f"/v2/models/{NAME}/infer", json.dumps({"inputs": inputs}).encode())


@contextmanager
def mlserver(folder: Path) -> Iterator[Child | None]:
    """Run MLServer with a trivial model, in its own process without workers; None if its installation fails."""
    try:
        program = _install(folder / "peer")
    except (subprocess.SubprocessError, OSError) as error:
        print(f"no MLServer to compare with: {error}")
        yield None
        return
    port, grpc, metrics = (free_port() for _ in range(3))
    models = folder / "models"
    models.mkdir()
    (models / "sums.py").write_text(_MODEL, encoding="utf-8")
    model_settings = {"name": NAME, "implementation": "sums.Sums"}
    (models / "model-settings.json").write_text(json.dumps(model_settings), encoding="utf-8")
    settings = {"http_port": port, "grpc_port": grpc, "metrics_port": metrics, "parallel_workers": 0, "debug": False}
    (models / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [str(program), "start", str(models)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=models, stdout=quiet, stderr=quiet) as process:
        os.sched_setaffinity(process.pid, {SERVER_CORE})
        set_priority(process.pid, real_time=False)
        try:
            _await(process, port)
            yield Child(process.pid, port)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _install(folder: Path) -> Path:
    """Create the environment, and return the program in it."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    python = folder / "bin" / "python"
    if uv:
        commands = [
            [uv, "venv", "--quiet", str(folder)],
            [uv, "pip", "install", "--quiet", "-p", str(python), "mlserver"],
        ]
    else:
        commands = [
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "-q", "mlserver"],
        ]
    for command in commands:
        subprocess.run(command, check=True, capture_output=True, timeout=600)
    return folder / "bin" / "mlserver"


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the model answers."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with closing(HttpClient(port)) as client:
                client.send(sums([1.0]))
                if client.response()[0] == 200:
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise RuntimeError("MLServer did not start")
