"""The bounds of the theorems, and their constants; `anytime.training.fit.guarantee` says which one covers a sequence.

Theorem 3.2, for a penalty on standardised coordinates: with D = blockdiag(C_g) and

    gamma = nu * lambda_min(D^-1/2 C D^-1/2),

F(G_B) >= (1 - exp(-gamma B/K)) F(any set of cost K) at every cost B that a step completes. nu is 1 for forward
regression. OMP whitens by S_g only: nu is the smallest s/(s + alpha) over the non-zero eigenvalues s of all S_g,
divided by the largest, so groups with S_g = I have the same gamma for both methods, as in the paper.

Theorem 4.3, for forward regression with doubling: F(G_B) > (1 - exp(-gamma^2/(1 + gamma))) F(any set of cost B/4) at
every budget B up to where the set was doubling-capable. Here gamma is the ratio of Eq. 9, enumerated for few groups.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import eigvalsh

from anytime._linalg import NULL_EIGENVALUE, factorise, single_blas_thread
from anytime.groups import COST_TOLERANCE, FeatureGroups
from anytime.moments.moments import Gram
from anytime.selection import SelectionMethod, method_of
from anytime.types import Float, Method

ENUMERATED = 12
"""Maximum number of groups for which the ratio of Eq. 9 is enumerated."""

NO_GAIN = 1e-10
"""Eigenvalues, and gains as a share of the largest possible F, below this are rounding."""


def bound(gamma: float, budget: float, cost: float) -> float:
    """Return, by Theorem 3.2, the guaranteed share of the best F of any set of `cost` for the prefix of `budget`."""
    return -math.expm1(-gamma * budget / cost)


def doubling_bound(gamma: float) -> float:
    """Return, by Theorem 4.3, the guaranteed share of the best F of any set of cost B/4 within any budget B."""
    return -math.expm1(-(gamma**2) / (1 + gamma))


def buys_no_group(costs: Float, until: int) -> bool:
    """Return whether a quarter of every budget up to step `until` buys no group, so that Theorem 4.3 promises nothing.

    `costs` (steps + 1,) are those of the prefixes. With doubling, the first group that costs something is the cheapest.
    """
    paid = costs[costs > 0]
    return len(paid) > 0 and bool(costs[until] * (1 + COST_TOLERANCE) < 4 * paid[0])


def spectral_gamma(gram: Gram, groups: FeatureGroups, method: Method | SelectionMethod, alpha: float) -> float:
    """Return gamma of Theorem 3.2, as the module docstring states it, for a method that it covers.

    About D^3 operations.

    Directions in which a group does not vary have no gradient; the whitening of each group excludes them.
    """
    shares: list[Float] = []
    whitened: list[Float] = []
    for columns in groups.slices:
        values, vectors = np.linalg.eigh(gram.S[columns, columns])
        nonzero = values > NULL_EIGENVALUE * values.max(initial=0.0)
        values = values[nonzero]
        shares.append(values / (values + alpha))
        whitened.append(vectors[:, nonzero] / np.sqrt(values + alpha))
    if sum(map(len, shares)) == 0:
        return 1.0
    nu = method_of(method).whitening_share(np.concatenate(shares)) or 0.0
    C, blocks = gram.S + alpha * np.eye(len(gram.S)), [*zip(groups.slices, whitened, strict=True)]
    with single_blas_thread():
        C = np.hstack([C[:, columns] @ T for columns, T in blocks])
        C = np.vstack([T.T @ C[columns] for columns, T in blocks])
        smallest = float(eigvalsh(C, subset_by_index=[0, 0], overwrite_a=True)[0])
    return nu * min(smallest, 1.0) if smallest > NO_GAIN else 0.0


def subset_values(gram: Gram, groups: FeatureGroups, alpha: float) -> Float:
    """Return F of every set of groups, (2^groups,); bit g of the index marks group g. Exponential cost."""
    C, q = gram.penalised(alpha)
    reference = np.diagonal(C).copy()
    sizes = [len(group.features) for group in groups.groups]
    F = np.zeros(2 ** len(sizes))

    def grow(chosen: int, first: int, C: Float, b: Float) -> None:
        """Add each group from `first` on to `chosen`; C and b are conditional, of the columns from `first` on."""
        begin, offset = 0, len(reference) - len(C)
        for g in range(first, len(sizes)):
            end = begin + sizes[g]
            factor = factorise(C[begin:end, begin:end], reference[offset + begin : offset + end])
            z = factor.forward(b[begin:end])
            V = factor.forward(C[begin:end, end:])
            F[chosen | 1 << g] = F[chosen] + 0.5 * float(np.sum(z * z))
            grow(chosen | 1 << g, g + 1, C[end:, end:] - V.T @ V, b[end:] - V.T @ z)
            begin = end

    with single_blas_thread():
        grow(0, 0, C, q)
    return F


def submodularity_ratio(gram: Gram, groups: FeatureGroups, alpha: float) -> float:
    """Return the largest gamma <= 1 with gamma (F(A + x) - F(A)) <= F(A' + x) - F(A') for all A' in A and x (Eq. 9)."""
    F = subset_values(gram, groups, alpha)
    J = len(groups)
    sets = np.arange(2**J)
    ratio = 1.0
    for x in range(J):
        gain = F[sets | 1 << x] - F
        least = gain.copy()  # smallest gain of x over the subsets of each set
        for g in range(J):
            with_g = sets[(sets >> g & 1) == 1]
            least[with_g] = np.minimum(least[with_g], least[with_g ^ 1 << g])
        counts = (sets >> x & 1 == 0) & (gain > NO_GAIN * 0.5 * len(gram.yy))
        if counts.any():
            ratio = min(ratio, float((least[counts] / gain[counts]).min()))
    return max(ratio, 0.0)
