"""The section on certificates reports what was proved."""

from __future__ import annotations

import numpy as np
import pytest

from anytime.moments.moments import Gram, Moments
from anytime.training.guarantee import subset_values
from anytime_reproduction.experiment import Result, Setting
from anytime_reproduction.sets import load_set
from anytime_reproduction.uai.bounds import CERTIFICATES, certified

QUICK = Setting(quick=True)


@pytest.fixture(scope="module")
def result() -> Result:
    """The certificate of a set of ten groups."""
    return certified(QUICK, "boston_housing", None, 60.0)


def test_bounds_are_the_exhaustive_optimum_where_they_are_exact(result: Result) -> None:
    data = load_set("boston_housing", QUICK)
    gram = Gram.of(Moments.merged(data.moments))
    F = subset_values(gram, data.groups, 1e-5)
    sets = np.arange(len(F))
    costs = sum(np.where(sets >> g & 1, cost, 0.0) for g, cost in enumerate(data.groups.costs))
    for cost, bounded, exact in zip(result["costs"], result["bound"], result["exact"], strict=True):
        assert exact
        assert bounded == pytest.approx(F[costs <= cost + 1e-9].max(), rel=1e-8)


def test_the_words_follow_what_was_proved(result: Result) -> None:
    runs = {run.name: result for run in CERTIFICATES.runs(QUICK)}
    section = CERTIFICATES.section(QUICK, runs)
    assert all("at 10 of 10 costs" in finding.text for finding in section.findings)
    assert "prove 100 %" in section.text[1] or "prove 9" in section.text[1]
    loose = {**result, "bound": [2 * F for F in result["F"]], "exact": [False] * len(result["F"])}
    section = CERTIFICATES.section(QUICK, dict.fromkeys(runs, loose))
    assert all("at 0 of 10 costs" in finding.text for finding in section.findings)
    assert all("at least 50 % of the best possible" in finding.text for finding in section.findings)
    assert "prove 50 % or more" in section.text[1]
