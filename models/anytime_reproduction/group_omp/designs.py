"""The four designs of the Group-OMP paper's simulations (section 4.1): rows to draw, true coefficients, exact moments.

The model error weighs coefficients by E(x x'), uncentred as the paper prints it. All four are exact: moments of
bivariate Gaussians in closed form, or by quadrature where variables are cut into categories.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import ndtr, ndtri

from anytime.groups import FeatureGroup, FeatureGroups
from anytime.model.prefixes import staircase
from anytime.moments.moments import Gram, Moments
from anytime.selection import sequence
from anytime.selection.sparse import group_lasso_path
from anytime.types import Bool, Float

__all__ = ["DESIGNS", "METHODS", "TUNED", "Design", "Rows", "group_lasso", "group_omp", "lasso", "ols", "omp"]

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
    mean, second : functions that return E(x) (D,) and E(x x') (D, D), exact.
    """

    number: int
    what: str
    sizes: tuple[int, ...]
    truth: Float
    noise: float
    training: int
    validation: int
    draw: Callable[[np.random.Generator, int], Float]
    mean: Callable[[], Float]
    second: Callable[[], Float]

    @property
    def groups(self) -> FeatureGroups:
        """Return the groups, each at cost 1."""
        return groups_of(self.sizes)

    @property
    def support(self) -> Bool:
        """Return the variables of the true model, (D,)."""
        support: Bool = self.truth != 0.0
        return support


@cache
def groups_of(sizes: tuple[int, ...]) -> FeatureGroups:
    """Return groups G1, G2, ... of some sizes, each at cost 1."""
    built = [
        FeatureGroup(name=f"G{g + 1}", features=tuple(f"G{g + 1}.{d + 1}" for d in range(size)), cost=1.0)
        for g, size in enumerate(sizes)
    ]
    return FeatureGroups(groups=tuple(built))


def _halving(width: int) -> Float:
    """Return the covariance 0.5^|i - j|."""
    positions = np.arange(width)
    covariance: Float = 0.5 ** np.abs(positions[:, np.newaxis] - positions)
    return covariance


def _drawn(rng: np.random.Generator, rows: int, width: int) -> Float:
    """Return Gaussian rows of covariance 0.5^|i - j|."""
    return rng.normal(size=(rows, width)) @ np.linalg.cholesky(_halving(width)).T


# Experiment 1: categories.

FACTORS = 15


def _draw_categories(rng: np.random.Generator, rows: int) -> Float:
    """Return indicators of the upper and the lower third of each Z: (I(W_i = 1), I(W_i = 0))."""
    Z = _drawn(rng, rows, FACTORS)
    return np.stack([ndtri(2 / 3) < Z, ndtri(1 / 3) > Z], axis=2).reshape(rows, -1).astype(np.float64)


def _mean_of_categories() -> Float:
    return np.full(2 * FACTORS, 1 / 3)


@cache
def _second_of_categories() -> Float:
    """Return P(W_i = a, W_j = b): the integral of Z_i's density over its third times P(Z_j's third | Z_i)."""
    edge = float(ndtri(2 / 3))
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    z = edge + (nodes + 1.0) / 2.0 * (FAR - edge)
    density = weights * (FAR - edge) / 2.0 * np.exp(-z * z / 2.0) / np.sqrt(2.0 * np.pi)
    second = np.zeros((FACTORS, 2, FACTORS, 2))
    for lag in range(1, FACTORS):
        rho = 0.5**lag
        spread = np.sqrt(1.0 - rho * rho)
        same, other = (float(density @ ndtr((sign * rho * z - edge) / spread)) for sign in (1.0, -1.0))
        for i in range(FACTORS - lag):
            second[i, :, i + lag, :] = second[i + lag, :, i, :] = [[same, other], [other, same]]
    for i in range(FACTORS):
        second[i, :, i, :] = np.eye(2) / 3
    return second.reshape(2 * FACTORS, -1)


# Experiment 2: cubic expansions.

CURVES = 16


def _draw_cubics(rng: np.random.Generator, rows: int) -> Float:
    """Return (W^3, W^2, W) of each W_i = (Z_i + Z_17)/sqrt(2)."""
    Z = rng.normal(size=(rows, CURVES + 1))
    W = (Z[:, :CURVES] + Z[:, CURVES:]) / np.sqrt(2.0)
    return np.stack([W**3, W**2, W], axis=2).reshape(rows, -1)


def _mean_of_cubics() -> Float:
    return np.tile([0.0, 1.0, 0.0], CURVES)


