"""Array types and literal types that signatures share."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Float: TypeAlias = NDArray[np.float64]
Index: TypeAlias = NDArray[np.intp]
Bool: TypeAlias = NDArray[np.bool_]

Task = Literal["regression", "binary", "multiclass", "count"]
Method: TypeAlias = str
"""The name of a selection method (`anytime.selection.methods`): "fr"."""

FamilyName: TypeAlias = str
"""The name of a family of `anytime.families`, with its parameter if it has one: "poisson"."""

ColumnType = Literal["number", "integer", "bool", "text", "date"]
"""What the values of a raw column are; each may be missing."""

Label = bool | int | float | str
"""The name of a class; JSON preserves the type."""

Policy = Literal["prefix", "best", "arrived"]
"""What an answer uses: the longest complete prefix; that or a shorter one whose cross-validated error is less by one
standard error; or every group that has arrived."""

Reason = Literal["deadline", "budget", "end", "complete", "draining", "overload"]
"""Why an answer was returned."""

Overload = Literal["refuse", "prior"]
"""What an overloaded server returns: an error, or the base rate at once."""
