"""What the console shows of a model: R² of each prefix with its bounds, and a synthetic row for trying the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel
from scipy.special import ndtr, ndtri

from anytime.errors import ValuesError
from anytime.evaluation.page.pictures import ModelCurve, curve_chart, model_curve, shape_charts
from anytime.evaluation.shapes import ColumnShape, column_shapes, drawn
from anytime.features.expansion import Column
from anytime.model.model import Model
from anytime.types import Float, Label
from anytime_service.api.control import Service
from anytime_service.api.openapi import problem_responses
from anytime_service.errors import FieldError
from anytime_service.http.responses import PageRoute, check_query

WIDEST = 1000  # maximum number of features that are drawn jointly: the factorisation costs the cube of their number
RIDGE = 1e-6  # added to the diagonal of the correlations, so that the factorisation succeeds with duplicate columns
DIGITS = 2  # decimals after the first digit of a feature's deviation: few enough for a person to read and type

router = APIRouter(
    tags=["models"], responses=problem_responses(500), dependencies=[Depends(check_query)], route_class=PageRoute
)


@dataclass(frozen=True)
class DrawnCurve(ModelCurve):
    """The curve of a model with its chart, an HTML element `figure`."""

    chart: str


@dataclass(frozen=True)
class DrawnShape(ColumnShape):
    """The shape of a column with its charts, HTML elements `figure`."""

    charts: tuple[str, ...]


@router.get("/models/{name}/curve", responses=problem_responses(404, 422))
async def curve(name: str, service: Service) -> DrawnCurve:
    """Return cost and R² of each prefix: in training, cross-validated, and guaranteed."""
    found = model_curve(service.registry.get(name))
    return DrawnCurve(**vars(found), chart=curve_chart(found).svg())


class Sample(BaseModel, frozen=True):
    """A synthetic row: the values of every group that has features, in the format of a prediction request.

    `correlated` is whether the features are drawn with the correlations of the training data, or independently.
    """

    model: str
    version: str
    seed: int
    correlated: bool
    groups: dict[str, tuple[Label | None, ...]]


Seed = Annotated[int, Query(ge=0, le=2**32 - 1, description="The same seed gives the same row.")]


@router.get("/models/{name}/sample", responses=problem_responses(404, 422))
async def sample_row(name: str, service: Service, seed: Seed = 0) -> Sample:
    """Draw a synthetic row with the means and deviations of the training data, for trying the model."""
    return sample(service.registry.get(name), seed)


@router.get("/models/{name}/shape", responses=problem_responses(404, 422))
async def column_shape(
    name: str,
    service: Service,
    column: Annotated[str, Query(description="Name of a column.")],
    prefix: Annotated[int | None, Query(description="Number of steps that count; all by default.")] = None,
    score: Annotated[
        int | None, Query(ge=0, description="Index of the score that is drawn; up to 5 by default.")
    ] = None,
) -> DrawnShape:
    """Return the shape of a column: what each of its values contributes to the scores of a prefix."""
    model = service.registry.get(name)
    try:
        shape = column_shapes(model, prefix, column)[0]
    except ValuesError as error:
        exists = prefix is None or 0 <= prefix <= model.steps
        field = "column" if exists and column not in model.groups.features else "prefix"
        raise FieldError(field, str(error)) from error
    names = model.score_names
    if score is not None and score >= len(names):
        raise FieldError("score", f"score is {score}; expected 0 to {len(names) - 1}")
    charts = shape_charts(model, shape, None if score is None else (score,))
    return DrawnShape(**vars(shape), charts=tuple(chart.svg() for chart in charts))


def sample(model: Model, seed: int) -> Sample:
    """Draw a row of raw values, jointly normal with the training correlations if the model has them.

    A column of categories has the level at the same quantile of the levels' shares, a column with hinges the value at
    the same quantile of its knots. A column with mean m in (0, 1) and variance m(1 - m) counts as binary: it is 1 with
    probability m.
    """
    groups, expansion = model.groups, model.expansion
    firsts = [start for start, _ in expansion.spans]
    z = np.random.default_rng(seed).standard_normal(len(firsts))
    correlations = _correlations(model) if len(model.prefixes.mean) <= WIDEST else None
    if correlations is not None:
        among = np.empty((len(firsts), len(firsts)))
        for i, first in enumerate(firsts):  # row by row: other threads may use the interpreter in between
            among[i] = correlations[first, firsts]
        z = np.linalg.cholesky(among + RIDGE * np.eye(len(z))) @ z
    row: list[Label | None] = [
        _drawn(model, column, start, deviate)
        for column, start, deviate in zip(expansion.columns, firsts, z.tolist(), strict=True)
    ]
    values = {
        group.name: tuple(row[columns])
        for group, columns in zip(groups.groups, groups.slices, strict=True)
        if group.features
    }
    return Sample(
        model=model.name, version=model.version, seed=seed, correlated=correlations is not None, groups=values
    )


def _drawn(model: Model, column: Column, first: int, deviate: float) -> Label | None:
    """Return the value of a column at a standard normal deviate; `first` is its first term."""
    mean, scale = model.prefixes.mean[first:], model.prefixes.scale[first:]
    if model.terms.features[first] in model.manifest.redundant.constant:
        return column.shown(float(drawn(column, np.array([0.5]), mean, scale)[0]))
    if column.is_binary(mean, scale):
        return float(deviate > ndtri(1 - mean[0]))
    value = float(drawn(column, np.array([ndtr(deviate)]), mean, scale)[0])
    if column.reader is not None:
        return column.shown(value)
    return round(value, max(0, DIGITS - math.floor(math.log10(scale[0]))))


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
