"""Contributions: the parts of a score, by column and by group, whatever the model, the values and the arrivals."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from anytime.estimators import AnytimeRegressor
from anytime.features.expansion import Expansion
from anytime.inference import contributions as explaining
from anytime.inference.contributions import Contributions
from anytime.inference.prediction import Answer
from anytime.inference.subsets import arrived_model
from anytime.loaded import LoadedModel
from anytime.model.model import Model
from anytime.types import FamilyName, Float, Policy
from lazily import Lazy
from models.features.test_terms import FAMILIES, model_of, trained
from models.opening import opened
from models.properties import quick


def _model(family: FamilyName) -> LoadedModel:
    return model_of(trained(family), family)


MODELS = Lazy({family: partial(_model, family) for family in FAMILIES})
LEVELS = {"sex": ["male", "female", "none of these"], "port": ["Oslo", "Rome", "Bonn", "unseen"]}
GROUPS: dict[str, Any] = {
    "groups": [
        {"name": "person", "features": ["age", "sex"], "cost": 1.0},
        {"name": "ticket", "features": ["fare"], "cost": 2.0},
    ]
}


def frame(rows: int = 200) -> pd.DataFrame:
    """Ages with gaps, two sexes, and fares that curve."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.uniform(1, 80, rows), "sex": rng.choice(["m", "f"], rows)})
    table["fare"] = rng.lognormal(3, 1, rows)
    table.loc[::7, "age"] = np.nan
    return table


def explained(model: Model, values: dict[str, Any], rows: int = 1, **options: Any) -> tuple[Answer, Contributions]:
    """The answer once these groups have arrived, and its contributions."""
    answer = opened(model, values, rows).answer(explain=True, **options)
    assert answer.contributions is not None
    return answer, answer.contributions


def literal(estimator: Any, terms: dict[str, float]) -> dict[str, float]:
    """Contributions of the columns of one row, from `coef_`, the terms' names and their training means."""
    found: dict[str, float] = {}
    names = estimator.get_feature_names_out().tolist()
    for name, weight, mean in zip(names, estimator.coef_, estimator.fit_.prefixes.mean, strict=True):
        column = next(c for c in ("age", "sex", "fare") if name.startswith(c))
        value = terms.get(name, 0.0)
        found[column] = found.get(column, 0.0) + (0.0 if np.isnan(value) else float(weight * (value - mean)))
    return found


def test_a_column_contributes_the_sum_over_its_terms_of_coefficient_times_distance_from_the_mean() -> None:
    table = frame()
    estimator = AnytimeRegressor(GROUPS, basis="hinge:2").fit(table, table["fare"] ** 0.5 + 3 * (table["sex"] == "f"))
    knots = {name: estimator.model_.groups.bases[name].knots or () for name in ("age", "fare")}
    low = table["age"].min()
    # The age is below every age of the training rows: it counts as the least of them.
    terms = {"age": low, "fare": 30.0, "sex=f": 1.0}
    terms |= {f"{c}>{knot:.6g}": max(terms[c] - knot, 0.0) for c, of in knots.items() for knot in of}
    assert set(terms) | {"age is missing", "sex=m"} == set(estimator.get_feature_names_out())
    answer, found = explained(estimator.model_, {"person": [low - 5, "f"], "ticket": [30.0]})
    assert answer.clamped == ("age",)
    expected = literal(estimator, terms)
    assert found.features == pytest.approx(expected, rel=1e-9, abs=1e-12)
    groups = {"person": expected["age"] + expected["sex"], "ticket": expected["fare"]}
    assert found.groups == pytest.approx(groups, rel=1e-9, abs=1e-12)
    assert answer.prediction == pytest.approx(found.intercept + sum(expected.values()), rel=1e-9)


def test_of_a_missing_value_only_the_indicator_contributes() -> None:
    table = frame()
    estimator = AnytimeRegressor(GROUPS, basis="hinge:2").fit(table, table["age"].fillna(99) / 9)
    terms = {name for name in estimator.get_feature_names_out() if name.startswith("age")}
    _, found = explained(estimator.model_, {"person": [None, None]}, policy="arrived")
    model = arrived_model(estimator.model_, frozenset({"person"}))
    mean, columns = estimator.fit_.prefixes.mean, estimator.fit_.prefixes.columns[model.columns]
    at = estimator.fit_.expansion.terms.features.index("age is missing")
    weight = model.coef[columns.tolist().index(at), 0]
    assert terms > {"age is missing"}
    assert found.features == pytest.approx({"age": weight * (1 - mean[at]), "sex": 0.0}, rel=1e-9)
    assert abs(found.features["age"]) > 1e-3


@cache
def with_pairs() -> AnytimeRegressor:
    """An age that counts twice for one sex, and a fare that counts with age: pairs inside a group and across groups."""
    table = frame(400)
    age = table["age"].fillna(40)
    y = age * (table["sex"] == "f") + 0.05 * age * np.sqrt(table["fare"])
    return AnytimeRegressor(GROUPS, pairs=2).fit(table, y)


