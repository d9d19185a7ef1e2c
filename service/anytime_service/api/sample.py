"""A synthetic row for trying a model, drawn from the statistics of the training data that the model stores."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict
from scipy.special import ndtri

from anytime.model.model import Model
from anytime.types import Float
from anytime_service.api.control import Registry
from anytime_service.api.openapi import problem_responses

__all__ = [
    "Sample",
    "router",
    "sample",
]

WIDEST = 1000
"""Maximum number of features that are drawn jointly: the factorisation costs the cube of their number."""

RIDGE = 1e-6
"""Added to the diagonal of the correlations, so that the factorisation succeeds with duplicate columns."""

DIGITS = 2
"""Decimals after the first digit of a feature's deviation: few enough for a person to read and type."""

router = APIRouter(tags=["models"], responses=problem_responses(500))


class Sample(BaseModel):
    """A synthetic row: the values of every group that has features, in the format of a prediction request.

    `correlated` is whether the features are drawn with the correlations of the training data, or independently.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    version: str
    seed: int
    correlated: bool
    groups: dict[str, tuple[float, ...]]


Seed = Annotated[int, Query(ge=0, le=2**32 - 1, description="The same seed gives the same row.")]


# Not a coroutine: FastAPI runs the factorisation in a thread, so that it does not block the event loop.
@router.get("/models/{name}/sample", responses=problem_responses(404, 422))
def sample_row(name: str, registry: Registry, seed: Seed = 0) -> Sample:
    """Draw a synthetic row with the means and deviations of the training data, for trying the model."""
    return sample(registry.get(name), seed)


def sample(model: Model, seed: int) -> Sample:
    """Draw a row from a normal distribution, with the training correlations if the model has them.

    A column with mean m in (0, 1) and variance m(1 - m) counts as binary: it is 1 with probability m.
    """
    groups, mean, scale = model.groups, model.prefixes.mean, model.prefixes.scale
    z = np.random.default_rng(seed).standard_normal(len(mean))
    correlations = _correlations(model) if len(mean) <= WIDEST else None
    if correlations is not None:
        z = np.linalg.cholesky(correlations + RIDGE * np.eye(len(z))) @ z
    constant = set(model.manifest.redundant.constant)
    row: list[float] = []
    for feature, m, s, deviate in zip(groups.features, mean.tolist(), scale.tolist(), z.tolist(), strict=True):
        if feature in constant:
            row.append(m)
        elif 0 < m < 1 and math.isclose(s * s, m * (1 - m), rel_tol=1e-6):
            row.append(float(deviate > ndtri(1 - m)))
        else:
            row.append(round(m + s * deviate, max(0, DIGITS - math.floor(math.log10(s)))))
    values = {
        group.name: tuple(row[columns])
        for group, columns in zip(groups.groups, groups.slices, strict=True)
        if group.features
    }
    known = correlations is not None
    return Sample(model=model.name, version=model.version, seed=seed, correlated=known, groups=values)


def _correlations(model: Model) -> Float | None:
    """Return the correlations (D, D) of the features in training; None if the model does not have them.

    At the base rate of a likelihood all rows have the same curvature, so the second derivatives are a multiple of the
    correlations.
    """
    moments, stored, scale = model.moments, model.curvatures, model.prefixes.scale
    if moments is not None:
        D = len(scale)
        covariance: Float = moments.imputed().scatter[:D, :D] / moments.weight
        return covariance / np.outer(scale, scale)
    if stored is None or stored.prefixes[0] > 0:
        return None
    H = stored.at(0).H
    correlations: Float = H[1:, 1:] / H[0, 0]
    return correlations
