"""A model re-sequenced is the model that training would have given, without the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anytime.errors import GroupsError, TrainingError
from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.groups import load_groups
from anytime.model.manifest import Stopped
from anytime.model.model import Model
from anytime.moments.accumulate import Block, moments_of
from anytime.target import Target
from anytime.training.likelihood import Observed
from anytime.training.resequencing import Changes, Retrained, resequence
from models import literal
from models.refusals import assert_refused

pytestmark = pytest.mark.usefixtures("linear_by_default")

ALPHA = 1e-3
SIZES = (2, 1, 3, 1, 2)
NAMES = tuple("abcde")


def groups(names: tuple[str, ...] = NAMES, **costs: float) -> dict[str, Any]:
    """Groups a to e; b requires a."""
    content: list[dict[str, Any]] = []
    for g, (name, size) in enumerate(zip(NAMES, SIZES, strict=True)):
        if name in names:
            features = [f"x{sum(SIZES[:g]) + j}" for j in range(size)]
            requires = ["a"] if name == "b" else []
            content.append({"name": name, "features": features, "cost": costs.get(name, 1.0 + g), "requires": requires})
    bases = {feature: {"missing": False} for group in content for feature in group["features"]}
    return {"cost_unit": "ms", "groups": content, "bases": bases}


def table(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(300, sum(SIZES)))
    X[:, 1:] += 0.6 * X[:, :-1]
    return X, X @ rng.normal(size=sum(SIZES)) + rng.normal(size=300)


RIDGE = literal.Rows(*literal.standardise(*table()), ALPHA)


def columns(*names: str) -> list[int]:
    starts = np.concatenate([[0], np.cumsum(SIZES)])
    return [j for g, name in enumerate(NAMES) if name in names for j in range(starts[g], starts[g + 1])]


def trained(names: tuple[str, ...] = NAMES, **options: Any) -> Model:
    X, y = table()
    kept = columns(*names)
    content = groups(names)
    names_of = {f"x{j}": f"x{place}" for place, j in enumerate(kept)}
    for group in content["groups"]:
        group["features"] = [names_of[feature] for feature in group["features"]]
    content["bases"] = {feature: {"missing": False} for feature in names_of.values()}
    return AnytimeRegressor(content, **({"alpha": ALPHA} | options)).fit(X[:, kept], y).model_


def check_same(found: Model, expected: Model) -> None:
    assert [step.adds for step in found.manifest.steps] == [step.adds for step in expected.manifest.steps]
    one, other = ([step.explained_variance for step in each.manifest.steps] for each in (found, expected))
    np.testing.assert_allclose(one, other, rtol=1e-9)
    np.testing.assert_allclose(found.prefixes.packed, expected.prefixes.packed, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "omp"},
        {"method": "single"},
        {"method": "no-whiten"},
        {"method": "sparse"},
        {"alpha": 0.5},
        {"cost_blind": True},
        {"doubling": True},
    ],
    ids=str,
)
def test_by_another_rule_it_is_what_training_gives(options: dict[str, Any]) -> None:
    check_same(resequence(trained(), changes=Changes(**options)), trained(**options))


def test_what_was_on_can_be_switched_off() -> None:
    check_same(resequence(trained(cost_blind=True), changes=Changes(cost_blind=False)), trained())


@pytest.mark.parametrize("without", [("c",), ("e", "d"), ("b",), ("a", "b")], ids=str)
def test_without_some_groups_it_is_what_training_gives_without_them(without: tuple[str, ...]) -> None:
    found = resequence(trained(), changes=Changes(without=without))
    check_same(found, trained(tuple(name for name in NAMES if name not in without)))
    assert found.manifest.stopped == Stopped(rule=None, steps=len(found.manifest.steps), left_out=without)
    check_same(resequence(found, load_groups(groups())), found)


@pytest.mark.parametrize("method", ["fr", "omp", "sparse"])
@pytest.mark.parametrize(
    ("first", "expected"),
    [(("e",), [("e",)]), (("d", "c"), [("d",), ("c",)]), (("b",), [("a", "b")]), (("b", "a"), [("a", "b")])],
    ids=str,
)
def test_what_is_forced_goes_first_after_what_it_requires(
    method: Any, first: tuple[str, ...], expected: list[tuple[str, ...]]
) -> None:
    found = resequence(trained(method=method), changes=Changes(first=first))
    steps = [step.adds for step in found.manifest.steps]
    assert steps[: len(expected)] == expected
    assert sorted(name for adds in steps for name in adds) == list(NAMES)
    X, y = table()
    for prefix in range(len(steps) + 1):
        held = columns(*(name for adds in steps[:prefix] for name in adds))
        ridge = y.mean() + y.std() * (RIDGE.Y - RIDGE.residuals(held))
        np.testing.assert_allclose(found.prefixes.predict(X, prefix), ridge, atol=1e-9)
    assert found.manifest.guarantee.gamma is None
    assert "the user chose" in found.manifest.guarantee.why


@pytest.mark.parametrize("forced", [("b",), ("c",), ("e",)], ids=str)
def test_after_what_is_forced_the_rest_is_the_best_for_its_cost(forced: tuple[str, ...]) -> None:
    costs = dict(zip(NAMES, (1.0, 9.0, 2.0, 4.0, 0.5), strict=True))
    costed = load_groups(groups(NAMES, **costs))
    found = resequence(trained(), costed, changes=Changes(first=forced))
    taken = [name for name in NAMES if name in forced or (name == "a" and "b" in forced)]
    expected = list(taken)
    while len(expected) < len(NAMES):
        left = [name for name in NAMES if name not in expected and (name != "b" or "a" in expected)]
        gains = {name: RIDGE.gain(columns(*expected), columns(name)) for name in left}
        # b is so dear that to buy a with it is never the best.
        expected.append(max(left, key=lambda name: gains[name] / costs[name]))
    assert [name for step in found.manifest.steps for name in step.adds] == expected
    own = [name for step in resequence(trained(), costed).manifest.steps for name in step.adds]
    assert own[: len(taken)] != taken, "what is forced is not what would have come first"


def test_groups_stay_first_until_they_are_placed_otherwise_or_left_out() -> None:
    led = resequence(trained(), changes=Changes(first=("e", "c")))
    assert led.manifest.first == ("e", "c")
    check_same(resequence(led, load_groups(groups())), led)
    assert resequence(led, changes=Changes(first=("d",))).manifest.first == ("d",)
    check_same(resequence(led, changes=Changes(first=())), trained())
    without = resequence(led, changes=Changes(without=("e",))).manifest
    assert without.first == without.steps[0].adds == ("c",)


def classes_of(name: str, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> Retrained:
    """Rows of two classes."""
    Y = (y > 0).astype(float)[:, np.newaxis]
    observed = Observed([Block(X, Y, weights)], Target("binary", ("y",), (False, True)), 1)
    return Retrained(name, moments_of(X, Y, weights), observed)


def test_provenance_is_that_of_the_rows_which_the_new_model_is_fitted_on() -> None:
    X, y = table()
    X[:30, 0] = np.nan
    model = AnytimeClassifier(groups(), alpha=ALPHA, cv=3, random_state=0).fit(X, y > 0).model_
    assert (model.manifest.provenance.imputed, model.manifest.provenance.folds) == (("x0",), 3)
    X, y = (each[:100] for each in table(1))
    origin = resequence(model, data=classes_of("new.csv", X, y, np.full(100, 0.5))).manifest.provenance
    assert (origin.data, origin.rows, origin.weight, origin.imputed) == ("new.csv", 100, 50.0, ())
    assert (origin.folds, origin.seed) == (None, None)


def test_provenance_names_no_feature_that_was_left_out() -> None:
    X, y = table()
    X[:30, 0] = X[:20, 3] = np.nan
    model = AnytimeRegressor(groups(), alpha=ALPHA).fit(X, y).model_
    assert model.manifest.provenance.imputed == ("x0", "x3")
    origin = resequence(model, changes=Changes(without=("c",))).manifest.provenance
    assert (origin.imputed, origin.rows, origin.data) == (("x0",), 300, "memory")


def test_a_doubling_sequence_with_forced_steps_promises_nothing() -> None:
    found = resequence(trained(doubling=True), changes=Changes(first=("e",)))
    assert found.manifest.steps[0].adds == ("e",)
    assert found.manifest.guarantee.doubling_until == 0


def test_a_likelihood_is_fitted_on_its_rows_again() -> None:
    X, y = table()
    model = AnytimeClassifier(groups(), alpha=ALPHA).fit(X, y > 0).model_
    changes = Changes(first=("e",), without=("c",))
    kept = changes.options(model.manifest).remaining(model.groups)
    found = resequence(model, data=classes_of("rows.csv", X[:, columns("a", "b", "d", "e")], y), changes=changes)
    assert kept.names == found.groups.names == ("a", "b", "d", "e")
    assert found.manifest.steps[0].adds == ("e",)
    assert found.manifest.provenance.data == "rows.csv"
    assert_refused(lambda: resequence(model, changes=changes), "is fitted on rows; add data=", error=TrainingError)


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        (Changes(without=("nobody",)), GroupsError, "there is no group 'nobody'"),
        (Changes(first=("nobody",)), GroupsError, "there is no group 'nobody'"),
        (Changes(without=("a",)), GroupsError, "group 'b' requires 'a', which is left out; leave out both"),
        (Changes(without=("c",), first=("c",)), GroupsError, "group 'c' is both placed first and left out"),
        (Changes(without=NAMES), GroupsError, "all groups are left out; keep at least one"),
        (Changes(alpha=-1.0), TrainingError, "alpha is -1"),
    ],
    ids=str,
)
def test_groups_and_penalties_that_cannot_be_are_refused(changes: Changes, error: type[Exception], why: str) -> None:
    assert_refused(lambda: resequence(trained(), changes=changes), why, error=error)
