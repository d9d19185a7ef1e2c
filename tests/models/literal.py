"""The algorithms as the paper writes them, on the rows: slow, literal, and independent of the library they judge.

Nothing is updated, downdated or remembered: every candidate is refitted from nothing with an explicit inverse, and
every gradient is taken from the residuals of the rows. X and Y are standardised, n is the sum of the weights, and

    C_G  = X_G'X_G/n + alpha I
    F(G) = 1/2 tr(Y'Y)/n - min_W [ 1/(2n) |Y - X_G W|^2 + alpha/2 |W|^2 ]
    b_g  = X_g'(Y - X_G W(G))/n
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Literal, Protocol

import numpy as np

from anytime.groups import FeatureGroups
from anytime.types import Float

__all__ = [
    "Candidate",
    "LiteralChoice",
    "LiteralStep",
    "Method",
    "NormalEquations",
    "Problem",
    "Rows",
    "Running",
    "brute_force_best",
    "columns_of",
    "cost_of",
    "criterion",
    "explained_variance_of_subsets",
    "gain_per_cost",
    "in_the_running",
    "joiners",
    "length",
    "literal_sequence",
    "literal_sequence_of",
    "literal_step",
    "longest_left",
    "plateau_level",
    "standardise",
    "stopping_cost",
    "submodularity_ratio",
    "timeliness",
    "unpaid",
]

Method = Literal["omp", "fr", "single", "no-whiten"]

TIE = 1e-9
"""Scores this close, relatively, are a tie; a cost this little over the limit is within it."""

ZERO_EIGENVALUE = 1e-10
"""Eigenvalues under this share of the largest count as zero."""


# The problem: standardised rows, and what the criteria ask of them.


def standardise(X: Float, Y: Float, weights: Float | None = None) -> tuple[Float, Float]:
    """Impute by the mean, centre, divide by the deviation (over the sum of weights); a constant column becomes 0."""
    w = np.ones(len(X)) if weights is None else np.asarray(weights, dtype=np.float64)
    Y = np.asarray(Y, dtype=np.float64)
    Y = Y[:, np.newaxis] if Y.ndim == 1 else Y
    return _standardised(np.asarray(X, dtype=np.float64), w), _standardised(Y, w)


def _standardised(table: Float, w: Float) -> Float:
    out = np.zeros_like(table)
    for j in range(table.shape[1]):
        column = table[:, j].copy()
        known = ~np.isnan(column) & (w > 0)
        if not known.any() or np.all(column[known] == column[known][0]):
            continue
        column[np.isnan(column)] = np.sum(w[known] * column[known]) / np.sum(w[known])
        column -= np.sum(w * column) / np.sum(w)
        out[:, j] = column / math.sqrt(np.sum(w * column**2) / np.sum(w))
    return out


class Problem(Protocol):
    """What the criteria are made of."""

    def explained_variance(self, columns: Sequence[int]) -> float:
        """F(G)."""

    def gradient(self, selected: Sequence[int], columns: Sequence[int]) -> Float:
        """b_g at the penalised optimum of the selected columns, (columns, P)."""

    def gram(self, columns: Sequence[int]) -> Float:
        """S_g = X_g'X_g/n, without the penalty."""

    def gain(self, selected: Sequence[int], columns: Sequence[int]) -> float:
        """What forward regression sees in some columns: F(G + g) - F(G)."""
        return self.explained_variance([*selected, *columns]) - self.explained_variance(selected)


