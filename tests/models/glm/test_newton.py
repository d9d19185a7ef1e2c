"""The optimum of a likelihood is found or refused in few steps, by either solver, on any data that a table may hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from anytime import AnytimeClassifier, AnytimeRegressor
from anytime.errors import TrainingError
from anytime.families import family_of
from anytime.glm import newton, search
from anytime.glm.design import View
from anytime.glm.newton import ROUGH, Optimum, SeparatedError, optimum
from anytime.glm.row_blocks import BlockDesign, BlockView, row_blocks_of
from anytime.glm.search import base_rate
from anytime.moments.accumulate import Block, moments_of
from anytime.moments.moments import Gram
from anytime.selection import Rule
from anytime.types import Float
from models import literal
from models.likelihood_problems import KINDS, NUMBERS, OPTIMUM, Case, cases, clean
from models.literal_likelihood import Family, LikelihoodRows
from models.properties import quick


def design_of(family: Family, X: Float, Y: Float, weights: Float | None = None) -> BlockDesign:
    moments = moments_of(X, Y, weights)
    gram = Gram.of(moments)
    blocks = row_blocks_of([Block(X, Y, weights)], gram)
    return BlockDesign(gram, family_of(family), moments.weight, np.ones(X.shape[1]), row_blocks=blocks)


def solved(design: BlockDesign, alpha: float, columns: Sequence[int] | None = None) -> Optimum:
    """The optimum of some columns (all by default), from the base rate."""
    chosen = np.arange(len(design.gram.x_mean)) if columns is None else np.array(columns, dtype=np.intp)
    base, view = base_rate(design), design.view(chosen)
    start = np.vstack([base.theta, np.zeros((len(chosen), base.theta.shape[1]))])
    scale = float(np.abs(view.evaluate(view.predictors(start)).score).max())
    return optimum(view, alpha, start, scale)


def symmetric(design: BlockDesign, theta: Float) -> Float:
    """Coefficients of the responses."""
    return design.family.scores(theta)


# The optimum is the literal one, whatever solves for a step.


@pytest.fixture(params=["dense", "conjugate"])
def solver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "conjugate":
        monkeypatch.setattr(newton, "DENSE_ONE", 0)
        monkeypatch.setattr(newton, "DENSE_MANY", 0)
    return str(request.param)


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.usefixtures("solver")
def test_the_optimum_is_the_literal_one(family: Family) -> None:
    @quick(max_examples=20)
    @given(cases((family,)))
    def check(case: Case) -> None:
        design = design_of(family, case.X, case.Y, case.weights)
        found = solved(design, case.alpha)
        wanted = case.rows().minimum(range(case.X.shape[1]))
        assert found.objective == pytest.approx(wanted.objective, rel=1e-9, abs=1e-9)
        atol = OPTIMUM * (1 + np.abs(wanted.theta).max())
        np.testing.assert_allclose(symmetric(design, found.theta), wanted.theta, rtol=0, atol=atol)

    check()


@pytest.mark.parametrize("family", KINDS)
def test_both_solvers_find_the_same(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    case = clean(family, 0.7, 0)
    design = design_of(family, case.X, case.Y)
    dense = solved(design, 1e-4)
    monkeypatch.setattr(newton, "DENSE_ONE", 0)
    monkeypatch.setattr(newton, "DENSE_MANY", 0)
    conjugate = solved(design, 1e-4)
    np.testing.assert_allclose(conjugate.theta, dense.theta, rtol=OPTIMUM, atol=OPTIMUM)
    assert conjugate.objective == pytest.approx(dense.objective, rel=1e-12)


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.usefixtures("solver")
def test_single_precision_of_the_steps_does_not_move_the_optimum(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = clean(family, 0.7, 0)
    design = design_of(family, case.X, case.Y)
    rough = solved(design, 1e-3)
    monkeypatch.setattr(newton, "SINGLE", np.inf)
    exact = solved(design, 1e-3)
    assert (rough.theta != exact.theta).any() or (newton.DENSE_MANY == 0 and family != "multinomial")
    np.testing.assert_allclose(rough.theta, exact.theta, rtol=0, atol=1e-7)


@quick(max_examples=40)
@given(st.sampled_from(KINDS), st.integers(0, 2**32 - 1), st.sampled_from((0.0, 1e-5, 1e-2)))
def test_well_posed_problems_take_few_steps(family: Family, seed: int, alpha: float) -> None:
    case = clean(family, 0.5, seed)
    # Most steps reuse second derivatives: there are more of them, but each takes two light passes.
    assert solved(design_of(family, case.X, case.Y), alpha).iterations <= 40


@pytest.mark.parametrize("family", KINDS)
def test_without_a_penalty_the_gradient_vanishes_and_columns_that_add_nothing_have_no_coefficient(
    family: Family,
) -> None:
    case = clean(family, 0.5, 1)
    X = np.column_stack([case.X, case.X[:, 0], case.X[:, 1] - 2 * case.X[:, 2], np.full(len(case.X), 3.0)])
    design = design_of(family, X, case.Y)
    found = solved(design, 0.0)
    view = design.view(np.arange(X.shape[1]))
    assert np.abs(view.evaluate(view.predictors(found.theta)).score).max() < 1e-6
    assert (found.theta[-3:] == 0).all()
    wanted = solved(design_of(family, case.X, case.Y), 0.0)
    np.testing.assert_allclose(found.theta[:-3], wanted.theta, rtol=1e-6, atol=1e-7)


# Separation.


def overlap() -> tuple[Float, Float]:
    """A feature, and noise beside it."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, 2)), rng.normal(size=60)


