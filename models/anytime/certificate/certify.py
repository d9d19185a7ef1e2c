"""Certificates of a sequence: how much of the best possible each of its prefixes reaches.

For a prefix of cost K and training F, U is a bound on the F of any set of groups of cost K at most, on the same data at
the same penalty: the prefix reaches at least F/U of the best possible.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs

from anytime.certificate.nodes import SAME
from anytime.certificate.problem import COST_TOLERANCE, Problem
from anytime.certificate.search import Stopped, search
from anytime.errors import TrainingError
from anytime.gram import Gram
from anytime.groups import FeatureGroups
from anytime.threads import single_blas_thread

__all__ = ["CertifiedPrefix", "certify"]


@dataclass(frozen=True)
class CertifiedPrefix:
    """What is known of the best set within the cost of a prefix.

    Attributes
    ----------
    cost, F : of the prefix.
    bound : no set of groups of this cost has a larger F (relative tolerance 1e-9).
    exact : the bound is reached by a set that is known: the prefix, or `best`.
    best : groups of a set within the cost that is better than the prefix, in the order of the groups file; None if none
        was found.
    best_F : F of that set, or of the prefix.
    nodes : how many nodes the search bounded.
    stopped : "solved" if the search found the best set, or the limit that ended it: "nodes" or "seconds".
    """

    cost: float
    F: float
    bound: float
    exact: bool
    best: tuple[int, ...] | None
    best_F: float
    nodes: int
    stopped: Stopped

    @property
    def share(self) -> float:
        """At least this share of the best possible F is reached."""
        return self.F / self.bound if self.bound > 0 else 1.0


def certify(
    gram: Gram,
    groups: FeatureGroups,
    costs_of_prefixes: Many[float],
    F_of_prefixes: Many[float],
    alpha: float,
    *,
    nodes: int = 200,
    seconds: float | None = None,
    n_jobs: int | None = None,
    progress: Callable[[int, CertifiedPrefix], None] = lambda k, certified: None,
) -> list[CertifiedPrefix]:
    """Bound the best F within the cost of each prefix of a least-squares sequence.

    Parameters
    ----------
    gram : standardised normal equations of the training data, columns in the order of the groups file.
    costs_of_prefixes, F_of_prefixes : cost and training F at `alpha` of each prefix.
    nodes : how many nodes each search may bound; the result is the same in every run where `seconds` is None.
    seconds : time for all prefixes together; what one does not use is left to those after it. The largest cost goes
        first. One step of a relaxation, about 10 D^3 operations, is finished before the clock is looked at.
    n_jobs : how many processes, as in joblib.
    progress : called with the index of each prefix that is done and its certificate.

    Raises
    ------
    TrainingError
        Unlike numbers of costs and F, a negative cost, or limits that allow nothing.

    Notes
    -----
    A bound is never under that of a smaller budget, nor over that of a larger one; a set found for one budget counts
    for all larger ones.
    """
    _check(costs_of_prefixes, F_of_prefixes, nodes, seconds)
    with single_blas_thread():
        problem = Problem.of(gram, groups, alpha)
    order = sorted(range(len(costs_of_prefixes)), key=lambda k: -costs_of_prefixes[k])
    jobs = effective_n_jobs(n_jobs)
    end = None if seconds is None else time.monotonic() + seconds
    tasks = (
        delayed(_prefix)(problem, costs_of_prefixes[k], F_of_prefixes[k], nodes, end, jobs / (len(order) - place))
        for place, k in enumerate(order)
    )
    found: Iterator[CertifiedPrefix] = Parallel(n_jobs=n_jobs, return_as="generator", pre_dispatch="n_jobs")(tasks)
    certified: dict[int, CertifiedPrefix] = {}
    for k, prefix in zip(order, found, strict=True):
        certified[k] = prefix
        progress(k, prefix)
    return _shared([certified[k] for k in range(len(order))])


def _check(costs: Many[float], F: Many[float], nodes: int, seconds: float | None) -> None:
    if len(costs) != len(F):
        raise TrainingError(f"{len(costs)} costs and {len(F)} values of F; expected both of every prefix")
    if not (np.isfinite(costs).all() and np.isfinite(F).all() and min(costs, default=0.0) >= 0):
        raise TrainingError("a cost or F of a prefix is negative or not finite; expected those of a sequence")
    if nodes < 1 or (seconds is not None and not seconds >= 0):
        raise TrainingError(
            f"limits of {nodes} nodes and {seconds} seconds; expected 1 node or more, 0 seconds or more"
        )


def _prefix(problem: Problem, cost: float, F: float, nodes: int, end: float | None, share: float) -> CertifiedPrefix:
    """Certify one prefix, with its share of the time that is left."""
    begun = time.monotonic()
    until = None if end is None else begun + min(share, 1.0) * max(end - begun, 0.0)
    with single_blas_thread():
        found = search(problem, cost, F, nodes=nodes, late=lambda: until is not None and time.monotonic() >= until)
    best = None if found.best is None else tuple(np.flatnonzero(found.best).tolist())
    solved = found.stopped == "solved"
    return CertifiedPrefix(cost, F, found.bound, solved, best, found.explained, found.nodes, found.stopped)


def _shared(certified: list[CertifiedPrefix]) -> list[CertifiedPrefix]:
    """Bounds lowered to those of larger costs, best sets raised to those of smaller ones."""
    shared = list(certified)
    order = sorted(range(len(shared)), key=lambda k: shared[k].cost)
    for k, larger in reversed(list(zip(order, order[1:], strict=False))):
        shared[k] = replace(shared[k], bound=min(shared[k].bound, shared[larger].bound))
    for smaller, k in zip(order, order[1:], strict=False):
        if shared[smaller].best_F > shared[k].best_F:
            shared[k] = replace(shared[k], best=shared[smaller].best, best_F=shared[smaller].best_F)
    return [replace(p, exact=p.exact or p.bound <= p.best_F * (1 + SAME)) for p in shared]
