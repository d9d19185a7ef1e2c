"""Bases: which terms a raw column becomes. Each is a class in a file of this folder, the simplest next to `Basis`.

To add one, write a class like the others in a new file, and register it below.
"""

from anytime.features.bases.basis import (
    BASES,
    CHEAPER,
    LEVEL_ROWS,
    MIN_LEVEL_ROWS,
    MIN_MISSING,
    NUMERIC,
    UNSTATED,
    Basis,
    Choice,
    Clamp,
    ColumnSample,
    Kind,
    Linear,
    are_whole,
    default_basis,
    learned,
    parsed_basis,
    register,
    suffixes,
)
from anytime.features.bases.categories import Categories
from anytime.features.bases.cyclic import Cyclic
from anytime.features.bases.date import Date
from anytime.features.bases.hinge import FINEST, OCTILES, Hinge, Octiles
from anytime.features.bases.polynomial import Polynomial

__all__ = [
    "BASES",
    "CHEAPER",
    "FINEST",
    "LEVEL_ROWS",
    "MIN_LEVEL_ROWS",
    "MIN_MISSING",
    "NUMERIC",
    "OCTILES",
    "UNSTATED",
    "Basis",
    "Choice",
    "Clamp",
    "ColumnSample",
    "Hinge",
    "Kind",
    "are_whole",
    "default_basis",
    "learned",
    "parsed_basis",
    "register",
    "suffixes",
]

for _basis in (Linear, Hinge, Polynomial, Cyclic, Categories, Date, Octiles):
    register(_basis)
