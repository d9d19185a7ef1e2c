"""The optimum for any set of received groups, solved from the moments and cached.

A failed sensor or groups out of order leave a set that is not a prefix. Its best linear model takes one Cholesky
factorisation of its columns: w = C_A^-1 q_A, with the alpha of the prefix whose number of columns is nearest. A set
that is a prefix gets that prefix's own coefficients, so that the two policies agree there.

A likelihood has no such moments. There the optimum is approximate: one Newton step on the stored second-order model of
the nearest prefix, at its alpha. The nearest prefix is the one with the most shared columns minus other columns.
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from threading import Lock
from typing import Generic, TypeVar, get_args
from weakref import WeakKeyDictionary

import numpy as np

from anytime._linalg import factorise, single_blas_thread
from anytime.errors import ValuesError
from anytime.groups import COST_TOLERANCE
from anytime.model.model import Expected, Model
from anytime.moments.moments import Gram
from anytime.types import Float, Index, Policy

MAX_SETS, MAX_BYTES = 256, 1 << 25
"""Maximum number and bytes of solved sets cached per model; the least recently used is evicted first."""

MAX_WAITING = 16
"""Maximum number of sets per model that wait to be solved in the background."""

MIN_TIMED_COLUMNS = 256
"""Fewest columns whose time estimates the cubic cost; other work dominates smaller sets."""

SMALL_MS = 0.5
"""Allowance for everything but the cubic cost, when the time to solve a set is estimated."""

_log = logging.getLogger("anytime.runner")


@dataclass(frozen=True)
class ArrivedModel:
    """Linear model of one set of groups: `intercept + centred[columns] @ coef`, with its cost and expected quality."""

    groups: frozenset[str]
    columns: Index
    """Numbered in the order of the sequence, as in a `Prediction`."""
    coef: Float
    cost: float
    expected: Expected
    intercept: Float
    alpha: float
    """The penalty at which the set was solved."""
    approximate: bool = False
    prefix: int | None = None
    """The prefix that the set equals, if any."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, and about those of the set of names."""
        return self.columns.nbytes + self.coef.nbytes + 100 * len(self.groups)


POLICIES: tuple[Policy, ...] = get_args(Policy)


def checked_policy(policy: Policy) -> Policy:
    """Return a policy; raise ValuesError if it is unknown."""
    if policy not in POLICIES:
        raise ValuesError(f"policy is {policy!r}; expected one of {', '.join(POLICIES)}")
    return policy


def usable(model: Model, received: Iterable[str], budget: float | None) -> frozenset[str]:
    """Return the groups that policy "arrived" uses: with a budget, in sequence order while the joint cost fits."""
    if budget is None:
        return frozenset(received)
    groups, selected, paid, spent = model.groups, set[str](), set[int](), 0.0
    positions, prerequisites, costs = groups.positions, groups.prerequisites, groups.costs.tolist()
    for name in model.order(received):
        index = positions[name]
        more = {index, *prerequisites[index]} - paid
        spent += sum([costs[i] for i in sorted(more)])
        if spent > budget * (1 + COST_TOLERANCE):
            break
        paid |= more
        selected.add(name)
    return frozenset(selected)


Result = TypeVar("Result")


class SetCache(Generic[Result]):
    """Results for sets of groups, at most `MAX_SETS` of each model; they end with their model."""

    def __init__(self) -> None:
        self._models: WeakKeyDictionary[Model, dict[Hashable, Result]] = WeakKeyDictionary()
        self._lock = Lock()

    def get(self, model: Model, key: Hashable, make: Callable[[], Result]) -> Result:
        """Return the result for a set of groups that `key` names; `make` makes it if it is not cached."""
        with self._lock:
            cached = self._models.setdefault(model, {})
        found = cached.get(key)
        if found is None:
            if len(cached) >= MAX_SETS:
                cached.clear()
            found = cached.setdefault(key, make())  # another thread may have been faster
        return found


