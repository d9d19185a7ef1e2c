"""Basis "auto": octiles and levels are learned once, and cross-validation selects how many of them the model has."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from sklearn.metrics import log_loss

from anytime import AnytimeClassifier, AnytimeRegressor, load
from anytime.errors import TrainingError
from anytime.features.bases import CHEAPER, Choice
from anytime.features.expansion import Expansion
from anytime.features.learning import Sample, learned_groups
from anytime.groups import ColumnBasis, FeatureGroups, load_groups
from anytime.moments.accumulate import fold_moments_of
from anytime.training.model_selection import Terms
from anytime.types import Float, Index
from models.commands import Capture, output, refusal
from models.present import present
from models.refusals import assert_refused

GROUPS: dict[str, Any] = {
    "groups": [
        {"name": "a", "features": ["bent", "kind"], "cost": 1.0},
        {"name": "b", "features": ["other", "steps"], "cost": 2.0},
    ]
}
ONE = load_groups({"groups": [{"name": "g", "features": ["x"], "cost": 1}]})
SIZES = (0, 1, 3, 7)
FINE = 63


def frame(bends: int, rows: int = 500) -> pd.DataFrame:
    """A response that has so many bends in `bent`; gaps, text and a column of few values."""
    rng = np.random.default_rng(bends)
    found = pd.DataFrame({"bent": rng.uniform(0, 1, rows), "other": rng.normal(size=rows)})
    found["kind"] = np.where(np.arange(rows) % 100 == 7, "rare", rng.choice(["x", "y"], rows))
    found["steps"] = rng.integers(0, 24, rows).astype(float)
    found["y"] = np.abs((found["bent"] * (bends + 1)) % 2 - 1) + 0.1 * found["other"] + 0.05 * rng.normal(size=rows)
    found.loc[rng.random(rows) < 0.1, "bent"] = np.nan
    return found


def mean_error(errors: Float | None, costs: Float) -> float:
    """The error that a client observes on average, if it is interrupted at any cost."""
    return float(present(errors)[:-1] @ np.diff(costs) / costs[-1])


def size_of(groups: FeatureGroups) -> str:
    (basis,) = {groups.bases[name].basis for name in ("bent", "other", "steps")}
    return str(basis)


def test_terms_are_found_among_those_with_more_levels_whatever_their_names() -> None:
    levels = (1.0, 1.000001)
    basis = ColumnBasis(basis="auto", knots=(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0), levels=levels, range=None)
    basis = basis.model_copy(update={"points": levels[1:], "point_rows": (20,)})
    expansion = Expansion.of(ONE.with_bases({"x": basis}))
    parts = fold_moments_of(np.arange(60.0)[:, np.newaxis] % 7, np.arange(60.0), expansion=expansion)
    whole = Terms(expansion, parts, parts[0])
    fewer, more = (whole.reduced(Choice(7, None, least)) for least in (0, 2))
    assert (fewer.expansion.terms.features[-1], more.expansion.terms.features[-2]) == ("x=1", "x=1.0")
    assert fewer.places(more).tolist() == [*range(9)]


@given(st.lists(st.integers(0, 6) | st.sampled_from([0, 1, 2]), max_size=60))
def test_the_hinges_of_each_size_are_at_quantiles_or_at_the_median_of_what_is_not_common(values: list[int]) -> None:
    sample = Sample({"x": np.array(values, dtype=float)})
    auto = Expansion.of(learned_groups(ONE, sample, "auto"))
    rows = np.append(np.linspace(-1, 7, 33), np.nan)[:, np.newaxis]
    counts = Counter(values)
    common = {x for x, count in counts.most_common(5) if count >= 10 and count > 0.1 * len(values)}
    rest = [x for x in values if x not in common]
    for size in SIZES[1:]:
        given = {}
        if rest and common.issuperset(np.quantile(values, np.arange(1, 8) / 8).tolist()):
            given = {"x": ColumnBasis(basis=f"hinge:{size}", knots=(float(np.median(rest)),))}
        groups = ONE.with_bases(given if len(counts) > 2 else {})
        direct = Expansion.of(learned_groups(groups, sample, f"hinge:{size}", "auto"))
        found, spans = auto.reduced(Choice(size))
        terms = [start for start, _ in spans]
        assert (found.columns, found.groups) == (direct.columns, direct.groups)
        np.testing.assert_array_equal(auto.expand(rows)[:, terms], direct.expand(rows))


def test_without_hinges_a_column_has_one_term_even_if_it_has_common_values() -> None:
    auto = Expansion.of(learned_groups(ONE, Sample({"x": np.repeat([0.0, 1.0, 2.0, 3.0], 10)}), "auto"))
    assert auto.reduced(Choice(1))[0].terms.features == ("x", "x>1.5", "x=0", "x=1", "x=2", "x=3")
    line, [(term, _)] = auto.reduced(Choice(0))
    assert line.terms.features == ("x",)
    np.testing.assert_array_equal(auto.expand(np.array([[2.0], [0.5]]))[:, term], [2.0, 0.5])


@pytest.mark.parametrize("bends", [0, 1, 3, 7])
def test_the_size_with_the_least_error_is_selected_and_the_model_is_that_of_the_size(bends: int) -> None:
    table = frame(bends)
    auto = AnytimeRegressor(GROUPS, basis="auto", clamp=0, alpha="cv").fit(table, table["y"])
    bases = ["linear", *(f"hinge:{K}" for K in SIZES[1:])]
    single = [AnytimeRegressor(GROUPS, basis=basis, clamp=0, alpha="cv").fit(table, table["y"]) for basis in bases]
    errors = [mean_error(m.fit_.errors, m.costs_) for m in single]
    best = single[int(np.argmin(errors))]
    assert size_of(auto.model_.groups) == bases[int(np.argmin(errors))]
    assert auto.model_.groups.bases == best.model_.groups.bases
    assert auto.sequence_ == best.sequence_
    np.testing.assert_allclose(auto.predict(table), best.predict(table), rtol=1e-7, atol=1e-7)


def test_a_likelihood_has_the_size_that_least_squares_selects_on_its_moments() -> None:
    table = frame(1)
    classes = np.where(table["y"] > table["y"].median(), "up", "down")
    squares = AnytimeClassifier(GROUPS, basis="auto", family="gaussian", cv=3).fit(table, classes)
    logistic = AnytimeClassifier(GROUPS, basis="auto", cv=3).fit(table, classes)
    assert logistic.model_.groups.bases == squares.model_.groups.bases
    direct = AnytimeClassifier(GROUPS, basis=size_of(logistic.model_.groups), cv=3).fit(table, classes)
    np.testing.assert_allclose(logistic.predict_proba(table), direct.predict_proba(table), atol=1e-5)


@pytest.mark.parametrize("rows", [90, 1200])
def test_classes_in_few_rows_have_hinges_only_if_their_deviance_needs_them(rows: int) -> None:
    X = pd.DataFrame({"place": np.arange(rows, dtype=float), "noise": np.random.default_rng(0).normal(size=rows)})
    classes = np.array(["a", "b", "c"])[3 * np.arange(rows) // rows]  # a line separates them, which fits none of them
    groups = {"groups": [{"name": name, "features": [name], "cost": 1} for name in X]}
    bent = np.where(np.abs(X["place"] / rows - 0.5) < 0.25, "in", "out")
    sizes = {}
    for family, y in (("gaussian", classes), ("multinomial", classes), ("binomial", bent)):
        fitted = AnytimeClassifier(groups, family=family, random_state=0).fit(X, y)
        sizes[family] = present(present(fitted.model_.manifest.selected).hinges)
    assert min(sizes["gaussian"], sizes["binomial"]) > 0
    assert sizes["multinomial"] == (0 if rows == 90 else 7)
    paired = AnytimeClassifier(groups, family="multinomial", pairs=1, random_state=0).fit(X, classes).model_
    assert [[side.column for side in pair] for pair in paired.groups.pairs] == [["place", "noise"]]


def test_a_size_at_which_no_group_exceeds_epsilon_is_not_selected() -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.uniform(-1, 1, 400)})  # the response has no linear part
    y = np.abs(X["x"]) + 0.02 * rng.normal(size=400)
    assert_refused(
        lambda: AnytimeRegressor(ONE, basis="hinge:0", epsilon=0.2, cv=5).fit(X, y), "longest is 0", error=TrainingError
    )
    found = AnytimeRegressor(ONE, basis="auto", epsilon=0.2, cv=5).fit(X, y)
    assert str(found.model_.groups.bases["x"].basis).startswith("hinge")
    assert_refused(
        lambda: AnytimeRegressor(ONE, basis="auto", epsilon=5.0, cv=5).fit(X, y),
        "choose a smaller epsilon",
        error=TrainingError,
    )


@pytest.mark.usefixtures("desk")
def test_the_command_selects_the_same_from_a_table_from_moments_and_with_a_validation_table(capsys: Capture) -> None:
    frame(3).to_csv("t.csv", index=False)
    frame(3, 80).to_csv("v.csv", index=False)
    Path("g.json").write_text(str(GROUPS).replace("'", '"'))
    base = ["t.csv", "--groups", "g.json", "--target", "y", "--basis", "auto"]
    output(capsys, "train", *base, "--out", "m.safetensors")
    output(capsys, "train", *base, "--out", "v.safetensors", "--validation", "v.csv")
    output(capsys, "moments", *base, "--out", "t.moments")
    output(capsys, "train", "t.moments", "--out", "n.safetensors")
    models = [load(f"{name}.safetensors") for name in "mnv"]
    assert [size_of(model.groups) for model in models] == ["hinge:7"] * 3
    np.testing.assert_allclose(models[0].prefixes.packed, models[1].prefixes.packed, rtol=1e-7, atol=1e-11)
    unfolded = ["--folds", "0", "--alpha", "0.1", "--out", "x.safetensors"]
    output(capsys, "train", *base, *unfolded)
    assert load("x.safetensors").groups.bases["bent"].basis == "linear"
    Path("g.json").write_text(json.dumps({**GROUPS, "bases": {"bent": {"basis": "auto"}}}))
    said = refusal(capsys, "train", *base, *unfolded)
    assert "basis 'auto' needs folds to select the number of hinges; give at least 2" in said


# Finer curves.


def waves(rows: int = 1500, seed: int = 0, effect: float = 1.0) -> pd.DataFrame:
    """Return a response with eight cycles over `time`, and a bend over `age`."""
    rng = np.random.default_rng(seed)
    found = pd.DataFrame({"time": rng.uniform(1700, 2000, rows), "age": rng.normal(40, 10, rows)})
    found["y"] = effect * np.sin(found["time"] * 16 * np.pi / 300) + 0.05 * np.abs(found["age"] - 40)
    found["y"] += 0.3 * rng.normal(size=rows)
    return found


def finer(model: Any) -> set[str]:
    """Return the columns that have more than seven hinges."""
    counts = Counter(name.split(">")[0] for name in model.get_feature_names_out() if ">" in name)
    return {name for name, count in counts.items() if count > SIZES[-1]}


def test_a_column_whose_octiles_are_too_few_has_a_finer_curve_and_the_model_says_so() -> None:
    table, new = waves(), waves(seed=1)
    model = AnytimeRegressor().fit(table[["time", "age"]], table["y"])
    assert finer(model) == {"time"}
    assert present(model.model_.manifest.selected).hinges == FINE
    assert any(
        "have 63 hinges where 7 are too few" in line and "'time'" in line for line in model.model_.manifest.decisions
    )
    octiles = AnytimeRegressor(basis="hinge:7").fit(table[["time", "age"]], table["y"])
    scores = [each.score(new[["time", "age"]], new["y"]) for each in (octiles, model)]
    assert scores[0] < 0.4
    assert scores[1] > 0.8
    few = waves(600)
    assert not finer(AnytimeRegressor().fit(few[["time", "age"]], few["y"]))


@pytest.mark.parametrize("seed", range(4))
def test_a_smooth_column_has_no_finer_curve(seed: int) -> None:
    table = waves(seed=seed, effect=0.0)
    assert not finer(AnytimeRegressor().fit(table[["time", "age"]], table["y"]))


@pytest.mark.parametrize("knots", [None, tuple(j / 10 for j in range(1, 8))])
def test_the_effect_of_a_common_value_needs_no_finer_curve_and_stated_knots_have_none(knots: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.random(2000)
    x[:240] = 0.5
    y = (np.sin(60 * x) if knots else 5.0 * (x == 0.5)) + 0.1 * rng.normal(size=2000)
    groups = ONE.with_bases({"x": ColumnBasis(basis="auto", **{"knots": knots} if knots else {})})
    basis = learned_groups(groups, Sample({"x": x}, responses=y[:, np.newaxis])).bases["x"]
    assert len(basis.knots or ()) == SIZES[-1]
    assert basis.knots == (knots or basis.knots)


@pytest.mark.parametrize("size", [1e-140, 1e80, 1e140])
def test_targets_of_any_size_have_the_same_terms(size: float) -> None:
    for table in (waves(), coded()):
        X = table.drop(columns="y")
        large, plain = (AnytimeRegressor().fit(X, factor * table["y"]) for factor in (size, 1.0))
        assert [*large.get_feature_names_out()] == [*plain.get_feature_names_out()]
        np.testing.assert_allclose(large.predict(X) / size, plain.predict(X), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("effect", [0.0, 2.0])
def test_a_likelihood_has_finer_curves_if_they_reduce_its_deviance(effect: float) -> None:
    table, new = (waves(seed=seed, effect=effect) for seed in (0, 1))
    y, later = (np.where(each["y"] > 0.4, "up", "down") for each in (table, new))
    model = AnytimeClassifier().fit(table[["time", "age"]], y)
    assert finer(model) == ({"time"} if effect else set())
    octiles, new = AnytimeClassifier(basis="hinge:7").fit(table[["time", "age"]], y), new[["time", "age"]]
    gain = log_loss(later, octiles.predict_proba(new)) - log_loss(later, model.predict_proba(new))
    assert gain > (0.1 if effect else -0.01)


# Levels next to the curve.


def coded(rows: int = 1500, seed: int = 0, effect: float = 1.0) -> pd.DataFrame:
    """Return a response with effects of their own for 40 codes and for the rare amounts of `paid`, and of a line."""
    rng = np.random.default_rng(seed)
    code = np.minimum(rng.geometric(0.06, rows), 40)
    paid = np.where(rng.random(rows) < 0.8, 0, 100 * rng.integers(1, 13, rows))
    found = pd.DataFrame({"code": code, "paid": paid.astype(float), "x": rng.normal(size=rows).round(3)})
    effects = rng.normal(size=(2, 41))
    found["y"] = effect * (effects[0, code] + (paid > 0) * effects[1, paid // 100]) + found["x"]
    found["y"] += 0.5 * rng.normal(size=rows)
    found["copy"] = 3 * found["code"] + 1  # what it explains, the code explains
    return found


NAMES = ["code", "paid", "x", "copy"]


def test_codes_have_levels_next_to_their_curve_and_the_model_says_which() -> None:
    table, new = coded(), coded(seed=1).assign(y=np.nan)
    model = AnytimeRegressor().fit(table[NAMES], table["y"])
    assert present(model.model_.manifest.selected).levels in (10, 5, 2)
    (line,) = [text for text in model.model_.manifest.decisions if "next to the curve" in text]
    assert "'code' (" in line
    assert "'paid' (12 values)" in line
    assert "'copy'" not in line
    names = {name for name in model.get_feature_names_out() if "=" in name}
    assert {"code=3", "paid=0", "paid=700"} <= names
    assert {name.split("=")[0] for name in names} == {"code", "paid"}
    lines = AnytimeRegressor(basis="hinge:7").fit(table[NAMES], table["y"])
    held = coded(seed=0).iloc[:500]
    assert model.score(held[NAMES], held["y"]) > lines.score(held[NAMES], held["y"]) + 0.1
    assert np.isfinite(model.predict(new[NAMES])).all()  # also codes that training did not have


@pytest.mark.parametrize("seed", range(6))
def test_a_smooth_column_of_few_values_has_no_levels(seed: int) -> None:
    table = coded(seed=seed, effect=0.0)
    table["y"] += 0.002 * (table["code"] - 12.0) ** 2
    learned = AnytimeRegressor().fit(table[NAMES], table["y"])
    assert not any("=" in name and not name.startswith("paid=0") for name in learned.get_feature_names_out())
    assert present(learned.model_.manifest.selected).levels == 0


@pytest.mark.parametrize("classes", [2, 3])
def test_levels_are_learned_from_classes_too(classes: int) -> None:
    table = coded(3000)
    y = np.array(["low", "mid", "high"])[np.digitize(table["y"], [-0.5, 0.5][: classes - 1])]
    assert present(AnytimeClassifier(family="gaussian").fit(table[NAMES], y).model_.manifest.selected).levels > 0


@pytest.mark.parametrize(("table", "knots"), [(coded(900), 7), (waves(15_000, effect=0.03), 63)])
def test_a_row_of_weight_two_counts_as_two_rows_in_any_order(table: pd.DataFrame, knots: int) -> None:
    rng, rows = np.random.default_rng(1), len(table)
    times = rng.integers(1, 3, rows)
    once = {name: table[name].to_numpy(dtype=float) for name in table.columns[:2]}
    response = table[["y"]].to_numpy()
    groups = load_groups({"groups": [{"name": "g", "features": list(once), "cost": 1}]})

    def bases(of: Index, weights: Float | None = None) -> dict[str, ColumnBasis]:
        columns = {name: values[of] for name, values in once.items()}
        sample = Sample(columns, weights, min_level_rows=(10, 5, 2), responses=response[of])
        return learned_groups(groups, sample, "auto").bases

    every = np.repeat(np.arange(rows), times)
    found = bases(np.arange(rows), times.astype(float))
    assert found == bases(every) == bases(rng.permutation(every))
    column = found[table.columns[0]]
    assert len(column.knots or ()) == knots
    assert ("points" in (column.model_extra or {})) == (knots == SIZES[-1])


def test_fractional_weights_of_any_size_count_as_many_rows_as_there_are() -> None:
    table, weights = coded(900), np.random.default_rng(1).random(900)
    small, large = (AnytimeRegressor().fit(table[NAMES], table["y"], size * weights).model_ for size in (1.0, 1e60))
    assert present(small.manifest.selected).levels > 0
    assert small.terms.features == large.terms.features


@pytest.mark.parametrize("step", [1, 1001])  # of 2^53 + 1 and 2^53 + 2, floats represent one
def test_large_whole_numbers_are_the_levels_that_floats_represent(step: int) -> None:
    table = coded()
    numbers = pd.DataFrame({"number": 2**53 + step * table["code"]})
    whole, floats = (AnytimeRegressor().fit(X, table["y"]) for X in (numbers, numbers.astype(float)))
    assert present(whole.model_.manifest.selected).levels > 0
    np.testing.assert_array_equal(whole.predict(numbers), floats.predict(numbers))


@pytest.mark.parametrize("rows", [3, 20])
def test_stated_rows_of_a_level_are_those_that_the_model_reports(rows: int) -> None:
    table = coded()
    model = AnytimeRegressor(min_level_rows=rows).fit(table[NAMES], table["y"]).model_
    assert present(model.manifest.selected).levels == rows
    assert any(f"numbers in {rows} rows or more" in text for text in model.manifest.decisions)
    counts = table["code"].value_counts()
    assert sum(name.startswith("code=") for name in model.terms.features) == (counts >= rows).sum()


CHOICES = [Choice(7), Choice(3, levels=0), Choice(7, levels=5), Choice(1, levels=2), Choice(63, levels=5), *CHEAPER]


@pytest.mark.parametrize("choice", CHOICES)
def test_the_terms_of_a_choice_are_those_of_its_own_expansion(choice: Choice) -> None:
    table = coded()
    table["time"] = np.random.default_rng(5).permutation(len(table)) / len(table)
    table["y"] += np.sin(40 * table["time"])
    values = {name: table[name].to_numpy(dtype=float) for name in ("code", "paid", "time")}
    sample = Sample(values, min_level_rows=(10, 5, 2), responses=table[["y"]].to_numpy())
    groups = load_groups({"groups": [{"name": "g", "features": list(values), "cost": 1}]})
    auto = Expansion.of(learned_groups(groups, sample, "auto"))
    reduced, spans = auto.reduced(choice)
    X = np.column_stack(list(values.values()))
    np.testing.assert_array_equal(auto.expand(X)[:, [start for start, _ in spans]], reduced.expand(X))
    np.testing.assert_array_equal(Expansion.of(reduced.groups).expand(X), reduced.expand(X))
    levels = [sum("=" in name and name.startswith(column) for name in reduced.terms.features) for column in values]
    assert sum(name.startswith("time>") for name in reduced.terms.features) == (choice.size or 7)
    counts = [table[column].value_counts() for column in values]
    least = {None: 2, 0: 10**6}.get(choice.levels, choice.levels)
    assert levels == [(counts[0] >= least).sum(), max((counts[1] >= least).sum(), 1), 0]


@pytest.mark.usefixtures("desk")
def test_levels_and_finer_curves_are_equal_from_a_basis_file_from_moments_and_from_a_stream(capsys: Capture) -> None:
    table = coded()
    table["time"] = np.random.default_rng(5).permutation(len(table)) / len(table)
    table["y"] += np.sin(40 * table["time"])
    names = [*NAMES, "time"]
    table.to_csv("t.csv", index=False)
    Path("g.json").write_text(json.dumps({"groups": [{"name": c, "features": [c], "cost": 1} for c in names]}))
    base = ["t.csv", "--groups", "g.json", "--target", "y"]
    output(capsys, "train", *base, "--out", "m.safetensors")
    output(capsys, "basis", *base, "--basis", "auto", "--min-level-rows", "5", "--out", "b.yaml")
    output(capsys, "moments", "t.csv", "--groups", "b.yaml", "--target", "y", "--out", "t.moments")
    output(capsys, "train", "t.moments", "--out", "n.safetensors")
    assert present(load("n.safetensors").manifest.selected).levels == 5  # all that are in 5 rows or more
    for name in "mn":
        terms = Counter(term[:5] for term in load(f"{name}.safetensors").terms.features)
        assert terms["code="] > 10
        assert terms["time>"] == FINE
    streamed = AnytimeRegressor().partial_fit(table[names][:700], table["y"][:700])
    streamed = streamed.partial_fit(table[names][700:], table["y"][700:])
    found, whole = load("m.safetensors"), streamed.model_
    assert found.groups.bases == whole.groups.bases
    np.testing.assert_allclose(found.predict(table), whole.predict(table), rtol=1e-7)
