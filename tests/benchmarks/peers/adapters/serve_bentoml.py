"""The linear model as a service of BentoML."""

import os

import bentoml
import numpy as np

__all__ = ["Linear"]


@bentoml.service(workers=1, logging={"access": {"enabled": False}})
class Linear:
    """`POST /predict` of {"x": [...]}."""

    def __init__(self) -> None:
        with np.load(os.environ["PEERS_MODEL"], allow_pickle=False) as model:
            self.coef, self.intercept = model["coef"], float(model["intercept"])

    @bentoml.api  # type: ignore[untyped-decorator]
    def predict(self, x: list[float]) -> float:
        return float(np.asarray(x) @ self.coef) + self.intercept
