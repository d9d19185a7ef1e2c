"""Anytime linear prediction: feature groups ordered by gain per cost, with a linear model for every prefix."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from anytime.errors import (
    AnytimeError,
    AnytimeWarning,
    ArtifactError,
    EnvironmentFailure,
    ExtractorError,
    GroupsError,
    TableError,
    TrainingError,
    ValuesError,
)

if TYPE_CHECKING:
    from anytime.data.formats import open_table
    from anytime.estimators import AnytimeClassifier, AnytimeRegressor
    from anytime.evaluation.calibrate import calibrate
    from anytime.evaluation.certificate.certify import certify
    from anytime.evaluation.evaluate import evaluate
    from anytime.groups import CallCost, FeatureGroup, FeatureGroups, load_groups
    from anytime.inference.prediction import Answer, Prediction
    from anytime.inference.runner import Runner
    from anytime.loaded import LoadedModel, load
    from anytime.model.model import Expected, Model
    from anytime.training.resequencing import resequence

__all__ = [
    "Answer",
    "AnytimeClassifier",
    "AnytimeError",
    "AnytimeRegressor",
    "AnytimeWarning",
    "ArtifactError",
    "CallCost",
    "EnvironmentFailure",
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
    "calibrate",
    "certify",
    "evaluate",
    "load",
    "load_groups",
    "open_table",
    "resequence",
]


_IMPORTED_ON_USE = {
    "Answer": "anytime.inference.prediction",
    "AnytimeClassifier": "anytime.estimators",
    "AnytimeRegressor": "anytime.estimators",
    "CallCost": "anytime.groups",
    "Expected": "anytime.model.model",
    "FeatureGroup": "anytime.groups",
    "FeatureGroups": "anytime.groups",
    "LoadedModel": "anytime.loaded",
    "Model": "anytime.model.model",
    "Prediction": "anytime.inference.prediction",
    "Runner": "anytime.inference.runner",
    "calibrate": "anytime.evaluation.calibrate",
    "certify": "anytime.evaluation.certificate.certify",
    "evaluate": "anytime.evaluation.evaluate",
    "load": "anytime.loaded",
    "load_groups": "anytime.groups",
    "__version__": "anytime._version",
    "open_table": "anytime.data.formats",
    "resequence": "anytime.training.resequencing",
}
"""Modules of the public names: a program imports only those that it uses, and `anytime --help` not even NumPy."""


def __getattr__(name: str) -> Any:
    if name not in _IMPORTED_ON_USE:
        raise AttributeError(f"module 'anytime' has no attribute {name!r}")
    return getattr(import_module(_IMPORTED_ON_USE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
