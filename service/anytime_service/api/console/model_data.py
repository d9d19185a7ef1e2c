"""What the console shows of a model: R² of each prefix with its bounds, and a synthetic row for trying the model."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel
from scipy.special import ndtr, ndtri

from anytime.errors import ValuesError
from anytime.evaluation.shapes import ColumnShape, column_shapes
from anytime.features.expansion import Column
from anytime.model.model import Model, at_least
from anytime.training.guarantee import bound, buys_no_group, doubling_bound
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


class CurvePoint(BaseModel, frozen=True):
    """A prefix: its cost and its explained shares.

    `r2` is R² on the training data. `cv_r2` is R² on held-out rows: 1 - cv_error/variance of the response; for several
    responses 1 - mean error/mean variance; for a likelihood 1 - deviance/null deviance. The theory is about F, which
    includes the penalty: `penalised_r2` is 2F over the number of responses, and `guaranteed_r2` is its lower bound. For
    a certified model, every set of its groups of this cost or less has a `penalised_r2` of at most `certified_r2`, and
    the prefix reaches at least the share `certified_share` of the best possible F. An unknown field is None; `r2` and
    `cv_r2` are None if a response is constant in training.
    """

    prefix: int
    group: str | None
    cost: float
    r2: float | None
    cv_r2: float | None
    cv_error: float | None
    penalised_r2: float | None
    guaranteed_r2: float | None
    certified_r2: float | None
    certified_share: float | None


class ModelCurve(BaseModel, frozen=True):
    """The curve of a model, starting at the base rate.

    `promise` describes the guarantee behind `guaranteed_r2`. `certified` summarises `certified_r2`; it is None if the
    model is not certified.
    """

    model: str
    version: str
    cost_unit: str
    points: tuple[CurvePoint, ...]
    promise: str
    certified: str | None


@router.get("/models/{name}/curve", responses=problem_responses(404, 422))
async def model_curve(name: str, service: Service) -> ModelCurve:
    """Return cost and R² of each prefix: in training, cross-validated, and guaranteed."""
    return curve(service.registry.get(name))


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


# Not a coroutine: FastAPI runs the factorisation in a thread, so that it does not block the event loop.
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
) -> ColumnShape:
    """Return what a column contributes to the scores of a prefix, whatever its value."""
    model = service.registry.get(name)
    try:
        return column_shapes(model, prefix, column)[0]
    except ValuesError as error:
        exists = prefix is None or 0 <= prefix <= model.steps
        field = "column" if exists and column not in model.groups.features else "prefix"
        raise FieldError(field, str(error)) from error


def curve(model: Model) -> ModelCurve:
    steps = model.manifest.steps
    lower, upper, shares = _floor(model), _ceiling(model), model.certified_shares
    points = []
    for prefix in range(model.steps + 1):
        expected = model.expected(prefix)
        points.append(
            CurvePoint(
                prefix=prefix,
                group=steps[prefix - 1].group if prefix else None,
                cost=float(model.costs[prefix]),
                r2=expected.r2,
                cv_r2=_held_out(model, prefix),
                cv_error=expected.cv_error,
                penalised_r2=_penalised(model, prefix),
                guaranteed_r2=lower[prefix],
                certified_r2=upper[prefix],
                certified_share=None if shares is None else shares[prefix],
            )
        )
    return ModelCurve(
        model=model.name,
        version=model.version,
        cost_unit=model.groups.cost_unit,
        points=tuple(points),
        promise=_guarantee_text(model),
        certified=_certified(model),
    )


def _held_out(model: Model, prefix: int) -> float | None:
    expected, null = model.expected(prefix), model.manifest.prior_deviance
    if expected.cv_error is None or expected.r2 is None:
        return None
    variance = float(np.mean(np.square(model.prefixes.response_scale))) if null is None else null
    return 1.0 - expected.cv_error / variance


def _penalised(model: Model, prefix: int) -> float | None:
    """Return 2F over the number of responses; None for a likelihood, to which the theory does not apply."""
    if not model.manifest.learned.law.least_squares:
        return None
    return 2 * model.expected(prefix).explained_variance / len(model.manifest.responses)


def _floor(model: Model) -> list[float | None]:
    """Return the lower bound of each prefix's `penalised_r2`.

    Theorem 3.2 applies with K the cost of all groups, because the best set of that cost is the set of all groups.
    Theorem 4.3 applies with the prefix of cost B/4 instead of the best set of that cost, which explains at least as
    much.
    """
    guarantee, costs = model.manifest.guarantee, model.costs
    complete, total = _penalised(model, model.steps), float(costs[-1])
    if complete is None:
        return [None] * (model.steps + 1)
    if guarantee.gamma is not None and total > 0:
        return [bound(guarantee.gamma, float(cost), total) * complete for cost in costs]
    if guarantee.doubling_gamma is not None:
        share, until = doubling_bound(guarantee.doubling_gamma), guarantee.doubling_until or 0
        quarters = [_penalised(model, model.affordable(float(cost) / 4)) or 0.0 for cost in costs]
        return [share * quarter if prefix <= until else None for prefix, quarter in enumerate(quarters)]
    return [None] * (model.steps + 1)


def _ceiling(model: Model) -> list[float | None]:
    """Return the largest `penalised_r2` of any set of groups that costs what each prefix does."""
    certificate = model.manifest.certificate
    if certificate is None:
        return [None] * (model.steps + 1)
    return [2 * bound / len(model.manifest.responses) for bound in certificate.bounds]


def _certified(model: Model) -> str | None:
    """Return a sentence about the certificate; the share is rounded down, so that the statement is true."""
    shares, stopped = model.certified_shares, model.manifest.stopped
    if shares is None:
        return None
    selected = "selected " if stopped is not None and stopped.left_out else ""
    return (
        f"Certified: every set of {selected}groups of the same cost explains at most the upper line (training data, "
        f"less the penalty), and every step explains at least {at_least(min(shares[1:]))} of it."
    )


def _guarantee_text(model: Model) -> str:
    guarantee, unit = model.manifest.guarantee, model.groups.cost_unit
    if guarantee.gamma is not None:
        return (
            f"At equal cost the sequence explains at least {bound(guarantee.gamma, 1.0, 1.0):.2%} of what the best set "
            f"of groups does (Theorem 3.2, gamma = {guarantee.gamma:.3g})."
        )
    if guarantee.doubling_gamma is not None:
        until = model.costs[guarantee.doubling_until or 0]
        if buys_no_group(model.costs, guarantee.doubling_until or 0):
            return (
                f"No guarantee: the bound applies up to {until:g} {unit}, where a quarter of the budget buys no group."
            )
        return (
            f"Within any budget B up to {until:g} {unit} the sequence explains at least "
            f"{doubling_bound(guarantee.doubling_gamma):.2%} of what the best set of cost B/4 does "
            f"(Theorem 4.3, gamma = {guarantee.doubling_gamma:.3g})."
        )
    return f"No guarantee: {guarantee.why}." if guarantee.why else "No guarantee is known."


def sample(model: Model, seed: int) -> Sample:
    """Draw a row of raw values, jointly normal with the training correlations if the model has them.

    A column of categories has the level at the same quantile of the levels' shares, a column with hinges the value at
    the same quantile of its knots. A column with mean m in (0, 1) and variance m(1 - m) counts as binary: it is 1 with
    probability m.
    """
    groups, expansion = model.groups, model.expansion
    spans = expansion.spans
    firsts = [start for start, _ in spans]
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
    known = correlations is not None
    return Sample(model=model.name, version=model.version, seed=seed, correlated=known, groups=values)


def _drawn(model: Model, column: Column, first: int, deviate: float) -> Label | None:
    """Return the value of a column at a standard normal deviate; `first` is its first term."""
    mean, scale = model.prefixes.mean[first:], model.prefixes.scale[first:]
    if model.terms.features[first] in model.manifest.redundant.constant:
        return column.shown(float(column.basis.drawn(np.array([0.5]), mean, scale, column.range)[0]))
    if (
        column.basis.is_identity
        and 0 < mean[0] < 1
        and math.isclose(scale[0] ** 2, mean[0] * (1 - mean[0]), rel_tol=1e-6)
    ):
        return float(deviate > ndtri(1 - mean[0]))
    value = float(column.basis.drawn(np.array([ndtr(deviate)]), mean, scale, column.range)[0])
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