class _Solved:
    """Cache of solved sets for one model; bounded and thread-safe."""

    def __init__(self, model: Model) -> None:
        if not model.supports_arrived:
            raise ValuesError(
                f"model {model.name!r} does not support policy 'arrived': {model.fallback_reason('arrived')}"
            )
        self.gram = None if model.moments is None else Gram.of(model.moments)
        self.prefixes = {names: prefix for prefix, names in reversed([*enumerate(model.needed)])}
        """The shortest prefix of each set."""
        self.sets: OrderedDict[frozenset[str], ArrivedModel] = OrderedDict()
        self.nbytes = 0
        self.lock = Lock()
        self.waiting: set[tuple[int, frozenset[str]]] = set()
        self.ms_per_cube = 3e-8
        """Time to solve for D columns, over D^3; until one set has been timed, that of a slow core."""

    def get(self, groups: frozenset[str]) -> ArrivedModel | None:
        with self.lock:
            if groups in self.sets:
                self.sets.move_to_end(groups)
            return self.sets.get(groups)

    def store(self, arrived: ArrivedModel) -> ArrivedModel:
        with self.lock:
            before = self.sets.pop(arrived.groups, None)
            self.nbytes += arrived.nbytes - (0 if before is None else before.nbytes)
            self.sets[arrived.groups] = arrived
            while len(self.sets) > MAX_SETS or (self.nbytes > MAX_BYTES and len(self.sets) > 1):
                self.nbytes -= self.sets.popitem(last=False)[1].nbytes
        return arrived


_SOLVED = SetCache[_Solved]()


def arrived_model(model: Model, groups: frozenset[str]) -> ArrivedModel:
    """Return the best linear model of a set of groups that have features, by D_A^3 / 3 operations on one BLAS thread.

    Raises ValuesError if the model only supports prefixes, see `Model.fallback_reason`.
    """
    arrived = cached_arrived_model(model, groups)
    # Solve outside the lock: a caller with a cached set must not wait for a set that is being solved.
    if arrived is None:
        solved = solved_sets(model)
        begin = time.perf_counter()
        with single_blas_thread():
            arrived = solved.store(
                _stepped(model, groups) if solved.gram is None else _solve(model, solved.gram, groups)
            )
        if len(arrived.columns) >= MIN_TIMED_COLUMNS:
            # The smallest measurement is the work itself; larger ones come from a busy machine. The estimate decays.
            took = (time.perf_counter() - begin) * 1e3 / len(arrived.columns) ** 3
            solved.ms_per_cube = min(solved.ms_per_cube * 1.1, took)
    return arrived


def columns_of(model: Model, groups: frozenset[str]) -> int:
    return sum(model.places[name].stop - model.places[name].start for name in groups)


def expected_ms(model: Model, groups: frozenset[str]) -> float:
    """Return how long a set probably takes to solve, by those of the model that were solved before."""
    return float(solved_sets(model).ms_per_cube * columns_of(model, groups) ** 3)


def arrived_model_within(model: Model, groups: frozenset[str], ms: float) -> ArrivedModel:
    """Return the best linear model of a set if it is solved or can be solved within some milliseconds.

    Otherwise return the best solved model of a part of the set, and have the set solved in the background.
    """
    arrived = cached_arrived_model(model, groups)
    if arrived is not None:
        return arrived
    if SMALL_MS + 1.5 * expected_ms(model, groups) <= ms:
        return arrived_model(model, groups)
    solved = solved_sets(model)
    with solved.lock:
        process = os.getpid()  # a fork inherits the sets that wait, and no thread that solves them
        waiting = [each for each in solved.waiting if each[0] == process]
        begin = (process, groups) not in waiting and len(waiting) < MAX_WAITING
        if begin:
            solved.waiting.add((process, groups))
        parts = [each for each in solved.sets.values() if each.groups <= groups]
    if begin:  # without the lock, which other answers wait for
        _background(process).submit(_solve_waiting, model, groups)
    longest = max(prefix for prefix, names in enumerate(model.needed) if names <= groups)
    prefix = cached_arrived_model(model, model.needed[longest])
    assert prefix is not None  # noqa: S101
    return max([prefix, *parts], key=lambda each: each.expected.explained_variance)


