"""Generalised linear models agree with the slow literal version, step by step and prefix by prefix, and keep its laws.

Forward regression against refitting; least squares as one family more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product, takewhile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime.glm.search import likelihood_sequence
from anytime.groups import FeatureGroups
from anytime.model.prefixes import staircase
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.selection import Rule, sequence
from anytime.types import Float
from models import literal
from models.judge import check_every_step
from models.likelihood_problems import (
    KINDS,
    METHODS,
    OPTIMUM,
    Case,
    cases,
    clean,
    coefficients,
    design_of,
    order_of,
    responses,
)
from models.literal import Method, columns_of
from models.literal_likelihood import Family, LikelihoodRows
from models.present import present
from models.problems import grouped
from models.properties import quick

# Step by step.


@pytest.mark.parametrize(("family", "method"), list(product(KINDS, METHODS)))
def test_every_step_and_every_prefix_is_the_literal_one(family: Family, method: Method) -> None:
    @quick(max_examples=28)
    @given(cases((family,)), st.booleans(), st.booleans())
    def check(case: Case, cost_blind: bool, doubling: bool) -> None:
        problem, fitted = case.rows(), case.learned(method, cost_blind=cost_blind, doubling=doubling)
        how: dict[str, Any] = {"method": method, "cost_blind": cost_blind, "doubling": doubling}
        check_every_step(problem, case.groups, fitted.sequence, atol=1e-8, **how)
        deviance = present(fitted.learned.deviance)
        # The deviance has no penalty: a step can raise it for smaller coefficients, but not above the base rate's.
        assert (deviance <= deviance[0] * (1 + 1e-12)).all()
        for prefix, end in enumerate(fitted.sequence.ends):
            wanted = problem.coefficients(fitted.sequence.columns[:end].tolist())
            np.testing.assert_allclose(
                coefficients(fitted, prefix), wanted, rtol=0, atol=OPTIMUM * (1 + np.abs(wanted).max())
            )

    check()


# Forward regression: the score test against refitting every candidate.


def gains(problem: LikelihoodRows, groups: FeatureGroups, selected: Sequence[int], left: Sequence[int]) -> Float:
    """The score test and the true gain of each group left, in two rows."""
    there = columns_of(groups, selected)
    now, steps = problem.explained_variance(there), [columns_of(groups, [g]) for g in left]
    return np.array([[problem.gain(there, own), problem.explained_variance([*there, *own]) - now] for own in steps]).T


@pytest.mark.parametrize(("strength", "least", "most"), [(0.02, 0.95, 1.05), (0.3, 0.75, 1.3), (1.0, 0.6, 1.3)])
@pytest.mark.parametrize("family", KINDS)
def test_the_score_test_is_near_the_gain_of_refitting(
    family: Family, strength: float, least: float, most: float
) -> None:
    clear = 0
    for seed in range(3):
        case, selected = clean(family, strength, seed), list[int]()
        problem, costs = case.rows(), case.groups.costs
        for adds in order_of(case.learned("fr")):
            left = [g for g in range(len(costs)) if g not in selected]
            tested, true = gains(problem, case.groups, selected, left)
            if family == "multinomial":  # Boehning's bound rates every group lower, by factors that differ a little
                assert (tested <= true).all()
                tested *= true.sum() / tested.sum()
                least, most = min(least, 0.8), max(most, 1.25)
            assert (tested > least * true).all()
            assert (tested < most * true).all()
            *_, second, first = np.sort([0.0, *(true / costs[left])])
            if len(left) > 1 and first * least > second * most:
                assert adds == (left[(true / costs[left]).argmax()],)
                clear += 1
            selected += adds
    assert clear >= 3  # as a rule the best is clear


# Groups taken have gradients, too: those of the penalty.


@pytest.mark.parametrize("method", ["single", "no-whiten"])
@pytest.mark.parametrize("family", ["binomial", "multinomial"])
def test_a_group_is_not_scored_by_those_taken_that_stand_after_it(family: Family, method: Method) -> None:
    case = clean(family, 1.0, 0, groups=grouped([1, 1, 1], [1.0, 1.0, 1.0]))
    X = case.X.copy()
    X[:, 0] = 7.0  # a constant has no information
    eta = X @ np.array([[0.0, 0.0, 0.0], [-2.0, 0.0, 2.0], [0.3, 0.0, -0.3]])
    if family == "binomial":
        eta = eta[:, 1:]
    found = replace(case, X=X, Y=responses(family, eta, np.random.default_rng(1)), alpha=0.3).learned(method)
    assert order_of(found) == [(1,), (2,), (0,)]


# Least squares is one family more.


@quick(max_examples=60)
@given(cases(("poisson",)), st.sampled_from(METHODS), st.booleans(), st.booleans(), st.integers(1, 2))
def test_the_gaussian_family_is_least_squares(case: Case, method: Method, blind: bool, doubling: bool, P: int) -> None:
    _, Y = literal.standardise(case.X, np.column_stack([np.log(1 + case.Y[:, 0]), case.X[:, 0] ** 2])[:, :P], None)
    Y = np.nan_to_num(Y)
    if P == 2 and not Y[:, 1].any():
        Y[:, 1] = Y[::-1, 0]
    _, Y = literal.standardise(case.X, Y, case.weights)
    gram = Gram.of(moments_of(case.X, Y, case.weights))
    by_moments = sequence(gram, case.groups, method, case.alpha, cost_blind=blind, doubling=doubling)
    design = design_of("gaussian", case.X, Y, case.weights)
    by_rows = likelihood_sequence(design, case.groups, Rule(method, cost_blind=blind, doubling=doubling), case.alpha)
    judged = LikelihoodRows(literal.standardise(case.X, Y, case.weights)[0], Y, "gaussian", case.alpha, case.weights)
    options: dict[str, Any] = {"method": method, "cost_blind": blind, "doubling": doubling}
    check_every_step(judged, case.groups, by_rows, atol=1e-8, **options)
    # Rounding may decide near ties, and the prefixes after these differ.
    pairs = takewhile(lambda each: each[0].adds == each[1].adds, zip(by_moments.steps, by_rows.steps, strict=True))
    same = [(a.explained_variance, b.explained_variance) for a, b in pairs]
    assert [b for _, b in same] == pytest.approx([a for a, _ in same], rel=0, abs=1e-9)
    W = staircase(by_moments.state.factor, by_moments.state.z, by_moments.ends)
    for prefix in range(len(same) + 1):
        end = by_moments.ends[prefix]
        theta = by_rows.state[prefix].theta
        np.testing.assert_allclose(theta[1:], W[prefix, :end], rtol=0, atol=1e-6)
        np.testing.assert_allclose(theta[0], 0.0, atol=1e-9)


# Laws.


@quick(max_examples=25)
@given(cases(("binomial", "multinomial")), st.sampled_from(METHODS))
def test_the_classes_may_be_called_in_any_order(case: Case, method: Method) -> None:
    """Of two classes the other one has the opposite coefficients; of more, each keeps its own."""
    flipped = 1 - case.Y if case.family == "binomial" else case.Y[:, ::-1]
    a, b = case.learned(method), replace(case, Y=flipped).learned(method)
    np.testing.assert_allclose(b.sequence.explained_variance[-1], a.sequence.explained_variance[-1], atol=1e-8)
    if order_of(a) == order_of(b):  # rounding may decide ties
        last = len(a.sequence.steps)
        wanted = -coefficients(a, last) if case.family == "binomial" else coefficients(a, last)[:, ::-1]
        np.testing.assert_allclose(coefficients(b, last), wanted, rtol=0, atol=OPTIMUM * (1 + np.abs(wanted).max()))
