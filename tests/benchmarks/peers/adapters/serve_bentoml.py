"""The linear model as a service of BentoML: `POST /predict` of {"x": [...]}."""

import bentoml

from benchmarks.peers.adapters.linear import Weights


@bentoml.service(workers=1, logging={"access": {"enabled": False}})
class Linear:
    def __init__(self) -> None:
        self.weights = Weights()

    @bentoml.api  # type: ignore[untyped-decorator]
    def predict(self, x: list[float]) -> float:
        return self.weights.predict(x)
