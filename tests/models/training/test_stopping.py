"""Training that stops early: at the step of the literal rule, and with a model that is whole."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from anytime.errors import GroupsError, TrainingError
from anytime.estimators import AnytimeRegressor
from anytime.groups import FeatureGroups
from anytime.inference.prediction import Prediction
from anytime.loaded import load
from anytime.model.manifest import Stopped
from anytime.model.model import Model
from anytime.model.prefixes import PrefixModels
from anytime.moments.accumulate import Block, moments_of
from anytime.moments.moments import Gram
from anytime.selection import sequence
from anytime.target import Target
from anytime.training.fit import Fit, fit, provenance
from anytime.training.guarantee import spectral_gamma
from anytime.training.likelihood import Observed
from anytime.training.model_selection import Validation
from anytime.training.options import Options
from anytime.training.resequencing import Retrained, resequence
from anytime.types import Float
from models import literal
from models.likelihood_problems import KINDS, METHODS, clean, order_of
from models.literal import Method, Problem, Rows, columns_of, longest_left
from models.literal_likelihood import Family
from models.present import present
from models.problems import any_groups, grouped, messy_table
from models.properties import quick
from models.refusals import assert_refused

NEAR = 1e-6
"""Lengths that differ from epsilon by less, relatively, may be on either side of it."""


def table_of(groups: FeatureGroups, seed: int, rows: int = 60, responses: int = 2) -> tuple[Float, Float]:
    """A messy table over some groups."""
    rng = np.random.default_rng(seed)
    kinds = ("fresh", "copy", "negated", "constant", "binary", "sum")
    X = messy_table(rng, rows, len(groups.features), kinds, 0.3, 0.1)
    share = rng.random((X.shape[1], 1)) < 0.5
    Y = np.nan_to_num(X) @ (rng.normal(size=(X.shape[1], responses)) * share) + rng.normal(size=(rows, responses))
    return X, Y


def check_stop(
    problem: Problem, groups: FeatureGroups, order: Sequence[Sequence[int]], method: Method, epsilon: float
) -> None:
    """A sequence went on while a group was longer, and stopped when none was."""
    selected: list[int] = []
    for adds in order:
        assert longest_left(problem, groups, selected, method) > epsilon * (1 - NEAR)
        selected.extend(adds)
    assert longest_left(problem, groups, selected, method) <= epsilon * (1 + NEAR)


# By precision.


@pytest.mark.parametrize("doubling", [False, True], ids=["greedy", "doubling"])
@pytest.mark.parametrize("cost_blind", [False, True], ids=["costs", "blind"])
@pytest.mark.parametrize("method", METHODS)
def test_the_search_stops_where_the_literal_rule_does(method: Method, cost_blind: bool, doubling: bool) -> None:
    @quick(max_examples=40)
    @given(any_groups, st.integers(0, 2**32 - 1), st.sampled_from((1e-5, 1e-2)), st.floats(0.02, 1.2))
    def check(groups: FeatureGroups, seed: int, alpha: float, epsilon: float) -> None:
        X, Y = table_of(groups, seed)
        gram = Gram.of(moments_of(X, Y))
        whole = sequence(gram, groups, method, alpha, cost_blind=cost_blind, doubling=doubling)
        found = sequence(gram, groups, method, alpha, cost_blind=cost_blind, doubling=doubling, epsilon=epsilon)
        order = [step.adds for step in found.steps]
        assert order == [step.adds for step in whole.steps[: len(order)]]
        check_stop(Rows(*literal.standardise(X, Y), alpha), groups, order, method, epsilon)
        assert (found.longest is None) == (sum(map(len, order)) == len(groups))
        assert found.longest is None or found.longest <= epsilon
        # What is there of a sequence that stopped is what the whole one, perhaps by a shorter way, has of these steps.
        same = whole.upto(len(order))
        single = all(len(g.features) == 1 and not g.requires for g in groups.groups)
        apart = 1e-9 if method == "fr" and not doubling and single else 0.0
        n, factor = len(found.columns), same.state.factor
        for of in map(attrgetter, ("columns", "ends", "costs")):
            np.testing.assert_array_equal(of(found), of(same))
        for mine, its in ((found.explained_variance, same.explained_variance), (found.state.z, same.state.z[:n])):
            np.testing.assert_allclose(mine, its, rtol=apart, atol=1e-3 * apart)
        np.testing.assert_array_equal(found.state.factor.dropped, factor.dropped[:n])
        np.testing.assert_allclose(found.state.factor.L, factor.L[:n, :n], rtol=0.0, atol=apart)
        until = min(present(whole.doubling_until), len(order)) if doubling else None
        assert found.doubling_until == until

    check()


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_likelihoods_stop_where_the_literal_rule_does(family: Family, method: Method) -> None:
    case = clean(family, 0.5, seed=3, rows=150)
    whole = case.learned(method)
    for wanted in (1, 2, 4):
        taken = [g for adds in order_of(whole)[:wanted] for g in adds]
        epsilon = 1.001 * longest_left(case.rows(), case.groups, taken, method)
        found = case.learned(method, epsilon=epsilon)
        order = order_of(found)
        assert order == order_of(whole)[: len(order)]
        assert 1 <= len(order) <= wanted
        check_stop(case.rows(), case.groups, order, method, epsilon)
        for prefix in range(len(order) + 1):
            np.testing.assert_allclose(found.prefixes.coef(prefix), whole.prefixes.coef(prefix), rtol=1e-6, atol=1e-9)


def test_costs_have_no_part_in_when_to_stop() -> None:
    groups = grouped([1, 1, 1], [1.0, 100.0, 0.0])
    X = np.random.default_rng(0).normal(size=(60, 3))
    X = np.linalg.qr(X - X.mean(axis=0))[0]
    y = X @ [1.0, 5.0, 0.01]
    # The dear group alone is longer than epsilon, but the cheap and the free one go before it.
    for blind, expected in ((False, [(2,), (0,), (1,)]), (True, [(1,)])):
        found = sequence(Gram.of(moments_of(X, y)), groups, "omp", 0.0, cost_blind=blind, epsilon=0.5)
        assert [step.adds for step in found.steps] == expected


# By hold-out.


def problem(seed: int = 0, rows: int = 60) -> tuple[Float, Float, FeatureGroups]:
    """Twelve groups, of which three tell something, with gaps, a constant and a visit that two require."""
    rng = np.random.default_rng(seed)
    groups = grouped([2] * 11 + [0], [1.0, 2.0, 4.0] * 3 + [1.0, 1.0, 3.0], {0: [11], 5: [11]})
    X = rng.normal(size=(rows, 22))
    X[:, 7] = 3.0
    X[:, 13] = X[:, 12]
    y = X[:, 0] + 0.5 * X[:, 4] - X[:, 9] + rng.normal(size=rows)
    X[rng.random(X.shape) < 0.03] = np.nan
    return X, y, groups


def literal_errors(models: PrefixModels, X: Float, y: Float) -> Float:
    """Mean squared error of each prefix on some rows, row by row."""
    filled = np.where(np.isnan(X), models.mean, X)
    return np.array([np.mean((models.predict(filled, k)[:, 0] - y) ** 2) for k in range(models.steps + 1)])


@pytest.mark.parametrize("folds", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_prefix_with_the_least_error_on_the_hold_out_is_kept(seed: int, folds: int) -> None:
    X, y, groups = problem(seed)
    held_X, held_y, _ = problem(seed + 100, 40)
    validation = Validation("held.csv", lambda models: literal_errors(models, held_X, held_y))
    parts = [moments_of(X[f::folds], y[f::folds]) for f in range(folds)]
    options = Options(alpha=1e-4 if folds == 1 else "cv")
    whole, selected = fit(parts, groups, options), fit(parts, groups, options, validation=validation)
    errors = literal_errors(whole.prefixes, held_X, held_y)
    best = int(errors.argmin())
    assert 0 < best < len(whole.sequence.steps), "this table does not test anything"
    assert selected.sequence.steps == whole.sequence.steps[:best]
    stopped = present(selected.stopped())
    assert (stopped.rule, stopped.steps, stopped.validation) == ("validation", best, "held.csv")
    assert stopped.errors == pytest.approx(errors.tolist())
    np.testing.assert_array_equal(selected.alphas, whole.alphas[: best + 1])
    if whole.errors is not None:
        np.testing.assert_array_equal(present(selected.errors), whole.errors[: best + 1])
    for prefix in range(best + 1):
        np.testing.assert_array_equal(selected.prefixes.coef(prefix), whole.prefixes.coef(prefix))


@pytest.mark.parametrize(
    "errors",
    [
        [3.0, 2.0, 1.0, 1.0 + 1e-13, 1.0],
        [3.0, 2.0, 1.0, 1.0, 2.0],
        [3.0, np.nan, 2.0, np.inf, 2.5],  # one that is not finite is not the best
    ],
)
def test_of_equal_errors_the_shorter_prefix_is_kept(errors: list[float]) -> None:
    models = fit([moments_of(*problem()[:2])], problem()[2], Options(alpha=1e-5)).prefixes
    assert Validation("held", lambda _: np.array(errors)).best(models).steps == 2


def test_both_rules_together_take_the_hold_out_of_what_epsilon_leaves() -> None:
    falling = Validation("held", lambda models: np.arange(models.steps + 1, 0.0, -1.0))
    early = Validation("held", lambda models: np.array([2.0, 1.0, *[1.5] * (models.steps - 1)]))
    alone, whole, first = (trained(0.25, validation=each) for each in (None, falling, early))
    steps = len(alone.sequence.steps)
    assert 1 < steps < 6
    assert whole.sequence.steps == alone.sequence.steps
    assert first.sequence.steps == alone.sequence.steps[:1]
    stopped, earlier = present(whole.stopped()), present(first.stopped())
    assert (stopped.rule, len(stopped.errors or ())) == ("epsilon", steps + 1)
    assert (earlier.rule, earlier.longest) == ("validation", None)


# What is left is a whole model.


TARGETS = {
    "gaussian": Target("regression", ("y",)),
    "poisson": Target("count", ("y",)),
    "binomial": Target("binary", ("y",), ("no", "yes")),
}
STOPPING = {"gaussian": 0.25, "poisson": 0.2, "binomial": 0.2}
"""A precision at which some groups are left out."""


def trained(epsilon: float | None = None, *, family: str = "gaussian", validation: Validation | None = None) -> Fit:
    X, y, groups = problem()
    if family == "gaussian":
        return fit([moments_of(X, y)], groups, Options(alpha=1e-3, epsilon=epsilon), validation=validation)
    counts = np.maximum(np.round(y + 1), 0.0) if family == "poisson" else (y > 0).astype(np.float64)
    options = Options(alpha=1e-2, epsilon=epsilon, family=family)
    observed = Observed([Block(X, counts[:, np.newaxis])], TARGETS[family])
    return fit([moments_of(X, counts)], groups, options, observed, validation=validation)


def model_of(fitted: Fit, family: str = "gaussian") -> Model:
    return fitted.model("m", TARGETS[family], provenance(fitted, "train.csv"))


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_a_stopped_model_is_saved_loaded_and_answers_as_the_whole_one_does(family: str, tmp_path: Path) -> None:
    whole, fitted = trained(family=family), trained(STOPPING[family], family=family)
    steps = len(fitted.sequence.steps)
    assert 1 < steps < len(whole.sequence.steps)
    full, model = model_of(whole, family), model_of(fitted, family).save(tmp_path / "m.safetensors")
    loaded = load(tmp_path / "m.safetensors")
    manifest, features = loaded.manifest, set(loaded.groups.features)
    assert (loaded.version, manifest.stopped) == (model.version, fitted.stopped())
    taken = {name for step in manifest.steps for name in step.adds}
    assert set(loaded.groups.names) == taken
    assert set(present(manifest.stopped).left_out) == set(full.groups.names) - taken
    assert manifest.steps == full.manifest.steps[:steps]
    assert set(manifest.redundant.constant) == set(full.manifest.redundant.constant) & features
    assert set(manifest.provenance.imputed) <= features
    rng = np.random.default_rng(1)
    open_full, open_kept = Prediction(full), Prediction(loaded)
    for step in manifest.steps:
        for name in filter(loaded.places.__contains__, step.adds):
            values = rng.normal(size=len(loaded.places[name].features)).tolist()
            for opened in (open_full, open_kept):
                opened.add(name, values)
        # At the same penalty the optimum of a set does not know which other groups there are.
        for policy in ("prefix", "arrived"):
            a, b = open_full.answer(policy=policy), open_kept.answer(policy=policy)
            assert b.expected.r2 == pytest.approx(a.expected.r2, rel=1e-9)
            assert b.cost == a.cost
            output = "probabilities" if family == "binomial" else "prediction"
            assert getattr(b, output) == pytest.approx(getattr(a, output), rel=1e-9)


def test_a_hold_out_stops_a_likelihood_with_the_curvatures_of_what_is_kept() -> None:
    whole = trained(family="poisson")
    best = Validation("held", lambda models: np.abs(np.arange(models.steps + 1.0) - 3) + 1)
    fitted = trained(family="poisson", validation=best)
    assert fitted.sequence.steps == whole.sequence.steps[:3]
    full, kept = (present(model_of(each, "poisson").curvatures) for each in (whole, fitted))
    assert kept.prefixes.tolist() == [0, 1, 2, 3]
    _, columns = fitted.selected
    for index in range(4):
        np.testing.assert_allclose(kept.at(index).H, full.at(index, columns).H, rtol=1e-12, atol=1e-15)


@quick(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.booleans())
def test_restricted_moments_are_those_of_the_restricted_table(seed: int, width: int, missing: bool) -> None:
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(30, width)) + 5, rng.normal(size=(30, 2))
    if missing:
        X[rng.random(X.shape) < 0.2] = np.nan
    weights = rng.uniform(0.5, 2.0, 30)
    columns = np.sort(rng.choice(width, rng.integers(1, width + 1), replace=False))
    found, expected = moments_of(X, Y, weights).restricted(columns), moments_of(X[:, columns], Y, weights)
    assert (found.features, found.responses, found.rows, found.missing) == (len(columns), 2, 30, expected.missing)
    np.testing.assert_allclose(found.weight, expected.weight)
    expected = expected.refilled(found.fill)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-12)
    np.testing.assert_allclose(found.scatter, expected.scatter, atol=1e-9)
    a, b = Gram.of(found), Gram.of(expected)
    np.testing.assert_allclose(np.hstack([a.S, a.q]), np.hstack([b.S, b.q]), atol=1e-12)


def test_the_guarantee_of_a_stopped_model_is_against_sets_of_all_groups() -> None:
    X, y, groups = problem()
    groups = groups.model_copy(update={"groups": tuple(g.model_copy(update={"requires": ()}) for g in groups.groups)})
    moments = moments_of(X, y)
    manifest = model_of(fit([moments], groups, Options(method="omp", alpha=1e-2, epsilon=0.3))).manifest
    assert present(manifest.stopped).left_out
    assert manifest.guarantee.gamma == spectral_gamma(Gram.of(moments), groups, "omp", 1e-2) > 0


# At other costs.


def repriced(groups: FeatureGroups, factor: float = 2.0) -> FeatureGroups:
    costly = tuple(g.model_copy(update={"cost": factor * c}) for g, c in zip(groups.groups, groups.costs, strict=True))
    return FeatureGroups(groups=costly, bases=groups.bases)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_a_stopped_model_is_ordered_anew_and_ignores_what_was_left_out(family: str) -> None:
    X, y, groups = problem()
    model = model_of(trained(STOPPING[family], family=family), family)
    X = X[:, [groups.features.index(f) for f in model.groups.features]]
    classes = (y > 0).astype(np.float64)[:, np.newaxis]
    rows = Retrained("rows.csv", moments_of(X, classes), Observed([Block(X, classes)], TARGETS[family]))
    data = rows if family == "binomial" else None
    by_all, by_kept = (resequence(model, repriced(each), data=data) for each in (groups, model.groups))
    record = Stopped(rule=None, steps=model.steps, left_out=present(model.manifest.stopped).left_out)
    assert by_all.manifest.stopped == record, "no rule has seen the new order"
    assert by_all.groups.model_dump() == by_kept.groups.model_dump()
    assert [s.adds for s in by_all.manifest.steps] == [s.adds for s in model.manifest.steps]
    assert by_all.costs.tolist() == (2 * model.costs).tolist()


def test_new_costs_may_not_require_what_was_left_out() -> None:
    _, _, groups = problem()
    model = model_of(trained(0.25))
    lost, kept = present(model.manifest.stopped).left_out[0], model.manifest.steps[0].group
    changed = tuple(g.model_copy(update={"requires": (lost,)}) if g.name == kept else g for g in groups.groups)
    assert_refused(
        lambda: resequence(model, FeatureGroups(groups=changed)),
        f"group '{kept}' requires '{lost}' in the new file",
        "train a new model",
        error=GroupsError,
    )


# Penalties and folds.


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_an_epsilon_that_keeps_nothing_is_refused_with_the_longest_length(family: str) -> None:
    with pytest.raises(TrainingError, match="epsilon is 50") as caught:
        trained(50.0, family=family)
    longest = float(str(caught.value).split("the longest is ")[1].split(";")[0])
    assert len(trained(0.98 * longest, family=family).sequence.steps) >= 1
    assert_refused(lambda: trained(1.02 * longest, family=family), "choose a smaller epsilon", error=TrainingError)
    X, y, groups = problem()
    parts = [moments_of(X[f::3], y[f::3]) for f in range(3)]
    assert_refused(
        lambda: fit(parts, groups, Options(alpha="cv", epsilon=50.0, nested=True)),
        "choose a smaller epsilon",
        error=TrainingError,
    )


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_a_hold_out_of_which_the_base_rate_is_the_best_is_refused(family: str) -> None:
    worse = Validation("held.csv", lambda models: np.arange(1.0, models.steps + 2.0))
    assert_refused(
        lambda: trained(family=family, validation=worse),
        "on held.csv the base rate is the best prefix (error 1)",
        error=TrainingError,
    )


# For scikit-learn.


def test_estimators_stop_and_predict_from_the_table_that_they_know() -> None:
    X, y, groups = problem()
    whole, stopped = (AnytimeRegressor(groups, alpha=1e-3, epsilon=each).fit(X, y) for each in (None, 0.25))
    steps = len(stopped.sequence_)
    assert 0 < steps < len(whole.sequence_)
    for a, b in zip(list(whole.staged_predict(X))[: steps + 1], stopped.staged_predict(X), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@quick(max_examples=30)
@given(any_groups, st.integers(0, 2**32 - 1), st.sampled_from(METHODS), st.floats(0.05, 0.8))
def test_any_stopped_model_is_whole(groups: FeatureGroups, seed: int, method: Method, epsilon: float) -> None:
    X, Y = table_of(groups, seed)
    options = Options(method=method, alpha=1e-3, epsilon=epsilon)
    whole = fit([moments_of(X, Y)], groups, Options(method=method, alpha=1e-3))
    assume(whole.sequence.steps)
    try:
        fitted = fit([moments_of(X, Y)], groups, options)
    except TrainingError:
        assert longest_left(Rows(*literal.standardise(X, Y), 1e-3), groups, [], method) <= epsilon * (1 + NEAR)
        return
    model = fitted.model("m", Target("regression", ("a", "b")), provenance(fitted, "t"))
    filled = np.where(np.isnan(X), whole.prefixes.mean, X)
    columns = columns_of(groups, [groups.positions[name] for name in model.groups.names])
    predictions = model.prefixes.predict_all(filled[:, columns])
    np.testing.assert_allclose(
        predictions, whole.prefixes.predict_all(filled)[: len(predictions)], rtol=1e-6, atol=1e-9
    )
    again = Gram.of(present(model.moments))
    assert again.S.shape == (len(columns), len(columns))
    np.testing.assert_array_equal(again.x_mean, model.prefixes.mean)
