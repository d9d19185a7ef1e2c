"""Every operation has all its parts: one row and many, its form, its levels; and one of them is named."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from anytime.features.operations import OPERATIONS, Operands, Operation, Term
from anytime.model import export
from anytime.types import Float

CASES: dict[str, Operation] = {name: each() for name, each in OPERATIONS.items()}
every = pytest.mark.parametrize("operation", CASES.values(), ids=CASES)
DAY = 86_400.0


def written(operation: Operation, x: Float, a: float = 2.0, b: float = 5.0) -> Float:
    """The terms (rows,) of a column that is not the first, and whose term is not the first."""
    out = np.full((3, len(x)), 7.0)
    operation.write(np.stack([np.full(len(x), np.nan), x]), Operands([(1, 1, Term(operation, a=a, b=b, power=3))]), out)
    assert (out[[0, 2]] == 7.0).all()
    return np.asarray(out[1])


@every
def test_one_row_is_as_many(operation: Operation) -> None:
    x = np.array([-3.0, 0.0, 2.0, 2.5, 1e6, 40 * DAY, math.nan])
    np.testing.assert_array_equal(
        [written(operation, row)[0] for row in x[:, np.newaxis]], written(operation, x), strict=False
    )
    assert math.isnan(written(operation, x)[-1]) == (operation.form != "missing")


@every
def test_the_form_is_explained_with_what_the_document_states(operation: Operation) -> None:
    document: dict[str, Any] = Term(operation, a=2.0, b=5.0, label="Oslo").document
    assert document["form"] == operation.form
    text = str(export.__doc__)
    assert {name for name in [operation.form, *document] if not re.search(rf"\b{name}\b", text)} == set()


@every
def test_a_level_is_that_of_a_value_that_has_it(operation: Operation) -> None:
    if operation.part is not None:
        for a in range(1, 7):
            assert written(operation, np.array([operation.of_level(float(a))]), a=float(a)).tolist() == [1.0]


@every
def test_corners_are_within_the_range_or_one_period(operation: Operation) -> None:
    corners = np.asarray(operation.corners(Term(operation, a=2.0, b=5.0), 1.0, 4.0))
    assert len(corners) == 0 or (corners.min() >= 0.0 and corners.max() <= 5.0)


@pytest.mark.parametrize("absent", ["form", "values"])
def test_an_operation_that_lacks_a_member_is_an_error_that_names_it(absent: str) -> None:
    members = {"form": "twice", "code": 1, "values": lambda *_: 1.0}
    partial = type("Twice", (Operation,), {name: each for name, each in members.items() if name != absent})
    with pytest.raises((TypeError, AttributeError), match=absent):
        print(Term(partial()).document)
