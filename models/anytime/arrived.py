"""The exact optimum for whatever set of groups has arrived, solved from the moments and kept.

A failed sensor or groups out of order leave a set that is no prefix. Its best linear model is one Cholesky of its
columns: w = C_A^-1 q_A, with the alpha of the prefix whose number of columns is nearest. A set that is a prefix gets
that prefix's own coefficients, so that the two policies agree there.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np

from anytime.answer import Expected
from anytime.arrays import Float, Index
from anytime.cholesky import factorise
from anytime.errors import ValuesError
from anytime.gram import Gram
from anytime.model import AnytimeModel

__all__ = ["KEPT_SETS", "ArrivedModel", "arrived_model"]

KEPT_SETS = 256
"""Solved sets kept for each model; the least recently used goes first."""


@dataclass(frozen=True)
class ArrivedModel:
    """Linear model of one set of groups: `intercept + (x - mean)[columns] @ coef`, and what it cost and explains.

    `order` names the groups in the order of their columns.
    """

    groups: frozenset[str]
    order: list[str]
    columns: Index
    coef: Float
    cost: float
    expected: Expected


class _Solved:
    """What has been solved for one model; bounded, and safe to use from several threads."""

    def __init__(self, model: AnytimeModel) -> None:
        if model.moments is None:
            raise ValuesError(f"model {model.name!r} was saved without its moments; policy 'arrived' needs them")
        self.gram = Gram.of(model.moments)
        self.sets: OrderedDict[frozenset[str], ArrivedModel] = OrderedDict()
        self.lock = Lock()


_SOLVED: WeakKeyDictionary[AnytimeModel, _Solved] = WeakKeyDictionary()
_SOLVED_LOCK = Lock()


def arrived_model(model: AnytimeModel, groups: frozenset[str]) -> ArrivedModel:
    """Best linear model of a set of groups that have features, from the moments of `model`."""
    with _SOLVED_LOCK:
        if model not in _SOLVED:
            _SOLVED[model] = _Solved(model)
        solved = _SOLVED[model]
    with solved.lock:
        if groups not in solved.sets:
            solved.sets[groups] = _solve(model, solved.gram, groups)
            if len(solved.sets) > KEPT_SETS:
                solved.sets.popitem(last=False)
        solved.sets.move_to_end(groups)
        return solved.sets[groups]


def _solve(model: AnytimeModel, gram: Gram, names: frozenset[str]) -> ArrivedModel:
    groups, models = model.groups, model.prefixes
    indices = sorted(groups.positions[name] for name in names)
    paid = {p for i in indices for p in (i, *groups.prerequisites[i])}
    cost = float(groups.costs[sorted(paid)].sum())
    if names in model.needed:
        prefix = model.needed.index(names)
        columns = models.columns[: models.ends[prefix]]
        return ArrivedModel(names, model.order(names), columns, models.coef(prefix), cost, model.expected(prefix))
    columns = np.concatenate([np.arange(groups.slices[i].start, groups.slices[i].stop) for i in indices])
    alphas = [model.manifest.alpha, *(step.alpha for step in model.manifest.steps)]
    alpha = alphas[int(np.abs(models.ends - len(columns)).argmin())]
    C, q = gram.penalised(alpha, columns)
    factor = factorise(C, np.diagonal(C))
    z = factor.forward(q)
    coef = factor.backward(z) * gram.y_scale / gram.x_scale[columns, np.newaxis]
    explained = 0.5 * float(np.sum(z * z))
    expected = Expected(None, explained, 2 * explained / gram.q.shape[1])
    return ArrivedModel(names, [groups.names[i] for i in indices], columns, coef, cost, expected)
