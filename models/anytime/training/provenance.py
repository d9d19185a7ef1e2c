"""Where a model comes from: when it was made, by which library, from which rows."""

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
    """Where a fit comes from."""
    features, taken = fitted.groups.features, set(fitted.taken[0].features)
    return Provenance(
        created=now(),
        library=library_version(),
        data=data,
        rows=fitted.moments.rows,
        weight=fitted.moments.weight,
        imputed=tuple(features[j] for j in fitted.moments.missing if features[j] in taken),
        folds=folds,
        seed=seed,
    )


def library_version() -> str:
    """Version of this library."""
    try:
        return version("anytime-linear")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


def now() -> str:
    """Time of creation; SOURCE_DATE_EPOCH makes files that are equal to the byte."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    zone = datetime.UTC
    now = datetime.datetime.fromtimestamp(int(epoch), zone) if epoch.isdigit() else datetime.datetime.now(zone)
    return now.isoformat(timespec="seconds")
