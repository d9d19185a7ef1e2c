"""Values of a group, before the prediction checks them: their size, their packed form and their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anytime_service.errors import BodyTooLargeError, FieldError
from anytime_service.limits.table import FIELDS
from anytime_service.schemas.codecs import JSON, MSGPACK
from anytime_service.schemas.messages import ListLimits, Packed, received_values
from anytime_service.schemas.values import count_rows
from service.serving import trained_model

MODEL = trained_model()
GROUP, PLACE = next(iter(MODEL.places.items()))
WIDTH = len(PLACE.features)
MANY = int(FIELDS) + 1


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize(
    ("limits", "content", "error"),
    [
        (ListLimits(10, 5), '{"a":[1,2]}', "the line has 11 bytes of JSON; expected at most 10"),
        (ListLimits(1000, 5), '{"a":[1,2,3,4,5,6]}', "the line has 6 values in lists of JSON; expected at most 5"),
        (ListLimits(10**6, 10**6), "{" + '"":0,' * MANY + "}", f"the line has {MANY} colons in JSON"),
    ],
)
def test_json_that_is_too_large_is_refused_before_it_is_decoded(
    text: bool, limits: ListLimits, content: str, error: str
) -> None:
    with pytest.raises(BodyTooLargeError, match=error):
        limits.must_be_packed(JSON, content if text else content.encode(), "the line")


@pytest.mark.parametrize("values", range(2, 9))
def test_json_at_its_limit_is_accepted(values: int) -> None:
    content = str([0] * values)
    assert ListLimits(len(content), values).must_be_packed(JSON, content) is False
    with pytest.raises(BodyTooLargeError):
        ListLimits(len(content), values - 1).must_be_packed(JSON, content)


def test_only_a_large_message_in_messagepack_must_be_packed() -> None:
    limits = ListLimits(1000, 10)
    assert [limits.must_be_packed(MSGPACK, b"x" * size) for size in (limits.listed, limits.listed + 1)] == [False, True]
    assert ListLimits(50, 10).listed == 50


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("rows", [1, 3])
def test_packed_values_become_rows_in_either_form(dtype: Any, rows: int) -> None:
    numbers = np.arange(rows * WIDTH, dtype=f"<{dtype}").reshape(rows, WIDTH)
    for values, named in ((numbers.tobytes(), dtype), (Packed(dtype, memoryview(numbers.tobytes())), None)):
        np.testing.assert_array_equal(received_values(MODEL, GROUP, values, named, rows), numbers)


@pytest.mark.parametrize(
    ("values", "dtype", "field", "error"),
    [
        (b"\0" * (8 * WIDTH + 1), "f8", f"groups.{GROUP}", f"expected rows of {WIDTH} x f8"),
        (b"\0" * 8, None, "dtype", "bytes without a dtype"),
        ([1.0], "f4", "dtype", "lists and have no dtype"),
        ([[1.0]] * 4, None, "rows", "there are 4 rows; expected 1 to 3"),
        (b"\0" * 4 * WIDTH * 4, "f4", "rows", "there are 4 rows; expected 1 to 3"),
    ],
)
def test_values_that_are_invalid_before_they_are_numbers(values: Any, dtype: Any, field: str, error: str) -> None:
    with pytest.raises(FieldError, match=error) as raised:
        received_values(MODEL, GROUP, values, dtype, 3)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("values", "rows"),
    [([], 1), ([1, 2], 1), ([[1], [2]], 2), (b"12345678", 1), (None, 1), (np.zeros((3, 2)), 3), ("text", 1)],
)
def test_rows_of_values_are_counted_even_if_they_are_invalid(values: Any, rows: int) -> None:
    assert count_rows(values) == rows
