"""The literal ways select what the paper's algorithms select, and the section reports what was measured."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from anytime.groups import FeatureGroups
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram
from anytime.selection import sequence
from anytime.types import Float
from anytime_reproduction.experiment import Setting
from anytime_reproduction.uai.training_time import (
    TRAINING_TIME,
    Equations,
    TimedPath,
    clocked,
    counted,
    from_products,
    from_rows,
    grown,
    literal_fr,
    literal_omp,
    timed,
)
from models import literal
from models.literal import Method
from models.problems import grouped

SETTING = Setting(quick=True)
ALPHA = 1e-5
SELECT: dict[Method, Callable[[Equations, FeatureGroups], TimedPath]] = {"fr": literal_fr, "omp": literal_omp}


def problem(seed: int = 0) -> tuple[Float, Float, FeatureGroups]:
    """Groups of unlike sizes and costs, one free; one column constant, one a copy, one a sum."""
    rng = np.random.default_rng(seed)
    groups = grouped([3, 1, 4, 2, 2, 1], [2.0, 1.0, 5.0, 0.0, 3.0, 1.0])
    X = rng.normal(size=(80, 13)) + rng.normal(size=(80, 1))
    X[:, 5], X[:, 8], X[:, 9] = 7.0, X[:, 0], X[:, 3] + X[:, 4]
    return X, X @ rng.normal(size=13) + rng.normal(size=80), groups


def equations(kind: str, X: Float, y: Float) -> Equations:
    gram = Gram.of(moments_of(X, y))
    return from_products(gram) if kind == "products" else from_rows(X, y, gram)


@pytest.mark.parametrize("method", ["fr", "omp"])
@pytest.mark.parametrize("kind", ["products", "rows"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_literal_ways_are_the_papers_algorithms_and_our_sequence(method: Method, kind: str, seed: int) -> None:
    X, y, groups = problem(seed)
    found = SELECT[method](equations(kind, X, y), groups)
    oracle = literal.literal_sequence(X, y, groups, method=method, alpha=ALPHA)
    assert [groups.names[g] for g in found.order] == [step.adds[-1] for step in oracle]
    np.testing.assert_allclose(found.explained, [step.explained_variance for step in oracle], atol=1e-9)
    ours = sequence(Gram.of(moments_of(X, y)), groups, method, ALPHA)
    assert found.order.tolist() == [step.adds[-1] for step in ours.steps]
    np.testing.assert_allclose(found.explained, ours.explained_variance[1:], atol=1e-8)


@pytest.mark.parametrize("method", ["fr", "omp"])
def test_the_search_with_a_clock_is_our_sequence(method: Method) -> None:
    X, y, groups = problem()
    gram = Gram.of(moments_of(X, y))
    found, ours = clocked(gram, groups, method), sequence(gram, groups, method, ALPHA)
    assert found.order.tolist() == [step.adds[-1] for step in ours.steps]
    np.testing.assert_array_equal(found.explained, ours.explained_variance[1:])
    assert (np.diff(found.seconds, prepend=0.0) >= 0).all()


def test_literal_fr_makes_a_quarter_as_many_times_the_products_as_there_are_groups() -> None:
    assert counted(grouped([5] * 100, [1.0] * 100), np.arange(100)) == pytest.approx(25, rel=0.05)
    # Of two groups: both alone and one pair, against one alone and one pair.
    assert counted(grouped([1, 2], [1.0, 1.0]), np.array([0, 1])) == pytest.approx((1 + 4 + 9) / (1 + 9))


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    yahoo = {f"yahoo-{size}": timed(SETTING, "yahoo_sample", size, 1) for size in (20, 10)}
    return {**yahoo, "kddcup99": timed(SETTING, "kddcup99", None, 2), **{"made-40": grown(SETTING, 40)}}


def test_on_the_stand_ins_all_ways_agree(results: dict[str, Any]) -> None:
    for name in ("yahoo-20", "yahoo-10", "kddcup99"):
        result = results[name]
        assert all(match["order"] and match["difference"] < 1e-8 for match in result["same"].values())
        assert all(each == sorted(each) and len(each) == result["groups"] for each in result["seconds"].values())


def test_the_section_reports_what_was_measured(results: dict[str, Any]) -> None:
    section = TRAINING_TIME.section(SETTING, results)
    assert section.findings[0].agrees is True
    assert section.findings[2].agrees is None  # stand-ins prove nothing of published times
    rows = section.tables[0].rows
    assert [row[0] for row in rows] == [f"{name} (stand-in)" for name in ("yahoo-20", "yahoo-10", "kddcup99")]
    assert all(len(row) == len(section.tables[0].columns) for row in rows)
    assert len(section.figures[0].charts) == 2


def test_findings_follow_the_results(results: dict[str, Any]) -> None:
    changed = deepcopy(results)
    changed["yahoo-10"]["same"]["OMP"]["order"] = False
    changed["kddcup99"]["seconds"]["FR, rows"] = [1e3] * changed["kddcup99"]["groups"]
    section = TRAINING_TIME.section(Setting(data=None, yahoo=None), changed)
    assert section.findings[0].agrees is False
    assert "yahoo-10 OMP" in section.findings[0].text
    assert "Not within a factor of 2" in section.findings[2].text


def test_runs_are_alone_for_they_measure_time() -> None:
    for setting in (SETTING, Setting()):
        assert all(run.alone for run in TRAINING_TIME.runs(setting))
