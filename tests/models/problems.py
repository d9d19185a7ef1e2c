"""Problems to sequence, small and as unpleasant as real tables are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from anytime.groups import ColumnBasis, FeatureGroups, load_groups
from anytime.moments.accumulate import Block, moments_of
from anytime.moments.moments import Gram
from anytime.types import Float

__all__ = [
    "SmallTable",
    "any_groups",
    "blocks_of",
    "grouped",
    "imputing",
    "messy_table",
    "plain_groups",
    "rival_visits",
    "visits",
    "webs",
    "weighted_by",
]


@dataclass(frozen=True, eq=False)
class SmallTable:
    """A small table, groups and a penalty: all sets of groups can be tried."""

    X: Float = field(repr=False)
    Y: Float = field(repr=False)
    groups: FeatureGroups
    alpha: float

    @property
    def gram(self) -> Gram:
        return Gram.of(moments_of(self.X, self.Y))


def grouped(
    sizes: Sequence[int], costs: Sequence[float], requires: Mapping[int, Sequence[int]] | None = None
) -> FeatureGroups:
    """Groups g0, g1, ... of these sizes and costs."""
    requires = requires or {}
    content = [
        {
            "name": f"g{g}",
            "features": [f"g{g}x{d}" for d in range(size)],
            "cost": cost,
            "requires": [f"g{p}" for p in requires.get(g, ())],
        }
        for g, (size, cost) in enumerate(zip(sizes, costs, strict=True))
    ]
    return imputing(load_groups({"groups": content}))


def imputing(groups: FeatureGroups) -> FeatureGroups:
    """The groups without indicators of missing values, which literal versions do not have."""
    return groups.with_bases({name: ColumnBasis(missing=False) for name in groups.features})


@st.composite
def plain_groups(draw: st.DrawFn, costs: Sequence[float] = (0, 0.5, 1, 1, 2, 3, 5, 8), most: int = 8) -> FeatureGroups:
    """Groups that require nothing."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=most))
    return grouped(sizes, [draw(st.sampled_from(costs)) for _ in sizes])


@st.composite
def visits(draw: st.DrawFn) -> FeatureGroups:
    """Dear visits, most of them featureless, and cheap tests that require one or both of them."""
    count = draw(st.integers(4, 8))
    places = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2, unique=True))
    sizes = [draw(st.sampled_from((0, 0, 1)) if g in places else st.integers(1, 4)) for g in range(count)]
    dear, cheap = st.sampled_from((0, 5, 8, 20)), st.sampled_from((0, 0.5, 0.5, 1, 1, 5))
    costs = [draw(dear if g in places else cheap) for g in range(count)]
    requires = {g: [p for p in places if draw(st.integers(0, 2))] for g in range(count) if g not in places}
    return grouped(sizes, costs, requires)


@st.composite
def rival_visits(draw: st.DrawFn) -> FeatureGroups:
    """Two featureless visits with tests of unlike costs, and a group that needs neither: bundles decide the order."""
    count = draw(st.integers(6, 8))
    costs: list[float] = [draw(st.sampled_from((2, 4, 8))) for _ in range(2)]
    costs += [draw(st.sampled_from((0.5, 1, 2, 3))) for _ in range(2, count - 1)] + [draw(st.sampled_from((1, 2, 4)))]
    requires = {g: [draw(st.integers(0, 1))] for g in range(2, count - 1)}
    places = draw(st.permutations(range(count)))
    content = grouped([0, 0, *(draw(st.integers(1, 2)) for _ in range(2, count))], costs, requires).groups
    return FeatureGroups(groups=tuple(content[g] for g in places))


@st.composite
def webs(draw: st.DrawFn) -> FeatureGroups:
    """Groups that require each other in any way that is no circle."""
    count = draw(st.integers(2, 8))
    order = draw(st.permutations(range(count)))
    costs = [draw(st.sampled_from((0, 0.5, 1, 2, 5, 8))) for _ in order]
    sizes = [draw(st.integers(0, 4)) for _ in order]
    sizes[order[-1]] = max(1, sizes[order[-1]])
    requires = {
        g: draw(st.lists(st.sampled_from(order[:k]), max_size=2, unique=True)) for k, g in enumerate(order) if k > 0
    }
    return grouped(sizes, costs, requires)


any_groups = st.one_of(plain_groups(), visits(), rival_visits(), webs()).map(imputing)


def blocks_of(edges: Iterable[int], X: Any, Y: Any, weights: Any = None, folds: Any = None) -> list[Block]:
    """The rows, cut at some of them."""
    return [
        Block(X[a:b], Y[a:b], None if weights is None else weights[a:b], None if folds is None else folds[a:b])
        for a, b in pairwise(edges)
    ]


def weighted_by(kind: str, rng: np.random.Generator, rows: int, least: int = 0) -> Float | None:
    """Weights of rows: "none", "positive" or "counts" from `least` to 3."""
    return {
        "none": None,
        "positive": rng.uniform(0.1, 3.0, rows),
        "counts": rng.integers(least, 4, rows).astype(float),
    }[kind]


def messy_table(
    rng: np.random.Generator, rows: int, width: int, kinds: Sequence[str], mess: float, missing: float
) -> Float:
    """Columns: the share `mess` of them is of another kind than fresh, with cells missing."""
    X = np.zeros((rows, width))
    common = rng.normal(size=rows)
    for j in range(width):
        kind = str(rng.choice(kinds)) if rng.random() < mess else "fresh"
        other, another = rng.integers(0, max(j, 1), size=2)
        if kind == "constant":
            X[:, j] = rng.choice([0.0, 1.0, 0.1, -7.3])
        elif kind == "binary":
            X[:, j] = rng.integers(0, 2, rows)
        elif kind in {"copy", "negated", "sum"} and j > 0:
            X[:, j] = {"copy": X[:, other], "negated": -X[:, other], "sum": X[:, other] + 2 * X[:, another]}[kind]
        else:
            X[:, j] = rng.normal(size=rows) + rng.choice([0.0, 1.0]) * common + rng.choice([0.0, 10.0])
            X[rng.random(rows) < missing, j] = np.nan
    return X
