"""Generalised linear models agree with the slow literal version, step by step and prefix by prefix."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.judge import check_every_step
from models.likelihood_problems import KINDS, METHODS, OPTIMUM, Case, cases, coefficients
from models.literal import Method
from models.literal_likelihood import Family
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
        for prefix, end in enumerate(fitted.sequence.ends):
            wanted = problem.coefficients(fitted.sequence.columns[:end].tolist())
            np.testing.assert_allclose(
                coefficients(fitted, prefix), wanted, rtol=0, atol=OPTIMUM * (1 + np.abs(wanted).max())
            )

    check()