@dataclass(frozen=True, eq=False, repr=False)
class Rows(Problem):
    """Standardised rows: everything is asked of them, each time anew."""

    X: Float
    Y: Float
    alpha: float
    weights: Float | None = None

    @property
    def w(self) -> Float:
        """Weight of each row, as a column."""
        return np.ones((len(self.X), 1)) if self.weights is None else self.weights[:, np.newaxis]

    def coefficients(self, columns: Sequence[int]) -> Float:
        """W(G) = C_G^-1 X_G'Y/n; without a penalty the least-norm solution, since columns may be dependent."""
        X, n = self.X[:, list(columns)], self.w.sum()
        return np.asarray(_inverse(X.T @ (self.w * X) / n, self.alpha) @ (X.T @ (self.w * self.Y) / n))

    def residuals(self, columns: Sequence[int]) -> Float:
        """Y - X_G W(G)."""
        return np.asarray(self.Y - self.X[:, list(columns)] @ self.coefficients(columns))

    def explained_variance(self, columns: Sequence[int]) -> float:
        """1/2 tr(Y'Y)/n - [1/(2n) |Y - X_G W|^2 + alpha/2 |W|^2]."""
        n, W = self.w.sum(), self.coefficients(columns)
        risk = np.sum(self.w * self.residuals(columns) ** 2) / (2 * n) + self.alpha / 2 * np.sum(W**2)
        return float(np.sum(self.w * self.Y**2) / (2 * n) - risk)

    def gradient(self, selected: Sequence[int], columns: Sequence[int]) -> Float:
        """X_g'(Y - X_G W(G))/n."""
        return np.asarray(self.X[:, list(columns)].T @ (self.w * self.residuals(selected)) / self.w.sum())

    def gram(self, columns: Sequence[int]) -> Float:
        """X_g'X_g/n."""
        X = self.X[:, list(columns)]
        return np.asarray(X.T @ (self.w * X) / self.w.sum())


@dataclass(frozen=True, eq=False, repr=False)
class NormalEquations(Problem):
    """The same on S = X'X/n and q = X'Y/n, with a fresh inverse every time: for tables too tall to refit."""

    S: Float
    q: Float
    alpha: float

    @staticmethod
    def of(rows: Rows) -> NormalEquations:
        """The normal equations of all columns."""
        return NormalEquations(rows.gram(range(rows.X.shape[1])), rows.gradient([], range(rows.X.shape[1])), rows.alpha)

    def explained_variance(self, columns: Sequence[int]) -> float:
        """1/2 tr(q_G' C_G^-1 q_G)."""
        q = self.q[list(columns)]
        return float(np.sum(q * (_inverse(self.gram(columns), self.alpha) @ q)) / 2)

    def gradient(self, selected: Sequence[int], columns: Sequence[int]) -> Float:
        """q_g - S_gG W(G)."""
        W = _inverse(self.gram(selected), self.alpha) @ self.q[list(selected)]
        return np.asarray(self.q[list(columns)] - self.S[np.ix_(columns, selected)] @ W)

    def gram(self, columns: Sequence[int]) -> Float:
        """S_g."""
        return self.S[np.ix_(columns, columns)]


def _inverse(S: Float, alpha: float) -> Float:
    if alpha == 0:
        return np.asarray(np.linalg.pinv(S, rcond=ZERO_EIGENVALUE, hermitian=True), dtype=np.float64)
    return np.asarray(np.linalg.inv(S + alpha * np.eye(len(S))), dtype=np.float64)


# The criteria, undivided.


def criterion(problem: Problem, method: Method, selected: Sequence[int], columns: Sequence[int]) -> float:
    """What a method sees in a set of columns once `selected` are there."""
    if not columns:
        return 0.0
    if method == "fr":
        return problem.gain(selected, columns)
    b = problem.gradient(selected, columns)
    if method == "no-whiten":
        return float(np.sum(b**2))
    if method == "single":
        return float(np.max(np.sum(b**2, axis=1)))
    values, vectors = np.linalg.eigh(problem.gram(columns))
    if values.max() <= 0:
        return 0.0
    along = vectors[:, values > ZERO_EIGENVALUE * values.max()].T @ b
    return float(np.sum(along**2 / values[values > ZERO_EIGENVALUE * values.max()][:, np.newaxis]))


def length(problem: Problem, method: Method, selected: Sequence[int], columns: Sequence[int]) -> float:
    """Length of the projection of the residual on some columns, as a method sees it; a gain is half its square."""
    return math.sqrt(max((2 if method == "fr" else 1) * criterion(problem, method, selected, columns), 0.0))


