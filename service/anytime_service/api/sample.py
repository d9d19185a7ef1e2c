"""A made-up row to try a model on, drawn from what the model knows of its training data."""

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
"""Features up to which they are drawn jointly: the factorisation takes the cube of their number."""

RIDGE = 1e-6
"""Added to the correlations, so that duplicate columns do not stop the factorisation."""

DIGITS = 2
"""Decimals kept beyond the first digit of a feature's deviation: what a person can read and type."""

router = APIRouter(tags=["models"], responses=problem_responses(500))


class Sample(BaseModel):
    """A made-up row: the values of every group that has features, as a prediction takes them.

    `correlated` tells whether features vary together as in training, or each on its own.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    version: str
    seed: int
    correlated: bool
    groups: dict[str, tuple[float, ...]]


Seed = Annotated[int, Query(ge=0, le=2**32 - 1, description="The same seed gives the same row.")]


# No coroutine: the factorisation is work, and is done beside the event loop.
@router.get("/models/{name}/sample", responses=problem_responses(404, 422))
def sample_row(name: str, registry: Registry, seed: Seed = 0) -> Sample:
    """Make up a row with the means and deviations of the training data, to try the model on."""
    return sample(registry.get(name), seed)


def sample(model: Model, seed: int) -> Sample:
    """Draw a row from a normal distribution by the correlations that the model knows, or else feature by feature.

    A column whose variance is m(1 - m) for a mean m within (0, 1) is taken for zeros and ones, and is 1 as often.
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
    """Correlations (D, D) of the features in training; None where the model does not know them.

    At the base rate of a likelihood all rows have one curvature, so that its second derivatives are a multiple of them.
    """
    moments, kept, scale = model.moments, model.curvatures, model.prefixes.scale
    if moments is not None:
        D = len(scale)
        covariance: Float = moments.imputed().scatter[:D, :D] / moments.weight
        return covariance / np.outer(scale, scale)
    if kept is None or kept.prefixes[0] > 0:
        return None
    H = kept.at(0).H
    correlations: Float = H[1:, 1:] / H[0, 0]
    return correlations
