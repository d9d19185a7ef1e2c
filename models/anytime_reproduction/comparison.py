"""Comparison of the methods on one problem: explained variance against cost (section 5 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anytime._linalg import single_blas_thread
from anytime.evaluation.plots import Plot, default_style, write_charts
from anytime.groups import FeatureGroups
from anytime.model.curve import plateau_level, reordered, stopping_cost, timeliness
from anytime.model.prefixes import PrefixModels, prefix_models, staircase
from anytime.moments.moments import Gram, HeldOutMoments
from anytime.selection import given_sequence, sequence
from anytime.types import Float, Index, Method
from anytime_reproduction.lasso.sparse import GroupLassoPath, shrunken_curve, sparse_entries
from anytime_reproduction.report import lines


@dataclass(frozen=True)
class Variant:
    """A method as the paper names it, and its options."""

    name: str
    method: Method
    cost_blind: bool = False
    doubling: bool = False
    oracle: bool = False
    shrunken: bool = False


VARIANTS = (
    Variant("CS-G-FR", "fr"),
    Variant("CS-G-OMP", "omp"),
    Variant("Single", "single"),
    Variant("No-Whiten", "no-whiten"),
    Variant("G-OMP", "omp", cost_blind=True),
    Variant("Doubling", "fr", doubling=True),
    Variant("FR Oracle", "fr", oracle=True),
    Variant("OMP Oracle", "omp", oracle=True),
    Variant("Sparse", "sparse"),
    Variant("Sparse (shrunken)", "sparse", shrunken=True),
)
"""The compared methods.

An oracle is a reference curve, not a model: a curve's own gains, sorted by gain per cost. Sparse is refitted, as a
model of that method is; shrunken, it has the path's own weights, as in the paper.
"""


@dataclass(frozen=True, eq=False)
class MethodCurve:
    """A curve on one table: costs, F and R² of each prefix (steps + 1,), and both kinds of timeliness.

    R² is without penalty; it is None if a response is constant in the table. The shrunken curve has a point for each
    penalty of its path instead. `models` are those of the prefixes or points; an oracle has none.
    """

    costs: Float
    explained_variance: Float
    r2: Float | None
    timeliness: float
    timeliness_step: float
    models: PrefixModels | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """All variants on the training table and, if given, on a test table, by variant name.

    `level` is the plateau of CS-G-OMP in training, and `stop` the cost at which it is reached; timeliness is measured
    up to there.
    """

    alpha: float
    level: float
    stop: float
    train: dict[str, MethodCurve]
    test: dict[str, MethodCurve]

    @property
    def sides(self) -> dict[str, dict[str, MethodCurve]]:
        """Return the curves on each table that is there, "train" and "test"."""
        return {"train": self.train} | ({"test": self.test} if self.test else {})


def compare(
    gram: Gram, groups: FeatureGroups, alpha: float, held: HeldOutMoments | None = None, level: float | None = None
) -> Comparison:
    """Order the groups by every variant and evaluate the curves, in training and on `held`, a test table.

    The curves stop at `level`, a share of the final F of CS-G-OMP in training; None uses its plateau.
    """
    entries = sparse_entries(gram, groups)
    keys = dict.fromkeys((variant.method, variant.cost_blind, variant.doubling) for variant in VARIANTS)
    learned = {
        key: given_sequence(gram, groups, entries.steps, alpha)
        if key[0] == "sparse"
        else sequence(gram, groups, key[0], alpha, cost_blind=key[1], doubling=key[2])
        for key in keys
    }
    reference = learned["omp", False, False]
    level = plateau_level(reference.costs, reference.explained_variance) if level is None else level
    stop = stopping_cost(reference.costs, reference.explained_variance, level)
    with single_blas_thread():
        weights = {key: staircase(o.state.factor, o.state.z, o.ends) for key, o in learned.items()}
    models = {key: prefix_models(gram, o.columns, o.ends, weights[key]) for key, o in learned.items()}
    shrunken = shrunken_models(gram, entries.path)

    def curve(variant: Variant, table: HeldOutMoments) -> MethodCurve:
        key = variant.method, variant.cost_blind, variant.doubling
        order, own = learned[key], shrunken if variant.shrunken else models[key]
        ends = zip(order.ends, weights[key], strict=True)
        costs, explained = order.costs, np.array([table.explained(order.columns[:end], w[:end]) for end, w in ends])
        if variant.shrunken:
            costs, explained = shrunken_curve(entries.path, groups, table)
        penalised = table is not held and not variant.shrunken
        F, r2 = order.explained_variance if penalised else explained.sum(axis=1), table.r2(explained)
        if variant.oracle:
            best = oracle_order(np.diff(F), np.diff(costs))
            costs, F, r2 = reordered(costs, best), reordered(F, best), None if r2 is None else reordered(r2, best)
        risk = 0.5 * float(table.yy.sum())
        areas = timeliness(costs, F, stop, risk), timeliness(costs, F, stop, risk, "step")
        return MethodCurve(costs, F, r2, *areas, None if variant.oracle else own)

    train, test = (
        {} if table is None else {each.name: curve(each, table) for each in VARIANTS} for table in (gram.own, held)
    )
    return Comparison(alpha, level, stop, train, test)


def shrunken_models(gram: Gram, path: GroupLassoPath) -> PrefixModels:
    """Return the models of the path's own weights, after the base rate, as prefixes of all columns."""
    points, D, _ = path.coef.shape
    W = np.concatenate([np.zeros_like(path.coef[:1]), path.coef])
    return prefix_models(gram, np.arange(D), np.array([0, *[D] * points]), W)


def oracle_order(gains: Float, costs: Float) -> Index:
    """Return the order of steps by decreasing gain per cost, free steps first and ties as given: a reference curve."""
    density = np.divide(gains, costs, out=np.full(len(gains), np.inf), where=costs > 0)
    return np.argsort(-density, kind="stable")


@default_style()
def plot_comparison(compared: Comparison, cost_unit: str, path: Path) -> None:
    """Draw the methods' curves up to where timeliness stops, for training and test; errors as `plot_model`."""
    charts = []
    for side, curves in compared.sides.items():
        known = {name: curve.costs <= compared.stop * (1 + 1e-9) for name, curve in curves.items()}
        named = {name: (each.costs[known[name]], each.explained_variance[known[name]]) for name, each in curves.items()}
        charts.append(lines(side, named, f"cost ({cost_unit})", "explained variance F", stairs=False, kind=Plot))
    write_charts(charts, path, (5.5, 4.2))
