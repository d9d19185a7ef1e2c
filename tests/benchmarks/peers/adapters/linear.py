"""The linear model that every server serves."""

from __future__ import annotations

import os
from typing import Any

import numpy as np


class Weights:
    """Coefficients and intercept of the file that the environment names."""

    def __init__(self) -> None:
        with np.load(os.environ["PEERS_MODEL"], allow_pickle=False) as model:
            self.coef, self.intercept = model["coef"], float(model["intercept"])

    def predict(self, x: Any) -> float:
        return float(np.asarray(x) @ self.coef) + self.intercept
