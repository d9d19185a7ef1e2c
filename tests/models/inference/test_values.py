"""Values in every container that callers have: a container that means more than its memory is not reduced to it."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from anytime.errors import ValuesError
from anytime.inference.values import LabelledError, plain_values
from models.refusals import assert_refused

COLUMNS = ("a", "b")
RECORD = np.array([(2.0, 1.0)], dtype=[("b", float), ("a", float)])
BEHIND = 1e21  # the number behind a mask


class Tensor:
    """An array of another library, which converts itself."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)
        self.shape = self.values.shape

    def __array__(self, *_: Any, **__: Any) -> np.ndarray[Any, Any]:
        return self.values


class Exchanged:
    """An array of another library, which only exchanges its memory."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)
        self.shape = self.values.shape

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


class Masked:
    """A masked array of another library."""

    mask = np.array([False, True])

    def filled(self, value: float) -> np.ndarray[Any, Any]:
        return np.where(self.mask, value, [1.0, BEHIND])

    def __array__(self, *_: Any, **__: Any) -> np.ndarray[Any, Any]:
        return np.array([1.0, BEHIND])


class Lengths:
    """An array with a unit."""

    unit = "cm"

    def __array__(self, *_: Any, **__: Any) -> np.ndarray[Any, Any]:
        return np.array([1.0, 2.0])


SAME: dict[str, tuple[Any, Any]] = {
    "a list": ([1, 2], [1, 2]),
    "an array": (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    "a masked array": (np.ma.masked_array([1.0, BEHIND], [False, True]), [1, None]),
    "masked integers": (np.ma.masked_array([[1, 2], [3, 4]], [[False, True], [True, False]]), [[1, None], [None, 4]]),
    "masked text": (np.ma.masked_array(["x", "y"], [False, True]), ["x", None]),
    "nothing masked": (np.ma.masked_array([1.0, 2.0]), [1, 2]),
    "masked rows in a list": ([np.ma.masked_array([1.0, BEHIND], [False, True])] * 2, [[1, None]] * 2),
    "masked among numbers": ([1.0, np.ma.masked], [1, None]),
    "masked in a row": ([[1.0, np.ma.masked], [3.0, 4.0]], [[1, None], [3, 4]]),
    "a masked record": (np.ma.array(RECORD, mask=[(True, False)]), [[1, None]]),
    "masked elsewhere": (Masked(), [1, None]),
    "a frame": (pd.DataFrame({"b": [2, 4], "a": [1.0, 3.0]}), [[1, 2], [3, 4]]),
    "a frame with text": (pd.DataFrame({"b": ["x", None], "a": [1, 3]}), [[1, "x"], [3, None]]),
    "a frame with pandas.NA": (
        pd.DataFrame({"b": pd.array([2, None], dtype="Int64"), "a": [1, 3]}),
        [[1, 2], [3, None]],
    ),
    "a frame of categories": (pd.DataFrame({"b": pd.Categorical(["x"]), "a": [1]}), [[1, "x"]]),
    "a frame with booleans": (pd.DataFrame({"b": [1], "a": [True]}), [[True, 1]]),
    "a frame without names": (pd.DataFrame([[1, 2]]), [[1, 2]]),
    "a row of a frame": (pd.DataFrame({"b": [2.0], "a": [1.0]}).iloc[0], [1, 2]),
    "rows of frames": ([pd.Series({"b": 2.0, "a": 1.0})] * 2, [[1, 2]] * 2),
    "a series without names": (pd.Series([1.0, 2.0]), [1, 2]),
    "an Arrow table": (pa.table({"b": [2, None], "a": [1, 3]}), [[1, 2], [3, None]]),
    "an Arrow array": (pa.array([1, None]), [1, None]),
    "records": (RECORD, [[1, 2]]),
    "a record": (RECORD[0], [1, 2]),
    "a record array": (RECORD.view(np.recarray), [[1, 2]]),
    "records in a list": ([RECORD[0], RECORD[0]], [[1, 2]] * 2),
    "pandas.NA": ([1, pd.NA], [1, None]),
    "pandas.NA in an array": (np.array([1, pd.NA], dtype=object), [1, None]),
    "integers with pandas.NA": (pd.array([1, None], dtype="Int64"), [1, None]),
    "rows of objects": (np.array([[1, None], [pd.NA, "x"]], dtype=object), [[1, None], [None, "x"]]),
    "a tensor": (Tensor([[1, 2]]), [[1, 2]]),
    "exchanged memory": (Exchanged([1.0, 2.0]), [1, 2]),
    "tensors in a list": ([Tensor(1.0), Exchanged(2.0)], [1, 2]),
    "tensors in a row": ([[Tensor(1.0), np.array(2)]], [[1, 2]]),
    "rows of tensors": ([Tensor([1, 2]), Exchanged([3, 4])], [[1, 2], [3, 4]]),
    "numbers of numpy": ([np.float32(1), np.int64(2)], [1, 2]),
    "a range": (range(1, 3), [1, 2]),
    "decimals": ([Decimal("0.5"), Decimal("NaN")], [0.5, None]),
    "decimals in rows": ([[Decimal("0.5"), 1]], [[0.5, 1]]),
    "an array of decimals": (np.array([Decimal("0.5"), None]), [0.5, None]),
    "fractions": ([Fraction(1, 2), 1], [0.5, 1]),
}


def listed(values: Any) -> Any:
    """Return values as lists with None where missing."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, list | tuple):
        return [listed(each) for each in values]
    return None if values != values else values


