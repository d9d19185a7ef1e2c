"""The optimum of a likelihood is found or refused in few steps, by either solver, on any data that a table may hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.special import expit

from anytime import AnytimeClassifier, AnytimeRegressor
from anytime._linalg import conjugate_gradients
from anytime.errors import TrainingError
from anytime.glm import newton
from anytime.glm.newton import Optimum, SeparatedError, optimum
from anytime.glm.row_blocks import BlockDesign, BlockView
from anytime.glm.search import base_rate
from anytime.types import Float
from models import literal
from models.likelihood_problems import KINDS, NUMBERS, OPTIMUM, Case, cases, clean, design_of
from models.literal_likelihood import Family, LikelihoodRows, Minimum
from models.properties import quick


def solved(design: BlockDesign, alpha: float) -> Optimum:
    """The optimum of all columns, from the base rate."""
    base, width = base_rate(design), len(design.gram.x_mean)
    view = design.view(np.arange(width))
    start = np.vstack([base.theta, np.zeros((width, base.theta.shape[1]))])
    return optimum(view, alpha, start, float(np.abs(view.evaluate(view.predictors(start)).score).max()))


def literal_of(family: Family, X: Float, Y: Float, alpha: float) -> Minimum:
    return LikelihoodRows(literal.standardise(X, Y)[0], Y, family, alpha).minimum(range(X.shape[1]))


def check_theta(design: BlockDesign, found: Optimum, wanted: Minimum) -> None:
    """The coefficients of the responses are the literal ones."""
    atol = OPTIMUM * (1 + np.abs(wanted.theta).max())
    np.testing.assert_allclose(design.family.scores(found.theta), wanted.theta, rtol=0, atol=atol)


def estimator_of(family: Family, Y: Float) -> tuple[Any, Float]:
    """The estimator of a family, and the responses as it has them."""
    kind: Any = AnytimeRegressor if family in NUMBERS else AnytimeClassifier
    return partial(kind, family=family, basis="linear"), Y[:, 0] if Y.shape[1] == 1 else Y.argmax(axis=1)


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
        design = case.design()
        found, wanted = solved(design, case.alpha), case.rows().minimum(range(case.X.shape[1]))
        assert found.objective == pytest.approx(wanted.objective, rel=1e-9, abs=1e-9)
        check_theta(design, found, wanted)

    check()


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.usefixtures("solver")
def test_single_precision_of_the_steps_does_not_move_the_optimum(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    design = clean(family, 0.7, 0).design()
    rough = solved(design, 1e-3)
    monkeypatch.setattr(newton, "SINGLE", np.inf)
    exact = solved(design, 1e-3)
    assert (rough.theta != exact.theta).any() or (newton.DENSE_MANY == 0 and family != "multinomial")
    np.testing.assert_allclose(rough.theta, exact.theta, rtol=0, atol=1e-7)


@pytest.mark.parametrize(("classes", "most"), [(4, 3.5), (15, 30.0)])  # without a preconditioner 3.9 and 44
def test_a_step_takes_few_products_however_many_classes_lie_along_a_line(
    classes: int, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newton, "DENSE_MANY", 0)
    rng, counts = np.random.default_rng(0), [0]
    y, X = rng.integers(0, classes, 600), rng.normal(size=(600, 5))
    X[:, 0] += y

    def counted(product: Callable[[Float], Float], *arguments: Any, **options: Any) -> Float:
        def once(p: Float) -> Float:
            counts[-1] += 1
            return product(p)

        counts.append(0)
        return conjugate_gradients(once, *arguments, **options)

    monkeypatch.setattr(newton, "conjugate_gradients", counted)
    solved(design_of("multinomial", X, np.eye(classes)[y]), 1e-5)
    assert 0 < np.mean(counts[1:]) < most


@quick(max_examples=40)
@given(st.sampled_from(KINDS), st.integers(0, 2**32 - 1), st.sampled_from((0.0, 1e-5, 1e-2)))
def test_well_posed_problems_take_few_steps(family: Family, seed: int, alpha: float) -> None:
    # Most steps reuse second derivatives: there are more of them, but each takes two light passes.
    assert solved(clean(family, 0.5, seed).design(), alpha).iterations <= 40


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
    np.testing.assert_allclose(found.theta[:-3], solved(case.design(), 0.0).theta, rtol=1e-6, atol=1e-7)


# Separation.


SIDE, NOISE = np.random.default_rng(0).normal(size=(60, 2)), np.random.default_rng(1).normal(size=60)
ROW = np.arange(60)[:, np.newaxis]
THIRD = ROW % 3 == 0
NEAR = np.vstack([[[-1e-6], [1e-6]], SIDE[2:, :1]])
SEPARATED: dict[str, tuple[Family, Any, Any]] = {
    "complete": ("binomial", SIDE[:, :1], SIDE[:, :1] > 0),
    # On one side of the line both classes, on the other one only: a level of a factor with one class.
    "quasi-complete": ("binomial", THIRD, THIRD | (NOISE[:, np.newaxis] > 0)),
    "by a hair": ("binomial", NEAR, NEAR > 0),
    # Of three classes one differs from the others, and these do not differ from each other.
    "one class apart": (
        "multinomial",
        SIDE[:, :1],
        np.where(SIDE[:, 0] > 0.3, 2, NOISE > 0)[:, np.newaxis] == np.arange(3),
    ),
    "all classes apart": ("multinomial", SIDE[:, :1], np.digitize(SIDE[:, :1], [-0.4, 0.4]) == np.arange(3)),
    "no count at a level": ("poisson", THIRD, np.where(THIRD, 0.0, 1.0 + ROW % 4)),
    "counts of one row": ("poisson", ROW == 7, (ROW == 7) * 5.0),
}
"""Family, the column that separates, and the responses."""


@pytest.fixture(params=SEPARATED)
def separated(request: pytest.FixtureRequest) -> tuple[Family, Float, Float]:
    """Family, that column with one of noise, and responses."""
    family, column, Y = SEPARATED[request.param]
    return family, np.hstack([column, SIDE[:, 1:]]), Y.astype(np.float64)


def test_separation_is_told_at_alpha_0_after_few_steps(separated: tuple[Family, Float, Float]) -> None:
    counting = patch.object(BlockView, "evaluate", autospec=True, side_effect=BlockView.evaluate)
    with counting as counted, pytest.raises(SeparatedError):
        solved(design_of(*separated), 0.0)
    assert 0 < counted.call_count < 120


@pytest.mark.parametrize("alpha", [1e-2, 1e-5, 1e-7])
def test_with_a_penalty_what_is_separated_has_its_literal_optimum(
    separated: tuple[Family, Float, Float], alpha: float
) -> None:
    design, wanted = design_of(*separated), literal_of(*separated, alpha)
    found = solved(design, alpha)
    np.testing.assert_allclose(design.family.scores(found.theta), wanted.theta, rtol=1e-4, atol=1e-4)
    assert found.objective == pytest.approx(wanted.objective, abs=1e-10)


def test_the_estimators_say_which_groups_separate_and_what_to_do(separated: tuple[Family, Float, Float]) -> None:
    family, X, Y = separated
    kind, y = estimator_of(family, Y)
    with pytest.raises(TrainingError, match=r"(?s)(?=.*'x[01]')(?=.*alpha 0)(?=.*choose an alpha above 0)"):
        kind(alpha=0.0).fit(X, y)
    kind(alpha=1e-5).fit(X, y)
    if np.count_nonzero(y) > 1:  # no other fold has the count of a single row
        assert kind(alpha="cv", cv=3).fit(X, y).curve_.cv_error is not None


@pytest.mark.parametrize("family", KINDS)
def test_a_penalty_of_zero_is_no_error_where_nothing_is_separated(family: Family) -> None:
    case = clean(family, 0.3, 2)
    kind, y = estimator_of(family, case.Y)
    without, with_little = (list(kind(alpha=alpha).fit(case.X, y).staged_predict(case.X))[-1] for alpha in (0.0, 1e-9))
    np.testing.assert_allclose(without, with_little, rtol=1e-4)


# Extreme values.


@pytest.mark.parametrize("size", [1e4, 1e6, 1e9])
@pytest.mark.parametrize("alpha", [1e-5, 1e-2])
def test_large_counts_are_fitted(size: float, alpha: float) -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 3))
    Y = np.floor(size * np.exp(X @ [0.5, -1.0, 0.0] + 0.3 * rng.normal(size=200)))[:, np.newaxis]
    found = solved(design_of("poisson", X, Y), alpha)
    wanted = LikelihoodRows(literal.standardise(X, Y)[0], Y / size, "poisson", alpha / size).minimum(range(3))
    np.testing.assert_allclose(found.theta[1:], wanted.theta[1:], rtol=1e-6, atol=1e-6)
    assert found.theta[0, 0] == pytest.approx(wanted.theta[0, 0] + np.log(size), rel=OPTIMUM)
    assert found.iterations <= 30


@pytest.mark.parametrize("family", KINDS)
def test_columns_of_any_magnitude_and_outliers_are_fitted(family: Family) -> None:
    case = clean(family, 0.3, 4)
    X = case.X * 10.0 ** np.array([-150, -30, -8, 0, 0, 8, 30, 100, 0]) + 1e6 * (np.arange(9) == 3)
    X[7, 4] = 1e9
    design = design_of(family, X, case.Y)
    check_theta(design, solved(design, 1e-4), literal_of(family, X, case.Y, 1e-4))


def test_classes_of_a_thousandth_are_fitted() -> None:
    rng = np.random.default_rng(6)
    X = rng.normal(size=(4000, 3))
    rare = (rng.random(4000) < expit(X[:, 0] - 7.5)).astype(np.float64)
    rare[:3] = 1
    for Y in (rare[:, np.newaxis], 1 - rare[:, np.newaxis]):
        found, wanted = solved(design_of("binomial", X, Y), 1e-5), literal_of("binomial", X, Y, 1e-5)
        np.testing.assert_allclose(found.theta, wanted.theta, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", KINDS)
def test_any_start_leads_to_the_same_optimum(family: Family) -> None:
    design = clean(family, 0.5, 7).design()
    wanted, view = solved(design, 1e-3), design.view(np.arange(9))
    rng = np.random.default_rng(8)
    for far in (0.1, 1.0, 5.0):
        np.testing.assert_allclose(
            optimum(view, 1e-3, wanted.theta + far * rng.normal(size=wanted.theta.shape), 1.0).theta,
            wanted.theta,
            rtol=1e-6,
            atol=1e-6,
        )
