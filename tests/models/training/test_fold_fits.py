"""Fits on the folds that advance together measure what exhaustive refits measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate, islice
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from anytime.errors import TrainingError
from anytime.families import family_of
from anytime.glm import joint, row_blocks
from anytime.glm.newton import EXACT, Optimum, optimum
from anytime.moments.accumulate import fold_moments_of
from anytime.moments.moments import Gram, Moments
from anytime.target import Target
from anytime.training import likelihood
from anytime.training.fit import Fit, fit
from anytime.training.likelihood import Observed, _folds, _HeldOut
from anytime.training.options import GRID, Options
from anytime.types import FamilyName, Float, Index
from models.present import present
from models.problems import blocks_of, grouped

FOLDS = 5


class Table:
    """A table in stratified folds."""

    def __init__(self, X: Float, y: Float, family: FamilyName, weights: Float | None = None) -> None:
        self.X, self.family, self.weights = X, family, weights
        if family == "multinomial":
            self.Y = (y[:, np.newaxis] == np.unique(y)).astype(np.float64)
            self.target = Target("multiclass", ("y",), tuple(range(self.Y.shape[1])))
        else:
            self.Y = y[:, np.newaxis].astype(np.float64)
            classes = (0, 1) if family == "binomial" else None
            self.target = Target("binary" if classes else "count", ("y",), classes)
        rank = np.empty(len(y), dtype=np.intp)
        rank[np.argsort(y, kind="stable")] = np.arange(len(y))
        self.folds = rank % FOLDS
        starts = range(0, X.shape[1], 2)
        self.groups = grouped([min(2, X.shape[1] - j) for j in starts], [1.0 + j % 3 for j in starts])
        self.parts = fold_moments_of(X, self.Y, weights, self.folds, FOLDS)

    @property
    def observed(self) -> Observed:
        edges = (0, len(self.X) // 2, len(self.X))
        return Observed(blocks_of(edges, self.X, self.Y, self.weights, self.folds), self.target)

    def held_out(self) -> tuple[Any, list[_HeldOut]]:
        gram = Gram.of(Moments.merged(self.parts))
        design = self.observed.design(gram, family_of(self.family), sum(part.weight for part in self.parts))
        return design, _folds(design, self.parts, self.target)

    def fitted(self, **options: Any) -> Fit:
        return fit(self.parts, self.groups, Options(family=self.family, **options), self.observed)


def rows(seed: int, n: int, d: int) -> tuple[Float, np.random.Generator]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X[:, 1:] += 0.5 * X[:, :-1]
    return X, rng


def separable() -> Table:
    X, rng = rows(0, 120, 6)
    return Table(X, (X[:, 0] + 0.01 * rng.normal(size=120) > 0).astype(float), "binomial")


def forty() -> Table:
    X, rng = rows(1, 40, 6)
    return Table(X, (X[:, 0] + rng.normal(size=40) > 0).astype(float), "binomial")


def rare() -> Table:
    X, rng = rows(2, 600, 6)
    y = np.zeros(600)
    y[np.argsort(-(X[:, 0] + rng.normal(size=600)))[:8]] = 1.0
    return Table(X, y, "binomial")


def indicators() -> Table:
    X, rng = rows(3, 500, 8)
    X[:, 4:] = rng.random((500, 4)) < 0.004
    X[:2, 4:] = 1.0
    return Table(X, (X[:, 0] + 3 * X[:, 5] + rng.normal(size=500) > 0).astype(float), "binomial")


def collinear() -> Table:
    X, rng = rows(4, 200, 8)
    X[:, 3], X[:, 5] = X[:, 0], X[:, 1] + X[:, 2]
    return Table(X, rng.poisson(np.exp(0.4 * X[:, 0] - 0.3)).astype(float), "poisson")


def classes() -> Table:
    X, rng = rows(5, 300, 8)
    y = (X[:, :3] + rng.gumbel(size=(300, 3))).argmax(axis=1).astype(float)
    X[rng.random(X.shape) < 0.004] = np.nan  # too few for indicators
    return Table(X, y, "multinomial", rng.uniform(0.2, 2.0, 300))


def suppressed() -> Table:
    """Two columns that separate the classes by their difference; each alone, and both with a large penalty, do not."""
    X, rng = rows(6, 60, 5)
    difference = 0.1 * rng.normal(size=60)
    X[:, 4] = X[:, 3] + difference
    return Table(X, (difference > 0).astype(float), "binomial")


def listed() -> Table:
    """Some rows of ten blocks of six classes in their order: row and block together nearly separate the classes."""
    rng = np.random.default_rng(1)
    y, block = np.tile(np.arange(6.0), 10), np.repeat(np.arange(10.0), 6)
    X = np.column_stack([np.arange(60.0), block, y + 3 * rng.normal(size=60), rng.normal(size=60)])
    kept = np.sort(rng.permutation(60)[:42])
    return Table(X[kept], y[kept], "multinomial")


TABLES: dict[str, Callable[[], Table]] = {
    each.__name__: each for each in (separable, forty, rare, indicators, collinear, classes, suppressed, listed)
}


def held_deviance(view: Any, theta: Float) -> float:
    """The deviance of the rows that a design leaves out, row by row."""
    design, total = view.design, 0.0
    for part in (each.part(rows) for each in design.stored for rows, f in each.spans([design.held_rows]) if f == 0):
        losses = design.family.loss(view._predictors(part, theta), part.Y)[0] - design.family.saturated(part.Y)
        total += 2.0 * float(losses.sum() if part.weights is None else part.weights @ losses)
    return total


def refits(design: Any, fold: _HeldOut, columns: Index, alphas: Iterable[float]) -> tuple[float, ...]:
    """The mean deviance on a fold of fits of the others at some penalties, each begun at the one before it."""
    view = fold.train.view(columns[fold.train.ridge[columns] > 0])
    start = np.zeros((view.width, design.predictors))
    start[0] = design.family.start(fold.train.gram.y_mean)
    thetas = accumulate(alphas, lambda theta, alpha: optimum(view, alpha, theta, 0.3, stop=EXACT).theta, initial=start)
    return tuple(held_deviance(view, theta) / fold.weight for theta in islice(thetas, 1, None))


@pytest.mark.parametrize("name", TABLES)
def test_errors_and_penalties_are_within_a_tenth_of_a_standard_error_of_exhaustive_refits(name: str) -> None:
    table = TABLES[name]()
    found = table.fitted(alpha="cv")
    design, folds = table.held_out()
    weights, errors = np.array([fold.weight for fold in folds]), present(found.errors)
    for prefix in range(1, len(found.alphas)):
        columns = found.sequence.columns[: found.sequence.ends[prefix]]
        curve = np.array([refits(design, fold, columns, GRID[::-1])[::-1] for fold in folds])
        mean = np.average(curve, axis=0, weights=weights)
        error = np.sqrt(np.average((curve - mean) ** 2, axis=0, weights=weights) / (len(folds) - 1))
        own = GRID.index(float(found.alphas[prefix]))
        assert abs(errors[prefix] - mean[own]) <= 0.1 * error[own]
        assert mean[own] <= mean.min() + 0.1 * error[mean.argmin()]


@pytest.mark.parametrize("coupled", [0, joint.COUPLED])
def test_fits_of_classes_that_lines_nearly_separate_end_together(coupled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Mock()
    monkeypatch.setattr(joint, "COUPLED", coupled)
    monkeypatch.setattr(joint, "optimum", alone)
    listed().fitted(alpha="cv")
    assert alone.call_count == 0


def test_few_rows_are_measured_at_every_penalty_unless_coefficients_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    table = listed()
    (design, folds), sequence = table.held_out(), table.fitted(alpha="cv").sequence
    coefficients = design.predictors * (sequence.ends + 1)
    monkeypatch.setattr(likelihood, "EXHAUSTIVE", int(coefficients[-2]))
    errors = likelihood._fold_errors(design, folds, sequence.columns, sequence.ends, GRID).mean
    assert np.isfinite(errors[:, :-1]).all()
    assert np.isinf(errors[:, -1]).any()


@pytest.fixture
def sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store every feature that is rarely not 0 apart."""
    monkeypatch.setattr(row_blocks, "MIN_SPARSE", 1)


