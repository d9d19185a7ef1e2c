"""Sequences for least squares: by a criterion, by entry on the Group Lasso path, or in a given order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from anytime._linalg import Factor, single_blas_thread
from anytime.groups import FeatureGroups
from anytime.moments.moments import Gram
from anytime.selection.criteria import PathMethod, SelectionMethod
from anytime.selection.greedy import Candidates, GroupOrder, SolvedOrder, Step, cost_of, greedy
from anytime.selection.rule import Rule
from anytime.selection.single_columns import are_single_columns, single_columns
from anytime.selection.sweep import Sweep
from anytime.types import Float, Method


@dataclass(frozen=True, eq=False)
class Factored:
    """The Cholesky factor of C in the order of a sequence, and z = L^-1 q (columns, P)."""

    factor: Factor
    z: Float

    def upto(self, steps: int, columns: int) -> Factored:  # noqa: ARG002
        """Return the state of the first steps: a leading block of the factor is the factor of a prefix."""
        return Factored(Factor(self.factor.L[:columns, :columns], self.factor.dropped[:columns]), self.z[:columns])


FactoredOrder: TypeAlias = SolvedOrder[Factored]
"""A sequence for least squares."""


def factored(order: GroupOrder, factor: Factor, z: Float) -> FactoredOrder:
    return SolvedOrder.of_order(order, Factored(factor, z))


def sequence(
    gram: Gram, groups: FeatureGroups, method: Method | SelectionMethod = "fr", alpha: float = 1e-5, **rule: Any
) -> FactoredOrder:
    """Order the groups so that each prefix explains as much as its cost allows. Steps that cost nothing go first.

    About D^3 operations for D columns, for "fr" as for "omp". `method` and the rest are the fields of `Rule`; G-OMP is
    "omp" cost-blind. Raise TrainingError if the method does not support the rule, or if the path of "sparse" does not
    converge.
    """
    return sequencer(gram, groups, Rule(method, **rule))(alpha)


def sequencer(gram: Gram, groups: FeatureGroups, rule: Rule) -> Callable[[float], FactoredOrder]:
    """Return `sequence` as a function of the penalty; that of a `PathMethod`, which has none, is learned once."""
    method = rule.by
    if isinstance(method, PathMethod):
        steps = method.steps(gram, groups, cost_blind=rule.cost_blind)
        return partial(given_sequence, gram, groups, _put_first(rule.forced(groups), steps, groups))
    restricted = rule.doubling or rule.first or rule.epsilon is not None
    plain = rule.scores_gains and not restricted and are_single_columns(groups)

    @single_blas_thread()
    def order(alpha: float) -> FactoredOrder:
        if plain:
            return factored(*single_columns(gram, groups, alpha, cost_blind=rule.cost_blind))
        scored = rule.criterion.on(gram)
        sweep = Sweep(gram, groups.slices, alpha, blocks=scored.needs_blocks)
        found = greedy(_SweepSearch(sweep, Candidates(groups, sweep, scored, rule.cost_blind)), groups, rule)
        return factored(found, *sweep.factor())

    return order


class _SweepSearch:
    """Greedy search for least squares: selecting a group is selecting it in the sweep."""

    def __init__(self, sweep: Sweep, candidates: Candidates) -> None:
        self._sweep, self.candidates = sweep, candidates
        self._explained = 0.0

    def select(self, adds: tuple[int, ...]) -> float:
        self._explained += sum(self._sweep.select(group) for group in adds)
        return self._explained


@single_blas_thread()
def given_sequence(gram: Gram, groups: FeatureGroups, order: Sequence[tuple[int, ...]], alpha: float) -> FactoredOrder:
    """Sweep the groups in the order of some steps, which add every group at most once. About D^3/3 operations."""
    sweep = Sweep(gram, groups.slices, alpha, blocks=False)
    explained = accumulate(sum(map(sweep.select, adds), 0.0) for adds in order)
    steps = [Step(adds, cost_of(groups, adds), F) for adds, F in zip(order, explained, strict=True)]
    return factored(GroupOrder.of(steps, groups), *sweep.factor())


def swept(gram: Gram, groups: FeatureGroups, found: GroupOrder, alpha: float) -> FactoredOrder:
    """Return a sequence with the factor of its order, as `given_sequence`."""
    given = given_sequence(gram, groups, [step.adds for step in found.steps], alpha)
    return replace(given, doubling_until=found.doubling_until, longest=found.longest)


def _put_first(first: Sequence[int], order: Sequence[tuple[int, ...]], groups: FeatureGroups) -> list[tuple[int, ...]]:
    """Return the steps of an order with some groups before all others, each after its unpaid prerequisites."""
    steps: list[tuple[int, ...]] = []
    selected = np.zeros(len(groups), dtype=np.bool_)
    for group in first:
        if not selected[group]:
            steps.append(groups.step([group], selected))
            selected[list(steps[-1])] = True
    rest = (tuple(group for group in adds if not selected[group]) for adds in order)
    return [*steps, *filter(None, rest)]
