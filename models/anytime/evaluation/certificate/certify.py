"""Certificates of a model or a sequence: each prefix's share of the best possible explained variance.

For a prefix of cost K and training F, U is an upper bound on the F of any set of groups of cost at most K, on the same
data at the same penalty: the prefix reaches at least F/U of the best possible.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise

import numpy as np
from joblib import Parallel, delayed

from anytime._linalg import single_blas_thread
from anytime.errors import TrainingError, refuse
from anytime.evaluation.certificate import NODES
from anytime.evaluation.certificate.relaxation import SelectionProblem
from anytime.evaluation.certificate.search import SAME_F_TOLERANCE, BranchAndBound, Stopped
from anytime.families import family_of
from anytime.groups import FeatureGroups
from anytime.model.manifest import FORMAT, Certificate
from anytime.model.model import Model, manifest_of
from anytime.moments.accumulate import jobs_of
from anytime.moments.moments import Gram
from anytime.types import Float

CHAIN = 8
"""Prefixes that one process bounds in turn, in order of decreasing cost.

The first starts from scratch, each other one from the result of the previous one, in a third of the steps.
"""

EXCESS_TOLERANCE = 1e-6
"""Maximum excess of a prefix's F over the F of all groups; more means different moments or another penalty."""

NEAR_SHARE = 0.75
"""A budget below this share of the previous one starts from scratch too, as its relaxation differs too much."""


