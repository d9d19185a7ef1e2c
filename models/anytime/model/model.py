"""A trained anytime model: the manifest, the prefix models and, if stored, the training moments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from anytime.errors import ValuesError
from anytime.families import family_of
from anytime.features.expansion import Columns, Expansion, Product
from anytime.groups import COST_TOLERANCE, CallCost, FeatureGroups
from anytime.model.curve import Curve
from anytime.model.file import write_model
from anytime.model.manifest import Manifest, best_prefixes, steps_with_products
from anytime.model.prefixes import PrefixModels
from anytime.moments.moments import Moments
from anytime.tabulated import R2, Series, Tabular, Tabulated
from anytime.types import Float, Index, Policy

if TYPE_CHECKING:
    from anytime.glm.search import QuadraticModels


@dataclass(frozen=True)
class Expected:
    """Quality of a prefix in training.

    Attributes
    ----------
    cv_error : float | None
        Cross-validated mean squared error in target units, averaged over responses; the mean deviance for a likelihood;
        None where not measured.
    explained_variance : float
        F on the standardised training data, at most half the number of responses; for a likelihood, the reduction of
        the penalised mean loss below that of the base rate.
    r2 : float | None
        R² on the training rows, without penalty: the mean over the responses of 1 - SSE/SST; for a likelihood, 1 -
        deviance/null deviance. None where a response is constant in training.
    deviance : float | None
        Mean deviance of a likelihood on the training rows; None for least squares.
    """

    cv_error: float | None
    explained_variance: float
    r2: float | None
    deviance: float | None = None


SHARE_ROUNDING = 1e-6
"""Rounding error of a share, in tenths of a percent: a share this close to the next tenth is rounded up to it."""

UNLIMITED = 1e300
"""Budgets of at least this size mean no limit."""


BEST = 1 - 1e-9
"""Shares of the best possible from here on count as 1: bounds are known to this tolerance."""


def at_least(share: float) -> str:
    """Return a share as a percentage, rounded down to at most one decimal."""
    return f"{math.floor(1000 * share + SHARE_ROUNDING) / 10:g} %"


def checked_budget(budget: Any, cost_unit: str) -> float | None:
    """Return a budget as a number, or None if it is no limit; raise ValuesError if it is negative or not a number."""
    if budget is None:
        return None
    number = budget.item() if isinstance(budget, np.number) else budget
    if isinstance(number, bool) or not isinstance(number, int | float | np.floating) or not number >= 0:
        raise ValuesError(f"budget is {budget!r}; expected a number of {cost_unit}, 0 or more")
    return None if number >= UNLIMITED else float(number)


def affordable(costs: Float, budget: float | None, best: Sequence[int] | None = None) -> int:
    """Return the longest prefix within a budget, given the cumulative costs (steps + 1,) of the prefixes.

    With `best`, return the prefix that answers instead of it. A budget that is below a cost by rounding still pays for
    it.
    """
    within = len(costs) if budget is None else int(np.searchsorted(costs, budget * (1 + COST_TOLERANCE), "right"))
    return within - 1 if best is None else best[within - 1]


def manifest_of(model: Any) -> Manifest:
    """Return the manifest of a model; raise ValuesError for anything else."""
    if not isinstance(model, Model):
        raise ValuesError(
            f"the model is {type(model).__name__}; expected a Model, as of anytime.load(path) or model_ of an estimator"
        )
    return model.manifest


class GroupPosition(NamedTuple):
    """Position of a group with features in the sequence: its terms, and the first prefix that contains it.

    `mean` is the training means of its terms, (terms,), and `step` the number of the step that adds it. `features` are
    its raw columns, and `products` those that contain one of these.
    """

    start: int
    stop: int
    mean: Float
    step: int
    features: tuple[str, ...]
    expansion: Columns
    products: list[ProductPosition]


class ProductPosition(NamedTuple):
    """Position of products of the columns of one or two `groups` in the sequence; as `GroupPosition`.

    `products` are those, each with its two columns as (group, index in the group).
    """

    start: int
    stop: int
    mean: Float
    step: int
    groups: tuple[str, ...]
    products: list[tuple[Product, tuple[str, int], tuple[str, int]]]

    def expand(self, inputs: Mapping[str, Float], out: Float) -> None:
        """Write the terms (terms, rows) of the groups' clamped values (columns, rows)."""
        at = 0
        for product, (a, i), (b, j) in self.products:
            stop = at + len(product.terms)
            product.expand(inputs[a][i], inputs[b][j], out[at:stop])
            at = stop