def longest_left(problem: Problem, groups: FeatureGroups, selected: Sequence[int], method: Method) -> float:
    """The longest projection on a group left, with what it still requires; 0 where none is left."""
    there = columns_of(groups, selected)
    left = [(*unpaid(groups, g, selected), g) for g in range(len(groups)) if g not in set(selected)]
    return max((length(problem, method, there, columns_of(groups, step)) for step in left), default=0.0)


# One step: who may be chosen, at what score, and who is.


@dataclass(frozen=True)
class Candidate:
    """A group left, as a step would take it.

    Attributes
    ----------
    group : its index.
    unpaid : the prerequisites it still needs, each after its own.
    cost : joint cost of those and the group.
    score : by which candidates are compared: a density, or undivided where costs are forgotten or nothing is paid.
    bundle : the group, then the other dependents that made the density highest.
    adds : the groups that the step adds if this candidate wins.
    """

    group: int
    unpaid: tuple[int, ...]
    cost: float
    score: float
    bundle: tuple[int, ...]
    adds: tuple[int, ...]


@dataclass(frozen=True)
class Running:
    """Who may be chosen at a step, and how.

    Attributes
    ----------
    groups : the groups that are compared.
    limit : the most that the step may cost.
    undivided : whether scores are not divided by costs, and groups not bundled.
    unaffordable : whether doubling could afford no candidate.
    """

    groups: tuple[int, ...]
    limit: float
    undivided: bool
    unaffordable: bool


@dataclass(frozen=True)
class LiteralChoice:
    """The candidates that were compared, the groups the step adds, and whether doubling could afford no candidate."""

    candidates: tuple[Candidate, ...]
    adds: tuple[int, ...]
    unaffordable: bool


@dataclass(frozen=True)
class LiteralStep:
    """A step of a sequence: names of the groups it adds, their joint cost, and F after it."""

    adds: tuple[str, ...]
    cost: float
    explained_variance: float


def columns_of(groups: FeatureGroups, members: Iterable[int]) -> list[int]:
    """Columns of some groups, group after group."""
    return [column for g in members for column in range(groups.slices[g].start, groups.slices[g].stop)]


def cost_of(groups: FeatureGroups, members: Iterable[int]) -> float:
    """Joint cost of some groups."""
    return float(sum(groups.costs[g] for g in members))


def unpaid(groups: FeatureGroups, g: int, paid: Iterable[int]) -> tuple[int, ...]:
    """The prerequisites of g that are not paid yet, in order of computation."""
    return tuple(p for p in groups.prerequisites[g] if p not in set(paid))


def joiners(groups: FeatureGroups, paid: Sequence[int], before: Sequence[int], bundle: Sequence[int]) -> list[int]:
    """Who may join a bundle: the dependents of what is paid for it (`before`) that have nothing else left to pay."""
    there = {*paid, *before, *bundle}
    return [
        h
        for h in range(len(groups))
        if h not in there and set(groups.prerequisites[h]) & set(before) and set(groups.prerequisites[h]) <= there
    ]


def gain_per_cost(gain: float, cost: float) -> float:
    """A gain per cost; what is free is infinitely dense."""
    return gain / cost if cost > 0 else math.inf


