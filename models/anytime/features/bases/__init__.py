"""Bases: which terms a raw column becomes. Each is a class in a file of this folder, and `register` lists it.

To add one, write a class like the others in a new file, and register it below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from pydantic import ValidationError

from anytime.errors import GroupsError
from anytime.features.bases.basis import (
    LEVEL_ROWS,
    MIN_LEVEL_ROWS,
    NUMERIC,
    Basis,
    Choice,
    Clamp,
    ColumnSample,
    Kind,
    are_whole,
    quantiles,
    suffixes,
)
from anytime.features.bases.categories import Categories
from anytime.features.bases.cyclic import Cyclic
from anytime.features.bases.date import Date
from anytime.features.bases.hinge import Hinge, Octiles, common_values
from anytime.features.bases.linear import Linear
from anytime.features.bases.polynomial import Polynomial
from anytime.groups import ColumnBasis

__all__ = [
    "BASES",
    "LEVEL_ROWS",
    "MIN_LEVEL_ROWS",
    "NUMERIC",
    "UNSTATED",
    "Basis",
    "Categories",
    "Choice",
    "Clamp",
    "ColumnSample",
    "Hinge",
    "Kind",
    "Linear",
    "Polynomial",
    "are_whole",
    "checked",
    "common_values",
    "default_basis",
    "learned",
    "parsed_basis",
    "quantiles",
    "register",
    "suffixes",
]

BASES: dict[str, type[Basis]] = {}
"""Every basis by its name on the command line and in the groups file."""

AnyBasis = TypeVar("AnyBasis", bound=type[Basis])


def register(basis: AnyBasis) -> AnyBasis:
    """Add a basis; raise TypeError, which names what is absent, if it is incomplete, or if its name is in use."""
    absent = [*(each for each in ("name", "fits") if not hasattr(basis, each)), *sorted(basis.__abstractmethods__)]
    if absent:
        raise TypeError(f"basis {basis.__name__} lacks {', '.join(absent)}; see anytime.features.bases.basis.Basis")
    if BASES.setdefault(basis.name, basis) is not basis:
        raise TypeError(f"two bases have the name {basis.name!r}: {basis.__name__} and {BASES[basis.name].__name__}")
    return basis


for _basis in (Linear, Hinge, Polynomial, Cyclic, Categories, Date, Octiles):
    register(_basis)


def parsed_basis(text: str) -> tuple[type[Basis], float | None]:
    """Return the basis and the K that a text such as "hinge:4" names; raise GroupsError if it is invalid."""
    name, colon, size = text.partition(":")
    basis = BASES.get(name)
    if basis is None:
        raise GroupsError(f"there is no basis {text!r}; expected one of {', '.join(BASES)}")
    try:
        return basis, basis.sized(size) if colon else basis.default_size()
    except GroupsError as error:
        raise GroupsError(f"basis {text!r} is invalid; expected {error}") from None


def default_basis(kind: Kind) -> str:
    """Return the basis of a column for which the user gives none."""
    return next(name for name, basis in BASES.items() if kind in basis.default_for)


UNSTATED = default_basis("number")
"""The basis of a column that groups state nothing of once they are learned."""


def checked(text: str, given: ColumnBasis, sample: ColumnSample, kind: Kind | None = None) -> Basis:
    """Return the basis that a text names, complete; raise GroupsError if what is stated or learned is invalid."""
    basis, size = parsed_basis(text)
    stated = given.model_dump(exclude_none=True, exclude={"basis", "range", "missing", "quantiles"})
    other = next((part for part in stated if part not in basis.parts), None)
    if other is not None:
        fields = ", ".join([*sorted(basis.parts), *([] if basis.clamp is None else ["range"]), "missing"])
        raise GroupsError(f"it states {other} and has basis {text!r}; expected of {fields}")
    if given.range is not None and basis.clamp is None:
        raise GroupsError(f"it has the range {list(given.range)} and basis {text!r}; expected no range")
    if kind is not None and kind not in basis.fits:
        fitting = [each.name for each in BASES.values() if kind in each.fits]
        raise GroupsError(f"it holds {_HOLDS[kind]} and has basis {text!r}; expected {' or '.join(fitting)}")
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not finite, and refused below
        found = basis.learn(size, given, sample)
    try:
        found.described()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = f"{first['loc'][0]} {first['input']!r}" if first["loc"] else "an invalid value"
        raise GroupsError(
            f"basis {text!r} learned {what} from its values, which are too large or too small; rescale the column"
        ) from None
    return found


def learned(given: ColumnBasis, kind: Kind, option: str | None, sample: ColumnSample) -> Basis:
    """Return the basis of a column; raise GroupsError, without its name, if the basis does not fit its type.

    `given` is what the groups file states of the column, `option` the basis of all columns of a fitting type, or None.
    """
    text = given.basis
    if text is None:
        text = option if option is not None and kind in parsed_basis(option)[0].fits else default_basis(kind)
    return checked(text, given, sample, kind)


_HOLDS: Mapping[Kind, str] = {
    "number": "numbers",
    "integer": "whole numbers",
    "bool": "booleans",
    "text": "text",
    "date": "dates",
    "factor": "levels of a dictionary",
}
