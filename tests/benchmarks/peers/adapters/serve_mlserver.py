"""The linear model as a runtime of MLServer."""

from __future__ import annotations

import os

import numpy as np
from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput

__all__ = ["Linear"]


class Linear(MLModel):  # type: ignore[misc]  # mlserver is not installed where types are checked
    """One input of all features, one output."""

    async def load(self) -> bool:
        with np.load(os.environ["PEERS_MODEL"], allow_pickle=False) as model:
            self.coef, self.intercept = model["coef"], float(model["intercept"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = np.asarray(payload.inputs[0].data.root)
        output = ResponseOutput(
            name="prediction", shape=[1, 1], datatype="FP64", data=[float(x @ self.coef) + self.intercept]
        )
        return InferenceResponse(model_name=self.name, outputs=[output])
