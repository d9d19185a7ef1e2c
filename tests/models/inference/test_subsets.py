"""The policy `arrived`: the exact optimum for whatever set of groups has arrived."""

from __future__ import annotations

import gc
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from anytime.errors import ValuesError
from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.groups import load_groups
from anytime.inference import subsets as arrived
from anytime.inference.subsets import arrived_model
from anytime.model.model import Model
from anytime.types import Float
from lazily import Lazy
from models.opening import opened

pytestmark = pytest.mark.usefixtures("linear_by_default")

ALPHA = 0.03
GROUPS: dict[str, Any] = {
    "groups": [
        {"name": "a", "features": ["a0", "a1"], "cost": 1.0},
        {"name": "visit", "features": [], "cost": 2.0},
        {"name": "b", "features": ["b0"], "cost": 0.5, "requires": ["visit"]},
        {"name": "c", "features": ["c0", "c1", "c2"], "cost": 0.25, "requires": ["visit"]},
        {"name": "d", "features": ["d0"], "cost": 4.0},
        {"name": "e", "features": ["e0"], "cost": 0.0},
    ],
    "bases": {name: {"missing": False} for name in ("a0", "a1", "b0", "c0", "c1", "c2", "d0", "e0")},
}
SLICES = dict(zip(load_groups(GROUPS).names, load_groups(GROUPS).slices, strict=True))
NAMES = [group["name"] for group in GROUPS["groups"] if group["features"]]
SETS = [names for size in range(len(NAMES) + 1) for names in itertools.combinations(NAMES, size)]


