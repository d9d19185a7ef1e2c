"""The Group-OMP paper's simulations (section 4.1): four designs, five methods, and the repetitions of each.

A design draws rows and knows its exact moments: those of bivariate Gaussians in closed form, or by quadrature where
variables are cut into categories. A method returns the path of coefficients over its tuning parameter, from no columns
on. Group-OMP is this library's (`sequence`, cost-blind "omp", without a penalty); OLS is numpy's; Lasso and OMP are
scikit-learn's. None fits an intercept: the caller centres the rows to get one. A repetition draws, fits, chooses by
oracle and by hold-out, and scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import block_diag, toeplitz
from scipy.special import ndtr, ndtri

from anytime._linalg import single_blas_thread
from anytime.groups import FeatureGroups
from anytime.model.prefixes import staircase
from anytime.moments.moments import Gram, Moments
from anytime.selection import sequence
from anytime.selection.criteria import whitening
from anytime.selection.sparse import group_lasso_path
from anytime.types import Bool, Float
from anytime_reproduction.experiment import Result, Setting
from anytime_reproduction.sets import consecutive_groups

# Designs.

NODES = 400
"""Number of nodes of the Gauss-Legendre rule for a third of a Gaussian; the integrand is smooth, so it is exact."""

FAR = 9.0
"""Beyond this value a Gaussian has no mass in double precision."""

MEASURED = 0.05
"""Weight of a hidden variable in its measurements in experiment 4."""


@dataclass(frozen=True, eq=False)
class Design:
    """One experiment: y = x'b + noise, with known distribution.

    Attributes
    ----------
    number : as in the paper.  what : description.
    sizes : columns of each group.  truth : (D,) the true coefficients b.
    noise : deviation of the noise.  training, validation : number of rows drawn for each.
    draw : function that draws rows (n, D) from a generator.
    mean, second : E(x) (D,) and E(x x') (D, D), exact.
    """

    number: int
    what: str
    sizes: tuple[int, ...]
    truth: Float
    noise: float
    training: int
    validation: int
    draw: Callable[[np.random.Generator, int], Float]
    mean: Float
    second: Float

    @cached_property
    def groups(self) -> FeatureGroups:
        """Return the groups, each at cost 1."""
        return consecutive_groups(self.sizes, np.ones(len(self.sizes)))

    @property
    def support(self) -> Bool:
        """Return the variables of the true model, (D,)."""
        support: Bool = self.truth != 0.0
        return support


def _halving(width: int) -> Float:
    """Return the covariance 0.5^|i - j|."""
    return np.asarray(toeplitz(0.5 ** np.arange(width)), dtype=np.float64)


def _drawn(rng: np.random.Generator, rows: int, width: int) -> Float:
    """Return Gaussian rows of covariance 0.5^|i - j|."""
    return rng.normal(size=(rows, width)) @ np.linalg.cholesky(_halving(width)).T


FACTORS, CURVES = 15, 16
"""Numbers of categorical variables in experiment 1 and of curves in experiment 2."""


def _draw_categories(rng: np.random.Generator, rows: int) -> Float:
    """Return indicators of the upper and the lower third of each Z: (I(W_i = 1), I(W_i = 0))."""
    Z = _drawn(rng, rows, FACTORS)
    return np.stack([ndtri(2 / 3) < Z, ndtri(1 / 3) > Z], axis=2).reshape(rows, -1).astype(np.float64)


def _second_of_categories() -> Float:
    """Return P(W_i = a, W_j = b): the integral of Z_i's density over its third times P(Z_j's third | Z_i)."""
    edge = float(ndtri(2 / 3))
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    z = edge + (nodes + 1.0) / 2.0 * (FAR - edge)
    density = weights * (FAR - edge) / 2.0 * np.exp(-z * z / 2.0) / np.sqrt(2.0 * np.pi)
    second = np.asarray(np.kron(np.eye(FACTORS), np.eye(2) / 3), dtype=np.float64)
    for lag in range(1, FACTORS):
        rho = 0.5**lag
        spread = np.sqrt(1.0 - rho * rho)
        same, other = (float(density @ ndtr((sign * rho * z - edge) / spread)) for sign in (1.0, -1.0))
        apart = np.eye(FACTORS, k=lag) + np.eye(FACTORS, k=-lag)
        second += np.kron(apart, np.array([[same, other], [other, same]]))
    return second


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
    X: Float = MEASURED * hidden + np.sqrt(1.0 - MEASURED**2) * _drawn(rng, rows, 50)
    return X


def _placed(width: int, *values: tuple[int, tuple[float, ...]]) -> Float:
    """Return (width,) zeros with values from some positions on."""
    truth = np.zeros(width)
    for start, some in values:
        truth[start : start + len(some)] = some
    return truth


DESIGNS: tuple[Design, ...] = (
    Design(
        number=1,
        what="15 factors of three levels, 3 of them true (model I of Yuan and Lin)",
        sizes=(2,) * FACTORS,
        truth=_placed(30, (0, (1.8, -1.2)), (4, (1.0, 0.5)), (8, (1.0, 1.0))),
        noise=1.476,
        training=50,
        validation=25,
        draw=_draw_categories,
        mean=np.full(2 * FACTORS, 1 / 3),
        second=_second_of_categories(),
    ),
    Design(
        number=2,
        what="16 cubic curves, 2 of them true (model III of Yuan and Lin)",
        sizes=(3,) * CURVES,
        truth=_placed(48, (6, (1.0, 1.0, 1.0)), (15, (1 / 3, -1.0, 2 / 3))),
        noise=2.0,
        training=100,
        validation=50,
        draw=_draw_cubics,
        mean=np.tile([0.0, 1.0, 0.0], CURVES),
        second=_second_of_cubics(),
    ),
    Design(
        number=3,
        what="3 true groups of 5 nearly equal columns, and 25 columns of noise (after Zou and Hastie)",
        sizes=(5,) * 3 + (1,) * 25,
        truth=_placed(40, (0, (3.0,) * 5 + (4.0,) * 5 + (2.0,) * 5)),
        noise=15.0,
        training=500,
        validation=50,
        draw=_draw_measurements,
        mean=np.zeros(40),
        second=block_diag(0.1 * np.eye(15) + np.kron(np.eye(3), np.ones((5, 5))), np.eye(25)),
    ),
    Design(
        number=4,
        what="5 groups of 10 columns, 3 of them true (Zhao, Rocha and Yu)",
        sizes=(10,) * 5,
        truth=_placed(50, (0, (7.0,) * 10 + (2.0,) * 10 + (1.0,) * 10)),
        noise=19.22,
        training=300,
        validation=50,
        draw=_draw_faint_measurements,
        mean=np.zeros(50),
        second=MEASURED**2 * np.kron(np.eye(5), np.ones((10, 10))) + (1.0 - MEASURED**2) * _halving(50),
    ),
)
"""Experiments 1 to 4, in order."""


# Methods.

PENALTIES = 100
"""Number of penalties on a path of the Lasso or the Group Lasso."""

SMALLEST = 1e-4
"""The last penalty as a share of the first: close enough to OLS that every optimum lies before."""

GAP = 1e-7
"""Target duality gap on the Group Lasso's path, as a share of |y|^2."""