@pytest.mark.parametrize("policy", ["prefix", "arrived"])
@pytest.mark.parametrize("groups", [["person"], ["ticket", "person"], ["ticket"]])
@pytest.mark.parametrize("age", [70.0, None])
def test_a_pair_counts_half_for_each_of_its_columns(policy: Policy, groups: list[str], age: float | None) -> None:
    estimator = with_pairs()
    model = estimator.model_
    assert {frozenset((a.column, b.column)) for a, b in model.groups.pairs} == {
        frozenset(("age", "sex")),
        frozenset(("age", "fare")),
    }
    values: dict[str, list[Any]] = {"person": [age, "f"], "ticket": [50.0]}
    answer, found = explained(model, {name: values[name] for name in groups}, policy=policy)
    columns = {"person": ("age", "sex"), "ticket": ("fare",)}
    assert found.groups.keys() == set(answer.groups)
    for name in answer.groups:
        assert found.groups[name] == pytest.approx(sum(found.features[c] for c in columns[name]), rel=1e-9, abs=1e-9)
    assert answer.prediction == pytest.approx(found.intercept + sum(found.groups.values()), rel=1e-9)
    if set(answer.groups) != {"person", "ticket"} or age is None:
        return
    used = model.prefixes.coef(answer.prefix)[:, 0]
    terms = dict(zip(estimator.get_feature_names_out()[model.prefixes.columns], used, strict=True))
    row = Expansion.of(model.groups).expand(
        np.array([[age, (model.groups.bases["sex"].levels or ()).index("f"), 50.0]])
    )[0]
    row -= model.prefixes.mean
    expected = dict.fromkeys(("age", "sex", "fare"), 0.0)
    for name, value in zip(estimator.get_feature_names_out(), row, strict=True):
        sides = [side for side in expected for part in name.split(" * ") if part.startswith(side)]
        for side in sides:
            expected[side] += terms[name] * value / len(sides)
    assert found.features == pytest.approx(expected, rel=1e-9, abs=1e-9)


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[FamilyName, int, list[tuple[str, list[list[Any]]]], float | None]:
    """A model, groups in any order with values of every kind, and a budget."""
    family, rows = draw(st.sampled_from(FAMILIES)), draw(st.integers(1, 3))
    number = st.floats(-1e3, 1e3, allow_subnormal=False) | st.none()
    names = draw(st.permutations(["person", "ticket", "family"]))[: draw(st.integers(0, 3))]
    kinds = {name: st.sampled_from(levels) | st.none() for name, levels in LEVELS.items()}
    groups = {g.name: g.features for g in MODELS[family].groups.groups}
    values = [(name, [[draw(kinds.get(f, number)) for f in groups[name]] for _ in range(rows)]) for name in names]
    return family, rows, values, draw(st.sampled_from([None, 0.5, 1.5, 4.0, 7.0]))


def score(model: Model, answer: Any) -> Any:
    """Scores (rows, P) that an answer's prediction states, less their mean for several classes."""
    if model.manifest.family == "gaussian":
        return np.atleast_2d(answer.prediction)
    if model.manifest.family == "poisson":
        return np.log(np.atleast_1d(answer.prediction))[:, np.newaxis]
    p = np.log(np.atleast_2d(answer.probabilities))
    return p - p.mean(axis=1, keepdims=True) if p.shape[1] > 2 else p[:, 1:] - p[:, :1]


def total(intercept: Any, parts: Any, rows: int) -> Any:
    """The intercept plus the parts, (rows, P)."""
    P = len(np.atleast_1d(intercept))
    return np.atleast_1d(intercept) + sum((np.reshape(part, (rows, P)) for part in parts), np.zeros((rows, P)))


@quick(max_examples=200)
@given(arrivals())
def test_intercept_and_contributions_add_up_to_the_score_by_every_policy(
    case: tuple[FamilyName, int, list[tuple[str, list[list[Any]]]], float | None],
) -> None:
    family, rows, groups, budget = case
    model = MODELS[family]
    prediction = opened(model, dict(groups), rows)
    policies: list[Policy] = ["prefix", "arrived"]
    for policy in policies:
        answer = prediction.answer(budget, policy, explain=True)
        found = answer.contributions
        assert found is not None
        assert tuple(found.groups) == answer.groups
        features = {g.name: g.features for g in model.groups.groups}
        assert list(found.features) == [f for name in answer.groups for f in features[name]]
        for name, value in found.groups.items():
            parts = sum(np.asarray(found.features[f]) for f in features[name])
            np.testing.assert_allclose(value, parts, rtol=1e-9, atol=1e-9)
        scores = total(found.intercept, found.features.values(), rows)
        if family == "multinomial":  # softmax is the same for scores plus a constant
            scores = scores - scores.mean(axis=1, keepdims=True)
        likely = answer.probabilities
        if likely is None or np.min(likely) > 1e-4:  # else the inverse of the link loses digits
            np.testing.assert_allclose(scores, score(model, answer), rtol=1e-9, atol=1e-9)
        assert prediction.answer(budget, policy).contributions is None


def test_many_rows_are_explained_in_blocks_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).uniform(0, 4, (7, 1))

    def found(values: Float) -> Contributions:
        return explained(MODELS["gaussian"], {"family": values}, len(values), policy="arrived")[1]

    alone = [found(row[np.newaxis]) for row in values]
    terms = len(MODELS["gaussian"].places["family"].mean)
    monkeypatch.setattr(explaining, "PRODUCTS", 2 * 2 * terms)  # two rows of two responses at once
    together = found(values)
    np.testing.assert_allclose(together.features["size"], [each.features["size"] for each in alone], rtol=1e-12)
    np.testing.assert_allclose(together.groups["family"], [each.groups["family"] for each in alone], rtol=1e-12)