def rows() -> tuple[Float, Float, Float]:
    """Features with gaps and a redundant column, two responses, weights."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(120, 8)) @ rng.normal(size=(8, 8)) + 3.0
    X[:, 5] = X[:, 4] - 2 * X[:, 3]
    Y = X @ rng.normal(size=(8, 2)) + rng.normal(size=(120, 2))
    X[rng.random(X.shape) < 0.05] = np.nan
    return X, Y, rng.choice([0.0, 1.0, 2.5], size=120)


@cache
def trained(alpha: float | str = ALPHA) -> Model:
    X, Y, weights = rows()
    return AnytimeRegressor(GROUPS, alpha=alpha, cv=3).fit(X, Y, sample_weight=weights).model_  # type: ignore[arg-type]


X_NEW = np.random.default_rng(8).normal(size=(3, 8)) * 4


def answered(model: Model, names: Any, **options: Any) -> Any:
    prediction = opened(model, {name: X_NEW[:, SLICES[name]] for name in names}, len(X_NEW))
    return prediction.answer(**{"policy": "arrived"} | options)


def ridge(names: tuple[str, ...]) -> tuple[Float, float, float]:
    """Predictions of ridge regression on these groups alone, its F and its R², from the rows."""
    X, Y, w = rows()
    mean = np.array([np.average(x[~np.isnan(x)], weights=w[~np.isnan(x)]) for x in X.T])
    X = np.where(np.isnan(X), mean, X)
    y_mean = np.average(Y, axis=0, weights=w)
    x_scale = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=w))
    y_scale = np.sqrt(np.average((Y - y_mean) ** 2, axis=0, weights=w))
    used = np.concatenate([np.arange(8)[SLICES[name]] for name in names] or [np.empty(0, dtype=int)])
    Z = ((X - mean) / x_scale)[:, used] * np.sqrt(w / w.sum())[:, np.newaxis]
    T = (Y - y_mean) / y_scale * np.sqrt(w / w.sum())[:, np.newaxis]
    # Least squares on rows with sqrt(alpha) I below them.
    W = np.linalg.lstsq(np.vstack([Z, np.sqrt(ALPHA) * np.eye(len(used))]), np.vstack([T, np.zeros((len(used), 2))]))[0]
    explained = 0.5 * float(np.sum((Z.T @ T) * W))
    predicted: Float = y_mean + ((X_NEW - mean) / x_scale)[:, used] @ W * y_scale
    return predicted, explained, 1.0 - float(np.sum(np.square(T - Z @ W))) / 2


@pytest.mark.parametrize("names", SETS, ids="+".join)
def test_any_set_is_answered_by_ridge_regression_on_it_from_the_rows(names: tuple[str, ...]) -> None:
    answer = answered(trained(), names)
    predicted, explained, r2 = ridge(names)
    np.testing.assert_allclose(answer.prediction, predicted, rtol=1e-8, atol=1e-8)
    assert answer.expected.explained_variance == pytest.approx(explained, rel=1e-8)
    assert answer.expected.r2 == pytest.approx(r2, rel=1e-8)
    assert answer.groups == trained().order(names)
    visit = 2.0 if {"b", "c"} & set(names) else 0.0
    assert answer.cost == pytest.approx(visit + sum(g["cost"] for g in GROUPS["groups"] if g["name"] in names))
    assert (answer.policy, answer.note) == ("arrived", None)


@pytest.mark.parametrize("alpha", [ALPHA, "cv"])
def test_a_set_that_is_a_prefix_has_the_answer_of_that_prefix_and_is_expected_to_be_as_good(alpha: float | str) -> None:
    model = trained(alpha)
    for needed in model.needed:
        here, there = answered(model, needed), answered(model, needed, policy="prefix")
        assert here == replace(
            there, policy="arrived", cost=here.cost, cost_total=here.cost_total, expected=here.expected
        )
        assert here.expected.cv_error == there.expected.cv_error
        assert (here.cost, here.expected.r2) == pytest.approx((there.cost, there.expected.r2), rel=1e-9)


@pytest.mark.parametrize("budget", [0.0, 0.25, 1.0, 2.25, 2.75, 3.75 * (1 - 1e-12), 4.0, 7.75, 100.0])
@pytest.mark.parametrize("names", SETS[::3], ids="+".join)
def test_a_budget_takes_arrived_groups_in_sequence_order_while_their_joint_cost_fits(
    names: tuple[str, ...], budget: float
) -> None:
    selected: list[str] = []
    for name in trained().order(names):
        cost = sum(group["cost"] for group in GROUPS["groups"] if group["name"] in [*selected, name])
        cost += 2.0 if {"b", "c"} & {*selected, name} else 0.0
        if cost > budget * (1 + 1e-9):
            break
        selected.append(name)
    answer = answered(trained(), names, budget=budget)
    assert answer.groups == tuple(selected)
    assert answer.cost <= budget * (1 + 1e-9)
    np.testing.assert_allclose(answer.prediction, ridge(tuple(selected))[0], rtol=1e-8, atol=1e-8)


def test_nulls_are_listed_for_the_groups_that_are_used() -> None:
    prediction = opened(trained(), {"c": [None, 1.0, None]})
    assert prediction.answer().imputed == ()
    assert prediction.answer(policy="arrived").imputed == ("c0", "c2")
    assert prediction.answer(0.0, "arrived").imputed == ()


def test_few_solved_sets_are_kept_and_the_least_used_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrived, "MAX_SETS", 4)
    model = trained.__wrapped__()
    first = arrived_model(model, frozenset("ab"))
    for names in SETS:
        arrived_model(model, frozenset(names))
        assert arrived_model(model, frozenset("ab")) is first
        assert len(arrived.solved_sets(model).sets) <= 4
    gone = frozenset(SETS[1])
    assert gone not in arrived.solved_sets(model).sets
    np.testing.assert_array_equal(arrived_model(model, gone).coef, arrived_model(trained(), gone).coef)


def test_what_was_solved_goes_with_its_model() -> None:
    model = trained.__wrapped__()
    before = len(arrived._SOLVED._models)
    arrived_model(model, frozenset("a"))
    assert len(arrived._SOLVED._models) == before + 1
    del model
    gc.collect()
    assert len(arrived._SOLVED._models) == before


def test_many_threads_get_what_one_thread_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrived, "MAX_SETS", 5)
    model = trained()
    expected = {names: answered(trained(), names).prediction for names in SETS}
    requested = [SETS[i] for i in np.random.default_rng(0).integers(len(SETS), size=400)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda names: answered(model, names).prediction, requested))
    assert found == [expected[names] for names in requested]


# Likelihoods: one Newton step from the nearest prefix.


def responses(family: str) -> Float:
    """The responses that `likely` is trained on."""
    _, Y, _ = rows()
    signal = (Y[:, 0] - Y[:, 0].mean()) / Y[:, 0].std()
    if family == "poisson":
        return np.asarray(np.random.default_rng(2).poisson(np.exp(0.7 * signal)), dtype=np.float64)
    noisy = signal + 0.8 * np.random.default_rng(1).normal(size=len(Y))
    return np.asarray(np.digitize(noisy, [0.2] if family == "binomial" else [-0.4, 0.5]), dtype=np.float64)


def likely(family: str, alpha: float | str = ALPHA) -> Model:
    X, _, weights = rows()
    made: Any = AnytimeRegressor if family == "poisson" else AnytimeClassifier
    model: Model = made(GROUPS, family=family, alpha=alpha).fit(X, responses(family), sample_weight=weights).model_
    return model


def newton_step(model: Model, names: tuple[str, ...]) -> Float:
    """Scores of X_NEW after one explicit Newton step from the prefix nearest to a set, on the rows."""
    X, _, w = rows()
    y, family = responses(model.manifest.family), model.manifest.family
    mean = np.array([np.average(x[~np.isnan(x)], weights=w[~np.isnan(x)]) for x in X.T])
    X = np.where(np.isnan(X), mean, X)
    scale = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=w))
    Z = np.column_stack([np.ones(len(X)), (X - mean) / scale])
    wanted = [j for name in names for j in range(8)[SLICES[name]]]
    prefixes = [
        [j for step in model.manifest.steps[:k] for name in step.adds for j in range(8)[SLICES[name]]]
        for k in range(model.steps + 1)
    ]
    nearest = max(range(model.steps + 1), key=lambda k: 2 * len(set(prefixes[k]) & set(wanted)) - len(prefixes[k]))
    alpha = [model.manifest.alpha, *(step.alpha for step in model.manifest.steps)][nearest]
    # The optimum of that prefix, by Newton steps of its own.
    used = [0, *(j + 1 for j in prefixes[nearest])]

    def derivatives(theta: Float) -> tuple[Float, Float]:
        eta = Z @ theta
        p = np.exp(eta) if family == "poisson" else 1 / (1 + np.exp(-eta))
        h = p if family == "poisson" else p * (1 - p)
        return Z.T @ (w * (y - p)) / w.sum(), Z.T @ ((w * h)[:, np.newaxis] * Z) / w.sum()

    theta = np.zeros(9)
    theta[0] = np.log(np.average(y, weights=w)) if family == "poisson" else 0.0
    for _ in range(50):
        u, H = derivatives(theta)
        penalty = alpha * np.array([0.0, *[1.0] * (len(used) - 1)])
        theta[used] += np.linalg.lstsq(H[np.ix_(used, used)] + np.diag(penalty), u[used] - penalty * theta[used])[0]
    u, H = derivatives(theta)
    chosen = [0, *(j + 1 for j in wanted)]
    r = (H @ theta + u)[chosen]
    step = np.linalg.solve(H[np.ix_(chosen, chosen)] + alpha * np.diag([0.0, *[1.0] * len(wanted)]), r)
    scores: Float = np.column_stack([np.ones(len(X_NEW)), ((X_NEW - mean) / scale)])[:, chosen] @ step
    return scores


LIKELY = Lazy(
    {family: partial(likely, family) for family in ("binomial", "poisson", "multinomial")}
    | {f"{family} cv": partial(likely, family, "cv") for family in ("binomial", "poisson")}
)


@pytest.mark.parametrize("names", SETS, ids="+".join)
@pytest.mark.parametrize("kind", ["binomial", "poisson", "binomial cv", "poisson cv"])
def test_any_set_of_a_likelihood_is_one_newton_step_from_the_nearest_prefix(kind: str, names: tuple[str, ...]) -> None:
    model = LIKELY[kind]
    answer = answered(model, names)
    found = arrived_model(model, frozenset(names))
    is_prefix = frozenset(names) in model.needed
    assert found.approximate == (not is_prefix)
    assert answer.policy == "arrived"
    assert answer.groups == model.order(names)
    if is_prefix:
        there = answered(model, names, policy="prefix")
        assert (answer.prediction, answer.probabilities) == (there.prediction, there.probabilities)
        return
    scores = newton_step(model, names)
    if model.manifest.family == "poisson":
        np.testing.assert_allclose(answer.prediction, np.exp(scores), rtol=1e-5)
    else:
        np.testing.assert_allclose(np.array(answer.probabilities)[:, 1], 1 / (1 + np.exp(-scores)), atol=1e-6)
    assert answer.expected.cv_error is None


BARE: Lazy[str, Model] = Lazy(
    {
        "least squares": lambda: replace(trained(), moments=None),
        "binomial": lambda: replace(LIKELY["binomial"], curvatures=None),
        "multinomial": lambda: LIKELY["multinomial"],
    }
)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("least squares", "without its moments"),
        ("binomial", "without its moments"),
        ("multinomial", "multinomial models answer for prefixes only"),
    ],
)
def test_a_model_without_optima_of_sets_answers_by_the_prefix_and_says_so(kind: str, why: str) -> None:
    for names in (NAMES, NAMES[1:], []):
        here, there = answered(BARE[kind], names), answered(BARE[kind], names, policy="prefix")
        assert here == replace(there, note=here.note)
        assert (here.policy, there.note) == ("prefix", None)
        assert why in here.note
    with pytest.raises(ValuesError, match=why):
        arrived_model(BARE[kind], frozenset())
