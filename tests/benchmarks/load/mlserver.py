"""MLServer for comparison, in an environment of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from benchmarks.harness import SERVER_CORE
from benchmarks.load.child import Child
from benchmarks.load.frames import HttpClient, post
from benchmarks.peers.environments import Absent, prepared
from system import free_port, started

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
    environment = prepared("mlserver")
    if isinstance(environment, Absent):
        print(f"no MLServer to compare with: {environment.why}")
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

    def answers() -> bool:
        with suppress(OSError), closing(HttpClient(port)) as client:
            client.send(sums([1.0]))
            return client.response()[0] == 200
        return False

    on_core = ["chrt", "--other", "0", "taskset", "--cpu-list", SERVER_CORE]
    command = [*on_core, environment.python.parent / "mlserver", "start", models]
    with started(command, answers, models, 60.0) as process:
        yield Child(process.pid, port)