def complete() -> tuple[Float, Float]:
    X, _ = overlap()
    return X, (X[:, :1] > 0).astype(np.float64)


def quasi_complete() -> tuple[Float, Float]:
    """On one side of the line both classes, on the other one only: a level of a factor with one class."""
    X, noise = overlap()
    X[:, 0] = np.arange(60) % 3 == 0
    return X, ((X[:, 0] == 1) | (noise > 0)).astype(np.float64)[:, np.newaxis]


def complete_by_a_hair() -> tuple[Float, Float]:
    """The nearest rows of the two classes are a millionth apart."""
    X, _ = overlap()
    X[0, 0], X[1, 0] = -1e-6, 1e-6
    return X, (X[:, :1] > 0).astype(np.float64)


def one_class_apart() -> tuple[Float, Float]:
    """Three classes, of which one can be told from the others and these not from each other."""
    X, noise = overlap()
    codes = np.where(X[:, 0] > 0.3, 2, (noise > 0).astype(int))
    return X, (codes[:, np.newaxis] == np.arange(3)).astype(np.float64)


def all_apart() -> tuple[Float, Float]:
    X, _ = overlap()
    codes = np.digitize(X[:, 0], [-0.4, 0.4])
    return X, (codes[:, np.newaxis] == np.arange(3)).astype(np.float64)


def no_count_at_a_level() -> tuple[Float, Float]:
    X, _ = overlap()
    X[:, 0] = np.arange(60) % 3 == 0
    return X, np.where(X[:, :1] == 1, 0.0, 1.0 + np.arange(60)[:, np.newaxis] % 4)


def counts_of_one_row() -> tuple[Float, Float]:
    X, _ = overlap()
    X[:, 0] = np.arange(60) == 7
    return X, (np.arange(60)[:, np.newaxis] == 7) * 5.0


SEPARATED: dict[str, tuple[Family, Any]] = {
    "complete": ("binomial", complete),
    "quasi-complete": ("binomial", quasi_complete),
    "by a hair": ("binomial", complete_by_a_hair),
    "one class apart": ("multinomial", one_class_apart),
    "all classes apart": ("multinomial", all_apart),
    "no count at a level": ("poisson", no_count_at_a_level),
    "counts of one row": ("poisson", counts_of_one_row),
}


