"""A model with bases is the linear model of the expanded columns, in training, in moments and in predictions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from anytime.evaluation.certificate.certify import certify
from anytime.features.expansion import Expansion
from anytime.features.learning import Sample, learned_groups
from anytime.groups import FeatureGroups, load_groups
from anytime.loaded import LoadedModel
from anytime.moments.accumulate import Block, fold_moments_of
from anytime.target import Target
from anytime.training.fit import Fit, fit, provenance
from anytime.training.likelihood import Observed
from anytime.training.options import Options
from anytime.training.resequencing import Changes, resequence
from anytime.types import FamilyName, Float
from models.opening import opened
from models.present import present
from models.problems import imputing

GROUPS: dict[str, Any] = {
    "groups": [
        {"name": "person", "features": ["age", "sex"], "cost": 1.0},
        {"name": "visit", "features": [], "cost": 2.0},
        {"name": "ticket", "features": ["fare", "port", "deck"], "cost": 0.5, "requires": ["visit"]},
        {"name": "family", "features": ["size"], "cost": 3.0},
    ],
    "bases": {"age": "hinge:3", "fare": "poly:2", "deck": "hinge:1", "size": {"basis": "hinge", "missing": False}},
}
FAMILIES: list[FamilyName] = ["gaussian", "binomial", "multinomial", "poisson"]
TARGETS = {
    "gaussian": Target("regression", ("a", "b")),
    "binomial": Target("binary", ("y",), (0, 1)),
    "multinomial": Target("multiclass", ("y",), (0, 1, 2)),
    "poisson": Target("count", ("y",)),
}


def columns(rows: int = 400, seed: int = 0) -> dict[str, Any]:
    """Raw columns with gaps: in `age` many, in `deck` few, in `size` many without an indicator."""
    rng = np.random.default_rng(seed)
    found = {
        "age": rng.uniform(1, 80, rows),
        "sex": rng.choice(np.array(["male", "female"], dtype=object), rows),
        "fare": rng.lognormal(3, 1, rows),
        "port": rng.choice(np.array(["Oslo", "Rome", "Bonn", "rare"], dtype=object), rows, p=[0.5, 0.3, 0.19, 0.01]),
        "deck": rng.normal(size=rows),
        "size": rng.integers(0, 4, rows).astype(float),
    }
    found["age"][rng.random(rows) < 0.1] = np.nan
    found["port"][rng.random(rows) < 0.1] = None
    found["deck"][0] = np.nan
    found["size"][rng.random(rows) < 0.1] = np.nan
    return found


def coded(groups: FeatureGroups, raw: dict[str, Any]) -> Float:
    """Raw columns as numbers, levels as their index."""
    readers = Expansion.of(groups).readers
    found: Float = np.column_stack(
        [readers[j].coded(raw[name]) if j in readers else raw[name] for j, name in enumerate(groups.features)]
    )
    return found


def responses(family: FamilyName, X: Float) -> Float:
    rng = np.random.default_rng(5)
    score: Float = np.nan_to_num(X) @ np.array([0.02, 0.5, 0.005, 0.3, -0.4, 0.2]) + rng.normal(size=len(X))
    match family:
        case "gaussian":
            return np.column_stack([score, np.nan_to_num(X[:, 0]) ** 2 / 900 + rng.normal(size=len(X))])
        case "binomial":
            return np.asarray(score > np.median(score), dtype=float)[:, np.newaxis]
        case "multinomial":
            codes = np.digitize(score, np.quantile(score, [0.3, 0.6]))
            return np.asarray(codes[:, np.newaxis] == np.arange(3), dtype=float)
        case _:
            return rng.poisson(np.exp(np.clip(score, -2, 2))).astype(float)[:, np.newaxis]


RAW = columns()
LEARNED = learned_groups(load_groups(GROUPS), Sample(RAW))
X = coded(LEARNED, RAW)


def fitted(table: Float, groups: FeatureGroups, expansion: Any, family: FamilyName, alpha: Any) -> Fit:
    Y = responses(family, X)
    folds, count = (np.arange(len(X)) % 3, 3) if alpha == "cv" else (None, 1)
    parts = fold_moments_of(table, Y, folds=folds, count=count, expansion=expansion, chunk_rows=70)
    observed = None if family == "gaussian" else Observed([Block(table, Y, folds=folds)], TARGETS[family])
    return fit(parts, groups, Options(alpha=alpha, family=family), observed)


def trained(family: FamilyName, alpha: float | str = 0.01) -> Fit:
    """A fit of the raw columns."""
    return fitted(X, LEARNED, Expansion.of(LEARNED).plain, family, alpha)


def trained_on_terms(family: FamilyName, expansion: Expansion, alpha: float | str = 0.01) -> Fit:
    """A linear fit of the terms, which are columns of their own."""
    return fitted(expansion.expand(X), imputing(expansion.terms), None, family, alpha)


def model_of(fitted: Fit, family: FamilyName) -> LoadedModel:
    return LoadedModel.of(fitted.model("m", TARGETS[family], provenance(fitted, "memory")))


def test_columns_with_gaps_in_a_hundredth_of_the_rows_have_an_indicator() -> None:
    terms = trained("gaussian").expansion.terms.features
    assert [term for term in terms if term.endswith("missing")] == ["age is missing", "port is missing"]
    assert "port is other" in terms


@pytest.mark.parametrize("alpha", [0.01, "cv"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_with_bases_is_the_linear_model_of_its_terms(family: FamilyName, alpha: float | str) -> None:
    ours = trained(family, alpha)
    theirs = trained_on_terms(family, ours.expansion, alpha)
    assert [step.adds for step in ours.sequence.steps] == [step.adds for step in theirs.sequence.steps]
    np.testing.assert_array_equal(ours.prefixes.columns, theirs.prefixes.columns)
    # A likelihood's optimum is found to a tolerance of its loss (`likelihood_problems`), whatever the rounding.
    digits = 1e-9 if family == "gaussian" else 1e-5
    np.testing.assert_allclose(ours.prefixes.packed, theirs.prefixes.packed, rtol=digits, atol=digits)
    np.testing.assert_allclose(ours.sequence.explained_variance, theirs.sequence.explained_variance, rtol=1e-9)
    if alpha == "cv":
        np.testing.assert_allclose(ours.errors, theirs.errors, rtol=digits)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_any_set_of_groups_is_answered_as_by_the_linear_model_of_the_terms(family: FamilyName) -> None:
    ours = trained(family)
    theirs = model_of(trained_on_terms(family, ours.expansion), family)
    model, T = model_of(ours, family), ours.expansion.expand(X[:5])
    names = model.groups.featured
    for chosen in itertools.chain.from_iterable(itertools.combinations(names, k) for k in range(len(names) + 1)):
        one, other = model.open(rows=5), theirs.open(rows=5)
        for name in chosen:
            group = model.groups.groups[model.groups.position(name)]
            one.add(name, np.column_stack([RAW[feature][:5] for feature in group.features]).tolist())
            other.add(name, T[:, model.terms.slices[model.groups.position(name)]])
        ours_, theirs_ = one.answer(policy="arrived"), other.answer(policy="arrived")
        digits = 1e-9 if family == "gaussian" else 1e-6
        for a, b in ((ours_.prediction, theirs_.prediction), (ours_.probabilities, theirs_.probabilities)):
            if a is not None:
                np.testing.assert_allclose(a, b, rtol=digits, atol=digits)


def test_a_certificate_is_that_of_the_linear_model_of_the_terms() -> None:
    ours = trained("gaussian")
    theirs = trained_on_terms("gaussian", ours.expansion)
    one, other = (present(certify(model_of(each, "gaussian")).manifest.certificate) for each in (ours, theirs))
    np.testing.assert_allclose(one.bounds, other.bounds, rtol=1e-6)


def test_a_resequenced_model_keeps_its_terms() -> None:
    model = model_of(trained("gaussian"), "gaussian")
    found = resequence(model, changes=Changes(cost_blind=True, without=("family",)))
    assert found.terms.features == tuple(f for f in model.terms.features if not f.startswith("size"))
    alone = resequence(found, changes=Changes(cost_blind=True))
    np.testing.assert_allclose(alone.prefixes.packed, found.prefixes.packed, rtol=1e-9)


def test_an_answer_lists_what_was_clamped_unknown_or_missing() -> None:
    given = {"person": [999.0, "male"], "ticket": [20.0, "Paris", None], "family": [-1]}
    prediction = opened(model_of(trained("gaussian"), "gaussian"), given)
    answer = prediction.answer()
    assert (answer.clamped, {*answer.imputed}) == (("age", "size"), {"port", "deck"})
    prediction.add("person", [30.0, None])
    answer = prediction.answer()
    assert (answer.clamped, {*answer.imputed}) == (("size",), {"port", "deck", "sex"})


@pytest.mark.parametrize("code", [-2.0, 2.0, 0.5])
def test_an_index_of_no_level_is_refused(code: float) -> None:
    prediction = model_of(trained("gaussian"), "gaussian").open()
    with pytest.raises(ValueError, match=r"column 'sex' has .*; expected the index of a level, 0 to 1, or -1"):
        prediction.checked("person", np.array([[30.0, code]]), coded=True)