ROUNDING = 1e-9
"""Coefficients below this share of the path's largest are rounding at a knot."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Training rows: X (n, D), y (n,), and the groups of the columns in order."""

    X: Float
    y: Float
    groups: FeatureGroups

    @property
    def lengths(self) -> Float:
        """Return the root mean squares (D,) of the columns, 1 for a column of zeros."""
        lengths = np.sqrt(np.mean(self.X**2, axis=0))
        return np.where(lengths > 0, lengths, 1.0)


Method = Callable[[Rows], Float]
"""A function from rows to a path (points, D) of coefficients."""


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
    path[np.abs(path) <= ROUNDING * np.abs(path).max()] = 0.0
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
    W = staircase(found.factor, found.z, found.ends)[:, :, 0]
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
    path: Float = (found.coef[:, :, 0] * gram.y_scale / gram.x_scale) @ T.T
    return path


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

TUNED: tuple[str, ...] = ("Lasso", "OMP", "Group Lasso", "Group-OMP")
"""The methods with a tuning parameter."""


# Repetitions.


def f1(selected: Bool, true: Bool) -> float:
    """Return 2 P R/(P + R) of precision P and recall R; 0 if nothing is selected."""
    return 2.0 * int(np.sum(selected & true)) / (int(selected.sum()) + int(true.sum()))


def groups_with(variables: Bool, groups: FeatureGroups) -> Bool:
    """Return the groups (groups,) that contain any of some variables (D,)."""
    found: Bool = np.logical_or.reduceat(variables, [columns.start for columns in groups.slices])
    return found


def model_errors(path: Float, truth: Float, second: Float) -> Float:
    """Return (w - b)' E(x x') (w - b) of each point w of a path (points, D)."""
    away = path - truth
    errors: Float = np.einsum("kd,kd->k", away @ second, away)
    return errors


