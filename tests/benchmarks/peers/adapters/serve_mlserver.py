"""The linear model as a runtime of MLServer: one input of all features, one output."""

from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput

from benchmarks.peers.adapters.linear import Weights


class Linear(MLModel):  # type: ignore[misc]  # mlserver is not installed where types are checked
    async def load(self) -> bool:
        self.weights = Weights()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        data = [self.weights.predict(payload.inputs[0].data.root)]
        output = ResponseOutput(name="prediction", shape=[1, 1], datatype="FP64", data=data)
        return InferenceResponse(model_name=self.name, outputs=[output])
