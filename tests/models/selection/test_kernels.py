"""Where rows are fewer than columns, kernels of the rows give the orders and the errors of the columns' moments."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime.groups import FeatureGroups, load_groups
from anytime.moments.accumulate import fold_moments_of
from anytime.moments.moments import Gram, Moments
from anytime.selection import Rule, sequence, sequencer, swept
from anytime.selection.kernels import Kernels, kernel_sequencer, rotated_rows
from anytime.training.fit import fit
from anytime.training.least_squares import KernelFold, rows_are_fewer
from anytime.training.options import GRID, Options
from anytime.types import Float
from models.properties import quick


@dataclass(frozen=True, eq=False)
class Wide:
    """Fewer rows than columns, some of them missing, constant or copies."""

    parts: list[Moments] = field(repr=False)
    groups: FeatureGroups

    @property
    def moments(self) -> Moments:
        return Moments.merged(self.parts)

    @property
    def gram(self) -> Gram:
        return Gram.of(self.moments)

    @property
    def rows(self) -> dict[int, Float]:
        like = self.moments
        same = (part.with_indicators(like.missing).refilled(like.fill) for part in self.parts)
        return {f: rotated_rows(part) for f, part in enumerate(same)}

    @property
    def kernels(self) -> Kernels:
        return Kernels.of([*self.rows.values()], self.moments)


def wide(seed: int, *, size: int = 20, requires: bool = False, rows: int = 24, noise: float = 1.0) -> Wide:
    rng = np.random.default_rng(seed)
    count, D = 5, 5 * size
    X: Float = rng.normal(size=(rows, D))
    X[:, 1:] += 0.7 * X[:, :-1]
    Y = X[:, ::9] @ rng.normal(size=(len(range(0, D, 9)), 2)) + noise * rng.normal(size=(rows, 2))
    X[:, 3] = 1.0
    X[:, 7] = X[:, 30]
    X[rng.random(X.shape) < 0.02] = np.nan
    content: list[dict[str, object]] = [
        {"name": f"g{g}", "features": [f"x{g * size + j}" for j in range(size)], "cost": float(rng.uniform(1, 5))}
        for g in range(5)
    ]
    content.append({"name": "none", "features": [], "cost": 1.0})
    if requires:
        content[1]["requires"] = ["none"]
        content[2]["requires"] = ["g3"]
    return Wide(
        fold_moments_of(X, Y, rng.uniform(0.5, 2.0, rows), np.arange(rows) % count, count),
        load_groups({"groups": content}),
    )


@quick(max_examples=30)
@given(
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from((1e-7, 1e-3, 0.5)),
    st.sampled_from((None, 0.4)),
)
def test_orders_are_those_of_the_sweep(
    seed: int, requires: bool, doubling: bool, blind: bool, alpha: float, epsilon: float | None
) -> None:
    problem = wide(seed, requires=requires)
    gram, groups = problem.gram, problem.groups
    rule = Rule(cost_blind=blind, doubling=doubling, epsilon=epsilon, first=(groups.names[4],) * requires)
    expected, found = sequencer(gram, groups, rule)(alpha), kernel_sequencer(problem.kernels, groups, rule)(alpha)
    assert [step.adds for step in found.steps] == [step.adds for step in expected.steps]
    assert found.doubling_until == expected.doubling_until
    np.testing.assert_allclose(found.explained_variance, expected.explained_variance, rtol=1e-6, atol=1e-9)
    assert found.longest == (None if expected.longest is None else pytest.approx(expected.longest, rel=1e-4, abs=1e-6))
    whole = swept(gram, groups, found, alpha)
    np.testing.assert_allclose(whole.state.z, expected.state.z, rtol=1e-6, atol=1e-8)
    assert (whole.longest, whole.doubling_until) == (found.longest, found.doubling_until)


def without(problem: Wide, fold: int) -> Kernels:
    """The kernels of the other folds."""
    return Kernels.of([rows for f, rows in problem.rows.items() if f != fold], problem.moments)


def test_solutions_serve_other_held_out_rows_and_other_orders() -> None:
    problem = wide(0)
    order, other = (sequence(problem.gram, problem.groups, "fr", alpha) for alpha in (1e-3, 10.0))
    kernels = without(problem, 0)
    moved = {f: R + 0.01 * np.random.default_rng(f).normal(size=R.shape) for f, R in problem.rows.items()}
    for held in (problem.rows[0], moved[0]):
        for each, alphas in ((order, [1e-3, 0.5]), (other, [0.5, 1e-3])):
            fresh = KernelFold(without(problem, 0), held)
            found = KernelFold(kernels, held).errors(each.columns, each.ends, alphas)
            np.testing.assert_allclose(found, fresh.errors(each.columns, each.ends, alphas), rtol=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_a_fit_makes_the_same_choices_by_kernels(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = wide(seed, size=40, noise=15.0)
    assert rows_are_fewer(24, 200, 6)
    options = Options(alpha="cv", nested=seed % 2 == 0)
    by_rows = fit(problem.parts, problem.groups, options)
    monkeypatch.setattr("anytime.training.least_squares.rows_are_fewer", lambda *_: False)
    by_columns = fit(problem.parts, problem.groups, options)
    assert (by_rows.alpha, by_rows.alphas.tolist()) == (by_columns.alpha, by_columns.alphas.tolist())
    assert [step.adds for step in by_rows.sequence.steps] == [step.adds for step in by_columns.sequence.steps]
    assert by_rows.errors == pytest.approx(by_columns.errors, rel=1e-6)
    np.testing.assert_allclose(by_rows.prefixes.packed, by_columns.prefixes.packed, rtol=1e-5, atol=1e-9)
    assert set(by_rows.alphas[1:]) <= set(GRID)


@pytest.mark.parametrize(
    ("rows", "columns", "groups", "fewer"), [(1000, 900, 6, False), (100, 1000, 500, False), (1280, 5000, 6, True)]
)
def test_kernels_are_for_few_rows_and_groups(rows: int, columns: int, groups: int, fewer: bool) -> None:
    assert rows_are_fewer(rows, columns, groups) == fewer
