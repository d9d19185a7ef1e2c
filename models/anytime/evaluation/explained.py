"""What each prefix of a model explains: in training, on held-out rows, and the bounds of guarantee and certificate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anytime.families import family_of
from anytime.model.model import Model, at_least
from anytime.training.guarantee import bound, buys_no_group, doubling_bound


@dataclass(frozen=True)
class CurvePoint:
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


@dataclass(frozen=True)
class ModelCurve:
    """The curve of a model, starting at the base rate.

    `explained` names its measure. `promise` describes the guarantee behind `guaranteed_r2`. `certified` summarises
    `certified_r2`; it is None if the model is not certified.
    """

    model: str
    version: str
    cost_unit: str
    explained: str
    points: tuple[CurvePoint, ...]
    promise: str
    certified: str | None


def model_curve(model: Model) -> ModelCurve:
    """Return the curve of a model."""
    steps = model.manifest.steps
    lower, shares, certificate = _floor(model), model.certified_shares, model.manifest.certificate
    points = tuple(
        CurvePoint(
            prefix=prefix,
            group=steps[prefix - 1].group if prefix else None,
            cost=float(model.costs[prefix]),
            r2=model.expected(prefix).r2,
            cv_r2=_held_out(model, prefix),
            cv_error=model.expected(prefix).cv_error,
            penalised_r2=_penalised(model, prefix),
            guaranteed_r2=lower[prefix],
            certified_r2=None
            if certificate is None
            else 2 * certificate.bounds[prefix] / len(model.manifest.responses),
            certified_share=None if shares is None else shares[prefix],
        )
        for prefix in range(model.steps + 1)
    )
    return ModelCurve(
        model=model.name,
        version=model.version,
        cost_unit=model.groups.cost_unit,
        explained=family_of(model.manifest.family).explained,
        points=points,
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
    if not model.manifest.learned.family.least_squares:
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
    guarantee = model.manifest.guarantee
    if guarantee.gamma is not None:
        return (
            f"At equal cost the sequence explains at least {bound(guarantee.gamma, 1.0, 1.0):.2%} of what the best set "
            f"of groups does (Theorem 3.2, gamma = {guarantee.gamma:.3g})."
        )
    if guarantee.doubling_gamma is not None:
        until = model.groups.amount(model.costs[guarantee.doubling_until or 0])
        if buys_no_group(model.costs, guarantee.doubling_until or 0):
            return f"No guarantee: the bound applies up to {until}, where a quarter of the budget buys no group."
        return (
            f"Within any budget B up to {until} the sequence explains at least "
            f"{doubling_bound(guarantee.doubling_gamma):.2%} of what the best set of cost B/4 does "
            f"(Theorem 4.3, gamma = {guarantee.doubling_gamma:.3g})."
        )
    return f"No guarantee: {guarantee.why}." if guarantee.why else "No guarantee is known."