@pytest.mark.usefixtures("sparse")
@pytest.mark.parametrize("name", ["indicators", "classes"])
def test_rows_in_the_order_of_some_columns_give_the_same_sums(name: str) -> None:
    design, folds = TABLES[name]().held_out()
    assert (design.places is not None) == (name == "indicators")
    held = [fold.train.held_rows for fold in folds]
    columns = np.array([5, 4, 0, 1, 7])
    thetas = np.random.default_rng(0).normal(size=(len(folds), 4, design.predictors))
    used = columns[:3]
    ordered = design.in_order(columns)
    for precise, rounding in ((True, 1e-12), (False, 1e-4)):
        found, expected = [
            (each if precise else each.single).view(used).evaluate_folds(thetas, held) for each in (ordered, design)
        ]
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=rounding, atol=rounding * np.abs(theirs).max())


@pytest.mark.usefixtures("sparse")
@pytest.mark.parametrize("name", ["indicators", "classes", "collinear"])
@pytest.mark.parametrize("pieces", [False, True])
def test_one_pass_has_the_derivatives_of_every_fold(name: str, pieces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if pieces:
        monkeypatch.setattr(row_blocks, "SMALL_PRODUCT", 100)
        monkeypatch.setattr(row_blocks, "MIN_PIECE", 1)
    design, folds = TABLES[name]().held_out()
    columns = np.array([5, 0, 1, 6])
    held = [fold.train.held_rows for fold in folds]
    view = design.view(columns)
    rng = np.random.default_rng(0)
    thetas = 0.3 * rng.normal(size=(len(folds), 5, design.predictors))
    found = view.evaluate_folds(thetas, held)
    *inside, total = view.fold_hessians(thetas[0], held)
    for f, fold in enumerate(folds):
        own = fold.train.view(columns)
        alone = own.evaluate(own.predictors(thetas[f]))
        assert found.losses[f] == pytest.approx(alone.loss, rel=1e-12)
        np.testing.assert_allclose(found.scores[f], alone.score, rtol=1e-9, atol=1e-12)
        assert found.deviances[f] == pytest.approx(held_deviance(own, thetas[f]), rel=1e-12)
        step = 1e-6 * rng.normal(size=thetas[f].shape)
        change = held_deviance(own, thetas[f] + step) - held_deviance(own, thetas[f] - step)
        assert change == pytest.approx(-4.0 * np.sum(found.held[f] * step), rel=1e-4, abs=1e-10)
        if name != "classes":  # where values are missing, each fold has its own mean
            expected = present(own.evaluate(own.predictors(thetas[0]), hessian=True).hessian)
            np.testing.assert_allclose((total - inside[f]) / fold.train.weight, expected, rtol=1e-9, atol=1e-12)


def test_a_fit_that_fails_does_not_end_cross_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(view: Any, alpha: float, *arguments: Any, **named: Any) -> Optimum:
        if alpha < 1e-6:
            raise TrainingError("no convergence")
        return optimum(view, alpha, *arguments, **named)

    monkeypatch.setattr(joint, "optimum", failing)
    monkeypatch.setattr(joint, "PASSES", 1)
    found = forty().fitted(alpha="cv", one_se=True)
    assert np.isfinite(present(found.errors)).all()
    assert min(found.alphas[1:]) > 1e-6
