"""Predictions to which groups have arrived, and the numbers of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anytime.groups import FeatureGroups
from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime.types import Float

__all__ = ["by_group", "opened", "outputs_of"]


def by_group(groups: FeatureGroups, X: Float) -> dict[str, Float]:
    """The columns of each group with features, of one row (D,) or several (rows, D)."""
    places = zip(groups.groups, groups.slices, strict=True)
    return {group.name: X[..., place] for group, place in places if group.features}


def opened(model: Model, values: Mapping[str, Any], rows: int | None = 1) -> Prediction:
    """A prediction to which these values of groups were added in this order."""
    prediction = Prediction(model, rows)
    for name, each in values.items():
        prediction.add(name, each)
    return prediction


def outputs_of(answer: Any) -> Float:
    """The probabilities of classes, else the prediction; at least one dimension."""
    outputs = answer.prediction if answer.probabilities is None else answer.probabilities
    return np.atleast_1d(np.asarray(outputs, dtype=np.float64))
