"""From a batch to the matrix that training works on, or one line about why it cannot be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anytime.arrays import Float
from anytime.errors import TableError, suggestion
from anytime.tables.table import Batch, Text

__all__ = ["feature_matrix", "numbers"]


def feature_matrix(batch: Batch, features: Sequence[str]) -> Float:
    """Columns of a batch side by side.

    Parameters
    ----------
    batch
        Holds every feature; other columns are ignored.
    features
        Names of the columns, in the order wanted.

    Returns
    -------
    Float
        (rows, features), C-contiguous and writable, NaN where missing.

    Raises
    ------
    TableError
        A column holds text or infinities; the message names it, with an example and its row, counted from 0.
    """
    X = np.empty((batch.rows, len(features)))
    for j, name in enumerate(features):
        X[:, j] = numbers(batch, name)
    return X


def numbers(batch: Batch, name: str) -> Float:
    """One column as (rows,) finite float64, NaN where missing; errors as in `feature_matrix`."""
    if name not in batch.columns:
        raise TableError(f"column {name!r} was not read; {suggestion(name, tuple(batch.columns))}")
    column = batch.columns[name]
    if column.dtype == object:
        text = batch.culprits.get(name) or _first_text(batch, name)
        if text is not None:
            raise TableError(
                f"column {name!r} holds text, as {_short(text.value)} in row {text.row} (counted from 0); "
                "expected numbers: encode it, mend it, or leave the column out"
            )
        return np.full(batch.rows, np.nan)
    values: Float = column.astype(np.float64, copy=False)
    infinite = np.isinf(values)
    if infinite.any():
        count, first = int(infinite.sum()), batch.start + int(infinite.argmax())
        raise TableError(
            f"column {name!r} holds {count} infinite {'value' if count == 1 else 'values'}, the first in row {first} "
            "(counted from 0); expected finite numbers, or nothing where a value is missing"
        )
    return values


def _first_text(batch: Batch, name: str) -> Text | None:
    cells = enumerate(batch.columns[name], start=batch.start)
    return next((Text(row, str(value)) for row, value in cells if value is not None), None)


def _short(value: str, limit: int = 40) -> str:
    return repr(value if len(value) <= limit else value[: limit - 3] + "...")