@cache
def _second_of_cubics() -> Float:
    """Return E(V^a W^b) of standard Gaussians: r, 3r, 1 + 2r^2, 9r + 6r^3, and 0 where a + b is odd."""

    def block(r: float) -> Float:
        return np.array([[9 * r + 6 * r**3, 0.0, 3 * r], [0.0, 1 + 2 * r * r, 0.0], [3 * r, 0.0, r]])

    eye = np.eye(CURVES)
    return np.kron(eye, block(1.0)) + np.kron(1.0 - eye, block(0.5))


# Experiment 3: three hidden variables measured five times each, and 25 columns of noise.


def _draw_measurements(rng: np.random.Generator, rows: int) -> Float:
    X = rng.normal(size=(rows, 40))
    X[:, :15] = np.sqrt(0.1) * X[:, :15] + np.repeat(rng.normal(size=(rows, 3)), 5, axis=1)
    return X


def _second_of_measurements() -> Float:
    second = np.eye(40)
    second[:15, :15] = 0.1 * np.eye(15) + np.kron(np.eye(3), np.ones((5, 5)))
    return second


# Experiment 4: five hidden variables with a weak effect on ten measurements each.


def _draw_faint_measurements(rng: np.random.Generator, rows: int) -> Float:
    hidden = np.repeat(rng.normal(size=(rows, 5)), 10, axis=1)
    X: Float = MEASURED * hidden + np.sqrt(1.0 - MEASURED**2) * _drawn(rng, rows, 50)
    return X


def _second_of_faint_measurements() -> Float:
    return MEASURED**2 * np.kron(np.eye(5), np.ones((10, 10))) + (1.0 - MEASURED**2) * _halving(50)


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
        mean=_mean_of_categories,
        second=_second_of_categories,
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
        mean=_mean_of_cubics,
        second=_second_of_cubics,
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
        mean=lambda: np.zeros(40),
        second=_second_of_measurements,
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
        mean=lambda: np.zeros(50),
        second=_second_of_faint_measurements,
    ),
)
"""Experiments 1 to 4, in order."""


PENALTIES = 100
"""Number of penalties on a path of the Lasso or the Group Lasso."""

SMALLEST = 1e-4
"""The last penalty as a share of the first: close enough to OLS that every optimum lies before."""

GAP = 1e-7
"""Target duality gap on the Group Lasso's path, as a share of |y|^2."""

NOUGHT = 1e-9
"""Coefficients below this share of the path's largest are rounding at a knot."""

NULL = 1e-10
"""Directions of a group below this share of its largest variance count as null, the factorisation's own tolerance."""


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
    max_knots = 8 * A.shape[1] + 100  # knots; variables that leave and return create more knots than columns
    knots, _, coef = lars_path_gram(A.T @ rows.y, A.T @ A, n_samples=len(A), method="lasso", max_iter=max_knots)
    grid = float(knots[0]) * np.geomspace(1.0, SMALLEST, PENALTIES)
    path = np.stack([np.interp(-grid, -knots, w) for w in coef], axis=1)
    path[np.abs(path) <= NOUGHT * np.abs(path).max()] = 0.0
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
    T = _orthonormalising(rows)
    gram = _about_zero(rows.X @ T, rows.y)
    sizes = np.array([len(group.features) for group in rows.groups.groups], dtype=np.float64)
    found = group_lasso_path(gram, rows.groups.slices, sizes**root, count=PENALTIES, smallest=SMALLEST, tolerance=GAP)
    path: Float = (found.coef[:, :, 0] * gram.y_scale / gram.x_scale) @ T.T
    return path


def _about_zero(X: Float, y: Float) -> Gram:
    """Return the normal equations of rows that are not centred."""
    Z, D = np.column_stack([X, y]), X.shape[1]
    return Gram.of(Moments(D, 1, len(Z), float(len(Z)), np.zeros(D + 1), Z.T @ Z, np.zeros(D)))


def _orthonormalising(rows: Rows) -> Float:
    """Return a block-diagonal T (D, D) with X T orthonormal in each group up to sqrt(n); zero columns for lost rank."""
    A = rows.X / rows.lengths
    T = np.zeros((A.shape[1], A.shape[1]))
    for columns in rows.groups.slices:
        values, vectors = np.linalg.eigh(A[:, columns].T @ A[:, columns] / len(A))
        positive = values > NULL * values[-1]
        T[columns, columns] = vectors * np.where(positive, 1.0 / np.sqrt(np.where(positive, values, 1.0)), 0.0)
    return T / rows.lengths[:, np.newaxis]


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
