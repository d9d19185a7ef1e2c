"""Certification of a model: each prefix's share of the best possible, from the moments in the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from anytime.errors import TrainingError
from anytime.evaluation.certificate import CertifiedPrefix, certify_prefixes
from anytime.model.manifest import FORMAT, Certificate
from anytime.model.model import Model
from anytime.moments.moments import Gram

__all__ = [
    "NODES",
    "certify",
    "check_certifiable",
]

NODES = 200
"""Default maximum number of nodes of the search for each prefix."""


def check_certifiable(model: Model) -> None:
    """Raise TrainingError if the model does not support certificates.

    Raises
    ------
    TrainingError
        The model is of a likelihood, or was saved without its moments.
    """
    family = model.manifest.family
    if family != "gaussian":
        raise TrainingError(
            f"model {model.name!r} is {family}; certificates support least squares only (family gaussian)"
        )
    if model.moments is None:
        raise TrainingError(f"model {model.name!r} was saved without its moments; retrain it without --no-moments")


def certify(
    model: Model,
    *,
    nodes: int = NODES,
    seconds: float | None = None,
    n_jobs: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Model:
    """Return the model with a certificate; its version is empty until saved.

    Parameters
    ----------
    nodes, seconds, n_jobs : as for `anytime.evaluation.certificate.certify_prefixes`.
    progress : called with 1 for each finished prefix.

    Raises
    ------
    TrainingError
        As `check_certifiable`, or the limits are invalid.

    Notes
    -----
    Sets with groups that training left out are not considered: the model's moments do not contain them.
    """
    check_certifiable(model)
    assert model.moments is not None  # noqa: S101

    def report(_prefix: int, _found: CertifiedPrefix) -> None:
        progress(1)

    steps = model.manifest.steps
    found = certify_prefixes(
        Gram.of(model.moments),
        model.groups,
        model.costs.tolist(),
        [0.0, *(step.explained_variance for step in steps)],
        model.manifest.alpha,
        nodes=nodes,
        seconds=seconds,
        n_jobs=n_jobs,
        progress=report,
    )
    certificate = Certificate(
        bounds=tuple(float(prefix.bound) for prefix in found),
        exact=tuple(bool(prefix.exact) for prefix in found),
        nodes=nodes,
        seconds=seconds,
    )
    changes = {"format": FORMAT, "version": "", "certificate": certificate}
    return replace(model, manifest=model.manifest.model_copy(update=changes))
