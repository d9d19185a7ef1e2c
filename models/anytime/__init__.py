"""Anytime linear prediction: feature groups in order of what they buy for their cost, a model for every prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anytime.answer import Answer, Expected
from anytime.artifact import load, save
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
from anytime.model import AnytimeModel
from anytime.prediction import Prediction
from anytime.runner import Runner

if TYPE_CHECKING:
    from anytime.estimators import AnytimeClassifier, AnytimeRegressor

__all__ = [
    "Answer",
    "AnytimeClassifier",
    "AnytimeError",
    "AnytimeModel",
    "AnytimeRegressor",
    "ArtifactError",
    "Expected",
    "ExtractorError",
    "FeatureGroup",
    "FeatureGroups",
    "GroupsError",
    "Prediction",
    "Runner",
    "TableError",
    "TrainingError",
    "ValuesError",
    "load",
    "load_groups",
    "save",
]


def __getattr__(name: str) -> Any:
    """Load the estimators, and scikit-learn with them, when they are first asked for."""
    if name in ("AnytimeClassifier", "AnytimeRegressor"):
        from anytime import estimators  # noqa: PLC0415

        return getattr(estimators, name)
    raise AttributeError(f"module 'anytime' has no attribute {name!r}")