@pytest.mark.parametrize("name", SAME)
def test_values_keep_their_meaning(name: str) -> None:
    values, expected = SAME[name]
    assert listed(plain_values("g", COLUMNS, values)) == expected


NUMBERS = [3, 3.0, np.float32(3), np.array(3.0), Tensor(3.0), Exchanged(3.0), np.ma.array(3.0), Decimal(3), Fraction(3)]


MASKED = [np.ma.masked, np.ma.masked_array(BEHIND, mask=True)]


@pytest.mark.parametrize(
    ("value", "number"), [*((value, 3) for value in NUMBERS), *((value, None) for value in MASKED)]
)
def test_a_number_is_one_row_of_one_column(value: Any, number: int | None) -> None:
    assert listed(plain_values("g", ("a",), value)) == listed(plain_values("g", None, value)) == [number]


@pytest.mark.parametrize("value", [Decimal("sNaN"), [Decimal("sNaN")], [Fraction(10**400)]])
def test_a_number_that_no_float_holds_is_an_error(value: Any) -> None:
    assert_refused(lambda: plain_values("g", ("a",), value), "values of group 'g'", error=ValuesError)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pd.DataFrame({"c": [1], "a": [2]}), "have the columns 'c', 'a'; expected 'a', 'b', each once"),
        (pd.DataFrame({"a": [1]}), "have the columns 'a'; expected 'a', 'b'"),
        (pd.DataFrame([[1, 2, 3]], columns=["a", "b", "b"]), "have the columns 'a', 'b', 'b'; expected"),
        (pd.Series({"a": 1, "c": 2}), "have the columns 'a', 'c'; expected"),
        (pd.Series([1.0, 2.0], index=[1, 0]), "have the columns '1', '0'; expected"),
        (pa.table({"a": [1], "c": [2]}), "have the columns 'a', 'c'; expected"),
        (np.zeros(1, dtype=[("a", float), ("c", float)]), "have the columns 'a', 'c'; expected"),
        (np.zeros(1, dtype=[("a", float), ("b", float, 2)]), "have columns of different shapes"),
        (Lengths(), "have the unit cm; expected plain numbers"),
    ],
)
def test_columns_with_other_names_and_units_are_refused(values: Any, message: str) -> None:
    assert_refused(lambda: plain_values("g", COLUMNS, values), f"values of group 'g' {message}", error=ValuesError)


def test_names_are_refused_while_the_columns_of_the_group_are_unknown() -> None:
    assert_refused(lambda: plain_values("g", None, RECORD), error=LabelledError)
