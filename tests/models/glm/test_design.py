"""Passes over the rows of a likelihood: however rows are cut, kept and shared out, the model is the same.

Its second-order models: what is packed comes back, and a step from an optimum stays there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import sparse
from scipy.special import xlogy

from anytime._linalg import single_blas_thread
from anytime.errors import EnvironmentFailure
from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.families import family_of
from anytime.glm import joint, newton, row_blocks, search
from anytime.glm.newton import EXACT
from anytime.glm.row_blocks import BlockDesign, RowBlock, row_blocks_of
from anytime.glm.search import LikelihoodSearch
from anytime.model.model import Model
from anytime.moments.accumulate import Block, fold_moments_of, moments_of
from anytime.moments.moments import Gram
from anytime.selection import Rule
from anytime.training import likelihood
from anytime.training.fit import Fit, fit
from anytime.training.likelihood import Observed
from anytime.training.options import Options
from anytime.types import Index
from models import literal
from models.likelihood_problems import KINDS, METHODS, NUMBERS, OPTIMUM, Case, clean, coefficients, order_of
from models.literal import Method
from models.literal_likelihood import Family, LikelihoodRows, hessians, losses, means, residuals
from models.present import present
from models.problems import blocks_of

SINGLE: tuple[Family, ...] = ("binomial", *NUMBERS)
"""The families of one predictor."""


def fitted(case: Case, blocks: list[Block], folds: Index | None = None, n_jobs: int | None = None, **how: Any) -> Fit:
    parts = fold_moments_of(case.X, case.Y, case.weights, folds, 1 if folds is None else int(folds.max()) + 1)
    options = Options(family=case.family, **({"alpha": 1e-4} | how))
    return fit(parts, case.groups, options, Observed(blocks, case.target, n_jobs))


def cut(case: Case, rows: int, folds: Index | None = None) -> list[Block]:
    """The rows in blocks."""
    count = len(case.X)
    return blocks_of([*range(0, count, rows), count], case.X, case.Y, case.weights, folds)


def check_same(one: Fit, other: Fit) -> None:
    assert order_of(one) == order_of(other)
    np.testing.assert_allclose(other.prefixes.packed, one.prefixes.packed, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        other.sequence.explained_variance, one.sequence.explained_variance, rtol=1e-9, atol=1e-12
    )
    if one.errors is not None and other.errors is not None:
        np.testing.assert_allclose(other.errors, one.errors, rtol=1e-9)
        np.testing.assert_array_equal(other.alphas, one.alphas)


def weighted(family: Family) -> Case:
    case = clean(family, 0.5, 0)
    return replace(case, weights=np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], size=len(case.X)))


# The noise.


@pytest.mark.parametrize("family", ["binomial", "multinomial"])
def test_noise_is_the_variance_of_a_gradient_as_a_share_of_what_stands_for_the_second_derivatives(
    family: Family,
) -> None:
    """Of one predictor that is the Hessian itself, of several it is Boehning's bound, for every predictor alike."""
    case = weighted(family)
    design = case.design()
    mean = design.gram.y_mean
    share = 1.0 if family == "binomial" else float(np.sum(mean * (1 - mean))) / search.BOUND
    with single_blas_thread():
        found = LikelihoodSearch(design, case.groups, Rule("cp"), case.alpha, EXACT).state
    assert found.noise == pytest.approx(share / design.weight)


# The derivatives.


