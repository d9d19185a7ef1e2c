"""scikit-learn estimators: the trainer behind `fit`, every prefix behind `predict`."""

from __future__ import annotations

from anytime.estimators.classifier import AnytimeClassifier
from anytime.estimators.regressor import AnytimeRegressor

__all__ = ["AnytimeClassifier", "AnytimeRegressor"]
