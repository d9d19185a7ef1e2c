"""Moments of folds as named arrays, for files: `0.mean`, `0.scatter` ... of the first fold, and so on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anytime.errors import ArtifactError
from anytime.moments import Moments

__all__ = ["packed", "sound_counts", "unpacked"]


def packed(parts: Sequence[Moments]) -> dict[str, NDArray[Any]]:
    """Arrays of the moments of each fold."""
    return {f"{fold}.{name}": array for fold, part in enumerate(parts) for name, array in _arrays(part).items()}


def unpacked(arrays: Mapping[str, NDArray[Any]], folds: int, features: int, responses: int) -> tuple[Moments, ...]:
    """Moments of each fold.

    Raises
    ------
    ArtifactError
        Arrays are missing or not of the shapes that so many features and responses ask for.
    """
    return tuple(_part(arrays, fold, features, responses) for fold in range(folds))


def sound_counts(part: Moments) -> bool:
    """Whether rows and weight are 0 or more, and the features that have an indicator are some of all, ascending."""
    gaps = part.missing
    ascending = list(gaps) == sorted(set(gaps)) and all(0 <= j < part.features for j in gaps)
    return ascending and part.rows >= 0 and part.weight >= 0


def _arrays(part: Moments) -> dict[str, NDArray[Any]]:
    return {
        "rows": np.array([part.rows], dtype=np.int64),
        "weight": np.array([part.weight]),
        "mean": part.mean,
        "scatter": part.scatter,
        "fill": part.fill,
        "missing": np.array(part.missing, dtype=np.int64),
    }


def _part(arrays: Mapping[str, NDArray[Any]], fold: int, D: int, P: int) -> Moments:
    found = {name: arrays.get(f"{fold}.{name}") for name in ("rows", "weight", "mean", "scatter", "fill", "missing")}
    missing = found["missing"]
    width = D + P + (0 if missing is None else missing.size)
    shapes: dict[str, tuple[Sequence[int], type[np.generic]]] = {
        "rows": ((1,), np.int64),
        "weight": ((1,), np.float64),
        "mean": ((width,), np.float64),
        "scatter": ((width, width), np.float64),
        "fill": ((D,), np.float64),
        "missing": ((width - D - P,), np.int64),
    }
    for name, (shape, kind) in shapes.items():
        array = found[name]
        if array is None or array.shape != tuple(shape) or array.dtype != kind or not np.isfinite(array).all():
            raise ArtifactError(f"has no sound array '{fold}.{name}'")
    given = {name: array for name, array in found.items() if array is not None}
    part = Moments(
        features=D,
        responses=P,
        rows=int(given["rows"][0]),
        weight=float(given["weight"][0]),
        mean=given["mean"],
        scatter=given["scatter"],
        fill=given["fill"],
        missing=tuple(given["missing"].tolist()),
    )
    if not sound_counts(part):
        raise ArtifactError(f"has counts in fold {fold} that cannot be")
    return part
