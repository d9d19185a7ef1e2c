"""The Group-OMP paper's simulations (section 4.1): four designs, five methods, and the repetitions of each.

Also how its experiments are repeated in batches, and published means compared with ours.

A design draws rows and knows its exact moments. A method returns the path of coefficients over its tuning parameter,
from no columns on. Group-OMP is this library's (`sequence`, cost-blind "omp", without a penalty); OLS is numpy's; Lasso
and OMP are scikit-learn's. None fits an intercept: the caller centres the rows to get one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag, toeplitz
from scipy.special import ndtri, owens_t

from anytime._linalg import single_blas_thread
from anytime.groups import FeatureGroups
from anytime.model.prefixes import staircase
from anytime.moments.moments import Gram, Moments
from anytime.selection import sequence
from anytime.selection.criteria import whitening
from anytime.types import Bool, Float
from anytime_reproduction.experiment import Estimate, Finding, Result, Results, Run, Setting, merged
from anytime_reproduction.lasso.sparse import group_lasso_path
from anytime_reproduction.sets import consecutive_groups

# Designs.

MEASURED = 0.05  # weight of a hidden variable in its measurements in experiment 4


@dataclass(frozen=True, eq=False)
class Design:
    """One experiment: y = x'b + noise of deviation `noise`, with known distribution.

    Groups have `sizes` columns; `truth` are the coefficients b (D,). `rows` are the numbers of rows for training and
    validation. `draw` draws rows (n, D) from a generator; `mean` (D,) and `second` (D, D) are their exact E(x) and
    E(x x').
    """

    what: str
    sizes: tuple[int, ...]
    truth: Float
    noise: float
    rows: tuple[int, int]
    draw: Callable[[np.random.Generator, int], Float]
    mean: Float
    second: Float

    @cached_property
    def groups(self) -> FeatureGroups:
        return consecutive_groups(self.sizes, np.ones(len(self.sizes)))

    @property
    def support(self) -> Bool:
        return np.asarray(self.truth != 0.0)


def _halving(width: int) -> Float:
    return np.asarray(toeplitz(0.5 ** np.arange(width)), dtype=np.float64)


def _drawn(rng: np.random.Generator, rows: int, width: int) -> Float:
    """Return Gaussian rows of covariance 0.5^|i - j|."""
    return rng.normal(size=(rows, width)) @ np.linalg.cholesky(_halving(width)).T


FACTORS, CURVES = 15, 16  # numbers of categorical variables in experiment 1 and of curves in experiment 2


def _draw_categories(rng: np.random.Generator, rows: int) -> Float:
    """Return indicators of the upper and the lower third of each Z: (I(W_i = 1), I(W_i = 0))."""
    Z = _drawn(rng, rows, FACTORS)
    return np.stack([ndtri(2 / 3) < Z, ndtri(1 / 3) > Z], axis=2).reshape(rows, -1).astype(np.float64)


def _second_of_categories() -> Float:
    """Return P(W_i = a, W_j = b), from P(Z_i > e, Z_j > e) = 1/3 - 2 T(e, sqrt((1 - r)/(1 + r))) with Owen's T."""
    lagged = 0.5 ** np.arange(1, FACTORS)
    slopes = (np.sqrt((1.0 - r) / (1.0 + r)) for r in (lagged, -lagged))
    same, other = (1 / 3 - 2.0 * np.asarray(owens_t(ndtri(2 / 3), slope)) for slope in slopes)
    apart = np.kron(toeplitz(np.append(0.0, other)), 1.0 - np.eye(2))
    return np.asarray(np.kron(toeplitz(np.append(1 / 3, same)), np.eye(2)) + apart, dtype=np.float64)


def _draw_cubics(rng: np.random.Generator, rows: int) -> Float:
    """Return (W^3, W^2, W) of each W_i = (Z_i + Z_17)/sqrt(2)."""
    Z = rng.normal(size=(rows, CURVES + 1))
    W = (Z[:, :CURVES] + Z[:, CURVES:]) / np.sqrt(2.0)
    return np.stack([W**3, W**2, W], axis=2).reshape(rows, -1)


def _second_of_cubics() -> Float:
    """Return E(V^a W^b) of standard Gaussians: r, 3r, 1 + 2r^2, 9r + 6r^3, and 0 where a + b is odd."""

    def block(r: float) -> Float:
        return np.array([[9 * r + 6 * r**3, 0.0, 3 * r], [0.0, 1 + 2 * r * r, 0.0], [3 * r, 0.0, r]])

    eye = np.eye(CURVES)
    return np.kron(eye, block(1.0)) + np.kron(1.0 - eye, block(0.5))


def _draw_measurements(rng: np.random.Generator, rows: int) -> Float:
    """Return three hidden variables, measured five times each, and 25 columns of noise."""
    X = rng.normal(size=(rows, 40))
    X[:, :15] = np.sqrt(0.1) * X[:, :15] + np.repeat(rng.normal(size=(rows, 3)), 5, axis=1)
    return X


def _draw_faint_measurements(rng: np.random.Generator, rows: int) -> Float:
    """Return five hidden variables with a weak effect on ten measurements each."""
    hidden = np.repeat(rng.normal(size=(rows, 5)), 10, axis=1)
    return np.asarray(MEASURED * hidden + np.sqrt(1.0 - MEASURED**2) * _drawn(rng, rows, 50))


DESIGNS: tuple[Design, ...] = (
    Design(
        what="15 factors of three levels, 3 of them true (model I of Yuan and Lin)",
        sizes=(2,) * FACTORS,
        truth=np.array([1.8, -1.2, 0.0, 0.0, 1.0, 0.5, 0.0, 0.0, 1.0, 1.0, *[0.0] * 20]),
        noise=1.476,
        rows=(50, 25),
        draw=_draw_categories,
        mean=np.full(2 * FACTORS, 1 / 3),
        second=_second_of_categories(),
    ),
    Design(
        what="16 cubic curves, 2 of them true (model III of Yuan and Lin)",
        sizes=(3,) * CURVES,
        truth=np.array([*[0.0] * 6, 1.0, 1.0, 1.0, *[0.0] * 6, 1 / 3, -1.0, 2 / 3, *[0.0] * 30]),
        noise=2.0,
        rows=(100, 50),
        draw=_draw_cubics,
        mean=np.tile([0.0, 1.0, 0.0], CURVES),
        second=_second_of_cubics(),
    ),
    Design(
        what="3 true groups of 5 nearly equal columns, and 25 columns of noise (after Zou and Hastie)",
        sizes=(5,) * 3 + (1,) * 25,
        truth=np.repeat([3.0, 4.0, 2.0, 0.0], [5, 5, 5, 25]),
        noise=15.0,
        rows=(500, 50),
        draw=_draw_measurements,
        mean=np.zeros(40),
        second=block_diag(0.1 * np.eye(15) + np.kron(np.eye(3), np.ones((5, 5))), np.eye(25)),
    ),
    Design(
        what="5 groups of 10 columns, 3 of them true (Zhao, Rocha and Yu)",
        sizes=(10,) * 5,
        truth=np.repeat([7.0, 2.0, 1.0, 0.0], [10, 10, 10, 20]),
        noise=19.22,
        rows=(300, 50),
        draw=_draw_faint_measurements,
        mean=np.zeros(50),
        second=MEASURED**2 * np.kron(np.eye(5), np.ones((10, 10))) + (1.0 - MEASURED**2) * _halving(50),
    ),
)
"""Experiments 1 to 4, as in the paper."""


# Methods.

PENALTIES = 100  # number of penalties on a path of the Lasso or the Group Lasso
SMALLEST = 1e-4  # the last penalty as a share of the first: close enough to OLS that every optimum lies before
GAP = 1e-7  # target duality gap on the Group Lasso's path, as a share of |y|^2
KNOT_ROUNDING = 1e-9  # coefficients below this share of the path's largest are rounding at a knot


@dataclass(frozen=True, eq=False)
class Rows:
    """Training rows X (n, D) and y (n,), and the groups of the columns in order."""

    X: Float
    y: Float
    groups: FeatureGroups

    @property
    def lengths(self) -> Float:
        """Return the root mean squares (D,) of the columns, 1 for a column of zeros."""
        lengths = np.sqrt(np.mean(self.X**2, axis=0))
        return np.where(lengths > 0, lengths, 1.0)


Method = Callable[[Rows], Float]  # a function from rows to a path (points, D) of coefficients


def ols(rows: Rows) -> Float:
    """Return least squares on all columns, the only point; columns are scaled, so that none is lost to rounding."""
    w = np.asarray(np.linalg.lstsq(rows.X / rows.lengths, rows.y, rcond=None)[0], dtype=np.float64)
    return (w / rows.lengths)[np.newaxis]


def lasso(rows: Rows) -> Float:
    """Return optima of |y - Xw|^2 + lambda |w|_1 at decreasing penalties, columns scaled to length 1.

    Least angle regression gives the path's knots, up to rounding even for nearly collinear columns. Between two knots
    the path is linear.
    """
    from sklearn.linear_model import lars_path_gram  # noqa: PLC0415

    A = rows.X / rows.lengths
    max_knots = 8 * A.shape[1] + 100  # variables that leave and return create more knots than columns
    knots, _, coef = lars_path_gram(A.T @ rows.y, A.T @ A, n_samples=len(A), method="lasso", max_iter=max_knots)
    grid = float(knots[0]) * np.geomspace(1.0, SMALLEST, PENALTIES)
    path = np.stack([np.interp(-grid, -knots, w) for w in coef], axis=1)
    path[np.abs(path) <= KNOT_ROUNDING * np.abs(path).max()] = 0.0
    return path / rows.lengths


def omp(rows: Rows) -> Float:
    """Return every iteration of orthogonal matching pursuit, columns scaled to length 1."""
    from sklearn.linear_model import orthogonal_mp_gram  # noqa: PLC0415

    A = rows.X / rows.lengths
    path = orthogonal_mp_gram(A.T @ A, A.T @ rows.y, n_nonzero_coefs=min(A.shape), return_path=True)
    return np.vstack([np.zeros(A.shape[1]), path.T / rows.lengths])


def group_omp(rows: Rows) -> Float:
    """Return every iteration of Group-OMP (Figure 1 of the paper), groups orthonormalised: the library's own sequence.

    The criterion b_g' S_g^+ b_g is invariant under linear maps of a group's columns, such as orthonormalisation.
    """
    gram = _about_zero(rows.X, rows.y)
    found = sequence(gram, rows.groups, "omp", alpha=0.0, cost_blind=True)
    W = staircase(found.state.factor, found.state.z, found.ends)[:, :, 0]
    path = np.zeros_like(W)
    path[:, found.columns] = W
    return path * gram.y_scale / gram.x_scale


def group_lasso(rows: Rows, root: float = 0.0) -> Float:
    """Return optima of 1/2 |y - sum_j X_j w_j|^2 + lambda sum_j d_j^root |w_j|_2, X_j' X_j = I, decreasing penalties.

    The paper prints root 0; Yuan and Lin have root 1/2.
    """
    A = rows.X / rows.lengths
    blocks = [whitening(A[:, columns].T @ A[:, columns] / len(A)) for columns in rows.groups.slices]
    T = block_diag(*blocks) / rows.lengths[:, np.newaxis]  # zero columns for lost rank
    gram = _about_zero(rows.X @ T, rows.y)
    sizes = np.array([len(group.features) for group in rows.groups.groups], dtype=np.float64)
    found = group_lasso_path(gram, rows.groups.slices, sizes**root, count=PENALTIES, smallest=SMALLEST, tolerance=GAP)
    return np.asarray((found.coef[:, :, 0] * gram.y_scale / gram.x_scale) @ T.T)


def _about_zero(X: Float, y: Float) -> Gram:
    """Return the normal equations of rows that are not centred."""
    Z, D = np.column_stack([X, y]), X.shape[1]
    return Gram.of(Moments(D, 1, len(Z), float(len(Z)), np.zeros(D + 1), Z.T @ Z, np.zeros(D)))


METHODS: dict[str, Method] = {
    "OLS": ols,
    "Lasso": lasso,
    "OMP": omp,
    "Group Lasso": group_lasso,
    "Group-OMP": group_omp,
}
"""The methods by the paper's names, in its order."""

RIVALS = ("OLS", "Lasso", "OMP", "Group Lasso")  # all methods but Group-OMP; OLS has no tuning parameter


# Repetitions.


def f1(selected: Bool, true: Bool) -> float:
    """Return 2 P R/(P + R) of precision P and recall R; 0 if nothing is selected."""
    return 2.0 * int(np.sum(selected & true)) / (int(selected.sum()) + int(true.sum()))


def groups_with(variables: Bool, groups: FeatureGroups) -> Bool:
    """Return the groups (groups,) that contain any of some variables (D,)."""
    return np.asarray(np.logical_or.reduceat(variables, [columns.start for columns in groups.slices]))


def model_errors(path: Float, truth: Float, second: Float) -> Float:
    """Return (w - b)' E(x x') (w - b) of each point w of a path (points, D)."""
    away = path - truth
    return np.asarray(np.einsum("kd,kd->k", away @ second, away))


def held_out_errors(path: Float, X: Float, y: Float) -> Float:
    """Return the mean squared error on held-out rows of each point of a path, (points,)."""
    return np.asarray(np.mean((y[:, np.newaxis] - X @ path.T) ** 2, axis=0))


MEASURES = ("F1 (Var)", "F1 (Group)", "ME")

SCORINGS = ("printed", "covariance", "deviations")
"""Readings that the paper permits, by which each fit is scored.

"printed" has the model error by E(x x'), uncentred as the paper prints it, and hold-out by mean squared error;
"covariance" has the model error by the covariance of x instead; "deviations" has hold-out by responses minus their
training mean, with predictions fitted to uncentred ones.
"""


class Variation(NamedTuple):
    """Experiment `design`, from 1, as printed, or with a change that tests an explanation.

    `training` and `noise` replace the printed values. With an `intercept` the training means centre the rows, also
    those for validation. `root` is the power of the group's size in the Group Lasso's weights.
    """

    design: int
    methods: tuple[str, ...] = tuple(METHODS)
    training: int | None = None
    noise: float | None = None
    intercept: bool = False
    root: float = 0.0


VARIATIONS: dict[str, Variation] = {
    **{f"printed-{number}": Variation(number) for number in (1, 2, 3, 4)},
    "intercept-1": Variation(1, intercept=True),
    "intercept-2": Variation(2, intercept=True),
    "roots-3": Variation(3, methods=("Group Lasso",), root=0.5),
    "rows-4": Variation(4, training=450),
    "noise-4": Variation(4, noise=15.0),
}


def row_names(method: str) -> dict[str, str]:
    """Return the rows of Table 1 of a method, by tuning."""
    return {"": method} if method == "OLS" else {kind: f"{method} ({kind})" for kind in ("Oracle", "Holdout")}


def trials(setting: Setting, name: str, first: int, count: int) -> Result:
    """Return a list of the numbers of `count` repetitions of a variation, by scoring, row of Table 1 and measure."""
    varied = VARIATIONS[name]
    with single_blas_thread():
        return dict(merged([_trial(varied, [setting.seed, varied.design, first + i]) for i in range(count)]))


def _trial(varied: Variation, seed: list[int]) -> dict[str, dict[str, dict[str, list[float]]]]:
    rng, design = np.random.default_rng(seed), DESIGNS[varied.design - 1]
    training, validation = varied.training or design.rows[0], design.rows[1]
    X = design.draw(rng, training + validation)
    y = X @ design.truth + (varied.noise or design.noise) * rng.normal(size=len(X))
    X_mean, y_mean = X[:training].mean(axis=0), float(y[:training].mean())
    if varied.intercept:
        X, y = X - X_mean, y - y_mean
    rows, X_held, y_held = Rows(X[:training], y[:training], design.groups), X[training:], y[training:]
    scored: dict[str, dict[str, dict[str, list[float]]]] = {scoring: {} for scoring in SCORINGS}
    for method in varied.methods:
        path = group_lasso(rows, varied.root) if method == "Group Lasso" else METHODS[method](rows)
        error = model_errors(path, design.truth, design.second)
        centred = model_errors(path, design.truth, design.second - np.outer(design.mean, design.mean))
        held, moved = (held_out_errors(path, X_held, held_out) for held_out in (y_held, y_held - y_mean))
        for scoring, (judge, chooser) in zip(SCORINGS, ((error, held), (centred, held), (error, moved)), strict=True):
            for kind, row in row_names(method).items():
                point = int(np.argmin(chooser if kind == "Holdout" else judge))
                selected, true = path[point] != 0.0, design.support
                by_group = (groups_with(variables, design.groups) for variables in (selected, true))
                values = f1(selected, true), f1(*by_group), float(judge[point])
                scored[scoring][row] = {measure: [value] for measure, value in zip(MEASURES, values, strict=True)}
    return scored


# Batches of repetitions, and published means.

BATCHES, BATCH = 10, 10  # 100 repetitions, as in the Group-OMP paper, ten to a run
ERRORS = 3.0  # standard errors within which means agree: 95 % intervals would exclude one in twenty of many cells
MIN_RUNS = 20  # runs needed for a verdict on published means: with fewer, the errors are too large to disagree


def batched(setting: Setting, work: Callable[..., Result], names: Iterable[str], *, quick: int) -> list[Run]:
    """Return runs `work(setting, name=..., first=..., count=...)` that together repeat each name 100 times.

    A quick run has a single batch of `quick` repetitions.
    """
    batches, size = (1, quick) if setting.quick else (BATCHES, BATCH)
    return [
        Run(f"{name}-{batch}", work, {"name": name, "first": batch * size, "count": size})
        for name in names
        for batch in range(batches)
    ]


def by_name(results: Results, names: Iterable[str]) -> dict[str, Any]:
    """Return the results of each name, with those of its batches in one list, in order."""
    return {n: merged([found for run, found in results.items() if run.rpartition("-")[0] == n]) for n in names}


@dataclass(frozen=True)
class Compared:
    """A cell of a published table and ours; `rounding` is half a unit of the last digit printed."""

    where: str
    row: str
    published: Estimate
    ours: Estimate
    rounding: float = 0.0005

    @property
    def distance(self) -> float:
        return max(abs(self.published.mean - self.ours.mean) - self.rounding, 0.0)

    @property
    def strict(self) -> bool:
        """Return whether the published mean is within three of our standard errors of ours."""
        return self.distance <= ERRORS * (self.ours.error or 0.0)

    @property
    def agrees(self) -> bool:
        """Return whether the difference is within three of its standard errors, which include the published error."""
        return self.distance <= ERRORS * math.hypot(self.ours.error or 0.0, self.published.error or 0.0)

    @property
    def verdict(self) -> str:
        return "yes" if self.strict else "by both errors" if self.agrees else "no"


def agreeing(cells: Iterable[Compared]) -> int:
    return sum(cell.agrees for cell in cells)


def means_finding(where: str, cells: Sequence[Compared], more: str = "", runs: str = "runs") -> Finding:
    """Return a finding on how many published means agree, without a verdict for too few runs."""
    strict, agree, count = sum(c.strict for c in cells), agreeing(cells), cells[0].ours.runs
    return Finding(
        f"{where}: {strict} of {len(cells)} published means lie within three of our standard errors, {agree} if the "
        f"published errors are included{too_few(count, runs)}{more}.",
        agrees=agree == len(cells) if count >= MIN_RUNS else None,
        judged=True,
    )


def too_few(count: int, runs: str = "runs") -> str:
    """Return a remark if the runs are too few for a verdict on published means, otherwise an empty string."""
    return f" ({count} {runs} are too few for a verdict)" if count < MIN_RUNS else ""