@pytest.mark.parametrize("family", ["gaussian", *KINDS])
@pytest.mark.parametrize("chunk", [2**17, 1])
def test_loss_score_and_hessian_are_those_of_the_rows(
    family: Family, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_blocks, "CHUNK_VALUES", chunk)
    case = weighted("poisson" if family == "gaussian" else family)
    case = replace(case, family=family, alpha=0.0)
    design = case.design()
    Q = design.predictors
    columns = np.array([4, 0, 7], dtype=np.intp)
    theta = 0.3 * np.random.default_rng(2).normal(size=(4, Q))
    view = design.view(columns)
    etas = view.predictors(theta)
    found = view.evaluate(etas, hessian=True)
    weights = present(case.weights)
    Z = np.column_stack([np.ones(len(case.X)), literal.standardise(case.X, case.Y, weights)[0][:, columns]])
    w = weights / weights.sum()
    eta = Z @ design.family.scores(theta)
    B = design.family.scores(np.eye(Q))  # (Q, P)
    np.testing.assert_allclose(found.loss, w @ losses(family, eta, case.Y), rtol=1e-12)
    np.testing.assert_allclose(found.score, Z.T @ (w[:, np.newaxis] * residuals(family, eta, case.Y)) @ B.T, atol=1e-13)
    h = np.einsum("ap,ipq,bq->iab", B, hessians(family, eta, case.Y), B)
    H = np.einsum("i,ij,iab,ik->jakb", w, Z, h, Z).reshape(4 * Q, 4 * Q)
    np.testing.assert_allclose(present(found.hessian), H, atol=1e-13)
    rough = design.single.view(view.columns)
    single = rough.evaluate(rough.predictors(theta), hessian=True)
    assert single.loss == pytest.approx(found.loss, rel=1e-6)
    np.testing.assert_allclose(single.score, found.score, atol=1e-6)
    single_hessian = present(single.hessian)
    assert single_hessian.dtype == np.float32
    np.testing.assert_allclose(single_hessian, H, atol=1e-6 * np.diagonal(H).max())
    assert (single_hessian != found.hessian).any()
    direction = np.random.default_rng(3).normal(size=(4, Q))
    np.testing.assert_allclose(view.hessian_product(etas)(direction).ravel(), H @ direction.ravel(), atol=1e-12)
    each = np.einsum("i,ipp,ij,ik->pjk", w, hessians(family, eta, case.Y), Z, Z)
    np.testing.assert_allclose(view.weighted_grams(etas), each, atol=1e-13)
    monkeypatch.setattr(row_blocks, "OWN", 0)
    np.testing.assert_allclose(view.weighted_grams(etas), [each.sum(axis=0) / Q], atol=1e-13)
    along = view.predictors(direction)
    loss, slope = view.slope(etas, along)
    assert loss == pytest.approx(found.loss, rel=1e-12)
    assert slope == pytest.approx(-float(np.sum(found.score * direction)), rel=1e-9)
    # And the slope is that of the loss.
    step = 1e-6
    ahead, behind = (view.evaluate(view.moved(etas, t, along)).loss for t in (step, -step))
    assert (ahead - behind) / (2 * step) == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("family", ["gaussian", *KINDS])
def test_deviances_are_twice_the_loss_above_that_of_the_perfect_fit(family: Family) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(20, 3 if family == "multinomial" else 1))
    Y = {
        "gaussian": rng.normal(size=(20, 1)),
        "binomial": rng.integers(0, 2, size=(20, 1)).astype(float),
        "multinomial": np.eye(3)[rng.integers(0, 3, size=20)],
        "poisson": rng.integers(0, 5, size=(20, 1)).astype(float),
        "gamma": rng.gamma(2.0, size=(20, 1)),
        "negative-binomial:0.5": rng.integers(0, 5, size=(20, 1)).astype(float),
    }[family]
    found = family_of(family).deviances(scores, Y)
    mean = means(family, scores)
    wanted: dict[str, Callable[[], Any]] = {
        "gaussian": lambda: (Y - scores) ** 2,
        "binomial": lambda: -2 * np.log(Y * mean + (1 - Y) * (1 - mean)),
        "multinomial": lambda: -2 * np.log((Y * mean).sum(axis=1, keepdims=True)),
        "poisson": lambda: 2 * (xlogy(Y, Y / mean) - Y + mean),
        "gamma": lambda: 2 * (np.log(mean / Y) + Y / mean - 1),
        # Of 2 failures.
        "negative-binomial:0.5": lambda: 2 * (xlogy(Y, Y / mean) - (Y + 2) * np.log((Y + 2) / (mean + 2))),
    }
    np.testing.assert_allclose(found, wanted[family]()[:, 0], rtol=1e-10)
    assert (found >= 0).all()
    perfect = Y if family == "gaussian" else 60 * (2 * Y - 1)
    if family in NUMBERS:
        perfect = np.log(Y + 1e-300)
    np.testing.assert_allclose(family_of(family).deviances(perfect, Y), 0.0, atol=1e-12)


# Rows cut, kept and shared out.


@pytest.mark.parametrize("family", KINDS)
def test_blocks_of_any_size_make_the_same_model(family: Family) -> None:
    case = weighted(family)
    whole = fitted(case, cut(case, 300))
    for rows in (7, 64, 299):
        check_same(whole, fitted(case, cut(case, rows)))