class RowLayout(NamedTuple):
    """Positions of one row with the numbers of some groups, one group after the other.

    `expansion` is that of all columns; None if the columns have products. `columns` are the positions of the terms, and
    `mean` are their training means. `widths` and `slices` are the numbers of each group, and `format`
    is that of all numbers for `struct`.
    """

    expansion: Columns | None
    columns: slice | Index
    mean: Float
    places: dict[str, GroupPosition]
    widths: list[int]
    slices: dict[str, slice]
    format: str


MAX_LAYOUTS = 64
"""Most cached layouts of rows, besides those of single groups; at the limit all are removed."""


@dataclass(frozen=True, eq=False, repr=False)
class Model(Tabular):
    """A trained model. It is immutable, so threads may share it.

    Attributes
    ----------
    manifest : Manifest
        Names, groups, steps, costs and errors of every prefix.
    prefixes : PrefixModels
        Coefficients of every prefix.
    moments : Moments | None
        Sums over the training rows, or None. Re-sequencing, and `policy="arrived"` with least squares, need them.
    curvatures : QuadraticModels | None
        Second-order models of a likelihood at its prefixes, or None. `policy="arrived"` needs them there.
    """

    manifest: Manifest
    prefixes: PrefixModels
    moments: Moments | None = None
    curvatures: QuadraticModels | None = None

    def __repr__(self) -> str:
        return f"<Model {self.name} {self.version or 'not saved'}: {self.manifest.task}, {self.steps} steps>"

    @property
    def table(self) -> Tabulated:
        """Return the steps as a table with a row for each prefix; bounds and calibrated sizes are not in its frame."""
        steps, calibration, unit = self.manifest.steps, self.manifest.calibration, self.groups.cost_unit
        size = "width" if self.manifest.classes is None else "set size"
        return Tabulated.of(
            Series("step", range(self.steps + 1)),
            Series(f"adds ({unit})", ["(base rate)", *(" + ".join(step.adds) for step in steps)], "adds"),
            Series("cost", [0.0, *(step.cost for step in steps)], form="g"),
            Series("total", self.costs, form="g"),
            Series("r2", [each.r2 for each in self._expected], form=R2),
            Series("cv error", [each.cv_error for each in self._expected], "cv_error"),
            Series("alpha", [None, *(step.alpha for step in steps)], form=".2g", missing=""),
            Series("of best", self.certified, None),
            Series(size, calibration and calibration.sizes, None),
            Series("ECE", calibration and calibration.reliability, None),
            caption=f"{self.name} {self.version}".rstrip() + f": {self.manifest.task}, costs in {unit}",
        )

    @property
    def name(self) -> str:
        """Return the name of the model, which identifies it to a service."""
        return self.manifest.name

    @property
    def version(self) -> str:
        """Return the hash of the content; empty until the model is saved."""
        return self.manifest.version

    @property
    def rule_in_words(self) -> str:
        """Return how the groups were ordered."""
        rule = self.manifest
        return rule.method + " cost-blind" * rule.cost_blind + " with doubling" * rule.doubling

    @property
    def groups(self) -> FeatureGroups:
        """Return the feature groups and their costs."""
        return self.manifest.groups

    @cached_property
    def expansion(self) -> Expansion:
        """Return what the raw columns of the groups become."""
        return Expansion.of(self.groups)

    @property
    def terms(self) -> FeatureGroups:
        """Return the groups with their terms as features."""
        return self.expansion.terms

    @property
    def score_names(self) -> tuple[str, ...]:
        """Return the class or response of each score; one score of two classes is that of the second."""
        names = self.manifest.classes or self.manifest.responses
        return tuple(map(str, names[-len(self.prefixes.intercept) :]))

    @cached_property
    def steps(self) -> int:
        """Return the number of steps; prefixes are numbered from 0, the base rate, to this number."""
        return len(self.manifest.steps)

    @cached_property
    def costs(self) -> Float:
        """Return the cumulative cost of each prefix, (steps + 1,); element 0 is 0."""
        return np.array([0.0, *(step.cumulative_cost for step in self.manifest.steps)])

    @cached_property
    def prefix_costs(self) -> tuple[CallCost, ...]:
        """Return the fixed part and the part per row of the cost of all groups of each prefix, (steps + 1,)."""
        groups = self.groups
        adds = [list(map(groups.position, step.adds)) for step in self.manifest.steps]
        parts = ([float(part[each].sum()) for each in adds] for part in groups.cost_parts)
        fixed, per_row = (np.cumsum([0.0, *part]).tolist() for part in parts)
        return tuple(CallCost(fixed=f, per_row=r) for f, r in zip(fixed, per_row, strict=True))

    def total_cost(self, groups: Iterable[str], rows: int | None = None) -> float:
        """Return the cost of some groups, each with those that it requires: for this many rows together, or per row."""
        paid = {p for g in map(self.groups.position, groups) for p in (g, *self.groups.prerequisites[g])}
        return float((self.groups.costs if rows is None else self.groups.call_costs(rows))[sorted(paid)].sum())

    @cached_property
    def places(self) -> dict[str, GroupPosition]:
        """Return the position of each group with features in the sequence."""
        return self._layout[0]

    @cached_property
    def product_places(self) -> list[ProductPosition]:
        """Return the positions of products in the sequence, in this order."""
        return self._layout[1]

    @cached_property
    def _layout(self) -> tuple[dict[str, GroupPosition], list[ProductPosition]]:
        positions: dict[str, GroupPosition] = {}
        products: list[ProductPosition] = []
        start = 0
        for number, adds in enumerate(steps_with_products(self.manifest, self.terms), start=1):
            for index in adds:
                mean = self.prefixes.mean[self.terms.slices[index]]
                stop = start + len(mean)
                if index >= len(self.groups):
                    products.append(self._products_at(start, mean, number, self.terms.groups[index].requires))
                    for name in products[-1].groups:
                        positions[name].products.append(products[-1])
                elif len(mean):
                    group = self.groups.groups[index]
                    columns = Columns(self.expansion.columns[self.groups.slices[index]])
                    positions[group.name] = GroupPosition(start, stop, mean, number, group.features, columns, [])
                start = stop
        return positions, products

    def _products_at(self, start: int, mean: Float, step: int, groups: tuple[str, ...]) -> ProductPosition:
        """Return the position of the products whose columns are in one or two groups."""
        place = {
            self.groups.slices[index].start + j: (name, j)
            for name in groups
            for index in (self.groups.positions[name],)
            for j in range(len(self.groups.groups[index].features))
        }
        each = [
            (product, place[a.column], place[b.column])
            for product in self.expansion.products
            for a, b in (product.sides,)
            if {place.get(a.column, ("",))[0], place.get(b.column, ("",))[0]} == set(groups)
        ]
        return ProductPosition(start, start + len(mean), mean, step, groups, each)

    @cached_property
    def _row_layouts(self) -> dict[tuple[str, ...], RowLayout]:
        return {}

    def row_layout(self, groups: tuple[str, ...]) -> RowLayout | None:
        """Return the positions of a row of some groups; None without groups, with unknown ones or with categories."""
        layout = self._row_layouts.get(groups)
        if layout is None:
            places = {name: self.places[name] for name in groups if name in self.places}
            if not groups or len(places) < len(groups) or any(each.expansion.readers for each in places.values()):
                return None
            widths = [len(place.features) for place in places.values()]
            ends = zip(groups, widths, accumulate(widths), strict=True)
            slices = {name: slice(end - width, end) for name, width, end in ends}
            columns = np.concatenate([np.arange(each.start, each.stop) for each in places.values()])
            first, last = int(columns[0]), int(columns[-1])
            at = slice(first, last + 1) if np.array_equal(columns, np.arange(first, last + 1)) else columns
            mean = np.concatenate([place.mean for place in places.values()])
            products = any(each.products for each in places.values())
            read = chain.from_iterable(each.expansion.columns for each in places.values())
            expansion = None if products else Columns(tuple(read))
            layout = RowLayout(expansion, at, mean, places, widths, slices, f"{sum(widths)}d")
            if len(self._row_layouts) >= len(self.places) + MAX_LAYOUTS:
                self._row_layouts.clear()
            self._row_layouts[groups] = layout
        return layout

    @cached_property
    def groups_added(self) -> tuple[int, ...]:
        """Return, for each prefix, the number of groups with features that its last step adds, (steps + 1,)."""
        return tuple(np.bincount([each.step for each in self.places.values()], minlength=self.steps + 1).tolist())

    @cached_property
    def computed(self) -> tuple[tuple[str, ...], ...]:
        """Return, for each prefix, the groups of `needed` in the order of the sequence, (steps + 1,)."""
        return tuple(self.order(names) for names in self.needed)

    @cached_property
    def needed(self) -> tuple[frozenset[str], ...]:
        """Return, for each prefix, the groups with features that it is computed from, (steps + 1,)."""
        added = (frozenset(step.adds).intersection(self.groups.featured) for step in self.manifest.steps)
        return tuple(accumulate(added, or_, initial=frozenset[str]()))

    def affordable(self, budget: float | None, policy: Policy = "prefix") -> int:
        """Return the longest prefix whose cost is within `budget`, in the model's cost unit; None is no limit.

        Under the policy "best", it is the prefix that answers within this budget.

        Raises
        ------
        ValuesError
            The budget is negative or not a number.
        """
        if budget is None:
            return self.answering(self.steps, policy)
        return self.answering(affordable(self.costs, checked_budget(budget, self.groups.cost_unit)), policy)

    def answering(self, prefix: int, policy: Policy) -> int:
        """Return the prefix that answers when a prefix is the longest complete one: a shorter one may be "best"."""
        return prefix if self.best is None or policy != "best" else self.best[prefix]

    @cached_property
    def best(self) -> tuple[int, ...] | None:
        """Return, for each prefix, the one that answers under the policy "best", (steps + 1,); None if unknown."""
        return best_prefixes(self.manifest.steps)

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Return the policies that the model supports."""
        best: tuple[Policy, ...] = () if self.best is None else ("best",)
        return ("prefix", *best, "arrived") if self.supports_arrived else ("prefix", *best)

    @cached_property
    def certified_shares(self) -> tuple[float, ...] | None:
        """Return, for each prefix, (steps + 1,), a lower bound on its share of the best possible F; None if unknown.

        The best possible F is that of any set of the model's groups with the same cost, on the training data. The share
        is 1 where nothing can be explained. Shares above 1 by rounding are clipped to 1.
        """
        certificate = self.manifest.certificate
        if certificate is None:
            return None
        explained = (0.0, *(step.explained_variance for step in self.manifest.steps))
        return tuple(
            min(F / bound, 1.0) if bound > 0 else 1.0 for F, bound in zip(explained, certificate.bounds, strict=True)
        )

    @property
    def certified(self) -> tuple[str, ...] | None:
        """Return, for each prefix, (steps + 1,), its share of the best possible F in words; None if unknown."""
        certificate = self.manifest.certificate
        if certificate is None:
            return None
        words = ("best" if share >= BEST else at_least(share) for share in self.certified_shares or ())
        return tuple(
            word if exact or word == "best" else f">= {word}"
            for word, exact in zip(words, certificate.exact, strict=True)
        )

    @cached_property
    def explained_shares(self) -> Float:
        """Return F of each prefix in training, (steps + 1,), as a share of the risk of the base rate."""
        manifest = self.manifest
        risk = 0.5 * (len(manifest.responses) if manifest.prior_deviance is None else manifest.prior_deviance)
        return np.array([0.0, *(step.explained_variance for step in manifest.steps)]) / risk

    def expected(self, prefix: int) -> Expected:
        """Return the quality of a prefix in training."""
        return self._expected[prefix]

    @cached_property
    def _expected(self) -> tuple[Expected, ...]:
        steps = self.manifest.steps
        r2 = None if steps[0].r2 is None else 0.0
        prior = Expected(self.manifest.prior_error, 0.0, r2, self.manifest.prior_deviance)
        return prior, *(Expected(each.cv_error, each.explained_variance, each.r2, each.deviance) for each in steps)

    @cached_property
    def curve(self) -> Curve:
        """Return cost, explained variance and error of every prefix."""
        expected, groups = self._expected, tuple(step.group for step in self.manifest.steps)
        errors, r2 = ([getattr(each, name) for each in expected] for name in ("cv_error", "r2"))
        return Curve(
            self.costs,
            np.array([each.explained_variance for each in expected]),
            None if None in errors else np.array(errors),
            None if None in r2 else np.array(r2),
            groups,
        )

    @property
    def supports_arrived(self) -> bool:
        """Return whether the model supports the policy "arrived"."""
        return self.moments is not None or self.curvatures is not None

    def fallback_reason(self, policy: Policy) -> str:
        """Return why the model does not support a policy, if it does not."""
        if policy == "best":
            return "the model has no cross-validated errors"
        family = family_of(self.manifest.family)
        if not family.least_squares and family.predictors(self.prefixes.intercept.size) > 1:
            return f"{self.manifest.family} models answer for prefixes only"
        return "the model was saved without its moments"

    def order(self, groups: Iterable[str]) -> tuple[str, ...]:
        """Return groups that have features, in the order in which the sequence computes them."""
        return tuple(sorted(groups, key=lambda name: self.places[name].start))

    def save(self, path: str | Path) -> Self:
        """Write the model file atomically; return the model with the version of its content.

        Raises
        ------
        ArtifactError
            The file is not writable, or a number of the model is not finite.
        """
        return replace(
            self, manifest=write_model(Path(path), self.manifest, self.prefixes, self.moments, self.curvatures)
        )
