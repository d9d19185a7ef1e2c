"""From Arrow's many types to the four dtypes of a table."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anytime.tables.optional import required

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["INT64_MAX", "Kind", "decoded", "kind_of", "to_numpy"]

INT64_MAX = int(np.iinfo(np.int64).max)


class Kind(Enum):
    """How a column is handed out."""

    BOOL = "bool"
    INT = "int64"
    FLOAT = "float64"
    TEXT = "object"


def kind_of(arrow_type: pa.DataType) -> Kind | None:
    """Kind of an Arrow type when nothing is missing; None when it is neither number nor text.

    Missing values later turn BOOL and INT into FLOAT, the only number that can say "missing".
    """
    types = required("pyarrow").types
    if types.is_dictionary(arrow_type):
        return kind_of(arrow_type.value_type)
    if types.is_boolean(arrow_type):
        return Kind.BOOL
    if types.is_integer(arrow_type):
        return Kind.INT
    if types.is_floating(arrow_type) or types.is_decimal(arrow_type) or types.is_null(arrow_type):
        return Kind.FLOAT
    if types.is_string(arrow_type) or types.is_large_string(arrow_type) or types.is_string_view(arrow_type):
        return Kind.TEXT
    return None


def decoded(column: pa.Array) -> pa.Array:
    """Look up the values, where a column stores codes into a dictionary."""
    is_coded = required("pyarrow").types.is_dictionary(column.type)
    return column.dictionary_decode() if is_coded else column


def to_numpy(column: pa.Array, kind: Kind) -> NDArray[Any]:
    """One column of a record batch as (rows,) of its kind's dtype; it may share memory and be read-only."""
    pa = required("pyarrow")
    target = {Kind.BOOL: pa.bool_(), Kind.INT: pa.int64(), Kind.FLOAT: pa.float64(), Kind.TEXT: pa.string()}[kind]
    # Unsafe, because integers past 2^53 are meant to round when their column has gaps; Kind.INT is known to fit.
    array: NDArray[Any] = decoded(column).cast(target, safe=False).to_numpy(zero_copy_only=False)
    return array
