"""Thresholds are scores of an exact rank, and what scores at most the threshold is in the interval or the set."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError

from anytime.errors import TrainingError
from anytime.inference.conformal import (
    SCORE_ROUNDING,
    class_members,
    class_scores,
    confidence,
    conformal_level,
    conformal_rank,
    conformal_threshold,
    expected_calibration_error,
    label_sets,
    residual_intervals,
    residual_scores,
)
from anytime.model.manifest import Calibration
from anytime.types import Float, Index
from models.properties import quick
from models.refusals import assert_refused

decimals = st.integers(1, 6).flatmap(
    lambda digits: st.integers(1, 10**digits - 1).map(lambda n: Fraction(n, 10**digits))
)
"""Coverages as one writes them."""


def pearson_scores(y: Float, mean: Float) -> Float:
    return residual_scores(y[:, np.newaxis], mean[:, np.newaxis], np.sqrt(mean[:, np.newaxis]))


def pearson_intervals(mean: Float, threshold: float) -> Float:
    """Intervals (rows, 2) of counts, which are never negative."""
    return np.maximum(residual_intervals(mean, threshold, np.sqrt(mean)), 0.0)


def two_classes(second: Any) -> Float:
    """Probabilities (rows, 2), from those of the second class."""
    return np.column_stack([1 - np.array(second), second])


def calibration_error(probabilities: Float, codes: Index, bins: int = 15) -> float:
    likely, right = confidence(probabilities, codes)
    return expected_calibration_error(likely, right, bins)


# Ranks.


@quick(max_examples=500)
@given(st.integers(0, 20_000), decimals)
def test_the_rank_is_that_of_exact_arithmetic(rows: int, coverage: Fraction) -> None:
    exact = math.ceil((rows + 1) * coverage)
    if exact <= rows:
        assert conformal_rank(rows, float(coverage)) == exact
        assert conformal_level(rows, float(coverage)) == exact / (rows + 1)
    else:
        with pytest.raises(TrainingError):
            conformal_rank(rows, float(coverage))


@pytest.mark.parametrize(
    ("rows", "coverage", "rank"),
    [(499, 0.9, 450), (99, 0.55, 55), (99, 0.07, 7), (99, 0.29, 29), (999, 0.95, 950), (500, 0.9, 451), (1, 0.5, 1)],
)
def test_a_rank_is_not_one_more_for_rounding(rows: int, coverage: float, rank: int) -> None:
    assert conformal_rank(rows, coverage) == rank
    assert conformal_rank(rows, np.float64(coverage)) == rank


@pytest.mark.parametrize(
    ("coverage", "rows"), [(0.1, 1), (0.5, 1), (0.8, 4), (0.9, 9), (0.925, 13), (0.95, 19), (0.99, 99), (0.999, 999)]
)
def test_too_few_rows_are_told_how_many_it_takes(coverage: float, rows: int) -> None:
    assert conformal_rank(rows, coverage) <= rows
    assert_refused(
        lambda: conformal_rank(rows - 1, coverage),
        f"{rows - 1} rows are too few to calibrate a coverage of {coverage}; expected {rows} or more: add rows,"
        " or request less coverage",
        error=TrainingError,
    )


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.1, 1.5, 90, math.nan, math.inf])
def test_a_coverage_is_a_share_between_0_and_1(coverage: float) -> None:
    said = f"coverage is {coverage}; expected a share between 0 and 1, such as 0.9"
    assert assert_refused(lambda: conformal_rank(100, coverage), error=TrainingError) == said


# Thresholds.

finite = st.floats(0, 1e6)
samples = st.integers(1, 40).flatmap(lambda m: arrays(np.float64, m, elements=finite))
coarse = st.integers(2, 40).flatmap(lambda m: arrays(np.float64, m, elements=st.integers(0, 5).map(float)))
"""Scores with many ties."""


@quick()
@given(st.one_of(samples, coarse), decimals, st.randoms(use_true_random=False))
def test_the_threshold_is_the_score_of_that_rank_in_any_order(scores: Float, coverage: Fraction, rng: Any) -> None:
    rank = math.ceil((len(scores) + 1) * coverage)
    if rank > len(scores):
        return
    before = scores.copy()
    shuffled = np.array(rng.sample(scores.tolist(), len(scores)))
    found = conformal_threshold(scores, float(coverage)), conformal_threshold(shuffled, float(coverage))
    assert found == (sorted(scores.tolist())[rank - 1],) * 2
    assert np.array_equal(scores, before)


@pytest.mark.parametrize("absurd", [math.inf, math.nan])
def test_rows_without_a_finite_score_are_the_farthest_and_never_the_threshold(absurd: float) -> None:
    scores = np.arange(19.0)
    scores[3] = absurd
    assert conformal_threshold(scores, 0.9) == 18.0
    said = "1 of 19 rows have no finite score, too many for a coverage of 0.95; "
    assert_refused(lambda: conformal_threshold(scores, 0.95), said, error=TrainingError)


# Scores, intervals and sets by hand.


def test_a_set_holds_the_classes_that_are_likely_enough_and_may_be_empty() -> None:
    probabilities = np.array([[0.5, 0.25, 0.25], [0.125, 0.125, 0.75], [0.34, 0.33, 0.33], [0.5, 0.5, 0.0]])
    assert label_sets(class_members(probabilities, 0.5), ("a", "b", "c")) == [["a"], ["c"], [], ["a", "b"]]
    assert label_sets(class_members(probabilities, 1.0), ("a", "b", "c")) == [["a", "b", "c"]] * 4


def test_labels_come_in_the_order_of_the_model_and_as_they_are() -> None:
    sets = label_sets(np.array([[True, True, False, True], [False, False, True, True]]), (True, "1", 1, 1.5))
    assert [[type(label) for label in row] for row in sets] == [[bool, str, float], [int, float]]
    assert sets == [[True, "1", 1.5], [1, 1.5]]


def test_absurd_predictions_give_no_warning_and_no_finite_interval() -> None:
    ends = residual_intervals(np.array([[math.inf], [1.7e308]]), 1.0, np.array([1e308]))
    assert not np.isfinite(ends).all(axis=(1, 2)).any()
    assert not np.isfinite(pearson_intervals(np.array([math.inf]), 1.0)).all()


# At the boundary.

values = st.floats(-1e6, 1e6).map(lambda v: v if abs(v) > 1e-6 else 0.0)
positive = st.floats(1e-3, 1e6)


@quick(max_examples=300)
@given(arrays(np.float64, (20, 2), elements=values), arrays(np.float64, 2, elements=values), positive, positive)
def test_rows_are_in_the_box_if_their_scores_are_not_above_the_threshold(
    Y: Float, base: Float, one: float, other: float
) -> None:
    fitted, scale = np.tile(base, (20, 1)), np.array([one, other])
    scores = residual_scores(Y, fitted, scale)
    for threshold in scores:
        box = residual_intervals(fitted, threshold, scale)
        inside: Any = ((box[..., 0] <= Y) & (box[..., 1] >= Y)).all(axis=1)
        assert inside[scores <= threshold].all()
        reach = SCORE_ROUNDING * (1 + threshold + np.max(np.abs(base) / scale))
        assert not inside[scores > threshold + 2 * reach].any()


@quick(max_examples=300)
@given(arrays(np.float64, 20, elements=st.integers(0, 300).map(float)), positive)
def test_counts_are_in_the_interval_if_their_scores_are_not_above_the_threshold(y: Float, base: float) -> None:
    mean = np.full(20, base)
    scores = pearson_scores(y, mean)
    for threshold in scores:
        low, high = pearson_intervals(mean, threshold).T
        inside = (low <= y) & (high >= y)
        assert inside[scores <= threshold].all()
        assert not inside[scores > threshold + 2 * SCORE_ROUNDING * (1 + threshold + math.sqrt(base))].any()


@quick(max_examples=300)
@given(arrays(np.float64, (20, 3), elements=st.floats(0.001, 1)), arrays(np.intp, 20, elements=st.integers(0, 2)))
def test_the_true_class_is_in_the_set_if_its_score_is_not_above_the_threshold(shares: Float, codes: Index) -> None:
    probabilities = shares / shares.sum(axis=1, keepdims=True)
    scores = class_scores(probabilities, codes)
    for threshold in scores:
        inside = class_members(probabilities, threshold)[np.arange(20), codes]
        assert np.array_equal(inside, scores <= threshold + SCORE_ROUNDING)


# Calibration error.


def literal_error(probabilities: Float, codes: Index, bins: int) -> float:
    """As defined, a row at a time, for confidences that differ and rows in a multiple of the bins."""
    rows: list[tuple[float, float]] = []
    for p, code in zip(probabilities.tolist(), codes.tolist(), strict=True):
        predicted = 1 if len(p) == 2 else p.index(max(p))
        rows.append((p[predicted], float(predicted == code)))
    rows.sort()
    size = len(rows) // bins
    gaps = [math.fsum(right - p for p, right in rows[i : i + size]) / size for i in range(0, len(rows), size)]
    return math.fsum(abs(gap) * size / len(rows) for gap in gaps)


@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize("bins", [1, 4, 15])
def test_the_calibration_error_is_the_literal_one(count: int, bins: int) -> None:
    rng = np.random.default_rng(count)
    probabilities = rng.dirichlet(np.ones(count), size=60 * bins)
    codes = rng.integers(count, size=60 * bins)
    expected = literal_error(probabilities, codes, bins)
    assert calibration_error(probabilities, codes, bins) == pytest.approx(expected, rel=1e-12)


FOUR = [[0.4, 0.3, 0.3], [0.2, 0.2, 0.6], [0.1, 0.7, 0.2], [0.9, 0.1, 0.0]]
SECOND = two_classes([0.25, 0.25, 0.75, 0.75])
CONSTANTS = [(0.25, 10), (0.5, 20), (0.75, 30), (1.0, 40)]
"""Probabilities, and how many of 40 rows come true."""

BY_HAND: dict[str, tuple[Any, Any, int, Any]] = {
    # Two bins of the more likely class: right in 1 of 2 at a mean of 0.5, and in 1 of 2 at a mean of 0.8.
    "two bins": (FOUR, [0, 1, 1, 1], 2, pytest.approx(0.5 * 0.0 + 0.5 * 0.3)),
    "one bin": (FOUR, [0, 1, 1, 1], 1, pytest.approx(0.65 - 0.5)),
    # The second is predicted too often in both bins; the most likely class, 0.75 everywhere, is right in 3 of 4.
    "two classes: of the second": (SECOND, [0, 0, 1, 0], 15, 0.25),
    "three classes: of the most likely": (np.pad(SECOND, ((0, 0), (0, 1))), [0, 0, 1, 0], 15, 0.0),
    **{
        f"two classes: {likely:.0%} that come true": (
            np.tile([1 - likely, likely], (40, 1)),
            np.repeat([1, 0], [right, 40 - right]),
            15,
            0.0,
        )
        for likely, right in CONSTANTS
    },
    **{
        f"three classes: {likely:.0%} that come true": (
            np.tile([(1 - likely) / 2, likely, (1 - likely) / 2], (40, 1)),
            np.repeat([1, 0], [right, 40 - right]),
            15,
            0.0,
        )
        for likely, right in CONSTANTS[1:]
    },
    "the base rate": (
        np.tile(np.array([31, 15, 7]) / 53, (53, 1)),
        np.repeat([0, 1, 2], [31, 15, 7]),
        15,
        pytest.approx(0.0, abs=1e-12),
    ),
    "certainty that is always wrong": (np.tile([0.0, 1.0, 0.0], (7, 1)), [0] * 7, 15, 1.0),
    "ties across an edge go where their middle is: low": (
        two_classes([0.25, 0.25, 0.25, 0.75]),
        [1, 0, 0, 0],
        2,
        (0.25 + 0.75) / 4,
    ),
    "ties across an edge go where their middle is: high": (
        two_classes([0.25, 0.75, 0.75, 0.75]),
        [1, 1, 1, 0],
        2,
        (0.25 + 0.75) / 4,
    ),
    "many bins for few values are a bin for each": (
        two_classes(np.repeat([0.25, 0.5, 0.75], 20)),
        [0, 1] * 30,
        15,
        (0.25 + 0.0 + 0.25) / 3,
    ),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_the_calibration_error_by_hand(case: str) -> None:
    probabilities, codes, bins, expected = BY_HAND[case]
    assert calibration_error(np.array(probabilities), np.array(codes), bins) == expected


@quick()
@given(
    arrays(np.float64, st.integers(1, 40), elements=st.sampled_from((0.0, 0.25, 0.5, 0.625, 1.0))),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
)
def test_ties_share_a_bin_whatever_the_order_of_the_rows(second: Float, bins: int, rng: Any) -> None:
    codes = np.array([rng.randrange(2) for _ in second], dtype=np.intp)
    order = np.array(rng.sample(range(len(second)), len(second)))
    error = calibration_error(two_classes(second), codes, bins)
    assert calibration_error(two_classes(second)[order], codes[order], bins) == error
    assert 0.0 <= error <= 1.0


# The record.


def record(**changes: Any) -> Calibration:
    fields: dict[str, Any] = {
        "coverage": 0.9,
        "level": conformal_level(498, 0.9),
        "rows": 498,
        "data": "held out.csv",
        "thresholds": (1.1, 0.1 + 0.2, 0.0),
        "sizes": (3.0, 1.25, 1 / 3),
        "reliability": (0.0, 0.1, 1e-17),
    }
    return Calibration(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"coverage": 0.0}, "greater than 0"),
        ({"coverage": 1.0}, "less than 1"),
        ({"level": 1.0}, "less than 1"),
        ({"level": 0.89}, "level is 0.89; expected at least the coverage, 0.9"),
        ({"rows": 0}, "greater than or equal to 1"),
        ({"thresholds": ()}, "at least 1 item"),
        ({"thresholds": (1.0, 1.0)}, "3 sizes; expected one for each of 2 thresholds"),
        ({"sizes": (1.0,)}, "1 sizes; expected one for each of 3 thresholds"),
        ({"reliability": (0.1,) * 4}, "4 reliability; expected one for each of 3 thresholds"),
        ({"thresholds": (1.0, -1e-9, 1.0)}, "greater than or equal to 0"),
        ({"sizes": (1.0, -1.0, 1.0)}, "greater than or equal to 0"),
        ({"reliability": (0.1, 1.1, 0.1)}, "less than or equal to 1"),
        ({"thresholds": (1.0, math.inf, 1.0)}, "finite"),
        ({"sizes": (1.0, math.nan, 1.0)}, "finite"),
        ({"thresholds": [1.0, 1.0, 1.0]}, "valid tuple"),
        ({"rows": "498"}, "valid integer"),
        ({"kind": "split"}, "not permitted"),
    ],
)
def test_a_calibration_that_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        record(**changes)
