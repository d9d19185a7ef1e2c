"""Shapes: what each value of a column contributes, literally from the coefficients, and how strong columns are."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime import load
from anytime.errors import ValuesError
from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.evaluation.shapes import ColumnShape, column_shapes
from anytime.features.learning import QUANTILES
from models.present import present
from models.refusals import assert_refused

GROUPS: dict[str, Any] = {
    "groups": [
        {"name": "person", "features": ["age", "sex"], "cost": 1.0},
        {"name": "trip", "features": ["fare", "port"], "cost": 2.0},
        {"name": "sea", "features": ["waves"], "cost": 3.0},
        {"name": "ship", "features": ["steam"], "cost": 4.0},
    ],
    "bases": {"age": "hinge:2", "fare": "hinge:1", "waves": "poly:3"},
}


def table(rows: int = 300) -> pd.DataFrame:
    """A fifth of the ages is missing, a third of the fares is 0, four ports are rare."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.uniform(1, 80, rows), "sex": rng.choice(["m", "f"], rows)})
    frame["fare"] = np.where(rng.random(rows) < 1 / 3, 0.0, rng.lognormal(3, 1, rows))
    frame["port"] = rng.choice(["Oslo", "Rome", "Bonn"], rows)
    frame.loc[:3, "port"] = ["A", "B", "C", "D"]
    frame["waves"] = rng.normal(size=rows)
    frame["steam"] = rng.integers(0, 2, rows).astype(float)
    frame.loc[rng.random(rows) < 0.2, "age"] = np.nan
    return frame


TABLE = table()
Y = (
    np.abs(TABLE["age"].fillna(99) - 40) / 10
    + TABLE["fare"] ** 0.5
    + TABLE["port"].map({"Oslo": 3.0}).fillna(0)
    + TABLE["waves"] ** 3
    + TABLE["steam"]
)


@cache
def fitted() -> AnytimeRegressor:
    return AnytimeRegressor(GROUPS, alpha=1e-3).fit(TABLE, Y)


def shapes() -> dict[str, ColumnShape]:
    return {shape.name: shape for shape in column_shapes(fitted().model_)}


def weights(column: str) -> dict[str, tuple[float, float]]:
    """Coefficient and training mean of each term of a column, from the public names of the terms."""
    names = fitted().get_feature_names_out().tolist()
    means = fitted().fit_.prefixes.mean
    terms = zip(names, fitted().coef_.tolist(), means[fitted().fit_.expansion.size - len(names) :], strict=True)
    return {name: (w, float(mean)) for name, w, mean in terms if name.startswith(column)}


def at(column: str, values: dict[str, float]) -> float:
    """The contribution of terms with these values, 0 for all others."""
    return sum(w * (values.get(name, 0.0) - mean) for name, (w, mean) in weights(column).items())


def test_a_line_has_its_corners_at_the_knots_and_ends_where_values_are_clamped() -> None:
    basis, shape = fitted().model_.groups.bases["age"], shapes()["age"]
    (low, high), knots = present(basis.range), present(basis.knots)
    assert [point.x for point in shape.points] == [low, *knots, high]
    for point in shape.points:
        terms = {"age": point.x} | {f"age>{knot:.6g}": max(point.x - knot, 0.0) for knot in knots}
        assert set(terms) | {"age is missing"} == set(weights("age"))
        assert point.contribution == pytest.approx(at("age", terms), rel=1e-9)
    assert shape.levels == ()
    w, mean = weights("age")["age is missing"]
    missing = present(shape.missing)
    assert (missing.contribution, missing.share) == pytest.approx(
        (w * (1 - mean), TABLE["age"].isna().mean()), rel=1e-9
    )


def test_common_values_are_levels_and_the_line_leaves_out_their_jump() -> None:
    shape, (knot,) = shapes()["fare"], fitted().model_.groups.bases["fare"].knots or ()
    (zero,) = shape.levels
    first, second, *_ = shape.points
    expected = (0.0, (TABLE["fare"] == 0).mean(), at("fare", {"fare=0": 1.0}))
    assert (zero.level, zero.share, zero.contribution) == pytest.approx(expected, rel=1e-9)
    assert (first.x, first.contribution) == pytest.approx((0.0, at("fare", {})), rel=1e-9)
    assert second.contribution == pytest.approx(at("fare", {"fare": knot}), rel=1e-9)


def test_categories_are_levels_with_their_shares_and_other_levels_are_one() -> None:
    shape = shapes()["port"]
    assert (shape.points, shape.quantiles) == ((), None)
    expected = {f"port={level.level}": (TABLE["port"] == level.level).mean() for level in shape.levels}
    expected["port is other"] = 4 / len(TABLE)
    for level, (term, share) in zip([*shape.levels, present(shape.other)], expected.items(), strict=True):
        assert (level.share, level.contribution) == pytest.approx((share, at("port", {term: 1.0})), rel=1e-9)


