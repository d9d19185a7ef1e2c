"""The optimum for any set of received groups, solved from the moments and cached.

A failed sensor or groups out of order leave a set that is not a prefix. Its best linear model takes one Cholesky
factorisation of its columns: w = C_A^-1 q_A, with the alpha of the prefix whose number of columns is nearest. A set
that is a prefix gets that prefix's own coefficients, so that the two policies agree there.

A likelihood has no such moments. There the optimum is approximate: one Newton step on the stored second-order model of
the nearest prefix, at its alpha. The nearest prefix is the one with the most shared columns minus other columns.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np

from anytime._linalg import factorise
from anytime.errors import ValuesError
from anytime.model.model import Expected, Model
from anytime.moments.moments import Gram
from anytime.types import Float, Index

__all__ = [
    "MAX_SETS",
    "ArrivedModel",
    "arrived_model",
    "cached_arrived_model",
]

MAX_SETS = 256
"""Maximum number of solved sets cached per model; the least recently used is evicted first."""


@dataclass(frozen=True)
class ArrivedModel:
    """Linear model of one set of groups: `intercept + centred[columns] @ coef`, with its cost and expected quality.

    `approximate` is true if the model is not the exact optimum; `prefix` is the number of the prefix that the set
    equals, or None.

    `columns` are numbered in the order of the sequence, as in a `Prediction`.
    """

    groups: frozenset[str]
    columns: Index
    coef: Float
    cost: float
    expected: Expected
    intercept: Float
    approximate: bool = False
    prefix: int | None = None


class _Solved:
    """Cache of solved sets for one model; bounded and thread-safe."""

    def __init__(self, model: Model) -> None:
        if not model.supports_arrived:
            raise ValuesError(f"model {model.name!r} does not support policy 'arrived': {model.fallback_reason}")
        self.gram = None if model.moments is None else Gram.of(model.moments)
        self.prefixes: dict[frozenset[str], int] = {}
        for prefix, names in enumerate(model.needed):
            self.prefixes.setdefault(names, prefix)
        self.sets: OrderedDict[frozenset[str], ArrivedModel] = OrderedDict()
        self.lock = Lock()

    def get(self, groups: frozenset[str]) -> ArrivedModel | None:
        with self.lock:
            if groups in self.sets:
                self.sets.move_to_end(groups)
            return self.sets.get(groups)

    def store(self, found: ArrivedModel) -> ArrivedModel:
        with self.lock:
            self.sets[found.groups] = found
            if len(self.sets) > MAX_SETS:
                self.sets.popitem(last=False)
        return found


_SOLVED: WeakKeyDictionary[Model, _Solved] = WeakKeyDictionary()
_SOLVED_LOCK = Lock()


def arrived_model(model: Model, groups: frozenset[str]) -> ArrivedModel:
    """Return the best linear model of a set of groups that have features, from the data stored in `model`.

    It costs D_A^3 / 3 operations.

    Raises
    ------
    ValuesError
        The model only supports prefixes, see `Model.fallback_reason`.
    """
    cached = cached_arrived_model(model, groups)
    # Solve outside the lock: a caller with a cached set must not wait for a set that is being solved.
    if cached is not None:
        return cached
    gram = _solved(model).gram
    return _solved(model).store(_stepped(model, groups) if gram is None else _solve(model, gram, groups))


def cached_arrived_model(model: Model, groups: frozenset[str]) -> ArrivedModel | None:
    """Return the model as `arrived_model` does if it is cached or a prefix, else None."""
    solved = _solved(model)
    found = solved.get(groups)
    if found is None and groups in solved.prefixes:
        found = solved.store(_prefix(model, groups, solved.prefixes[groups]))
    return found


def _solved(model: Model) -> _Solved:
    with _SOLVED_LOCK:
        if model not in _SOLVED:
            _SOLVED[model] = _Solved(model)
        return _SOLVED[model]


def _prefix(model: Model, names: frozenset[str], prefix: int) -> ArrivedModel:
    coef, intercept = model.prefixes.coef(prefix), model.prefixes.intercept_of(prefix)
    here, cost = np.arange(len(coef)), _cost(model, names)
    return ArrivedModel(names, here, coef, cost, model.expected(prefix), intercept, prefix=prefix)


def _solve(model: Model, gram: Gram, names: frozenset[str]) -> ArrivedModel:
    models = model.prefixes
    here, columns = _columns(model, names)
    alphas = [model.manifest.alpha, *(step.alpha for step in model.manifest.steps)]
    alpha = alphas[int(np.abs(models.ends - len(columns)).argmin())]
    C, q = gram.penalised(alpha, columns)
    factor = factorise(C, np.diagonal(C))
    z = factor.forward(q)
    w, explained = factor.backward(z), 0.5 * float(np.sum(z * z))
    # R² is without the penalty: q'w - 1/2 w'S w = 1/2 z'z + alpha/2 w'w, as w solves (S + alpha I) w = q.
    r2 = (2 * explained + alpha * float(np.sum(w * w))) / len(gram.yy) if gram.yy.all() else None
    expected = Expected(None, explained, r2)
    coef = w * gram.y_scale / gram.x_scale[columns, np.newaxis]
    return ArrivedModel(names, here, coef, _cost(model, names), expected, models.intercept)


def _stepped(model: Model, names: frozenset[str]) -> ArrivedModel:
    """Return one Newton step of a likelihood from the nearest prefix with stored curvature."""
    assert model.curvatures is not None  # noqa: S101
    models, curvatures = model.prefixes, model.curvatures
    here, columns = _columns(model, names)
    ends = models.ends[curvatures.prefixes]
    shared = np.searchsorted(here, ends)
    nearest = int((2 * shared - ends).argmax())
    alphas = [model.manifest.alpha, *(step.alpha for step in model.manifest.steps)]
    theta = curvatures.at(nearest, columns).newton(np.arange(len(columns)), alphas[int(curvatures.prefixes[nearest])])
    coef = theta[1:] / models.scale[columns, np.newaxis]
    # The quality of the set is unknown; the longest prefix within it is a lower bound.
    expected = replace(model.expected(_largest_within(model, names)), cv_error=None)
    return ArrivedModel(names, here, coef, _cost(model, names), expected, theta[0], approximate=True)


def _largest_within(model: Model, names: frozenset[str]) -> int:
    """Return the longest prefix that some groups complete."""
    return max(prefix for prefix, needed in enumerate(model.needed) if needed <= names)


def _columns(model: Model, names: frozenset[str]) -> tuple[Index, Index]:
    """Return the columns of some groups in sequence order: their positions in the sequence and in the groups file."""
    order = model.order(names)
    here = np.concatenate([np.arange(model.places[name].start, model.places[name].stop) for name in order])
    return here, model.prefixes.columns[here]


def _cost(model: Model, names: frozenset[str]) -> float:
    """Return the joint cost of groups and their prerequisites."""
    groups = model.groups
    indices = [groups.positions[name] for name in names]
    paid = {p for i in indices for p in (i, *groups.prerequisites[i])}
    return float(groups.costs[sorted(paid)].sum())