def literal_step(
    problem: Problem,
    groups: FeatureGroups,
    selected: Sequence[int],
    *,
    method: Method,
    cost_blind: bool = False,
    doubling: bool = False,
) -> LiteralChoice:
    """The next step of a sequence that holds the groups `selected`."""
    there = columns_of(groups, selected)

    def value(members: Sequence[int]) -> float:
        return criterion(problem, method, there, columns_of(groups, members))

    running = in_the_running(groups, selected, cost_blind=cost_blind, doubling=doubling)
    candidates = []
    for g in running.groups:
        before = unpaid(groups, g, selected)
        alone = (*before, g)
        cost = cost_of(groups, alone)
        if running.undivided:
            candidates.append(Candidate(g, before, cost, value(alone), (g,), alone))
            continue
        bundle, density = _densest_bundle(value, groups, selected, before, g)
        steps = {h: (*unpaid(groups, h, selected), h) for h in bundle}
        affordable = {h: steps[h] for h in bundle if cost_of(groups, steps[h]) <= running.limit}
        first = g if len(bundle) == 1 else _first_of_bundle(value, groups, before, affordable)
        candidates.append(Candidate(g, before, cost, density, bundle, steps[first]))

    tied = _tied({c.group: c.score for c in candidates})
    winner = min((c for c in candidates if c.group in tied), key=lambda c: (c.cost, c.group))
    return LiteralChoice(tuple(candidates), winner.adds, running.unaffordable)


def in_the_running(groups: FeatureGroups, selected: Sequence[int], *, cost_blind: bool, doubling: bool) -> Running:
    """The groups that the next step may choose among.

    Steps that cost nothing go first, unless costs are forgotten. Doubling allows what has been spent so far, and the
    first paid pick the smallest positive step cost; when nothing is within it, the cheapest step is taken.
    """
    left = [g for g in range(len(groups)) if g not in set(selected)]
    cost = {g: cost_of(groups, [*unpaid(groups, g, selected), g]) for g in left}
    free = [g for g in left if cost[g] == 0]
    if free and not cost_blind:
        return Running(tuple(free), math.inf, undivided=True, unaffordable=False)
    if not doubling:
        return Running(tuple(left), math.inf, undivided=cost_blind, unaffordable=False)
    spent = cost_of(groups, selected)
    limit = (spent if spent > 0 else min((c for c in cost.values() if c > 0), default=0.0)) * (1 + TIE)
    affordable = tuple(g for g in left if cost[g] <= limit)
    if affordable:
        return Running(affordable, limit, undivided=cost_blind, unaffordable=False)
    cheapest = min(left, key=lambda g: (cost[g], g))
    return Running((cheapest,), limit, undivided=True, unaffordable=True)


def _densest_bundle(
    value: Callable[[Sequence[int]], float],
    groups: FeatureGroups,
    selected: Sequence[int],
    before: tuple[int, ...],
    g: int,
) -> tuple[tuple[int, ...], float]:
    """Density of g with its unpaid prerequisites, and of that with more of their dependents as long as it rises.

    A dependent that costs nothing itself cannot lower the density: it joins, even if it adds nothing.
    """
    bundle: tuple[int, ...] = (g,)
    density = value([*before, g]) / cost_of(groups, [*before, g])
    while others := joiners(groups, selected, before, bundle):
        now = value([*before, *bundle])
        gains = {h: gain_per_cost(value([*before, *bundle, h]) - now, cost_of(groups, [h])) for h in others}
        h = min(_tied(gains))
        wider = value([*before, *bundle, h]) / cost_of(groups, [*before, *bundle, h])
        if cost_of(groups, [h]) > 0 and wider <= density + TIE * abs(density):
            break
        bundle, density = (*bundle, h), wider
    return bundle, density


def _first_of_bundle(
    value: Callable[[Sequence[int]], float],
    groups: FeatureGroups,
    before: tuple[int, ...],
    steps: Mapping[int, tuple[int, ...]],
) -> int:
    """The member of a bundle that buys most for its own cost once `before` is paid; of equals, the cheaper step."""
    paid = value(before)
    gains = {h: gain_per_cost(value([*before, h]) - paid, cost_of(groups, [h])) for h in steps}
    return min(_tied(gains), key=lambda h: (cost_of(groups, steps[h]), h))


def _tied(scores: Mapping[int, float]) -> list[int]:
    """Who has the largest score, or one that differs from it by rounding."""
    best = max(scores.values())
    return [g for g, score in scores.items() if score == best or score >= best - TIE * abs(best)]


# Sequences.