@cache
def _background(process: int) -> ThreadPoolExecutor:  # noqa: ARG001  (a forked process has no threads of its parent)
    return ThreadPoolExecutor(1, "anytime-solver")


def _solve_waiting(model: Model, groups: frozenset[str]) -> None:
    try:
        arrived_model(model, groups)
    except Exception:
        _log.exception("solving for %s failed", sorted(groups))
    finally:
        solved = solved_sets(model)
        with solved.lock:
            solved.waiting.discard((os.getpid(), groups))


def cached_arrived_model(model: Model, groups: frozenset[str]) -> ArrivedModel | None:
    """Return the model as `arrived_model` does if it is cached or a prefix, else None."""
    solved = solved_sets(model)
    arrived = solved.get(groups)
    if arrived is None and groups in solved.prefixes:
        prefix = solved.prefixes[groups]
        coef = model.prefixes.coef(prefix)
        arrived = solved.store(
            ArrivedModel(
                groups,
                np.arange(len(coef)),
                coef,
                model.total_cost(groups),
                model.expected(prefix),
                model.prefixes.intercept_of(prefix),
                alpha_of(model, prefix),
                prefix=prefix,
            )
        )
    return arrived


def solved_sets(model: Model) -> _Solved:
    """Return the cache of a model's sets; the first call prepares the Gram matrix from which they are solved."""
    return _SOLVED.get(model, (), lambda: _Solved(model))


def _solve(model: Model, gram: Gram, groups: frozenset[str]) -> ArrivedModel:
    here, columns = _columns(model, groups)
    alpha = alpha_of(model, int(np.abs(model.prefixes.ends - len(columns)).argmin()))
    C, q = gram.penalised(alpha, columns)
    factor = factorise(C, np.diagonal(C))
    z = factor.forward(q)
    w, explained = factor.backward(z), 0.5 * float(np.sum(z * z))
    # R² is without the penalty: q'w - 1/2 w'S w = 1/2 z'z + alpha/2 w'w, as w solves (S + alpha I) w = q.
    r2 = (2 * explained + alpha * float(np.sum(w * w))) / len(gram.yy) if gram.yy.all() else None
    coef = w * gram.y_scale / gram.x_scale[columns, np.newaxis]
    return ArrivedModel(
        groups, here, coef, model.total_cost(groups), Expected(None, explained, r2), model.prefixes.intercept, alpha
    )


def _stepped(model: Model, groups: frozenset[str]) -> ArrivedModel:
    """Return one Newton step of a likelihood from the nearest prefix with stored curvature."""
    assert model.curvatures is not None  # noqa: S101
    prefixes = model.curvatures.prefixes
    here, columns = _columns(model, groups)
    ends = model.prefixes.ends[prefixes]
    nearest = int((2 * np.searchsorted(here, ends) - ends).argmax())  # the number of shared minus other columns
    alpha = alpha_of(model, int(prefixes[nearest]))
    theta = model.curvatures.at(nearest, columns).newton(np.arange(len(columns)), alpha)
    coef = theta[1:] / model.prefixes.scale[columns, np.newaxis]
    # The quality of the set is unknown; the longest prefix within it is a lower bound.
    longest = max(prefix for prefix, needed in enumerate(model.needed) if needed <= groups)
    expected = replace(model.expected(longest), cv_error=None)
    return ArrivedModel(groups, here, coef, model.total_cost(groups), expected, theta[0], alpha, approximate=True)


def alpha_of(model: Model, prefix: int) -> float:
    """Return the penalty of a prefix; that of the base rate is the model's own."""
    return model.manifest.steps[prefix - 1].alpha if prefix else model.manifest.alpha


def _columns(model: Model, groups: frozenset[str]) -> tuple[Index, Index]:
    """Return the columns of some groups, and of products of these, in sequence order.

    These are their positions in the sequence and in the groups file.
    """
    places = [model.places[name] for name in groups]
    spans = {(place.start, place.stop) for place in places}
    spans |= {(p.start, p.stop) for place in places for p in place.products if groups.issuperset(p.groups)}
    here = np.concatenate([np.arange(*span) for span in sorted(spans)])
    return here, model.prefixes.columns[here]
