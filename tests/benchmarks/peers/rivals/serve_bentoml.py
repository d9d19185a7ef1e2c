"""The linear model as a service of BentoML."""

import os
from typing import List

import bentoml
import numpy as np

__all__ = ["Linear"]


@bentoml.service(workers=1)  # type: ignore[untyped-decorator]  # bentoml is not installed where types are checked
class Linear:
    """`POST /predict` of {"x": [...]}."""

    def __init__(self) -> None:
        with np.load(os.environ["PEERS_MODEL"], allow_pickle=False) as model:
            self.coef, self.intercept = model["coef"], float(model["intercept"])

    @bentoml.api  # type: ignore[untyped-decorator]
    def predict(self, x: List[float]) -> float:  # noqa: UP006  (the annotation is read at run time)
        """Multiply."""
        return float(np.asarray(x) @ self.coef) + self.intercept