def held_out_errors(path: Float, X: Float, y: Float) -> Float:
    """Return the mean squared error on held-out rows of each point of a path, (points,)."""
    errors: Float = np.mean((y[:, np.newaxis] - X @ path.T) ** 2, axis=0)
    return errors


MEASURES = ("F1 (Var)", "F1 (Group)", "ME")
"""Measures by the paper's names."""

SCORINGS = ("printed", "covariance", "deviations")
"""Readings that the paper permits, by which each fit is scored.

"printed" has the model error by E(x x'), uncentred as the paper prints it, and hold-out by mean squared error;
"covariance" has the model error by the covariance of x instead; "deviations" has hold-out by responses minus their
training mean, with predictions fitted to uncentred ones.
"""


@dataclass(frozen=True)
class Variation:
    """An experiment as printed, or with a change that tests an explanation.

    Attributes
    ----------
    design : number of the experiment, from 1.
    methods : the methods to fit.
    training, noise : replacements of the printed values.
    intercept : centre the rows by their training means, in training and in validation.
    root : power of the group's size in the Group Lasso's weights.
    """

    design: int
    methods: tuple[str, ...] = tuple(METHODS)
    training: int | None = None
    noise: float | None = None
    intercept: bool = False
    root: float = 0.0

    def applied(self) -> Design:
        """Return the design with the changes."""
        design = DESIGNS[self.design - 1]
        return replace(design, training=self.training or design.training, noise=self.noise or design.noise)


VARIATIONS: dict[str, Variation] = {
    **{f"printed-{number}": Variation(number) for number in (1, 2, 3, 4)},
    "intercept-1": Variation(1, intercept=True),
    "intercept-2": Variation(2, intercept=True),
    "roots-3": Variation(3, methods=("Group Lasso",), root=0.5),
    "rows-4": Variation(4, training=450),
    "noise-4": Variation(4, noise=15.0),
}
"""Variations by name: the four experiments, then the explanations."""


def row_names(method: str) -> dict[str, str]:
    """Return the rows of Table 1 of a method, by tuning."""
    return {"": method} if method == "OLS" else {kind: f"{method} ({kind})" for kind in ("Oracle", "Holdout")}


def trials(setting: Setting, variation: str, first: int, count: int) -> Result:
    """Return, for each scoring, row of Table 1 and measure, the numbers of `count` repetitions."""
    varied = VARIATIONS[variation]
    with single_blas_thread():
        scored = [_trial(varied, np.random.default_rng([setting.seed, varied.design, first + i])) for i in range(count)]
    return {
        scoring: {
            row: {measure: [one[scoring][row][m] for one in scored] for m, measure in enumerate(MEASURES)}
            for row in scored[0][scoring]
        }
        for scoring in SCORINGS
    }


def _trial(varied: Variation, rng: np.random.Generator) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return scores (F1 of variables, F1 of groups, model error) by scoring and row."""
    design = varied.applied()
    X = design.draw(rng, design.training + design.validation)
    y = X @ design.truth + design.noise * rng.normal(size=len(X))
    X_mean, y_mean = X[: design.training].mean(axis=0), float(y[: design.training].mean())
    if varied.intercept:
        X, y = X - X_mean, y - y_mean
    rows = Rows(X[: design.training], y[: design.training], design.groups)
    X_held, y_held = X[design.training :], y[design.training :]
    scored: dict[str, dict[str, tuple[float, float, float]]] = {scoring: {} for scoring in SCORINGS}
    for method in varied.methods:
        path = group_lasso(rows, varied.root) if method == "Group Lasso" else METHODS[method](rows)
        error = model_errors(path, design.truth, design.second)
        centred = model_errors(path, design.truth, design.second - np.outer(design.mean, design.mean))
        held = held_out_errors(path, X_held, y_held)
        moved = held_out_errors(path, X_held, y_held - y_mean)
        for scoring, (judge, chooser) in zip(SCORINGS, ((error, held), (centred, held), (error, moved)), strict=True):
            for kind, row in row_names(method).items():
                point = int(np.argmin(chooser if kind == "Holdout" else judge))
                scored[scoring][row] = (*_selection(path[point], design), float(judge[point]))
    return scored


def _selection(w: Float, design: Design) -> tuple[float, float]:
    """Return F1 of the variables and of the groups of some coefficients (D,)."""
    selected, true = w != 0.0, design.support
    return f1(selected, true), f1(groups_with(selected, design.groups), groups_with(true, design.groups))
