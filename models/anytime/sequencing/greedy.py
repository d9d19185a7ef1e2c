"""The greedy sequence: the paper's Algorithm 1 with any criterion, and Algorithm 2 (doubling) as a restriction."""

from __future__ import annotations

import numpy as np

from anytime.criteria import CRITERIA
from anytime.gram import Gram
from anytime.groups import FeatureGroups
from anytime.manifest import Method
from anytime.sequencing.candidates import Candidates
from anytime.sequencing.doubling import within_doubling
from anytime.sequencing.steps import Sequence, Step
from anytime.sweep import Sweep
from anytime.threads import single_blas_thread

__all__ = ["sequence"]


def sequence(
    gram: Gram,
    groups: FeatureGroups,
    method: Method = "fr",
    alpha: float = 1e-5,
    cost_blind: bool = False,
    doubling: bool = False,
) -> Sequence:
    """Order the groups so that each prefix explains as much as its cost allows.

    Parameters
    ----------
    gram : standardised normal equations, columns in the order of the groups file.
    groups : the groups and their costs.
    method : the criterion: "omp", "fr", "single" or "no-whiten".
    alpha : the penalty.
    cost_blind : forget the costs in selection (G-OMP is "omp" cost-blind).
    doubling : take no step that costs more than all before it together (Algorithm 2).

    Notes
    -----
    About D^3 operations for D columns, for "fr" as for "omp". Steps that cost nothing go first.
    """
    with single_blas_thread():
        criterion = CRITERIA[method](gram)
        sweep = Sweep(gram, groups.slices, alpha, blocks=criterion.needs_blocks)
        candidates = Candidates(groups, sweep, criterion, cost_blind)
        steps: list[Step] = []
        ends = [0]
        spent = explained = 0.0
        doubling_until: int | None = None
        while not sweep.taken.all():
            costs = candidates.step_costs()
            allowed = ~sweep.taken
            if doubling:
                allowed, capable = within_doubling(costs, candidates.left(), spent)
                if not capable and doubling_until is None:
                    doubling_until = len(steps)
            adds = candidates.choose(allowed, costs)
            explained += sum(sweep.select(group) for group in adds)
            cost = float(groups.costs[list(adds)].sum())
            spent += cost
            steps.append(Step(adds, cost, explained))
            ends.append(ends[-1] + int(sweep.sizes[list(adds)].sum()))
        columns, factor, z = sweep.factor()
    if doubling and doubling_until is None:
        doubling_until = len(steps)
    return Sequence(tuple(steps), doubling_until, columns, np.array(ends, dtype=np.intp), factor, z)
