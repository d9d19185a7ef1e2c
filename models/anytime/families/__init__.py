"""Families of generalised linear models, and this registry, which every command and file reads."""

from __future__ import annotations

from functools import cache

from anytime.errors import TrainingError
from anytime.families.classes import Binomial, Multinomial
from anytime.families.family import Family
from anytime.families.gaussian import Gaussian
from anytime.families.log_link import Gamma, NegativeBinomial, Poisson
from anytime.types import FamilyName, Task

__all__ = ["FAMILIES", "Family", "default_family", "family_names", "family_of", "label_of"]

FAMILIES: dict[str, type[Family]] = {
    kind.name: kind for kind in (Gaussian, Binomial, Multinomial, Poisson, Gamma, NegativeBinomial)
}
"""Every family by name. Of those that fit a task, the first is the default: least squares before any likelihood."""


def family_of(name: FamilyName) -> Family:
    """Return the family of a name such as "poisson"; some names have a parameter, as `name:parameter`.

    Raises
    ------
    TrainingError
        There is no such family, or its parameter is invalid.
    TypeError
        The class of the family is incomplete.
    """
    kind, _, parameter = str(name).partition(":")
    if kind not in FAMILIES:
        raise TrainingError(f"family is {name!r}; expected one of {', '.join(FAMILIES)}")
    return _made(FAMILIES[kind], parameter if ":" in name else None)


@cache
def _made(kind: type[Family], parameter: str | None) -> Family:
    stated = [name for name in ("name", "tasks", "link") if not hasattr(kind, name)]
    if lacking := sorted([*stated, *kind.__abstractmethods__]):
        raise TypeError(f"family {kind.__name__} lacks {', '.join(lacking)}; expected the members of Family")
    return kind.of(parameter)


def label_of(name: FamilyName) -> FamilyName:
    """Return the name with its parameter, as model files store it; raise as `family_of`."""
    return family_of(name).label


def family_names(task: Task) -> list[FamilyName]:
    """Return the names of the families that fit a task, likelihoods first."""
    return sorted(
        (name for name, kind in FAMILIES.items() if task in kind.tasks), key=lambda name: FAMILIES[name].least_squares
    )


def default_family(task: Task) -> FamilyName:
    """Return the family of a task where none is stated: least squares if it fits, else the first likelihood."""
    return next(name for name, kind in FAMILIES.items() if task in kind.tasks)
