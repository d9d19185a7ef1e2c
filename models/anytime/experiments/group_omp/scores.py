"""Scores of section 4.1 of the Group-OMP paper: F1 of variables and of groups, and the model error."""

from __future__ import annotations

import numpy as np

from anytime.arrays import Bool, Float
from anytime.groups import FeatureGroups

__all__ = ["f1", "groups_with", "held_out_errors", "model_errors"]


def f1(selected: Bool, true: Bool) -> float:
    """2 P R/(P + R) of precision P and recall R; 0 where nothing is selected."""
    return 2.0 * int(np.sum(selected & true)) / (int(selected.sum()) + int(true.sum()))


def groups_with(variables: Bool, groups: FeatureGroups) -> Bool:
    """(groups,) which groups have any of some variables (D,)."""
    return np.array([variables[columns].any() for columns in groups.slices], dtype=np.bool_)


def model_errors(path: Float, truth: Float, second: Float) -> Float:
    """(w - b)' E(x x') (w - b) of each point w of a path (points, D)."""
    away = path - truth
    errors: Float = np.einsum("kd,kd->k", away @ second, away)
    return errors


def held_out_errors(path: Float, X: Float, y: Float) -> Float:
    """Mean squared error on held-out rows of each point of a path, (points,)."""
    errors: Float = np.mean((y[:, np.newaxis] - X @ path.T) ** 2, axis=0)
    return errors