def test_a_polynomial_is_a_curve_and_a_column_of_zeros_and_ones_has_two_levels() -> None:
    waves = shapes()["waves"]
    assert len(waves.points) > 20
    frame = pd.concat([TABLE[:1]] * len(waves.points)).assign(waves=[point.x for point in waves.points])
    _, found = fitted().predict(frame, explain=True)
    expected = [point.contribution for point in waves.points]
    np.testing.assert_allclose(found.features["waves"], expected, rtol=1e-9, atol=1e-9)
    (alone,) = column_shapes(fitted().model_, only="waves")
    assert replace(alone, unique=waves.unique, shared=waves.shared) == waves
    steam = {level.level: level.contribution for level in shapes()["steam"].levels}
    assert steam == pytest.approx({value: at("steam", {"steam": value}) for value in (0.0, 1.0)})


@pytest.mark.parametrize("family", ["gaussian", "vector", "binomial"])
def test_strengths_are_the_deviations_of_the_contributions_over_the_training_rows(family: str) -> None:
    estimator: Any = fitted()
    if family == "vector":
        estimator = AnytimeRegressor(GROUPS).fit(TABLE, np.column_stack([Y, -3 * Y + TABLE["waves"]]))
    elif family == "binomial":
        estimator = AnytimeClassifier(GROUPS, alpha=0.01).fit(TABLE, np.median(Y) < Y)
    _, found = estimator.predict(TABLE, explain=True)
    shapes = column_shapes(estimator.model_)
    assert {shape.name for shape in shapes} == set(found.features)
    for shape in shapes:
        np.testing.assert_allclose(shape.strength, found.features[shape.name].std(axis=0), rtol=1e-6)
    bare = replace(estimator.model_, moments=None, curvatures=None)
    exact = {shape.name: np.linalg.norm(shape.strength) for shape in shapes}
    scale = estimator.fit_.prefixes.response_scale
    without = column_shapes(bare)
    sizes = [np.linalg.norm(shape.strength / scale) for shape in without]
    assert sizes == sorted(sizes, reverse=True)
    for shape in without:
        assert (shape.unique, shape.shared) == (None, None)
        assert np.linalg.norm(shape.strength) == pytest.approx(exact[shape.name], rel=0.3, abs=0.05), shape.name


def test_the_shape_of_one_column_needs_little_of_the_moments() -> None:
    X = np.random.default_rng(0).normal(size=(500, 100))
    X[:5] = np.nan
    model = AnytimeRegressor(alpha=0.1, basis="hinge:3").fit(X, np.nan_to_num(X[:, 0])).model_
    assert model.moments is not None
    size = model.moments.scatter.nbytes
    column_shapes(model, only="x0")  # fills caches
    tracemalloc.start()
    try:
        column_shapes(model, only="x1")
        assert tracemalloc.get_traced_memory()[1] < size / 10
    finally:
        tracemalloc.stop()


def test_several_scores_have_a_contribution_each() -> None:
    model = AnytimeClassifier(GROUPS, alpha=0.01).fit(TABLE, np.digitize(Y, np.quantile(Y, [0.3, 0.6]))).model_
    for shape in column_shapes(model):
        levels = [*shape.levels, *filter(None, (shape.other, shape.missing))]
        found = [point.contribution for point in shape.points] + [level.contribution for level in levels]
        assert {np.shape(value) for value in found} == {np.shape(shape.strength)} == {(3,)}


def test_only_the_columns_of_the_prefix_have_shapes_and_the_prefix_must_exist() -> None:
    for prefix in range(fitted().model_.steps + 1):
        names = {name for group in fitted().model_.computed[prefix] for name in fitted().model_.places[group].features}
        assert {shape.name for shape in column_shapes(fitted().model_, prefix)} == names
    said = f"prefix is 9; expected 0 to {fitted().model_.steps}, the steps of model"
    assert_refused(lambda: column_shapes(fitted().model_, 9), said, error=ValuesError)
    words = ("there is no column 'agee' in prefix ", "; did you mean 'age'")
    assert_refused(lambda: column_shapes(fitted().model_, only="agee"), *words, error=ValuesError)


def test_quantiles_are_stored_every_twentieth_and_survive_the_model_file(tmp_path: Path) -> None:
    fitted().save(tmp_path / "m.safetensors")
    assert column_shapes(load(tmp_path / "m.safetensors")) == column_shapes(fitted().model_)
    assert QUANTILES == 21
    for name in ("waves", "age"):
        assert shapes()[name].quantiles == pytest.approx(np.nanquantile(TABLE[name], np.arange(21) / 20))
    linear = AnytimeRegressor(basis="linear").fit(TABLE[["waves"]].to_numpy(), Y).model_
    assert not linear.groups.bases, "columns that need no sample have none, and are read once"
    (shape,) = column_shapes(linear)
    assert (shape.quantiles, len(shape.points)) == (None, 2)