@pytest.mark.parametrize(
    ("family", "n_jobs", "how", "conjugate"),
    [
        ("multinomial", 2, {}, False),
        ("poisson", 3, {}, False),
        ("binomial", 2, {"method": "omp"}, False),
        ("binomial", -1, {"alpha": "cv"}, False),
        ("multinomial", 3, {"alpha": "cv"}, False),
        ("multinomial", 2, {"alpha": "cv"}, True),
    ],
)
def test_threads_do_not_change_a_bit(
    family: Family, n_jobs: int, how: dict[str, Any], conjugate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if conjugate:  # gradients fit, instead of second derivatives
        monkeypatch.setattr(newton, "DENSE_MANY", 0)
    case = weighted(family)
    folds = np.arange(300) % 3
    if "alpha" not in how:  # every pass in threads, small as it is, which is slow
        monkeypatch.setattr(row_blocks, "MIN_PARALLEL_VALUES", 0)
    one, other = (fitted(case, cut(case, 150, folds), folds, jobs, **how) for jobs in (1, n_jobs))
    check_same(one, other)
    np.testing.assert_array_equal(other.prefixes.packed, one.prefixes.packed)


@pytest.mark.parametrize("family", KINDS)
def test_rows_in_a_temporary_file_are_as_rows_in_memory(family: Family) -> None:
    case = weighted(family)
    here, there = case.design(), case.design(held_bytes=0)
    assert there.row_blocks[0].mapped is not None
    assert here.row_blocks[0].mapped is None
    for a, b in zip(here.row_blocks, there.row_blocks, strict=True):
        np.testing.assert_array_equal(a.Z, b.Z)
        np.testing.assert_array_equal(a.Y, b.Y)
    found = [search.likelihood_sequence(design, case.groups, Rule("fr"), 1e-4) for design in (here, there)]
    assert [s.adds for s in found[0].steps] == [s.adds for s in found[1].steps]
    for mine, other in zip(found[0].state, found[1].state, strict=True):
        # In memory the first steps have single precision, so the last ones differ within the stopping criterion.
        np.testing.assert_allclose(mine.theta, other.theta, rtol=0, atol=OPTIMUM)


@pytest.mark.parametrize(
    ("family", "with_weights"),
    [
        *((family, False) for family in KINDS),
        *((family, True) for family in ("binomial", "multinomial", "poisson")),
        *(pytest.param(family, True, marks=pytest.mark.heavy) for family in ("gamma", "negative-binomial:0.5")),
    ],
)
def test_equal_rows_of_a_fold_are_stored_once_and_count_as_often(
    family: Family, with_weights: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = weighted(family)
    rows = np.random.default_rng(0).integers(0, len(case.X) // 2, 3 * len(case.X))
    X, Y, weights = case.X[rows].copy(), case.Y[rows], present(case.weights)[rows] if with_weights else None
    X[rows % 7 == 0, 1] = np.nan
    folds = np.arange(len(rows)) % 3
    gram = Gram.of(moments_of(X, Y, weights))
    designs = []
    for share in (row_blocks.REPEATED, 2.0):
        monkeypatch.setattr(row_blocks, "REPEATED", share)
        blocks = row_blocks_of([Block(X, Y, weights, folds)], gram)
        weight = len(X) if weights is None else weights.sum()
        designs.append(BlockDesign(gram, family_of(family), weight, np.ones(X.shape[1]), row_blocks=blocks))
    once, all_rows = designs
    distinct = {(row, fold) for row, fold in zip(rows.tolist(), folds.tolist(), strict=True)}
    assert len(once.row_blocks[0].Y) == len(distinct)
    assert len(all_rows.row_blocks[0].Y) == len(X) == once.totals.rows
    np.testing.assert_allclose(once.totals.responses, all_rows.totals.responses, rtol=1e-14)
    assert once.totals.saturated == pytest.approx(all_rows.totals.saturated, rel=1e-12)
    columns = np.array([4, 1, 0])
    held = [all_rows.without(fold, gram, weight / 2).held_rows for fold in range(3)]
    thetas = 0.3 * np.random.default_rng(1).normal(size=(3, 4, once.predictors))
    for ours, theirs in zip(*(each.view(columns).evaluate_folds(thetas, held) for each in designs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-11)
    ours, theirs = (each.view(columns).weighted_grams(each.view(columns).predictors(thetas[0])) for each in designs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)


def test_a_missing_value_is_not_equal_to_the_mean_nor_a_row_to_one_of_another_response() -> None:
    Z, Y = np.ones((2, 6)), np.array([[0.0], [0.0], [0.0], [1.0], [1.0], [0.0]])
    Z[1] = 0.0
    block = RowBlock(Z, Y, None, None, {0: np.array([True, False, False, False, False, True])}).merged()
    assert block.counts is not None
    found = zip(block.gaps[0].tolist(), block.Y[:, 0].tolist(), block.counts.tolist(), strict=True)
    assert sorted(found) == [(False, 0.0, 2.0), (False, 1.0, 2.0), (True, 0.0, 2.0)]


def test_a_full_disk_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.posix_fallocate", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(
        EnvironmentFailure, match=r"cannot store .* bytes of rows in .*: no space left on device; set TMPDIR"
    ):
        weighted("binomial").design(held_bytes=0)


@pytest.mark.parametrize("dtype", ["f4", "i4", "u1", "bool"])
def test_features_of_any_type_are_taken(dtype: str) -> None:
    case = clean("binomial", 0.5, 0)
    X = np.abs(case.X * 10).astype(dtype)
    wide = replace(case, X=X.astype(np.float64))
    np.testing.assert_allclose(
        replace(case, X=X).learned("fr").prefixes.packed, wide.learned("fr").prefixes.packed, rtol=1e-7, atol=1e-9
    )


@pytest.mark.parametrize("family", KINDS)
def test_nothing_handed_in_is_changed(family: Family) -> None:
    case = weighted(family)
    case.X[5, 2] = np.nan
    folds = np.arange(300) % 3
    thin = sparse.csr_array(np.nan_to_num(case.X))
    arrays = (case.X, case.Y, present(case.weights), folds)
    before = [array.tobytes() for array in (*arrays, thin.data, thin.indices, thin.indptr)]
    for array in arrays:
        array.setflags(write=False)
    fitted(case, cut(case, 100, folds), folds, alpha="cv", nested=True)
    fitted(case, [Block(thin, case.Y, case.weights, folds)], folds, alpha=1e-3)
    assert [array.tobytes() for array in (*arrays, thin.data, thin.indices, thin.indptr)] == before


# Sparse features.


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("family", KINDS)
def test_features_that_are_rarely_not_zero_are_stored_apart_and_give_the_same_sums(
    family: Family, gaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_blocks, "MIN_SPARSE", 1)
    monkeypatch.setattr(row_blocks, "CHUNK_VALUES", 1)
    case, rng = weighted(family), np.random.default_rng(7)
    case.X[:, [1, 2, 5]] = rng.random((len(case.X), 3)) < 0.04
    case.X[rng.random(len(case.X)) < 0.1, 3] = np.nan
    if gaps:
        case.X[rng.random(len(case.X)) < 0.01, 2] = np.nan
    folds = np.arange(len(case.X)) % 3
    plain = case.design()
    observed = Observed(cut(case, 128, folds), case.target)
    apart: Any = observed.design(plain.gram, plain.family, plain.weight)
    assert np.flatnonzero(present(apart.places) < 0).tolist() == ([1, 5] if gaps else [1, 2, 5])
    assert sum(each.Z.size for each in apart.row_blocks) < sum(each.Z.size for each in plain.row_blocks)
    for columns in (np.array([5, 0, 2, 3, 1]), np.array([1]), np.array([0, 4])):
        theta = 0.3 * rng.normal(size=(len(columns) + 1, plain.predictors))
        for ours, rounding in ((apart, 1e-11), (apart.in_order(columns), 1e-11), (apart.single, 1e-5)):
            (one, etas), (other, known) = ((v, v.predictors(theta)) for v in (ours.view(columns), plain.view(columns)))
            found, expected = one.evaluate(etas, hessian=True), other.evaluate(known, hessian=True)
            for a, b in (
                *zip(map(present, found), map(present, expected), strict=True),
                (one.weighted_grams(etas), other.weighted_grams(known)),
                (one.hessian_product(etas)(theta), other.hessian_product(known)(theta)),
            ):
                np.testing.assert_allclose(a, b, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("family", ["binomial", "multinomial"])
def test_sparse_features_have_the_coefficients_of_others(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    case = weighted(family)
    case.X[:, [1, 2, 5]] = np.random.default_rng(7).random((len(case.X), 3)) < 0.04
    folds = np.arange(len(case.X)) % 3
    plain = fitted(case, cut(case, 128, folds), folds)
    monkeypatch.setattr(row_blocks, "MIN_SPARSE", 1)
    apart = fitted(case, cut(case, 128, folds), folds)
    assert order_of(apart) == order_of(plain)
    np.testing.assert_allclose(apart.prefixes.packed, plain.prefixes.packed, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(present(apart.errors), present(plain.errors), rtol=1e-4)


# Folds.


@pytest.fixture
def exact_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit folds as exactly as models, so that what they measure can be compared to many digits."""
    monkeypatch.setattr(likelihood, "ROUGH", EXACT)
    for name in ("COMPARED", "REPORTED", "STATED"):
        monkeypatch.setattr(likelihood, name, joint.Ending(0.0, 0.0, 0.0, precise=True))


def explicit_errors(case: Case, folds: Index, fold: int, found: Fit, prefix: int, alpha: float) -> float:
    """Mean deviance on a fold of the literal optimum on the others, standardised by themselves."""
    out = folds == fold
    w = np.ones(len(case.X)) if case.weights is None else case.weights
    X = case.X.copy()
    mean = np.average(X[~out], axis=0, weights=w[~out])
    scale = np.sqrt(np.average((X[~out] - mean) ** 2, axis=0, weights=w[~out]))
    scale[scale < 1e-12] = np.inf
    Z = (X - mean) / scale
    used = found.sequence.columns[: found.sequence.ends[prefix]].tolist()
    theta = LikelihoodRows(Z[~out], case.Y[~out], case.family, alpha, w[~out]).coefficients(used)
    eta = np.column_stack([np.ones(int(out.sum())), Z[out][:, used]]) @ theta
    return float(np.average(family_of(case.family).deviances(eta, case.Y[out]), weights=w[out]))


@pytest.mark.usefixtures("exact_folds")
@pytest.mark.parametrize("alpha", [1e-4, 0.1])
@pytest.mark.parametrize("family", KINDS)
def test_errors_are_the_deviances_of_explicit_subsets_standardised_by_themselves(family: Family, alpha: float) -> None:
    case = weighted(family)
    case.X[:, 2] = 0.0
    folds = np.random.default_rng(4).permutation(np.arange(300) % 3)
    case.X[folds == 1, 2] = np.random.default_rng(5).normal(size=100)  # constant where fold 1 is left out
    found = fitted(case, cut(case, 128, folds), folds, alpha=alpha)
    shares = np.bincount(folds, weights=case.weights)
    for prefix, error in enumerate(present(found.errors)):
        errors = [explicit_errors(case, folds, fold, found, prefix, alpha) for fold in range(3)]
        assert error == pytest.approx(np.average(errors, weights=shares), rel=OPTIMUM)


@pytest.mark.usefixtures("exact_folds")
@pytest.mark.parametrize("family", KINDS)
def test_what_is_missing_in_a_fold_is_imputed_by_the_mean_of_the_others(family: Family) -> None:
    case = clean(family, 0.8, 3, rows=90)
    gaps = np.random.default_rng(6).random(case.X.shape) < 0.3
    folds = np.arange(90) % 3
    whole = case.X + 2.0 * (folds == 1)[:, np.newaxis]  # folds of unlike means
    X = np.where(gaps, np.nan, whole)
    messy = replace(case, X=X)
    found = fitted(messy, cut(messy, 90, folds), folds, alpha=1e-3)
    means = [np.nanmean(X[folds != fold], axis=0) for fold in range(3)]
    filled = [replace(case, X=np.where(gaps, mean, whole)) for mean in means]
    for prefix, error in enumerate(present(found.errors)):
        errors = [explicit_errors(filled[fold], folds, fold, found, prefix, 1e-3) for fold in range(3)]
        assert error == pytest.approx(np.mean(errors), rel=OPTIMUM)


@pytest.mark.parametrize("coupled", [0, joint.COUPLED])
@pytest.mark.parametrize("family", KINDS)
def test_rough_fits_of_folds_measure_the_errors_of_exact_ones(
    family: Family, coupled: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(joint, "COUPLED", coupled)
    case = weighted(family)
    folds = np.arange(300) % 3
    rough = present(fitted(case, cut(case, 300, folds), folds).errors)
    request.getfixturevalue("exact_folds")
    exact = present(fitted(case, cut(case, 300, folds), folds).errors)
    np.testing.assert_allclose(rough, exact, rtol=1e-2)  # they stop 1e-6 of the loss above its minimum
    assert (rough != exact).any()


@pytest.mark.usefixtures("exact_folds")
@pytest.mark.parametrize("family", KINDS)
def test_the_penalty_of_each_prefix_has_the_least_deviance_of_the_grid(family: Family) -> None:
    case = clean(family, 0.2, 8, rows=60)
    folds = np.arange(60) % 3
    found = fitted(case, cut(case, 60, folds), folds, alpha="cv")
    grid = Options(alpha="cv").grid
    for prefix in (1, 3):
        curve = [
            np.mean([explicit_errors(case, folds, fold, found, prefix, alpha) for fold in range(3)]) for alpha in grid
        ]
        own = curve[grid.index(float(found.alphas[prefix]))]
        assert [present(found.errors)[prefix], own] == pytest.approx([min(curve)] * 2, rel=OPTIMUM)


# Where second derivatives would be too large.


@pytest.mark.parametrize(
    ("family", "method"),
    [*(("poisson", method) for method in METHODS), *((each, "fr") for each in SINGLE if each != "poisson")],
)
def test_without_second_derivatives_of_all_columns_every_prefix_is_exact(
    family: Family, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By forward regression the order is near that of exact gains, whichever family is too large for its Hessian."""
    case = clean(family, 0.6, 10)
    exact = case.learned(method)
    monkeypatch.setattr(search, "MAX_HESSIAN", 4)
    bounded = case.learned(method)
    assert sorted([g for adds in order_of(bounded) for g in adds]) == list(range(len(case.groups)))
    if method != "fr":
        assert order_of(bounded) == order_of(exact)
    problem = case.rows()
    for prefix, end in enumerate(bounded.sequence.ends):
        columns = bounded.sequence.columns[:end].tolist()
        np.testing.assert_allclose(coefficients(bounded, prefix), problem.coefficients(columns), rtol=0, atol=OPTIMUM)
        F = bounded.sequence.explained_variance[prefix]
        assert pytest.approx(problem.explained_variance(columns), abs=1e-9) == F


# The second-order model at a fit.


ALPHA = 0.02
GROUPS = {
    "groups": [
        {"name": "a", "features": ["a0", "a1"], "cost": 1.0},
        {"name": "b", "features": ["b0"], "cost": 0.5},
        {"name": "c", "features": ["c0", "c1", "c2"], "cost": 2.0},
    ]
}


def trained(family: str) -> Model:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(300, 6)) @ rng.normal(size=(6, 6)) + 2.0
    eta = (X - X.mean(axis=0)) @ rng.normal(size=6) * 0.2
    if family == "poisson":
        return AnytimeRegressor(GROUPS, family="poisson", alpha=ALPHA).fit(X, rng.poisson(np.exp(eta))).model_
    return AnytimeClassifier(GROUPS, alpha=ALPHA).fit(X, eta + rng.logistic(size=300) > 0).model_


@pytest.fixture(params=["binomial", "poisson"])
def model(request: pytest.FixtureRequest) -> Model:
    return trained(request.param)


def test_some_columns_are_a_part_of_all_columns(model: Model) -> None:
    kept = present(model.curvatures)
    for columns in (np.arange(6), np.array([4]), np.array([5, 0, 3]), np.empty(0, dtype=np.intp)):
        rows = np.concatenate([[0], columns + 1])
        for index in range(len(kept.prefixes)):
            whole, part = kept.at(index), kept.at(index, columns)
            np.testing.assert_array_equal(whole.H, whole.H.T)
            np.testing.assert_array_equal(part.H, whole.H[np.ix_(rows, rows)])
            np.testing.assert_array_equal(part.r, whole.r[rows])
            np.testing.assert_array_equal(part.newton(np.arange(len(columns)), ALPHA), whole.newton(columns, ALPHA))


def test_a_step_from_the_optimum_of_a_prefix_to_itself_goes_nowhere(model: Model) -> None:
    kept, models = present(model.curvatures), model.prefixes
    assert kept.prefixes.tolist() == [0, 1, 2, 3]
    for prefix in kept.prefixes:
        columns = models.columns[: models.ends[prefix]]
        theta = kept.at(prefix, columns).newton(np.arange(len(columns)), ALPHA)
        np.testing.assert_allclose(theta[0], models.intercept_of(prefix), atol=1e-6)
        np.testing.assert_allclose(theta[1:] / models.scale[columns, np.newaxis], models.coef(prefix), atol=1e-6)


def test_as_many_are_kept_as_there_is_room_for_the_base_rate_and_the_last_among_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "MAX_VALUES", 2 * 28)  # numbers of two triangles of 7 rows
    assert present(trained("binomial").curvatures).prefixes.tolist() == [0, 3]
