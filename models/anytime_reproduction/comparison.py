"""Comparison of the methods on one problem: explained variance against cost (section 5 of the paper)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from anytime._linalg import single_blas_thread
from anytime.evaluation.classes import ClassMeasures
from anytime.evaluation.plots import LINES, blank_figure, default_style, write_figure
from anytime.groups import FeatureGroups
from anytime.model.curve import plateau_level, reordered, stopping_cost, timeliness
from anytime.model.prefixes import PrefixModels, prefix_models, staircase
from anytime.moments.moments import Gram, HeldOutMoments
from anytime.selection import FactoredOrder, given_sequence, sequence
from anytime.types import Float, Index, Method
from anytime_reproduction.lasso.sparse import shrunken_curve, sparse_entries


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
    penalty of its path instead. `classes` has the measures of classes at each prefix, of a model on rows.
    """

    costs: Float
    explained_variance: Float
    r2: Float | None
    timeliness: float
    timeliness_step: float
    classes: ClassMeasures | None = None


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
    gram: Gram,
    groups: FeatureGroups,
    alpha: float,
    held: HeldOutMoments | None = None,
    level: float | None = None,
    classes: Callable[[PrefixModels], ClassMeasures] | None = None,
) -> Comparison:
    """Order the groups by every variant and evaluate the curves, in training and on `held`, a test table.

    The curves stop at `level`, a share of the final F of CS-G-OMP in training; None uses its plateau. `classes` returns
    the measures of classes on the rows of the test table, once for each order.
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
    tables = {"train": gram.own} | ({} if held is None else {"test": held})
    curves: dict[str, dict[str, MethodCurve]] = {"train": {}, "test": {}}
    with single_blas_thread():
        weights = {key: staircase(o.state.factor, o.state.z, o.ends) for key, o in learned.items()}
    measured = (
        {}
        if classes is None
        else {key: classes(prefix_models(gram, o.columns, o.ends, weights[key])) for key, o in learned.items()}
    )
    for variant in VARIANTS:
        key = variant.method, variant.cost_blind, variant.doubling
        order = learned[key]
        for side, table in tables.items():
            if variant.shrunken:
                costs, explained = shrunken_curve(entries.path, groups, table)
                F = explained.sum(axis=1)
            else:
                costs, explained = order.costs, explained_by_prefixes(order, weights[key], table)
                F = order.explained_variance if side == "train" else explained.sum(axis=1)
            curve = _measured(variant, costs, F, table.r2(explained), stop, 0.5 * float(table.yy.sum()))
            has_classes = side == "test" and not (variant.oracle or variant.shrunken)
            curves[side][variant.name] = replace(curve, classes=measured.get(key) if has_classes else None)
    return Comparison(alpha, level, stop, curves["train"], curves["test"])


def explained_by_prefixes(order: FactoredOrder, W: Float, table: HeldOutMoments) -> Float:
    """Return the variance of each response of a table that each prefix explains, without penalty, (steps + 1, P)."""
    return np.array([table.explained(order.columns[:end], w[:end]) for end, w in zip(order.ends, W, strict=True)])


def _measured(
    variant: Variant, costs: Float, explained: Float, r2: Float | None, stop: float, risk: float
) -> MethodCurve:
    if variant.oracle:
        best = oracle_order(np.diff(explained), np.diff(costs))
        costs, explained = reordered(costs, best), reordered(explained, best)
        r2 = None if r2 is None else reordered(r2, best)
    return MethodCurve(
        costs, explained, r2, timeliness(costs, explained, stop, risk), timeliness(costs, explained, stop, risk, "step")
    )


def oracle_order(gains: Float, costs: Float) -> Index:
    """Return the order of steps by decreasing gain per cost, free steps first and ties as given: a reference curve."""
    density = np.divide(gains, costs, out=np.full(len(gains), np.inf), where=costs > 0)
    return np.argsort(-density, kind="stable")


@default_style()
def plot_comparison(compared: Comparison, cost_unit: str, path: Path) -> None:
    """Draw the methods' curves up to where timeliness stops, for training and test; errors as `plot_model`."""
    figure, axes = blank_figure(len(compared.sides), across=True)
    for axis, (side, curves) in zip(axes, compared.sides.items(), strict=True):
        for (name, curve), style in zip(curves.items(), LINES, strict=True):
            axis.plot(curve.costs, curve.explained_variance, linestyle=style, linewidth=1.4, label=name)
        axis.axvline(compared.stop, color="grey", linewidth=0.8)
        axis.set(
            title="training" if side == "train" else side,
            xlim=(0, 1.02 * compared.stop or 1.0),
            ylim=(0, None),
            xlabel=f"cost ({cost_unit})",
        )
    axes[0].set_ylabel("explained variance F")
    axes[-1].legend(fontsize=8, loc="lower right")
    write_figure(figure, path)
