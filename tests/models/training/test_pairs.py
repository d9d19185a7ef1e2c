"""A model with pairs is the linear model of explicitly multiplied columns, in sequence, coefficients and answers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from anytime import AnytimeClassifier, AnytimeRegressor, certify, load
from anytime.cli.main import main
from anytime.data.formats.memory import table_of
from anytime.errors import TrainingError
from anytime.features.expansion import Expansion
from anytime.features.screening import SCREENED_ROWS
from anytime.groups import ColumnBasis, FeatureGroups, PairSide, load_groups, write_groups
from anytime.loaded import LoadedModel
from anytime.moments.accumulate import fold_moments_of
from anytime.moments.moments import Gram
from anytime.target import Target
from anytime.training import train as training
from anytime.training.fit import Fit, fit, provenance
from anytime.training.options import Options
from anytime.training.resequencing import Changes, resequence
from anytime.types import Float, Method
from models.commands import Capture, document, output, refusal
from models.present import present
from models.properties import quick
from models.refusals import assert_refused

ALPHA = 0.01
ROWS = 300


@dataclass(frozen=True)
class Case:
    """Random groups with random pairs, their rows, and the terms, multiplied one by one."""

    groups: FeatureGroups
    X: Float
    y: Float

    @property
    def owner(self) -> dict[str, str]:
        """The group of each column."""
        return {name: group.name for group in self.groups.groups for name in group.features}

    def column(self, name: str) -> Float:
        return self.X[:, self.groups.features.index(name)]

    def factors(self, side: PairSide) -> list[Float]:
        x = self.column(side.column)
        if side.levels:
            levels = self.groups.bases[side.column].levels or ()
            return [np.where(np.isnan(x), np.nan, x == levels.index(level)) for level in side.levels]
        last = side.knots[-1]
        return [np.minimum(np.maximum(x, knot), last) - knot for knot in side.knots[:-1]]

    def terms(self, members: frozenset[str]) -> dict[str, Float]:
        """The terms of some groups and of the pairs with both columns in them, less their means, 0 where missing."""
        found: dict[str, Float] = {}
        inside = [name for name, group in self.owner.items() if group in members]
        for name in inside:
            levels, x = self.groups.bases[name].levels, self.column(name)
            if levels is None:
                found[name] = x
            else:
                found |= {f"{name}={label}": np.where(np.isnan(x), np.nan, x == k) for k, label in enumerate(levels)}
        for a, b in self.groups.pairs:
            if {a.column, b.column} <= set(inside):
                for (i, one), (j, other) in product(enumerate(self.factors(a)), enumerate(self.factors(b))):
                    found[f"{a.column} {i} * {b.column} {j}"] = one * other
        return {name: np.nan_to_num(t - np.nanmean(t)) for name, t in found.items()}

    def solved(self, members: frozenset[str]) -> tuple[dict[str, float], float]:
        """The ridge regression on the terms of some groups: coefficients in raw units, and F."""
        terms = self.terms(members)
        if not terms:
            return {}, 0.0
        T = np.column_stack(list(terms.values()))
        y, scale = self.y - self.y.mean(), T.std(axis=0)
        scale[scale == 0] = 1.0
        Z, z = T / scale, y / y.std()
        w = np.linalg.solve(Z.T @ Z / ROWS + ALPHA * np.eye(len(scale)), Z.T @ z / ROWS)
        return dict(zip(terms, w * y.std() / scale, strict=True)), 0.5 * float(z @ Z @ w) / ROWS

    def fitted(self, method: Method = "fr", **options: Any) -> Fit:
        parts = fold_moments_of(self.X, self.y, expansion=Expansion.of(self.groups).plain, chunk_rows=64)
        return fit(parts, self.groups, Options(method=method, alpha=ALPHA, **options))

    def model(self, **options: Any) -> LoadedModel:
        found = self.fitted(**options)
        return LoadedModel.of(found.model("m", Target("regression", ("y",)), provenance(found, "memory")))


def case(seed: int, *, across: bool = True) -> Case:
    rng = np.random.default_rng(seed)
    widths = rng.integers(1, 4, 4)
    names = [[f"g{i}c{j}" for j in range(width)] for i, width in enumerate(widths)]
    parts = [{"name": f"g{i}", "features": own, "cost": float(rng.integers(1, 6))} for i, own in enumerate(names)]
    columns = [name for own in names for name in own]
    X = rng.normal(size=(ROWS, len(columns))) + 0.5 * rng.normal(size=(ROWS, 1))
    port = columns[int(rng.integers(len(columns)))]
    X[:, columns.index(port)] = rng.integers(0, 3, ROWS)
    X[rng.random(X.shape) < 0.05] = np.nan
    bases = {name: ColumnBasis(missing=False) for name in columns}
    bases[port] = ColumnBasis(basis="categories", levels=("A", "B", "C"), other=False, missing=False)

    def side(name: str) -> PairSide:
        if name == port:
            return PairSide(column=name, levels=("C", "A")[: rng.integers(1, 3)])
        return PairSide(column=name, knots=tuple(np.sort(rng.normal(size=rng.integers(2, 5))).tolist()))

    chosen = [rng.choice(columns, 2, replace=False).tolist() for _ in range(5)]
    pairs = [(side(a), side(b)) for a, b in chosen if across or any({a, b} <= {*own} for own in names)]
    y = np.nan_to_num(X) @ rng.normal(size=len(columns)) + rng.normal(size=ROWS)
    y += sum(2 * np.nan_to_num(X[:, columns.index(a)] * X[:, columns.index(b)]) for a, b in chosen)
    return Case(load_groups({"groups": parts}).with_bases(bases).with_pairs(pairs), X, y)


def literal_steps(of: Case) -> list[tuple[frozenset[str], float]]:
    """The best groups per cost, one after the other or the two groups of a pair at once, and F after each step."""
    cost = dict(zip(of.groups.names, of.groups.costs.tolist(), strict=True))
    together = {frozenset(of.owner[side.column] for side in pair) for pair in of.groups.pairs}
    selected: frozenset[str] = frozenset()
    steps = []
    while len(selected) < len(of.groups):
        candidates = {*(frozenset([name]) for name in cost if name not in selected), *(t - selected for t in together)}
        now = of.solved(selected)[1]
        gains = {c: (of.solved(selected | c)[1] - now) / sum(cost[name] for name in c) for c in candidates if c}
        best = max(gains, key=lambda c: gains[c])
        selected |= best
        steps.append((best, of.solved(selected)[1]))
    return steps


@given(seed=st.integers(0, 10_000))
@quick(20)
def test_sequence_and_coefficients_are_those_of_multiplied_columns(seed: int) -> None:
    of = case(seed)
    model = of.model()
    owners = {(a.column, b.column): {of.owner[a.column], of.owner[b.column]} for a, b in of.groups.pairs}
    selected: set[str] = set()
    for prefix, (step, (adds, F)) in enumerate(zip(model.manifest.steps, literal_steps(of), strict=True), 1):
        assert set(step.adds) == adds
        assert step.explained_variance == pytest.approx(F, rel=1e-9, abs=1e-12)
        assert step.cost == pytest.approx(sum(of.groups.costs[of.groups.position(name)] for name in adds))
        selected |= adds
        assert sorted(step.pairs) == sorted([pair for pair, both in owners.items() if both <= selected and both & adds])
        expected = of.solved(frozenset(selected))[0]
        coef = model.prefixes.coef(prefix)[:, 0]
        np.testing.assert_allclose(np.sort(coef), np.sort(list(expected.values())), rtol=1e-9, atol=1e-9)


@given(seed=st.integers(0, 10_000))
@quick(20)
def test_any_order_of_arrival_is_answered_by_the_model_of_multiplied_columns(seed: int) -> None:
    of, rng = case(seed), np.random.default_rng(seed)
    model, rows = of.model(), 7
    prediction = model.open(rows)
    received: set[str] = set()
    for name in [*rng.permutation(model.groups.names).tolist(), *rng.choice(model.groups.names, 2).tolist()]:
        columns = model.groups.slices[model.groups.position(name)]
        # The last values of a group count: products follow a replacement.
        for offset in (5, 0):
            values = of.X[offset : offset + rows, columns]
            categories = model.places[name].expansion.categories
            prediction.add_checked(name, prediction.checked(name, np.array(values), coded=bool(categories)))
        received.add(name)
        terms = of.terms(frozenset(received))
        for policy, members in (("arrived", received), ("prefix", set(model.needed[prediction.prefix]))):
            coef = of.solved(frozenset(members))[0]
            expected = of.y.mean() + sum(terms[term][:rows] * w for term, w in coef.items())
            found = prediction.answer(policy=policy)  # type: ignore[arg-type]
            np.testing.assert_allclose(found.prediction, np.broadcast_to(expected, rows), rtol=1e-9, atol=1e-9)
            assert set(found.groups) == members
            assert set(found.missing) <= set(model.groups.names)


def test_memory_counts_products_when_they_are_complete() -> None:
    of = case(3)
    model = of.model()
    prediction = model.open(2)
    for name in model.places:
        values = of.X[:2, model.groups.slices[model.groups.position(name)]]
        expected = prediction.nbytes + prediction.more_bytes({name: values})
        prediction.add_checked(name, prediction.checked(name, values, coded=True))
        assert prediction.nbytes == expected
    assert prediction.nbytes > 8 * 2 * len(model.prefixes.mean)


@pytest.mark.parametrize("method", ["fr", "omp", "single", "no-whiten"])
@pytest.mark.parametrize("options", [{}, {"cost_blind": True}, {"doubling": True}, {"epsilon": 0.3}])
def test_every_search_joins_pairs_at_the_step_that_completes_them(method: Method, options: dict[str, Any]) -> None:
    for seed in range(4):
        found = case(seed).fitted(method, **options)
        order = [group for step in found.sequence.steps for group in step.adds]
        assert len(set(order)) == len(order)
        groups, selected = found.expansion.terms, set[int]()
        for step in found.sequence.steps:
            selected |= set(step.adds)
            assert {p for p in groups.products if set(groups.prerequisites[p]) <= selected} <= selected
        assert found.sequence.ends[-1] == len(found.sequence.columns)


def test_pairs_inside_groups_keep_the_guarantee_of_groups_with_these_columns() -> None:
    of = next(each for each in (case(seed, across=False) for seed in range(99)) if len(each.groups.pairs) > 1)
    terms = {group.name: of.terms(frozenset([group.name])) for group in of.groups.groups}
    explicit = [
        {"name": group.name, "features": [f"{group.name} {name}" for name in terms[group.name]], "cost": group.cost}
        for group in of.groups.groups
    ]
    T = np.column_stack([t for own in terms.values() for t in own.values()])
    theirs = Case(load_groups({"groups": explicit}), T, of.y)
    gammas = [present(each.model().manifest.guarantee.gamma) for each in (of, theirs)]
    assert gammas[0] == pytest.approx(gammas[1], rel=1e-9)


def test_pairs_across_groups_end_the_guarantee_and_say_why() -> None:
    found = case(1).model().manifest.guarantee
    why = "pairs of columns join groups that gain more together, which the theorems do not cover"
    assert (found.gamma, found.why) == (None, why)


def test_a_resequenced_model_keeps_the_pairs_of_its_groups() -> None:
    of = case(2)
    model = of.model()
    assert resequence(model, changes=Changes(method="omp")).groups.pairs == model.groups.pairs
    without = resequence(model, changes=Changes(without=("g0",)))
    alone = Case(of.groups.only([1, 2, 3]), of.X[:, of.groups.slices[1].start :], of.y).model()
    assert [step.pairs for step in without.manifest.steps] == [step.pairs for step in alone.manifest.steps]
    np.testing.assert_allclose(without.prefixes.packed, alone.prefixes.packed, rtol=1e-9, atol=1e-9)


def interacting(rows: int, seed: int, strength: float = 1.0) -> tuple[Float, Float]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 8))
    y = X[:, 0] + X[:, 1] + strength * (X[:, 2] * X[:, 3] + X[:, 4] * (X[:, 5] > 0)) + rng.normal(size=rows)
    return X, y


def pairs_of(estimator: Any) -> set[tuple[str, str]]:
    return {pair for step in estimator.model_.manifest.steps for pair in step.pairs}


def test_the_strongest_pairs_are_found_and_explain_what_additive_terms_cannot() -> None:
    X, y = interacting(4000, 0)
    T, u = interacting(2000, 1)
    additive = AnytimeRegressor(alpha="cv", basis="hinge", pairs=0).fit(X, y)
    found = AnytimeRegressor(alpha="cv", basis="hinge", pairs=2).fit(X, y)
    assert pairs_of(found) == {("x2", "x3"), ("x4", "x5")}
    assert found.score(T, u) > additive.score(T, u) + 0.2
    assert found.sequence_ == [step.group for step in found.model_.manifest.steps]
    names = found.get_feature_names_out()
    assert len(found.coef_) == len(names)
    assert sum(" * " in name for name in names) == 18
    np.testing.assert_allclose([*found.staged_predict(T)][-1], found.predict(T))


@pytest.mark.parametrize("estimator", [AnytimeRegressor, AnytimeClassifier])
def test_groups_are_ordered_at_the_penalty_that_is_best_without_pairs(estimator: Any) -> None:
    X, y = interacting(1500, 9)
    y = y if estimator is AnytimeRegressor else (y > 0).astype(int)
    additive, paired = (estimator(alpha="cv", basis="hinge", pairs=pairs).fit(X, y) for pairs in (0, 2))
    assert len(pairs_of(paired)) == 2
    assert paired.model_.manifest.alpha == additive.model_.manifest.alpha


def test_auto_keeps_the_pairs_that_help_and_none_without_interactions() -> None:
    X, y = interacting(4000, 2)
    assert pairs_of(AnytimeRegressor(alpha="cv", pairs="auto").fit(X, y)) >= {("x2", "x3"), ("x4", "x5")}
    for seed in range(5):
        X, y = interacting(1000, seed, strength=0.0)
        additive, auto = (AnytimeRegressor(alpha="cv", pairs=pairs).fit(X, y) for pairs in (None, "auto"))
        assert pairs_of(auto) == set()
        np.testing.assert_array_equal(auto.coef_, additive.coef_)


def test_auto_chooses_a_number_and_takes_the_best_pairs_of_all_rows() -> None:
    X, y = interacting(1200, 4, strength=0.6)
    auto = AnytimeRegressor(alpha="cv", pairs="auto").fit(X, y)
    count = len(pairs_of(auto))
    assert count > 0
    np.testing.assert_allclose(auto.coef_, AnytimeRegressor(alpha="cv", pairs=count).fit(X, y).coef_, rtol=1e-6)


def test_auto_compares_errors_within_folds() -> None:
    """A few large values of the target make one fold much more difficult than another, whichever pairs there are."""
    for seed in range(5):
        X, y = interacting(1500, seed)
        y[:4] += 25.0 * np.random.default_rng(seed).choice([-1.0, 1.0], 4)
        assert pairs_of(AnytimeRegressor(alpha="cv", pairs="auto").fit(X, y)) >= {("x2", "x3")}


def test_epsilon_stops_the_order_of_terms_with_pairs_once() -> None:
    X, y = interacting(2000, 6)
    assert set(AnytimeRegressor(alpha=ALPHA, epsilon=0.25, pairs=0).fit(X, y).sequence_) == {"x0", "x1"}
    found = AnytimeRegressor(alpha=ALPHA, epsilon=0.25, pairs=2).fit(X, y)
    assert pairs_of(found) == {("x2", "x3")}
    said, unused = found.model_.manifest.decisions
    assert said.startswith("products of 2 pairs of columns are terms")
    assert unused == "not used: 1 of the pairs of columns, because the model leaves out one of their groups"
    why = "epsilon is 0.9", "the longest is", "choose a smaller epsilon"
    assert_refused(lambda: AnytimeRegressor(alpha=ALPHA, epsilon=0.9, pairs=2).fit(X, y), *why, error=TrainingError)


def test_two_groups_that_are_useless_alone_are_selected_together_at_their_joint_cost() -> None:
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], (3000, 2)) * rng.uniform(0.5, 1.5, (3000, 2))
    X = np.column_stack([rng.normal(size=3000), signs, rng.normal(size=3000)])
    y = 0.3 * X[:, 0] + signs[:, 0] * signs[:, 1] + 0.3 * rng.normal(size=3000)
    prices = {"line": 2.0, "left": 3.0, "right": 1.0, "noise": 2.0}
    groups = {"groups": [{"name": n, "features": [f"x{j}"], "cost": c} for j, (n, c) in enumerate(prices.items())]}
    found = AnytimeRegressor(groups).fit(X, y)
    first, *others = found.model_.manifest.steps
    assert (set(first.adds), first.cost, first.pairs) == ({"left", "right"}, 4.0, (("x1", "x2"),))
    assert [step.adds for step in others] == [("line",), ("noise",)]
    assert first.r2 is not None
    assert first.r2 > 0.7
    said = " ".join(found.model_.manifest.decisions)
    assert re.search(r"products of 1 pair of columns are terms .* error of all groups is 0\.\d+ instead of", said)
    assert "the constant of the theorem does not cover products of two groups" in said
    together = {"groups": [{"name": "all", "features": [f"x{j}" for j in range(4)], "cost": 1.0}]}
    assert "theorem" not in " ".join(AnytimeRegressor(together, pairs=1).fit(X, y).model_.manifest.decisions)
    assert set(AnytimeRegressor(groups, pairs=0).fit(X, y).model_.manifest.steps[0].adds) == {"line"}


def test_products_that_overflow_are_no_candidates_of_auto_and_named_where_a_number_is_stated() -> None:
    X, y = interacting(1000, 0)
    y = y + X[:, 2] * X[:, 3] * 10
    X[:, 2:4] *= 1e90
    auto, without = (AnytimeRegressor(pairs=pairs).fit(X, y) for pairs in ("auto", 0))
    np.testing.assert_array_equal(auto.coef_, without.coef_)
    why = "X: column 'x2 * x3' holds values that are infinite or too large to square"
    assert_refused(lambda: AnytimeRegressor(pairs=1).fit(X, y), why)


@pytest.mark.parametrize("pairs", ["auto", 2])
def test_certificates_of_pairs_are_those_of_all_sets_of_groups(pairs: Any) -> None:
    X, y = interacting(1500, 0)
    model = AnytimeRegressor(basis="linear", pairs=pairs, alpha=ALPHA, cv=3).fit(X, y).model_
    assert model.groups.pairs
    found = certify(model)
    C, q = Gram.of(present(model.moments)).penalised(ALPHA)
    terms, count, found_of = model.terms, len(model.groups), dict[float, float]()
    for members in product([False, True], repeat=count):
        chosen = {g for g in range(count) if members[g]}
        chosen |= {p for p in terms.products if chosen.issuperset(terms.prerequisites[p])}
        used = [column for g in sorted(chosen) for column in range(terms.slices[g].start, terms.slices[g].stop)]
        F = 0.5 * float(q[used, 0] @ np.linalg.solve(C[np.ix_(used, used)], q[used, 0])) if used else 0.0
        found_of[sum(members)] = max(F, found_of.get(sum(members), 0.0))
    bounds = [max(F for cost, F in found_of.items() if cost <= limit) for limit in model.costs.tolist()]
    certificate = present(found.manifest.certificate)
    np.testing.assert_allclose(certificate.bounds, bounds, rtol=1e-6, atol=1e-9)
    assert all(certificate.exact)


def test_a_stream_has_the_pairs_of_its_rows_and_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = interacting(4000, 2)
    whole = AnytimeRegressor().fit(X[:2000], y[:2000])
    stream = AnytimeRegressor().partial_fit(X[:800], y[:800]).partial_fit(X[800:2000], y[800:2000])
    assert pairs_of(stream) == pairs_of(whole)
    np.testing.assert_allclose(stream.predict(X), whole.predict(X), rtol=1e-7, atol=1e-9)
    monkeypatch.setattr(training, "sample_size", lambda _columns: 1500)  # later rows are not stored
    stream = AnytimeRegressor().partial_fit(X[:800], y[:800]).partial_fit(X[800:2000], y[800:2000])
    known = pairs_of(stream)
    assert known >= {("x2", "x3"), ("x4", "x5")}
    stream = stream.partial_fit(X[2000:3000], y[2000:3000])
    assert pairs_of(stream) == known
    assert stream.model_.manifest.provenance.rows == 3000
    assert stream.score(X[3000:], y[3000:]) > whole.score(X[3000:], y[3000:]) - 0.02


@pytest.mark.parametrize("family", ["binomial", "multinomial", "gaussian"])
def test_families_screen_the_residual_of_their_means(family: Any) -> None:
    X, y = interacting(2000, 3, strength=2.0)
    classes = np.digitize(y, [0.0] if family == "binomial" else [-1.0, 1.0])
    additive, found = (AnytimeClassifier(family=family, pairs=pairs).fit(X, classes) for pairs in (None, 2))
    assert pairs_of(found) == {("x2", "x3"), ("x4", "x5")}
    assert found.score(X, classes) > additive.score(X, classes) + 0.05


def test_weights_and_folds_reach_the_screening() -> None:
    X, y = interacting(3000, 5)
    y[2000:] = X[2000:, 6] * X[2000:, 7] * 20
    weights = np.where(np.arange(3000) < 2000, 1.0, 0.0)
    found = AnytimeRegressor(alpha="cv", pairs=2, cv=4).fit(X, y, sample_weight=weights)
    assert pairs_of(found) == {("x2", "x3"), ("x4", "x5")}


def test_the_pass_that_sums_the_moments_draws_the_rows_to_screen() -> None:
    X, y = interacting(25_000, 6)  # more than are screened
    weights = np.where(np.arange(25_000) % 5 == 0, 0.0, 1.0 + np.arange(25_000) % 3)
    names = [f"x{j}" for j in range(8)]
    groups = load_groups({"groups": [{"name": name, "features": [name], "cost": 1.0} for name in names]})
    table = table_of("rows", np.column_stack([X, y, weights]), [*names, "y", "w"])
    roles = training.Roles(groups, ("y",), weights="w")
    source, parts = training.open_training(table, roles, Options(n_jobs=2)).read()
    drawn = source.screened().columns
    used = np.flatnonzero(weights)
    assert sum(part.rows for part in parts) == len(used)
    numbers = np.random.default_rng(Options().seed).random(len(used))  # each row draws one, and the smallest stay
    rows = used[np.sort(np.argsort(numbers)[:SCREENED_ROWS])]
    np.testing.assert_array_equal(drawn["X"], X[rows])
    np.testing.assert_array_equal(drawn["Y"][:, 0], y[rows])
    np.testing.assert_array_equal(drawn["weights"], weights[rows])
    counts = np.bincount(drawn["folds"].astype(int))
    assert len(counts) == len(parts)
    assert (counts <= [part.rows for part in parts]).all()


@pytest.mark.parametrize(
    ("method", "options", "why"),
    [
        ("fit", {"pairs": -1}, "pairs is -1; expected a number from 0 to 256, or 'auto'"),
        ("fit", {"pairs": 257}, "pairs is 257; expected a number from 0 to 256"),
        ("fit", {"pairs": True}, "pairs is True; expected a number from 0 to 256"),
        ("fit", {"pairs": "many"}, "pairs is 'many'; expected a number from 0 to 256"),
        ("fit", {"pairs": 2, "method": "sparse"}, "method sparse does not support pairs; choose another method"),
        ("partial_fit", {"pairs": 2}, "pairs is 2; partial_fit expects 'auto' or 0: use fit, which has all rows"),
    ],
)
def test_invalid_pairs_are_one_clear_error(method: str, options: dict[str, Any], why: str) -> None:
    assert_refused(lambda: getattr(AnytimeRegressor(**options), method)(*interacting(50, 0)), why, error=TrainingError)


# The command line.


GROUPS = {
    "groups": [
        {"name": "a", "features": ["a0", "a1"], "cost": 4.0},
        {"name": "b", "features": ["b0"], "cost": 0.5},
        {"name": "c", "features": ["c0"], "cost": 2.0},
    ]
}
TRAIN = ["train", "train.parquet", "--groups", "groups.json", "--target", "y", "--out", "m.safetensors"]


def rows(seed: int, count: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(count, 4)), columns=["a0", "a1", "b0", "c0"])
    frame["y"] = frame["a0"] + frame["a0"] * frame["b0"] + frame["a0"] * frame["a1"] + rng.normal(size=count)
    frame["up"] = (frame["y"] > 0).map({True: "yes", False: "no"})
    return frame


@pytest.fixture
def desk(desk: Path) -> Path:
    rows(0, 800).to_parquet("train.parquet")
    rows(1, 300).to_parquet("test.parquet")
    Path("groups.json").write_text(json.dumps(GROUPS))
    return desk


def test_the_model_is_that_of_the_estimator(desk: Path, capsys: Capture) -> None:
    out = output(capsys, *TRAIN, "--pairs", "2", "--folds", "4", "--test", "test.parquet")
    assert "pairs: 'a0 * a1', 'a0 * b0'" in out
    model = load("m.safetensors")
    frame = rows(0, 800)
    found = AnytimeRegressor(GROUPS, alpha="cv", cv=4, pairs=2).fit(frame[["a0", "a1", "b0", "c0"]], frame["y"])
    assert model.manifest.steps == found.model_.manifest.steps
    np.testing.assert_allclose(model.prefixes.packed, found.model_.prefixes.packed, rtol=1e-9)
    steps = document(capsys, "show", "m.safetensors")["steps"]
    assert {name for step in steps for name in step["adds"]} == {"a", "b", "c"}
    assert sorted(pair for step in steps for pair in step.get("pairs", [])) == [["a0", "a1"], ["a0", "b0"]]


def test_constant_products_do_not_count_as_informative(desk: Path, capsys: Capture) -> None:
    cells = np.array([*("xy", "yx", "yy", "zx", "zz")] * 160)  # the product of a1=z and b0=y is constant
    frame = rows(0, 800).assign(a1=[cell[0] for cell in cells], b0=[cell[1] for cell in cells])
    frame["y"] = frame["c0"] + 9.0 * (cells == "yx")
    frame.to_parquet("train.parquet")
    out = output(capsys, *TRAIN, "--pairs", "1")
    model = load("m.safetensors")
    assert model.prefixes.mean[model.terms.features.index("a1=z * b0=y")] == 0.0
    # a0, c0 and three levels of each of a1 and b0; last levels, which the others determine, are not listed
    assert "4 columns, 8 terms: 8 informative, 0 constant, 0 collinear with others" in out
    assert "pairs: 'a1 * b0' (4 terms)" in out


def test_a_groups_file_states_pairs_for_moments_of_several_tables(desk: Path, capsys: Capture) -> None:
    assert main([*TRAIN, "--basis", "linear", "--pairs", "2", "--alpha", "0.01"]) == 0
    model = load("m.safetensors")
    for file in ("shared.yaml", "shared.json"):
        write_groups(load_groups(GROUPS).with_pairs(model.groups.pairs), Path(file))
        assert load_groups(file).pairs == model.groups.pairs
    for name in ("train", "test"):
        call = ["moments", f"{name}.parquet", "--groups", "shared.yaml", "--target", "y", "--out", f"{name}.moments"]
        assert main(call) == 0
    assert main(["moments", "train.moments", "test.moments", "--out", "both.moments"]) == 0
    assert main(["train", "both.moments", "--out", "both.safetensors"]) == 0
    both = load("both.safetensors")
    assert both.groups.pairs == model.groups.pairs
    assert both.manifest.provenance.rows == 1100
    assert main([*TRAIN, "--groups", "shared.json", "--basis", "linear", "--alpha", "0.01"]) == 0
    np.testing.assert_allclose(load("m.safetensors").prefixes.packed, model.prefixes.packed, rtol=1e-9)
    said = refusal(capsys, *TRAIN, "--groups", "shared.json", "--pairs", "3")
    assert "pairs is 3, and the groups state 2 pairs; omit one of these" in said
    Path("other.yaml").write_text(Path("shared.yaml").read_text().split("pairs:")[0])
    assert main(["moments", "test.parquet", "--groups", "other.yaml", "--target", "y", "--out", "o.moments"]) == 0
    assert "their pairs are" in refusal(capsys, "moments", "train.moments", "o.moments", "--out", "x.moments")
