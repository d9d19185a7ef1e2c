"""Certifying a model: how much of the best possible each of its prefixes reaches, from the moments that it carries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from anytime.errors import TrainingError
from anytime.evaluation.certificate import CertifiedPrefix, certify
from anytime.model.manifest import FORMAT, Certificate
from anytime.model.model import Model
from anytime.moments.gram import Gram

__all__ = [
    "NODES",
    "certified",
    "check_certifiable",
]

NODES = 200
"""Nodes that the search for each prefix may bound, unless told."""


def check_certifiable(model: Model) -> None:
    """Refuse a model of which the best sets cannot be bounded.

    Raises
    ------
    TrainingError
        It is of a likelihood, or was saved without its moments.
    """
    family = model.manifest.family
    if family != "gaussian":
        raise TrainingError(f"model {model.name!r} is {family}; certificates are of least squares (family gaussian)")
    if model.moments is None:
        raise TrainingError(f"model {model.name!r} was saved without its moments; train it anew without --no-moments")


def certified(
    model: Model,
    *,
    nodes: int = NODES,
    seconds: float | None = None,
    n_jobs: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Model:
    """The model with a certificate; it has no version until it is saved.

    Parameters
    ----------
    nodes, seconds, n_jobs : as for `anytime.evaluation.certificate.certify`.
    progress : called with 1 as each prefix is done.

    Raises
    ------
    TrainingError
        As `check_certifiable`, or the limits allow nothing.

    Notes
    -----
    Sets of the groups that training left out are not looked at: the model's moments know nothing of them.
    """
    check_certifiable(model)
    assert model.moments is not None  # noqa: S101

    def told(_prefix: int, _found: CertifiedPrefix) -> None:
        progress(1)

    steps = model.manifest.steps
    found = certify(
        Gram.of(model.moments),
        model.groups,
        model.costs.tolist(),
        [0.0, *(step.explained_variance for step in steps)],
        model.manifest.alpha,
        nodes=nodes,
        seconds=seconds,
        n_jobs=n_jobs,
        progress=told,
    )
    certificate = Certificate(
        bounds=tuple(float(prefix.bound) for prefix in found),
        exact=tuple(bool(prefix.exact) for prefix in found),
        nodes=nodes,
        seconds=seconds,
    )
    changes = {"format": FORMAT, "version": "", "certificate": certificate}
    return replace(model, manifest=model.manifest.model_copy(update=changes))
