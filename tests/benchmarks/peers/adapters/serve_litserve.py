"""The linear model behind LitServe."""

from __future__ import annotations

import os
import sys
from typing import Any

import litserve
import numpy as np

__all__ = ["Linear"]


class Linear(litserve.LitAPI):  # type: ignore[misc]  # litserve is not installed where types are checked
    """`POST /predict` of {"x": [...]}."""

    def setup(self, device: str) -> None:  # noqa: ARG002  (as LitServe calls it)
        with np.load(os.environ["PEERS_MODEL"], allow_pickle=False) as model:
            self.coef, self.intercept = model["coef"], float(model["intercept"])

    def decode_request(self, request) -> Any:  # type: ignore[no-untyped-def]
        """Convert to an array. LitServe would use an annotation as the schema of requests."""
        return np.asarray(request["x"])

    def predict(self, x: Any) -> float:
        return float(x @ self.coef) + self.intercept

    def encode_response(self, output: float) -> dict[str, float]:
        return {"prediction": output}


if __name__ == "__main__":
    server = litserve.LitServer(Linear(), accelerator="cpu", devices=1, workers_per_device=1)
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        num_api_servers=1,
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )
