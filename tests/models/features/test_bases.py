"""Every basis equals a literal version written from its definition; samples and errors.

A value is itself in float32 and in float64: the numbers that the indicator of a common value matches.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime.errors import GroupsError
from anytime.features.bases import BASES, ColumnSample, Hinge
from anytime.features.bases.hinge import Octiles
from anytime.features.expansion import Column, Columns, Expansion
from anytime.features.learning import Sample, kind_of, learned_groups, sample_of
from anytime.features.operations import Term, same_values
from anytime.groups import ColumnBasis, FeatureGroups, load_groups
from anytime.types import Float
from models.refusals import assert_refused


def groups_of(bases: dict[str, Any] | None = None, features: tuple[str, ...] = ("x",)) -> FeatureGroups:
    return load_groups(
        {"groups": [{"name": f"g_{f}", "features": [f], "cost": 1.0} for f in features], "bases": bases or {}}
    )


def expansion_of(x: Any, basis: Any, clamp: Any = "off") -> Expansion:
    return Expansion.of(learned_groups(groups_of({"x": basis}), Sample({"x": np.asarray(x)}), clamp=clamp))


def skewed(rows: int = 500) -> Float:
    """Values, many of them 0 and a few 7."""
    rng = np.random.default_rng(3)
    x = rng.lognormal(size=rows)
    x[rng.random(rows) < 0.3] = 0.0
    x[rng.random(rows) < 0.15] = 7.0
    return x


@pytest.mark.parametrize("size", [0, 1, 4, 9])
def test_hinges_are_the_positive_parts_beyond_the_quantiles_and_common_values_have_indicators(size: int) -> None:
    x = skewed()
    knots = sorted({float(np.quantile(x, k / (size + 1))) for k in range(1, size + 1)})
    hinges = [np.where(x > knot, x - knot, 0.0) for knot in knots]
    common = [1.0 * (x == value) for value in sorted(set(x)) if (x == value).mean() > 0.1]
    found = expansion_of(x, f"hinge:{size}")
    np.testing.assert_array_equal(found.expand(x[:, np.newaxis]), np.column_stack([x, *hinges, *common]))
    first, *_, last, most = found.terms.features
    assert (first, last, most) == ("x", "x=0", "x=7")


def test_at_most_five_common_values_have_an_indicator() -> None:
    x = np.repeat(np.arange(7.0), [20, 30, 20, 20, 25, 20, 21])
    assert expansion_of(x, "hinge:0").terms.features == ("x", "x=0", "x=1", "x=2", "x=4", "x=6")


def test_powers_are_those_of_the_standardised_column() -> None:
    x = skewed()
    z = (x - x.mean()) / x.std()
    found = expansion_of(x, "poly:3")
    np.testing.assert_allclose(found.expand(x[:, np.newaxis]), np.column_stack([z, z**2, z**3]), rtol=1e-12)
    assert found.terms.features == ("x", "x^2", "x^3")


def test_levels_are_the_frequent_ones_and_the_rest_is_other() -> None:
    x = np.array(["b"] * 30 + ["a"] * 30 + ["c"] * 12 + ["rare"] * 9 + [None] * 5, dtype=object)
    found = expansion_of(x, "categories")
    assert found.terms.features == ("x=a", "x=b", "x=c", "x is other")
    codes = found.categories[0].coded(["c", "rare", "new", None, "a"])
    np.testing.assert_array_equal(found.categories[0].coded([""]), [np.nan])
    np.testing.assert_array_equal(codes, [2, -1, -1, np.nan, 0])
    expected = [[0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1], [np.nan] * 4, [1, 0, 0, 0]]
    np.testing.assert_array_equal(found.expand(codes[:, np.newaxis]), expected)


def test_a_column_whose_values_are_all_rare_has_the_term_other_only() -> None:
    assert expansion_of([f"name {i}" for i in range(30)], "categories").terms.features == ("x is other",)


def test_without_other_an_unknown_level_is_missing() -> None:
    found = expansion_of(["a"] * 10 + ["b"] * 10, {"basis": "categories", "missing": True})
    np.testing.assert_array_equal(found.categories[0].coded(["b", "new"]), [1, np.nan])
    np.testing.assert_array_equal(found.expand(np.array([[1.0], [-1.0]])), [[0, 1, 0], [np.nan, np.nan, 1]])
    assert found.terms.features == ("x=a", "x=b", "x is missing")


def test_integers_with_gaps_may_be_categories() -> None:
    found = expansion_of(np.array([3.0] * 12 + [1.0] * 10 + [np.nan] * 3), "categories")
    assert found.terms.features == ("x=3", "x=1")
    assert [type(level) for level in found.groups.bases["x"].levels or ()] == [int, int]


@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_levels_that_a_float_would_round_are_refused(kind: type[np.generic]) -> None:
    x = np.array([2**53 - 1] * 12 + [1 - 2**53] * 10 + [2**60] * 9)
    assert expansion_of(x.astype(kind), "categories").groups.bases["x"].levels == (2**53 - 1, 1 - 2**53)
    for level in (2**53, -(2**53), 2**60 + 1):
        assert_refused(
            partial(expansion_of, np.array([level] * 12 + [1] * 12).astype(kind), "categories"),
            "column 'x': it has level ",
            " 2^53 or more are rounded; expected smaller",
            error=GroupsError,
        )


@pytest.mark.parametrize("basis", ["linear", "hinge:3", "poly:2"])
def test_values_beyond_the_quantiles_move_to_them(basis: str) -> None:
    x = skewed()
    low, high = np.quantile(x, [0.05, 0.95])
    found = expansion_of(x, basis, clamp=0.05)
    wild = np.array([-1e9, 0.5, 1e9])
    np.testing.assert_array_equal(
        found.expand(wild[:, np.newaxis]), found.expand(np.clip(wild, low, high)[:, np.newaxis])
    )
    for value, is_outside in zip(wild, (True, False, True), strict=True):
        moved, outside = found.clamped(np.array([[value]]))
        assert (outside is not None and outside.tolist() == [True]) == is_outside
        assert moved.tolist() == [[np.clip(value, low, high)]]
    assert found.groups.bases["x"].range == (low, high)


def test_curves_are_clamped_to_the_training_range_by_default_and_lines_are_not() -> None:
    x = skewed()
    ends = (x.min(), x.max())
    for basis, expected in (("hinge", ends), ("poly:2", ends), ("date", ends), ("linear", None)):
        assert expansion_of(x, basis, clamp=None).columns[0].range == expected
    groups = load_groups(groups_of().model_dump() | {"types": {"x": "date"}})
    for options, expected in (({}, ends), ({"clamp": "off"}, None)):
        learned = learned_groups(groups, Sample({"x": x}), "linear", **options)  # type: ignore[arg-type]
        assert Expansion.of(learned).columns[0].range == expected, "a line of dates"
    given = {"basis": "hinge", "range": None}
    assert expansion_of(x, given, clamp=None).columns[0].range is None, "null in the groups file is not learned"


def test_a_missing_value_makes_every_term_missing_and_sets_the_indicator() -> None:
    x = np.append(skewed(), np.nan)
    for basis in ("linear", "hinge:2", "poly:3"):
        found = expansion_of(x, {"basis": basis, "missing": True})
        terms = found.expand(np.array([[1.0], [np.nan]]))
        assert np.isfinite(terms[0]).all()
        assert np.isnan(terms[1, :-1]).all()
        assert terms[:, -1].tolist() == [0.0, 1.0]
        assert found.terms.features[-1] == "x is missing"


def test_a_basis_of_the_option_is_for_columns_of_a_fitting_type() -> None:
    sample = {
        "number": skewed(40),
        "whole": np.arange(40),
        "flag": np.arange(40) % 2 == 0,
        "text": np.array(["a", "b"] * 20, dtype=object),
    }
    learned = learned_groups(groups_of({"whole": "linear"}, tuple(sample)), Sample(sample), option="hinge:1")
    bases = {name: basis.basis for name, basis in learned.bases.items() if basis.basis != "linear"}
    assert bases == {"number": "hinge:1", "text": "categories"}
    assert [kind_of(values) for values in sample.values()] == ["number", "integer", "bool", "text"]


def test_learned_groups_state_the_whole_expansion() -> None:
    x = skewed()
    for basis in ("linear", "hinge:3", "poly:2", "categories"):
        found = expansion_of(np.round(x) if basis == "categories" else x, basis, clamp=0.01)
        rows = np.arange(-1.0, 5.0)[:, np.newaxis]
        again = Expansion.of(FeatureGroups.model_validate_json(found.groups.model_dump_json(exclude_unset=True)))
        np.testing.assert_array_equal(again.expand(rows), found.expand(rows))
        assert again.groups == found.groups
        relearned = learned_groups(found.groups, Sample({"x": np.zeros(3)}))
        assert relearned == found.groups, "what is complete is not learned from another sample"


@pytest.mark.parametrize(
    ("basis", "message"),
    [
        ("spline", f"there is no basis 'spline'; expected one of {', '.join(BASES)}"),
        ("hinge:65", "basis 'hinge:65' is invalid; expected hinge:K with K from 0 to 64"),
        ("hinge:", "basis 'hinge:' is invalid; expected hinge:K with K from 0 to 64"),
        ("poly:0", "basis 'poly:0' is invalid; expected poly:K with K from 1 to 10"),
        ("linear:2", "basis 'linear:2' is invalid; expected linear"),
        ("categories", "it holds numbers and has basis 'categories'; expected linear or hinge or poly"),
        ({"basis": "hinge", "knots": [2, 1]}, "its knots are [2.0, 1.0]; expected different numbers in"),
        ({"basis": "hinge", "knots": [1, 1]}, "its knots are [1.0, 1.0]; expected different numbers in"),
        ({"basis": "auto", "knots": [1, 2, 3]}, "its knots are [1.0, 2.0, 3.0]; expected 7 octiles, or 63"),
        ({"basis": "hinge", "levels": ["a"]}, "its levels are ['a']; expected numbers for basis 'hinge'"),
        ({"basis": "poly", "scale": 0}, "its scale is 0; expected a number > 0"),
    ],
)
def test_an_invalid_basis_is_one_error_that_names_the_column(basis: Any, message: str) -> None:
    assert_refused(lambda: expansion_of(skewed(), basis), f"column 'x': {message}", error=GroupsError)


@pytest.mark.parametrize(
    ("bases", "message"),
    [
        ({"y": "hinge"}, "groups: bases has column 'y', which is in no group; known: 'x'"),
        ({"x": {"basis": "hinge", "range": [2, 1]}}, "groups: column 'x': the range [2.0, 1.0] ends below its start"),
        (
            {"x": {"basis": "hinge", "nots": [1]}},
            "column 'x': it states nots, which basis 'hinge' lacks; expected some of knots, levels",
        ),
        ({"x": {"basis": "categories", "levels": ["a", "a"]}}, "column 'x': it has level 'a' twice"),
        (
            {"x": {"basis": "categories", "levels": ["a", "b"], "other": True, "level_rows": [1, 2]}},
            "column 'x': its level_rows are (1, 2); expected a number for each level, the largest first",
        ),
        ({"x": {"basis": "categories", "levels": []}}, "column 'x': it has 0 levels; expected 1 to 256"),
        (
            {"x": {"range": [0, 1]}},
            "column 'x': it states the range [0.0, 1.0], but basis 'categories' has none; omit the range",
        ),
        ({"x": "hinge"}, "column 'x': it holds text and has basis 'hinge'; expected categories"),
        (
            {"x": {"quantiles": [2, 1]}},
            "groups: column 'x': the quantiles [2.0, 1.0] do not ascend; expected the least",
        ),
    ],
)
def test_an_invalid_groups_file_is_one_error(bases: Any, message: str) -> None:
    assert_refused(
        lambda: learned_groups(groups_of(bases), Sample({"x": np.array(["a", "b"], dtype=object)})),
        message,
        error=GroupsError,
    )


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_the_terms_of_several_columns_are_those_of_each_basis(seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    names = tuple(f"x{j}" for j in range(width))
    sample = {name: np.where(rng.random(60) < 0.2, 1.0, np.round(rng.normal(size=60), 1)) for name in names}
    bases = {
        name: {"basis": rng.choice(["linear", "hinge:0", "hinge:3", "poly:2"]).item(), "missing": bool(rng.integers(2))}
        for name in names
    }
    found = Expansion.of(learned_groups(groups_of(bases, names), Sample(sample), clamp=0.1))
    X = np.column_stack(list(sample.values()))
    X[rng.random(X.shape) < 0.1] = np.nan
    terms = []
    for x, column in zip(X.T, found.columns, strict=True):
        inside = x if column.range is None else np.clip(x, *column.range)
        terms += [literal_term(term, inside) for term in column.terms]
    np.testing.assert_array_equal(found.expand(X), np.column_stack(terms))
    np.testing.assert_array_equal([found.expand(X[[i]])[0] for i in range(3)], found.expand(X)[:3])


def literal_term(term: Term, x: Float) -> Float:
    """The term of some values (rows,), one after the other."""
    form: dict[str, Any] = term.document

    def of(u: float) -> float:
        if form["form"] == "missing" or math.isnan(u):
            return float(math.isnan(u)) if form["form"] == "missing" else math.nan
        if form["form"] == "power":
            z = (u - form["centre"]) / form["scale"]
            return float(math.prod([z] * form["power"], start=1.0))
        if form["form"] == "hinge":
            return float(max(u - form["knot"], 0.0))
        return u if form["form"] == "value" else float(u == float(form["level"]))

    return np.array([of(u) for u in x.tolist()])


@given(st.integers(1, 60), st.integers(1, 40), st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_a_sample_depends_on_the_rows_and_the_seed_only(rows: int, limit: int, sizes: list[int]) -> None:
    x = np.arange(rows)
    edges = [0, *(edge for edge in np.cumsum(sizes).tolist() if edge < rows), rows]
    found = sample_of([Sample({"x": x[a:b]}, np.float64(2) * x[a:b]) for a, b in pairwise(edges)], limit, seed=1)
    whole = sample_of([Sample({"x": x})], limit, seed=1)
    assert found.rows == min(rows, limit)
    np.testing.assert_array_equal(found.columns["x"], whole.columns["x"])
    np.testing.assert_array_equal(found.weights, 2.0 * found.columns["x"])


def test_every_row_is_equally_likely_in_a_sample() -> None:
    counts = np.zeros(20)
    for seed in range(4000):
        found = sample_of([Sample({"x": np.arange(7)}), Sample({"x": np.arange(7, 20)})], 5, seed=seed)
        counts[found.columns["x"]] += 1
    # Binomial(4000, 1/4) has mean 1000 and deviation 27.
    assert np.abs(counts - 1000).max() < 6 * 27


@pytest.mark.parametrize("values", [[], [3.0], [-0.0, 0.0, 1.0, 0.0], [5, 2, 5], [True, False, True], ["b", "a", "b"]])
@pytest.mark.parametrize("weights", [None, 2.5])
def test_each_value_of_a_sample_is_counted_once_by_weight(values: list[Any], weights: float | None) -> None:
    column = np.array(values)
    found, counts = ColumnSample(column, len(column), None if weights is None else np.full(len(column), weights)).counts
    expected, number = np.unique(column, return_counts=True)
    assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())
    assert counts.tolist() == ((weights or 1.0) * number).tolist()


# Values in float32 and in float64.

VALUES = [0.1, 1 / 3, -1 / 3, 0.7, 1e-30, 123.456, 1234567.89, 5.0, 0.0, 2.0**24, 1e10, -2.5]


def _indicator(level: float, x: float) -> float:
    return float(Columns((Column("x", Hinge(0, (), (level,))),)).expand(np.array([[x]]))[0, 1])


@pytest.mark.parametrize("value", VALUES)
def test_a_value_matches_its_float32_form_either_way(value: float) -> None:
    forms = (value, float(np.float32(value)), float(str(np.float32(value))))
    assert {_indicator(level, x) for level, x in product(forms, forms)} == {1.0}
    assert _indicator(value, float(np.nextafter(np.float32(value), np.float32(np.inf)))) == 0.0


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
    assert (np.nextafter(ends, [-np.inf, np.inf]).astype(np.float32) != form[:, np.newaxis]).all()


def test_forms_of_one_value_are_counted_together() -> None:
    single = float(np.float32(0.1))
    sample = ColumnSample(np.array([0.1, single, single, *range(17)] * 5), 100)
    assert Hinge.learn(0, ColumnBasis(), sample).levels == (single,)


def test_few_values_have_levels_next_to_their_curve_if_their_means_differ_by_more_than_chance() -> None:
    def points(effect: float, seed: int) -> tuple[float, ...]:
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 40, 800).astype(float)
        y = rng.normal(size=(800, 1)) + effect * (x[:, np.newaxis] % 2)
        return Octiles.learn(7, ColumnBasis(), ColumnSample(x, 800, None, (2,), y)).points

    assert not any(points(0.0, seed) for seed in range(40))
    assert len(points(1.0, 0)) == 40


def test_a_float32_form_of_an_end_of_the_range_is_not_clamped() -> None:
    columns = Columns((Column("x", Hinge(0, (), ()), range=(-0.3, 0.1)),))
    X = np.array([[np.float32(0.1)], [np.float32(-0.3)]], dtype=np.float64)
    inside, outside = columns.clamped(X)
    assert (outside, inside.max()) == (None, 0.1)
    assert columns.clamped(np.array([[0.11]]))[1] is not None