def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the evaluations of the loss's derivatives."""
    counted: list[int] = []
    evaluate = BlockView.evaluate

    def counting(self: BlockView, *arguments: Any, **options: Any) -> Any:
        counted.append(1)
        return evaluate(self, *arguments, **options)

    monkeypatch.setattr(BlockView, "evaluate", counting)
    return counted


@pytest.mark.parametrize("name", SEPARATED)
def test_separation_is_told_at_alpha_0_after_few_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, made = SEPARATED[name]
    X, Y = made()
    counted = passes(monkeypatch)
    with pytest.raises(SeparatedError):
        solved(design_of(family, X, Y), 0.0)
    assert 0 < len(counted) < 120


@pytest.mark.parametrize("alpha", [1e-2, 1e-5, 1e-7])
@pytest.mark.parametrize("name", SEPARATED)
def test_with_a_penalty_what_is_separated_has_its_literal_optimum(name: str, alpha: float) -> None:
    family, made = SEPARATED[name]
    X, Y = made()
    design = design_of(family, X, Y)
    found = solved(design, alpha)
    wanted = LikelihoodRows(literal.standardise(X, Y)[0], Y, family, alpha).minimum([0, 1])
    np.testing.assert_allclose(symmetric(design, found.theta), wanted.theta, rtol=1e-4, atol=1e-4)
    assert found.objective == pytest.approx(wanted.objective, abs=1e-10)


@pytest.mark.parametrize("name", SEPARATED)
def test_the_estimators_say_which_groups_separate_and_what_to_do(name: str) -> None:
    family, made = SEPARATED[name]
    X, Y = made()
    y = Y[:, 0] if Y.shape[1] == 1 else Y.argmax(axis=1)
    kind: Any = AnytimeRegressor if family in NUMBERS else AnytimeClassifier
    with pytest.raises(TrainingError) as caught:
        kind(family=family, alpha=0.0).fit(X, y)
    assert "'x0'" in str(caught.value) or "'x1'" in str(caught.value)
    assert "alpha 0" in str(caught.value)
    assert "choose an alpha above 0" in str(caught.value)
    kind(family=family, alpha=1e-5).fit(X, y)
    if name != "counts of one row":  # which no other fold could tell of
        assert kind(family=family, alpha="cv", cv=3).fit(X, y).curve_.cv_error is not None


@pytest.mark.parametrize("family", KINDS)
def test_a_penalty_of_zero_is_no_error_where_nothing_is_separated(family: Family) -> None:
    case = clean(family, 0.3, 2)
    y = case.Y[:, 0] if case.Y.shape[1] == 1 else case.Y.argmax(axis=1)
    kind: Any = AnytimeRegressor if family in NUMBERS else AnytimeClassifier
    estimator = kind(family=family, alpha=0.0).fit(case.X, y)
    np.testing.assert_allclose(
        list(estimator.staged_predict(case.X))[-1],
        list(kind(family=family, alpha=1e-9).fit(case.X, y).staged_predict(case.X))[-1],
        rtol=1e-4,
    )


# Extreme values.


@pytest.mark.parametrize("size", [1e4, 1e6, 1e9])
@pytest.mark.parametrize("alpha", [1e-5, 1e-2])
def test_large_counts_are_fitted(size: float, alpha: float) -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 3))
    counts = np.floor(size * np.exp(X @ [0.5, -1.0, 0.0] + 0.3 * rng.normal(size=200)))
    Y = counts[:, np.newaxis]
    design = design_of("poisson", X, Y)
    found = solved(design, alpha)
    wanted = LikelihoodRows(literal.standardise(X, Y)[0], Y / size, "poisson", alpha / size).minimum(range(3))
    np.testing.assert_allclose(found.theta[1:], wanted.theta[1:], rtol=1e-6, atol=1e-6)
    assert found.theta[0, 0] == pytest.approx(wanted.theta[0, 0] + np.log(size), rel=OPTIMUM)
    assert found.iterations <= 30


