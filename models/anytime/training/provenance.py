"""Provenance of a model: creation time, library version, and rows."""

from __future__ import annotations

import datetime
import os
from importlib.metadata import PackageNotFoundError, version

from anytime.model.manifest import Provenance
from anytime.training.fit import Fit

__all__ = [
    "library_version",
    "now",
    "provenance",
]


def provenance(fitted: Fit, data: str, *, folds: int | None = None, seed: int | None = None) -> Provenance:
    """Return the provenance of a fit."""
    features, selected = fitted.groups.features, set(fitted.selected[0].features)
    return Provenance(
        created=now(),
        library=library_version(),
        data=data,
        rows=fitted.moments.rows,
        weight=fitted.moments.weight,
        imputed=tuple(features[j] for j in fitted.moments.missing if features[j] in selected),
        folds=folds,
        seed=seed,
    )


def library_version() -> str:
    """Return the version of this library."""
    try:
        return version("anytime-linear")
    except PackageNotFoundError:  # the source tree is not installed
        return "unknown"


def now() -> str:
    """Return the creation time; SOURCE_DATE_EPOCH makes files reproducible to the byte."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    zone = datetime.UTC
    now = datetime.datetime.fromtimestamp(int(epoch), zone) if epoch.isdigit() else datetime.datetime.now(zone)
    return now.isoformat(timespec="seconds")
