"""Anytime linear prediction: feature groups ordered by gain per cost, with a linear model for every prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anytime.errors import (
    AnytimeError,
    ArtifactError,
    ExtractorError,
    GroupsError,
    TableError,
    TrainingError,
    ValuesError,
)
from anytime.groups import FeatureGroup, FeatureGroups, load_groups
from anytime.inference.answer import Answer
from anytime.inference.loaded import LoadedModel, load
from anytime.inference.prediction import Prediction
from anytime.inference.runner import Runner
from anytime.model.model import Expected, Model

if TYPE_CHECKING:
    from anytime.estimators import AnytimeClassifier, AnytimeRegressor

__all__ = [
    "Answer",
    "AnytimeClassifier",
    "AnytimeError",
    "AnytimeRegressor",
    "ArtifactError",
    "Expected",
    "ExtractorError",
    "FeatureGroup",
    "FeatureGroups",
    "GroupsError",
    "LoadedModel",
    "Model",
    "Prediction",
    "Runner",
    "TableError",
    "TrainingError",
    "ValuesError",
    "load",
    "load_groups",
]


def __getattr__(name: str) -> Any:
    """Import the estimators, and with them scikit-learn, on first use."""
    if name in ("AnytimeClassifier", "AnytimeRegressor"):
        from anytime import estimators  # noqa: PLC0415

        return getattr(estimators, name)
    raise AttributeError(f"module 'anytime' has no attribute {name!r}")
