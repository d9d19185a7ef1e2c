"""A value is itself in float32 and in float64: the numbers that the indicator of a common value matches."""

from __future__ import annotations

import numpy as np
import pytest

from anytime.features.bases import ColumnSample, Hinge, common_values
from anytime.features.expansion import Column, Columns
from anytime.features.operations import same_values

VALUES = [0.1, 1 / 3, -1 / 3, 0.7, 1e-30, 123.456, 1234567.89, 5.0, 0.0, 2.0**24, 1e10, -2.5]


def _indicator(level: float, x: float) -> float:
    columns = Columns((Column("x", Hinge(0, (), (level,))),))
    return float(columns.expand(np.array([[x]]))[0, 1])


@pytest.mark.parametrize("value", VALUES)
def test_a_value_matches_its_float32_form_either_way(value: float) -> None:
    single = float(np.float32(value))
    digits = float(str(np.float32(value)))
    for level in (value, single, digits):
        for x in (value, single, digits):
            assert _indicator(level, x) == 1.0
    other = float(np.nextafter(np.float32(value), np.float32(np.inf)))
    assert _indicator(value, other) == 0.0


@pytest.mark.parametrize(
    ("level", "x"),
    [(2**24 + 1, 2**24), (2**24, 2**24 + 1), (0.0, 1e-300), (1e-300, 0.0), (1e39, 1e40), (16777215.5, 2**24 + 1)],
)
def test_numbers_that_float32_does_not_keep_apart_are_compared_exactly(level: float, x: float) -> None:
    assert _indicator(float(level), float(level)) == 1.0
    assert _indicator(float(level), float(x)) == 0.0


def test_the_ends_are_those_of_rounding_to_float32() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=1000), 10 ** rng.uniform(-30, 7, 1000)])
    form, ends = values.astype(np.float32), same_values(values)
    assert (ends.astype(np.float32) == form[:, np.newaxis]).all()
    beyond = np.nextafter(ends, [-np.inf, np.inf])
    assert (beyond.astype(np.float32) != form[:, np.newaxis]).all()


def test_forms_of_one_value_are_counted_together() -> None:
    single = float(np.float32(0.1))
    assert common_values(ColumnSample(np.array([0.1, single, single, *range(17)] * 5), 100)) == (single,)


def test_no_indicator_discloses_a_few_rows() -> None:
    salaries = np.array([1000.0, 1000.0, *range(6)])
    assert common_values(ColumnSample(salaries, 8)) == ()
    assert common_values(ColumnSample(np.repeat(salaries, 5), 40)) == (1000.0,)


def test_a_float32_form_of_an_end_of_the_range_is_not_clamped() -> None:
    columns = Columns((Column("x", Hinge(0, (), ()), range=(-0.3, 0.1)),))
    X = np.array([[np.float32(0.1)], [np.float32(-0.3)]], dtype=np.float64)
    assert columns.clamped(X)[1] is None
    assert columns.clamped(X)[0].max() == 0.1
    assert columns.clamped(np.array([[0.11]]))[1] is not None
