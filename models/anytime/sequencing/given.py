"""Least squares in an order that is settled beforehand."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np

from anytime.gram import Gram
from anytime.groups import FeatureGroups
from anytime.sequencing.steps import FactoredSequence, Step
from anytime.sweep import Sweep
from anytime.threads import single_blas_thread

__all__ = ["given_sequence", "led_by"]


def given_sequence(gram: Gram, groups: FeatureGroups, order: Many[tuple[int, ...]], alpha: float) -> FactoredSequence:
    """Sweep the groups in the order of some steps, at the penalty alpha. About D^3/3 operations.

    Parameters
    ----------
    gram : standardised normal equations, columns in the order of the groups file.
    order : the groups that each step adds, in order of computation; together every group at most once.
    """
    steps: list[Step] = []
    ends = [0]
    explained = 0.0
    with single_blas_thread():
        sweep = Sweep(gram, groups.slices, alpha, blocks=False)
        for adds in order:
            explained += sum(sweep.select(group) for group in adds)
            steps.append(Step(adds, float(groups.costs[list(adds)].sum()), explained))
            ends.append(ends[-1] + sum(len(groups.groups[g].features) for g in adds))
        columns, factor, z = sweep.factor()
    return FactoredSequence(tuple(steps), None, columns, np.array(ends, dtype=np.intp), factor, z)


def led_by(first: Many[int], order: Many[tuple[int, ...]], groups: FeatureGroups) -> list[tuple[int, ...]]:
    """The steps of an order with some groups before all others, each after what it requires and nobody has paid."""
    led: list[tuple[int, ...]] = []
    taken: set[int] = set()
    for group in first:
        if group not in taken:
            led.append((*(g for g in groups.prerequisites[group] if g not in taken), group))
            taken.update(led[-1])
    rest = (tuple(group for group in adds if group not in taken) for adds in order)
    return [*led, *filter(None, rest)]
