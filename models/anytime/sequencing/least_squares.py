"""The sequence of least squares, in one sweep over the normal equations."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from functools import partial

from anytime.criteria import CRITERIA
from anytime.gram import Gram
from anytime.groups import FeatureGroups
from anytime.manifest import Method
from anytime.sequencing.candidates import Candidates
from anytime.sequencing.given import given_sequence, led_by
from anytime.sequencing.greedy import greedy
from anytime.sequencing.single_columns import are_single_columns, single_columns
from anytime.sequencing.sparse import check_sparse, sparse_entries
from anytime.sequencing.steps import FactoredSequence
from anytime.sweep import Sweep
from anytime.threads import single_blas_thread

__all__ = ["sequence", "sequencer"]


def sequence(
    gram: Gram,
    groups: FeatureGroups,
    method: Method = "fr",
    alpha: float = 1e-5,
    cost_blind: bool = False,
    doubling: bool = False,
    epsilon: float | None = None,
    first: Many[int] = (),
) -> FactoredSequence:
    """Order the groups so that each prefix explains as much as its cost allows.

    Parameters
    ----------
    gram : standardised normal equations, columns in the order of the groups file.
    groups : the groups and their costs.
    method : the criterion: "omp", "fr", "single" or "no-whiten"; or "sparse", by entry on the Group Lasso path.
    alpha : the penalty.
    cost_blind : forget the costs in selection (G-OMP is "omp" cost-blind).
    doubling : take no step that costs more than all before it together (Algorithm 2).
    epsilon : stop where no group left has a projection of the residual longer than this; None takes all groups.
    first : groups taken before all others, in this order.

    Raises
    ------
    TrainingError
        "sparse" with doubling or epsilon, or a path of it that could not be followed.

    Notes
    -----
    About D^3 operations for D columns, for "fr" as for "omp". Steps that cost nothing go first.
    """
    return sequencer(gram, groups, method, cost_blind, doubling, epsilon, first)(alpha)


def sequencer(
    gram: Gram,
    groups: FeatureGroups,
    method: Method = "fr",
    cost_blind: bool = False,
    doubling: bool = False,
    epsilon: float | None = None,
    first: Many[int] = (),
) -> Callable[[float], FactoredSequence]:
    """`sequence` as a function of the penalty alone; the order of "sparse", which has none, is learned once."""
    check_sparse(method, doubling, epsilon=epsilon)
    if method == "sparse":
        return partial(
            given_sequence, gram, groups, led_by(first, sparse_entries(gram, groups, cost_blind).steps, groups)
        )
    return partial(_greedy, gram, groups, method, cost_blind, doubling, epsilon, first)


def _greedy(
    gram: Gram,
    groups: FeatureGroups,
    method: Method,
    cost_blind: bool,
    doubling: bool,
    epsilon: float | None,
    first: Many[int],
    alpha: float,
) -> FactoredSequence:
    """The sequence of a criterion."""
    with single_blas_thread():
        if method == "fr" and not (doubling or first) and epsilon is None and are_single_columns(groups):
            return single_columns(gram, groups, alpha, cost_blind=cost_blind)
        criterion = CRITERIA[method](gram)
        sweep = Sweep(gram, groups.slices, alpha, blocks=criterion.needs_blocks)
        search = _Swept(sweep, Candidates(groups, sweep, criterion, cost_blind))
        found = greedy(search, groups, doubling=doubling, epsilon=epsilon, first=first)
        columns, factor, z = sweep.factor()
    return FactoredSequence(found.steps, found.doubling_until, columns, found.ends, factor, z, longest=found.longest)


class _Swept:
    """Least squares: taking a group is selecting it in the sweep."""

    def __init__(self, sweep: Sweep, candidates: Candidates) -> None:
        self._sweep, self.candidates = sweep, candidates
        self._explained = 0.0

    def take(self, adds: tuple[int, ...]) -> float:
        self._explained += sum(self._sweep.select(group) for group in adds)
        return self._explained