def certify(
    model: Model,
    *,
    nodes: int = NODES,
    seconds: float | None = None,
    n_jobs: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Model:
    """Return the model with a certificate from the moments that it contains; its version is empty until saved.

    Parameters
    ----------
    nodes, seconds, n_jobs
        As for `certify_prefixes`.
    progress : Callable[[int], None]
        Called with 1 for each finished prefix.

    Raises
    ------
    TrainingError
        The model is of a likelihood or was saved without its moments, or the limits are invalid.
    ValuesError
        `model` is not a `Model`.

    Notes
    -----
    Sets with groups that training left out are not considered: the model's moments do not contain them.
    """
    manifest, what = manifest_of(model), f"model {model.name!r}"
    refuse(
        {
            f"{what} is {manifest.family}; certificates support least squares only (family gaussian)": (
                not family_of(manifest.family).least_squares
            )
        }
    )
    if model.moments is None:
        raise TrainingError(f"{what} was saved without its moments; retrain it without --no-moments")
    prefixes = certify_prefixes(
        Gram.of(model.moments),
        model.terms,
        model.costs,
        [0.0, *(step.explained_variance for step in manifest.steps)],
        manifest.alpha,
        nodes=nodes,
        seconds=seconds,
        n_jobs=n_jobs,
        progress=lambda _: progress(1),
    )
    certificate = Certificate(
        bounds=tuple(float(prefix.bound) for prefix in prefixes),
        exact=tuple(bool(prefix.exact) for prefix in prefixes),
        nodes=nodes,
        seconds=seconds,
    )
    return replace(
        model, manifest=manifest.model_copy(update={"format": FORMAT, "version": "", "certificate": certificate})
    )


@dataclass(frozen=True)
class CertifiedPrefix:
    """The certificate of one prefix of known cost and F: what is known of the best set within its cost.

    Attributes
    ----------
    bound : float
        No set of groups of this cost has a larger F (relative tolerance 1e-9).
    exact : bool
        Whether a known set reaches the bound: the prefix, or `best`.
    best : tuple[int, ...] | None
        Groups of a set within the cost that is better than the prefix, in the order of the groups file; None if the
        search found no such set.
    reached : float
        F of that set, or of the prefix.
    nodes : int
        Number of nodes that the search bounded.
    stopped : Stopped
        "solved" if the search found the best set, or the limit that ended it: "nodes" or "seconds".
    """

    cost: float
    F: float
    bound: float
    exact: bool
    best: tuple[int, ...] | None
    reached: float
    nodes: int
    stopped: Stopped

    @property
    def share(self) -> float:
        """Lower bound on the prefix's share of the best possible F."""
        return self.F / self.bound if self.bound > 0 else 1.0


def certify_prefixes(
    gram: Gram,
    groups: FeatureGroups,
    costs_of_prefixes: Sequence[float] | Float,
    F_of_prefixes: Sequence[float] | Float,
    alpha: float,
    *,
    nodes: int = NODES,
    seconds: float | None = None,
    n_jobs: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> list[CertifiedPrefix]:
    """Bound the best F within the cost of each prefix of a least-squares sequence.

    A bound is at least that of any smaller budget and at most that of any larger one; a set found for one budget counts
    for all larger ones. Raise TrainingError if the costs, F or limits are invalid, or no set has such an F at `alpha`.

    Parameters
    ----------
    costs_of_prefixes, F_of_prefixes : Sequence[float] | Float
        Cost and training F of each prefix, such as `Sequence.costs` and `Sequence.explained_variance`. F must be
        computed at `alpha`; it serves as a lower bound.
    nodes : int
        Maximum number of nodes of each search; without `seconds` the result is the same in every run.
    seconds : float | None
        Time for all prefixes together. Each prefix first gets a bound without branching; the remaining time is
        distributed in proportion to the gaps of these bounds. One step of a relaxation, about 10 D^3 operations, is
        finished before the clock is checked.
    n_jobs : int | None
        Number of processes, as in joblib.
    progress : Callable[[int], None]
        Called with the index of each finished prefix.
    """
    costs, F = np.asarray(costs_of_prefixes, dtype=np.float64), np.asarray(F_of_prefixes, dtype=np.float64)
    refuse(
        {
            f"{len(costs)} costs and {len(F)} values of F; expected both for every prefix": len(costs) != len(F),
            "a cost or F of a prefix is negative or not finite; expected the values of a sequence": not (
                np.isfinite(costs).all() and np.isfinite(F).all() and (costs >= 0).all()
            ),
            f"limits of {nodes} nodes and {seconds} seconds; expected 1 node or more, and a finite number of seconds": (
                nodes < 1 or not 0 <= (seconds or 0) < math.inf
            ),
        }
    )
    prefixes = list(zip(costs.tolist(), F.tolist(), strict=True))
    with single_blas_thread():
        problem = SelectionProblem.of(gram, groups, alpha)
        most = problem.explained(np.ones(len(groups), dtype=np.bool_))
    if F.max(initial=0.0) > most * (1 + EXCESS_TOLERANCE) + EXCESS_TOLERANCE:
        raise TrainingError(
            f"a prefix has F {F.max():.6g}, but all groups at alpha {alpha:g} have {most:.6g}; expected F at this alpha"
        )
    end = None if seconds is None else time.monotonic() + seconds
    run = partial(_searches, problem, end=end, n_jobs=n_jobs)
    done: dict[int, CertifiedPrefix] = {}

    def report(k: int, search: BranchAndBound) -> None:
        found, solved = search.incumbent, search.stopped == "solved"
        best = None if found.best is None else tuple(np.flatnonzero(found.best).tolist())
        done[k] = CertifiedPrefix(
            *prefixes[k], search.bound, solved, best, found.explained, search.nodes, search.stopped
        )
        progress(k)

    order = sorted(range(len(prefixes)), key=lambda k: -prefixes[k][0])
    searches = [BranchAndBound(*prefixes[k]) for k in order]
    chains = [searches[begin : begin + CHAIN] for begin in range(0, len(order), CHAIN)]
    unbranched = run(chains, [len(several) for several in chains], nodes=1)
    unsolved: list[tuple[int, BranchAndBound]] = []
    for k, search in zip(order, unbranched, strict=True):
        if search.stopped == "solved" or nodes == 1:
            report(k, search)
        else:
            unsolved.append((k, search))
    # Small budgets are often solved early; the rest of their time goes to later ones.
    unsolved.reverse()
    gaps = [(search.bound - search.incumbent.explained) / search.bound for _, search in unsolved]
    branched = run([[search] for _, search in unsolved], gaps, nodes=nodes)
    for (k, _), search in zip(unsolved, branched, strict=True):
        report(k, search)
    return _shared([done[k] for k in range(len(prefixes))])


def _searches(
    problem: SelectionProblem,
    chains: list[list[BranchAndBound]],
    weights: Sequence[float],
    *,
    nodes: int,
    end: float | None,
    n_jobs: int | None,
) -> Iterator[BranchAndBound]:
    """Yield each search after its run, in this order; the chains share the remaining time by their weights."""
    jobs = jobs_of(n_jobs)
    ahead = np.cumsum(weights[::-1])[::-1]
    shares = [min(1.0, jobs * weight / total) for weight, total in zip(weights, ahead, strict=True)]
    finished = Parallel(n_jobs=jobs, return_as="generator", pre_dispatch="n_jobs")(
        delayed(_searched)(problem, several, nodes, end, share) for several, share in zip(chains, shares, strict=True)
    )
    return chain.from_iterable(finished)


def _searched(
    problem: SelectionProblem, several: list[BranchAndBound], nodes: int, end: float | None, share: float
) -> list[BranchAndBound]:
    """Run searches in turn, each starting from the result of the previous one, within a share of the remaining time."""
    begun = time.monotonic()
    allowed = math.inf if end is None else share * max(end - begun, 0.0)
    before: BranchAndBound | None = None
    with single_blas_thread():
        for place, search in enumerate(several, start=1):
            until = begun + allowed * place / len(several)
            begin = before.wide if before is not None and search.budget >= NEAR_SHARE * before.budget else None
            search.run(problem, nodes=nodes, late=partial(_late, until), begin=begin)
            before = search
    return several


def _late(until: float) -> bool:
    return time.monotonic() >= until


def _shared(certified: list[CertifiedPrefix]) -> list[CertifiedPrefix]:
    """Lower bounds to those of larger costs, and raise best sets to those of smaller costs."""
    shared = list(certified)
    order = sorted(range(len(shared)), key=lambda k: shared[k].cost)
    for k, larger in reversed(list(pairwise(order))):
        shared[k] = replace(shared[k], bound=min(shared[k].bound, shared[larger].bound))
    for smaller, k in pairwise(order):
        if shared[smaller].reached > shared[k].reached:
            shared[k] = replace(shared[k], best=shared[smaller].best, reached=shared[smaller].reached)
    return [replace(p, exact=p.exact or p.bound <= p.reached * (1 + SAME_F_TOLERANCE)) for p in shared]