@pytest.mark.parametrize("family", KINDS)
def test_columns_of_any_magnitude_and_outliers_are_fitted(family: Family) -> None:
    case = clean(family, 0.3, 4)
    X = case.X * 10.0 ** np.array([-150, -30, -8, 0, 0, 8, 30, 100, 0])[: case.X.shape[1]] + [
        0,
        0,
        0,
        1e6,
        0,
        0,
        0,
        0,
        0,
    ]
    X[7, 4] = 1e9
    design = design_of(family, X, case.Y)
    found = solved(design, 1e-4)
    wanted = LikelihoodRows(literal.standardise(X, case.Y)[0], case.Y, family, 1e-4).minimum(range(X.shape[1]))
    atol = OPTIMUM * (1 + np.abs(wanted.theta).max())
    np.testing.assert_allclose(symmetric(design, found.theta), wanted.theta, rtol=0, atol=atol)


def test_a_count_far_beyond_the_others_is_fitted() -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(100, 2))
    Y = rng.poisson(1.0, size=(100, 1)).astype(np.float64)
    Y[3], X[3] = 1e7, [6.0, -6.0]
    design = design_of("poisson", X, Y)
    found = solved(design, 1e-3)
    wanted = LikelihoodRows(literal.standardise(X, Y)[0], Y, "poisson", 1e-3).minimum([0, 1])
    np.testing.assert_allclose(found.theta, wanted.theta, rtol=1e-3)  # the loss is that of one count of 10,000,000


def test_classes_of_a_thousandth_are_fitted() -> None:
    rng = np.random.default_rng(6)
    X = rng.normal(size=(4000, 3))
    rare = (rng.random(4000) < expit(X[:, 0] - 7.5)).astype(np.float64)
    rare[:3] = 1
    for Y in (rare[:, np.newaxis], 1 - rare[:, np.newaxis]):
        design = design_of("binomial", X, Y)
        wanted = LikelihoodRows(literal.standardise(X, Y)[0], Y, "binomial", 1e-5).minimum(range(3))
        np.testing.assert_allclose(solved(design, 1e-5).theta, wanted.theta, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_what_is_known_of_a_start_is_measured_there(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step of a loose fit predicts its loss; a line search that begins with that may never see it fall."""
    gaps = []

    def recorded(view: View, alpha: float, start: Float, *args: Any, **options: Any) -> Optimum:
        known, there = options["known"], view.evaluate(view.predictors(start))
        gaps.append(abs(known.loss - there.loss))
        np.testing.assert_allclose(known.score, there.score, rtol=0, atol=1e-9)
        return optimum(view, alpha, start, *args, **options)

    monkeypatch.setattr(search, "optimum", recorded)
    case = clean(family, 0.7, 0)
    search.likelihood_sequence(design_of(family, case.X, case.Y), case.groups, Rule("fr"), 1e-4, stop=ROUGH)
    assert len(gaps) == len(case.groups)
    assert max(gaps) < 1e-13


@pytest.mark.parametrize("family", KINDS)
def test_any_start_leads_to_the_same_optimum(family: Family) -> None:
    case = clean(family, 0.5, 7)
    design = design_of(family, case.X, case.Y)
    wanted = solved(design, 1e-3)
    view = design.view(np.arange(case.X.shape[1]))
    rng = np.random.default_rng(8)
    for far in (0.1, 1.0, 5.0):
        start = wanted.theta + far * rng.normal(size=wanted.theta.shape)
        found = optimum(view, 1e-3, start, 1.0)
        np.testing.assert_allclose(found.theta, wanted.theta, rtol=1e-6, atol=1e-6)


def test_responses_may_be_shares() -> None:
    """Two rows of weight w p and w (1 - p) with classes are one of weight w with the share p."""
    rng = np.random.default_rng(9)
    X, p = rng.normal(size=(50, 2)), rng.random((50, 1))
    whole = solved(design_of("binomial", X, p), 1e-3)
    both = np.vstack([X, X])
    Y = np.repeat([[1.0], [0.0]], 50, axis=0)
    split = solved(design_of("binomial", both, Y, np.concatenate([p[:, 0], 1 - p[:, 0]])), 1e-3)
    np.testing.assert_allclose(whole.theta, split.theta, rtol=1e-7, atol=1e-9)
