"""A model's curve as the page draws it: what each prefix explains in training, held out, at the least and at most."""

from __future__ import annotations

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from anytime.evaluation.certificate import at_least
from anytime.model.model import Model
from anytime.training.guarantee import bound, doubling_bound
from anytime_service.api.control import Registry
from anytime_service.api.openapi import problem_responses

__all__ = [
    "CurvePoint",
    "ModelCurve",
    "curve",
    "router",
]

router = APIRouter(tags=["models"], responses=problem_responses(500))


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class CurvePoint(_View):
    """A prefix: what it costs and what it explains, as shares of all there is to explain.

    `r2` is R² on the training data and `cv_r2` on rows held out: 1 - cv_error/variance of the response, for several
    responses 1 - mean error/mean variance; of a likelihood 1 - deviance/null deviance. The theory speaks of F, which
    includes the penalty: `penalised_r2` is 2F over the number of responses, `guaranteed_r2` the least that the theory
    allows it to be. Of a certified model, no set of its groups of this cost or less has a `penalised_r2` above
    `certified_r2`, and `certified_share` is the least share of the best possible F that the prefix reaches. A field is
    None where it is not known; `r2` and `cv_r2` are None where a response is constant in training.
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


class ModelCurve(_View):
    """The curve of a model, from the base rate on.

    `promise` says in words what `guaranteed_r2` rests on, and `certified` what `certified_r2` comes to; it is None
    where the model is not certified.
    """

    model: str
    version: str
    cost_unit: str
    points: tuple[CurvePoint, ...]
    promise: str
    certified: str | None


@router.get("/models/{name}/curve", responses=problem_responses(404, 422))
async def model_curve(name: str, registry: Registry) -> ModelCurve:
    """Tell what each prefix costs and explains: in training, cross-validated, and guaranteed."""
    return curve(registry.get(name))


def curve(model: Model) -> ModelCurve:
    """Tell a model's curve."""
    steps = model.manifest.steps
    least, most = _floor(model), _ceiling(model)
    shares = model.certified_shares
    points = [
        CurvePoint(
            prefix=prefix,
            group=steps[prefix - 1].group if prefix else None,
            cost=float(model.costs[prefix]),
            r2=model.expected(prefix).r2,
            cv_r2=_held_out(model, prefix),
            cv_error=model.expected(prefix).cv_error,
            penalised_r2=_penalised(model, prefix),
            guaranteed_r2=least[prefix],
            certified_r2=most[prefix],
            certified_share=None if shares is None else shares[prefix],
        )
        for prefix in range(model.steps + 1)
    ]
    return ModelCurve(
        model=model.name,
        version=model.version,
        cost_unit=model.groups.cost_unit,
        points=tuple(points),
        promise=_promise(model),
        certified=_certified(model),
    )


def _held_out(model: Model, prefix: int) -> float | None:
    expected, null = model.expected(prefix), model.manifest.prior_deviance
    if expected.cv_error is None or expected.r2 is None:
        return None
    return 1.0 - expected.cv_error / (
        float(np.mean(np.square(model.prefixes.response_scale))) if null is None else null
    )


def _penalised(model: Model, prefix: int) -> float | None:
    """Return 2F over the number of responses; a likelihood has no theory to compare it with."""
    if model.manifest.family != "gaussian":
        return None
    return 2 * model.expected(prefix).explained_variance / len(model.manifest.responses)


def _floor(model: Model) -> list[float | None]:
    """Return the least `penalised_r2` of each prefix by the theorems, from what is known of the best sets.

    Theorem 3.2 with K the cost of all groups, for the best set of that cost is all of them. Theorem 4.3 with the
    prefix of cost B/4 in the place of the best set of that cost, which explains no less.
    """
    promised, costs = model.manifest.guarantee, model.costs
    whole, total = _penalised(model, model.steps), float(costs[-1])
    if whole is None:
        return [None] * (model.steps + 1)
    if promised.gamma is not None and total > 0:
        return [bound(promised.gamma, float(cost), total) * whole for cost in costs]
    if promised.doubling_gamma is not None:
        share, until = doubling_bound(promised.doubling_gamma), promised.doubling_until or 0
        quarters = [_penalised(model, model.affordable(float(cost) / 4)) or 0.0 for cost in costs]
        return [share * reached if prefix <= until else None for prefix, reached in enumerate(quarters)]
    return [None] * (model.steps + 1)


def _ceiling(model: Model) -> list[float | None]:
    """Return the largest `penalised_r2` of any set of groups that costs what each prefix does."""
    found = model.manifest.certificate
    if found is None:
        return [None] * (model.steps + 1)
    return [2 * bound / len(model.manifest.responses) for bound in found.bounds]


def _certified(model: Model) -> str | None:
    """What the certificate comes to; a share is rounded down, so that nothing is said that is not known."""
    shares, stopped = model.certified_shares, model.manifest.stopped
    if shares is None:
        return None
    kept = "kept " if stopped is not None and stopped.left_out else ""
    return (
        f"Certified: no set of {kept}groups of the same cost explains more of the training data, less the penalty, "
        f"than the upper line, and every step explains at least {at_least(min(shares[1:]))} of it."
    )


def _promise(model: Model) -> str:
    promised, unit = model.manifest.guarantee, model.groups.cost_unit
    if promised.gamma is not None:
        return (
            f"At equal cost the sequence explains at least {bound(promised.gamma, 1.0, 1.0):.2%} of what the best set "
            f"of groups does (Theorem 3.2, gamma = {promised.gamma:.3g})."
        )
    if promised.doubling_gamma is not None:
        until = model.costs[promised.doubling_until or 0]
        return (
            f"Within any budget B up to {until:g} {unit} the sequence explains at least "
            f"{doubling_bound(promised.doubling_gamma):.2%} of what the best set of cost B/4 does "
            f"(Theorem 4.3, gamma = {promised.doubling_gamma:.3g})."
        )
    return f"No guarantee: {promised.why}." if promised.why else "No guarantee is known."
