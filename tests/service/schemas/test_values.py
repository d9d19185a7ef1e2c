"""Values of a group, before the prediction checks them: their size, their packed form and their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anytime_service.errors import BodyTooLargeError
from anytime_service.limits.table import FIELDS
from anytime_service.schemas.codecs import JSON
from anytime_service.schemas.messages import ListLimits, count_rows

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


@pytest.mark.parametrize(
    ("values", "rows"),
    [([], 1), ([1, 2], 1), ([[1], [2]], 2), (b"12345678", 1), (None, 1), (np.zeros((3, 2)), 3), ("text", 1)],
)
def test_rows_of_values_are_counted_even_if_they_are_invalid(values: Any, rows: int) -> None:
    assert count_rows(values) == rows
