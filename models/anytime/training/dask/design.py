"""The design matrix of a likelihood on a cluster: a pass is a task for each part, and sums of derivatives come back.

Predictors stay what they are linear in, the coefficients: they are made anew where they are needed, which costs a
product with the rows, and nothing travels or is lost. A mean over all rows is the sum of what the parts say, as each
divides by the weight of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from anytime.glm.design import Design, Evaluation, Predictors, Totals, View
from anytime.glm.families import FAMILIES
from anytime.glm.row_blocks import BlockDesign, BlockView
from anytime.moments.gram import Gram
from anytime.training.dask.rows import HeldRows, settled, told
from anytime.types import FamilyName, Float, Index

__all__ = [
    "ClusterDesign",
    "light",
]


def light(gram: Gram) -> Gram:
    """Normal equations without the products, which parts do not need: a few numbers a column."""
    return replace(gram, S=np.empty((0, 0)), q=np.empty((0, gram.q.shape[1])))


@dataclass(frozen=True)
class _Fit:
    """What a worker must know of a fit, beside its rows."""

    gram: Gram
    family: FamilyName
    weight: float
    ridge: Float
    held: int | None
    centre: Float | None

    def design(self, rows: HeldRows) -> BlockDesign:
        """The design of a part."""
        family = FAMILIES[self.family]
        return BlockDesign(
            self.gram, family, self.weight, self.ridge, self.held, self.centre, slabs=rows.slabs, n_jobs=1
        )


@dataclass(frozen=True, eq=False)
class _At:
    """Predictors, as the coefficients (d + 1, Q) of some columns."""

    columns: Index
    theta: Float

    def of(self, design: BlockDesign) -> Predictors:
        """The predictors of the rows of a part."""
        return design.view(self.columns).predictors(self.theta)


@dataclass(frozen=True, eq=False)
class ClusterDesign(Design):
    """Rows that workers have.

    Attributes
    ----------
    client : of the cluster, a `distributed.Client`.  rows : futures of `HeldRows`, in the order of the table.
    """

    client: Any = None
    rows: tuple[Any, ...] = ()

    @property
    def fold_jobs(self) -> int:
        """One: a pass keeps all workers busy."""
        return 1

    @cached_property
    def totals(self) -> Totals:
        """Sums over all rows."""
        found = list(self.over(_totals))
        return Totals(
            sum(each.rows for each in found),
            np.sum([each.responses for each in found], axis=0),
            sum(each.saturated for each in found),
        )

    def view(self, columns: Index) -> ClusterView:
        """The same rows with some columns only, in that order."""
        return ClusterView(self, columns)

    def over(self, task: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        """What a function of a part's design comes to at each part, in the order of the table."""
        client, fit = self.client, self._fit
        futures = [client.submit(_at_part, rows, fit, task, arguments, pure=False) for rows in self.rows]
        with told():
            found: list[Any] = client.gather(futures)
        yield from found

    @cached_property
    def _fit(self) -> _Fit:
        return _Fit(light(self.gram), self.family.name, self.weight, self.ridge, self.held, self.centre)


class ClusterView(View):
    """Some columns of rows on a cluster."""

    def __init__(self, design: ClusterDesign, columns: Index) -> None:
        super().__init__(columns, design.ridge[columns])
        self._design = design

    def predictors(self, theta: Float) -> Predictors:
        """Linear predictors of all rows at coefficients (d + 1, Q): no pass yet."""
        return _At(self.columns, theta)

    def moved(self, etas: Predictors, share: float, directions: Predictors) -> Predictors:
        """Predictors a share of the way along others."""
        return _At(etas.columns, etas.theta + share * directions.theta)

    def loss(self, etas: Predictors) -> float:
        """Mean loss at some predictors: one pass."""
        return float(sum(self._over(_loss, etas)))

    def slope(self, etas: Predictors, directions: Predictors) -> tuple[float, float]:
        """Mean loss at some predictors, and its derivative in a direction: one pass."""
        losses, slopes = zip(*self._over(_slope, etas, directions), strict=True)
        return float(sum(losses)), float(sum(slopes))

    def evaluate(self, etas: Predictors, *, hessian: bool = False) -> Evaluation:
        """Loss and score at some predictors, and on demand the second derivatives: one pass."""
        found: list[Evaluation] = list(self._over(_evaluation, etas, hessian))
        score, curvature = np.zeros_like(found[0].score), None
        for each in found:
            score += each.score
            if each.hessian is not None:
                curvature = each.hessian.copy() if curvature is None else np.add(curvature, each.hessian, out=curvature)
        return Evaluation(sum(each.loss for each in found), score, curvature)

    def products(self, etas: Predictors) -> Callable[[Float], Float]:
        """The Hessian at some predictors as a function of a direction (d + 1, Q), a pass each."""

        def product(direction: Float) -> Float:
            total: Float = np.sum(list(self._over(_product, etas, direction)), axis=0)
            return total

        return product

    def weighted_gram(self, etas: Predictors) -> Float:
        """Z'hZ/n (d + 1, d + 1) with the mean curvature h over the predictors: one pass."""
        total: Float = np.sum(list(self._over(_weighted_gram, etas)), axis=0)
        return total

    def held_deviance(self, theta: Float) -> float:
        """Sum over the rows of the fold held out of weight times deviance: one pass."""
        return float(sum(self._over(_held_deviance, theta)))

    def _over(self, task: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        return self._design.over(_in_view, self.columns, task, arguments)


def _at_part(rows: HeldRows, fit: _Fit, task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run a task on the design of a part; what runs on the worker."""
    settled()
    return task(fit.design(rows), *arguments)


def _totals(design: BlockDesign) -> Totals:
    return design.totals


def _in_view(design: BlockDesign, columns: Index, task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return task(design.view(columns), *arguments)


def _loss(view: BlockView, at: _At) -> float:
    return view.loss(at.of(view.design))


def _slope(view: BlockView, at: _At, directions: _At) -> tuple[float, float]:
    return view.slope(at.of(view.design), directions.of(view.design))


def _evaluation(view: BlockView, at: _At, hessian: bool) -> Evaluation:
    return view.evaluate(at.of(view.design), hessian=hessian)


def _product(view: BlockView, at: _At, direction: Float) -> Float:
    return view.products(at.of(view.design))(direction)


def _weighted_gram(view: BlockView, at: _At) -> Float:
    return view.weighted_gram(at.of(view.design))


def _held_deviance(view: BlockView, theta: Float) -> float:
    return view.held_deviance(theta)
