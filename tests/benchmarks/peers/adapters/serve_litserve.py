"""The linear model behind LitServe: `POST /predict` of {"x": [...]}."""

import sys
from typing import Any

import litserve

from benchmarks.peers.adapters.linear import Weights


class Linear(litserve.LitAPI):  # type: ignore[misc]  # litserve is not installed where types are checked
    def setup(self, device: str) -> None:  # noqa: ARG002  (as LitServe calls it)
        self.weights = Weights()

    def decode_request(self, request) -> Any:  # type: ignore[no-untyped-def]  # an annotation would be its schema
        return request["x"]

    def predict(self, x: Any) -> float:
        return self.weights.predict(x)

    def encode_response(self, output: float) -> dict[str, float]:
        return {"prediction": output}


if __name__ == "__main__":
    server = litserve.LitServer(Linear(), accelerator="cpu", devices=1, workers_per_device=1)
    quiet = {"generate_client_file": False, "log_level": "warning", "access_log": False}
    server.run(host="127.0.0.1", port=int(sys.argv[1]), num_api_servers=1, **quiet)