def literal_sequence(
    X: Float,
    Y: Float,
    groups: FeatureGroups,
    *,
    method: Method,
    alpha: float,
    cost_blind: bool = False,
    doubling: bool = False,
    weights: Float | None = None,
) -> list[LiteralStep]:
    """Algorithm 1 or, with `doubling`, Algorithm 2, on raw rows whose columns are in the order of `groups.features`."""
    rows = Rows(*standardise(X, Y, weights), alpha, weights)
    return literal_sequence_of(rows, groups, method=method, cost_blind=cost_blind, doubling=doubling)


def literal_sequence_of(
    problem: Problem, groups: FeatureGroups, *, method: Method, cost_blind: bool = False, doubling: bool = False
) -> list[LiteralStep]:
    """The same on a problem already standardised."""
    selected: list[int] = []
    steps: list[LiteralStep] = []
    while len(selected) < len(groups):
        choice = literal_step(problem, groups, selected, method=method, cost_blind=cost_blind, doubling=doubling)
        selected.extend(choice.adds)
        names = tuple(groups.names[g] for g in choice.adds)
        F = problem.explained_variance(columns_of(groups, selected))
        steps.append(LiteralStep(names, cost_of(groups, choice.adds), F))
    return steps


# What sequences are compared with, and how curves are summed up.


def explained_variance_of_subsets(problem: Problem, groups: FeatureGroups) -> dict[frozenset[int], float]:
    """F of every set of groups."""
    everyone = range(len(groups))
    subsets = [frozenset(chosen) for size in range(len(groups) + 1) for chosen in combinations(everyone, size)]
    return {subset: problem.explained_variance(columns_of(groups, sorted(subset))) for subset in subsets}


def brute_force_best(F: Mapping[frozenset[int], float], costs: Sequence[float], K: float) -> float:
    """The largest F of any set that costs at most K."""
    return max(F[subset] for subset in F if sum(costs[g] for g in subset) <= K * (1 + TIE))


def submodularity_ratio(F: Mapping[frozenset[int], float]) -> float:
    """Eq. 9: the largest gamma <= 1 with gamma (F(A + x) - F(A)) <= F(A' + x) - F(A') for all A' within A and all x."""
    everyone = frozenset().union(*F)
    noise = 1e-12 * max(F.values())
    gamma = 1.0
    for A in F:
        for inner in F:
            for x in everyone:
                late, early = F[A | {x}] - F[A], F[inner | {x}] - F[inner]
                if inner <= A and late > noise:
                    gamma = min(gamma, early / late)
    return gamma


def timeliness(
    costs: Sequence[float], F: Sequence[float], stop: float, reference: float, shape: Literal["trapezoid", "step"]
) -> float:
    """Area under F against cost up to `stop`, by `stop` times `reference` (5.2 of the paper); 0 when `stop` is 0.

    `costs` and `F` are those of the prefixes, the empty one (cost 0) first. After the last prefix F stays.
    """
    if stop == 0:
        return 0.0
    area = 0.0
    points = [*zip(costs, F, strict=True), (math.inf, F[-1])]
    for (left, low), (right, high) in pairwise(points):
        end = min(right, stop)
        if left >= stop or right == left:
            continue
        if shape == "step" or math.isinf(right):
            area += (end - left) * low
        else:
            height = low + (high - low) * (end - left) / (right - left)
            area += (end - left) * (low + height) / 2
    return area / (stop * reference)


def stopping_cost(costs: Sequence[float], F: Sequence[float], level: float) -> float:
    """The cost of the first prefix that reaches `level` of the final F."""
    return next(cost for cost, value in zip(costs, F, strict=True) if value >= level * F[-1] * (1 - 1e-12))


def plateau_level(costs: Sequence[float], F: Sequence[float]) -> float:
    """The first whole percent from 95 of the final F whose next percent takes over 20% of the cost; 1 without any."""
    at = {percent: stopping_cost(costs, F, percent / 100) for percent in range(95, 101)}
    return next((percent / 100 for percent in range(95, 100) if at[percent + 1] - at[percent] > 0.2 * costs[-1]), 1.0)
