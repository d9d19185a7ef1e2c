"""Feature groups: features that are computed together at test time, and their cost.

A groups file is JSON or YAML::

    {"cost_unit": "ms", "groups": [{"name": "hog", "features": ["hog_0", "hog_1"], "cost": 2.5, "requires":
    ["resize"]}]}

A cost is a number, for each row, or `{"fixed": 2.0, "per_row": 0.5}`, for a call that computes several rows together.
Short forms are `{"hog": ["hog_0", "hog_1"], "lidar": {"features": ["l0"], "cost": 5}}` and a list of lists of features,
where a cost that is not stated is 1.
Every feature belongs to exactly one group; `body_*` stands for columns of a table that no group names. The order of the
file is the order of the columns everywhere in this library. A group may require others, whose cost is paid once, and
may have no features of its own (a blood draw).
"""

from __future__ import annotations

import json
import math
import operator
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate, pairwise, starmap
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from anytime._files import read_text, write_atomically
from anytime.errors import GroupsError, clipped, file_error, listed, refuse, suggestion
from anytime.types import Bool, ColumnType, Float, Index, Label

COST_TOLERANCE = 1e-9
"""Relative tolerance for comparing costs and budgets: costs are sums, and equal ones may differ by rounding."""

_MILLISECONDS = {
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1.0),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1e3),
    **dict.fromkeys(("us", "µs", "usec", "microsecond", "microseconds"), 1e-3),
}

MAX_FACTORS = 16
"""Maximum number of factors of a column in a pair: a short file must not state millions of terms."""

MAX_ROWS = 10**9
"""Maximum number of rows of a call for which costs are stated."""

MAX_COST, MIN_COST = 1e100, 1e-100
"""Maximum cost, and minimum above 0: sums over groups, totals over rows and gains per cost stay finite."""

_UNREADABLE = (yaml.YAMLError, ValueError, ArithmeticError, AttributeError, LookupError, RecursionError)
"""Exceptions that the parsers raise for text that is not JSON or YAML, and for invalid numbers, dates or values."""


def milliseconds(unit: str) -> float | None:
    """Return the number of milliseconds in a cost unit; None if it is not a unit of time."""
    return _MILLISECONDS.get(unit.strip().lower())


class CallCost(BaseModel):
    """The cost of a call that computes a group for several rows together: `fixed` + `per_row` * rows."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    fixed: float = 0.0
    per_row: float = 0.0

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if not self.model_fields_set:
            raise GroupsError("the cost is {}; expected a number per row, or fixed and per_row")
        return self

    @classmethod
    def of(cls, cost: float | CallCost) -> CallCost:
        """Return a cost in both parts; a number is a cost per row."""
        return cost if isinstance(cost, CallCost) else cls(per_row=cost)

    def of_call(self, rows: float) -> float:
        """Return the cost of a call with this many rows."""
        return self.fixed + self.per_row * rows

    def scaled(self, factor: float) -> float | CallCost:
        """Return the cost times a factor, as groups state it: a number if it has no fixed part."""
        return (
            CallCost(fixed=self.fixed * factor, per_row=self.per_row * factor) if self.fixed else self.per_row * factor
        )


def _cost_kind(cost: Any) -> str:
    return _PARTS if isinstance(cost, Mapping | CallCost) else _NUMBER


_PARTS, _NUMBER = "fixed and per_row", "number"


class FeatureGroup(BaseModel):
    """Features that are computed together, at one test-time cost: a number per row, or that of a call."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(min_length=1)
    features: tuple[str, ...]
    cost: Annotated[Annotated[float, Tag(_NUMBER)] | Annotated[CallCost, Tag(_PARTS)], Discriminator(_cost_kind)]
    requires: tuple[str, ...] = ()

    @field_validator("cost")
    @classmethod
    def _without_zero(cls, cost: float | CallCost) -> float | CallCost:
        """Return a cost without a fixed part as a number, so that equal costs are equal."""
        return cost.per_row if isinstance(cost, CallCost) and not cost.fixed else cost

    @property
    def call_cost(self) -> CallCost:
        """Return the fixed part and the part per row of the cost of a call."""
        return CallCost.of(self.cost)

    @property
    def parts(self) -> tuple[float, float]:
        """Return the fixed part and the part per row of the cost of a call, as numbers."""
        return (self.cost.fixed, self.cost.per_row) if isinstance(self.cost, CallCost) else (0.0, self.cost)


def _check_cost(group: FeatureGroup) -> None:
    fixed, per_row = group.parts
    for what, part in (("cost", per_row), ("fixed cost", fixed)):
        if part != 0 and not MIN_COST <= part <= MAX_COST:
            wanted = ">= 0"
            if math.isfinite(part) and part > 0:
                limit = f"{MAX_COST:g} or less" if part > MAX_COST else f"{MIN_COST:g} or more, or 0"
                wanted = f"{limit}; use another unit"
            raise GroupsError(f"the {what} of group {group.name!r} is {part}; expected a finite number {wanted}")


class ProductGroup(FeatureGroup):
    """Products of columns of the groups that it requires. It costs nothing and joins the step that completes them."""


class PairSide(BaseModel):
    """The factors of one column of a pair.

    They are an indicator for each level, or min(max(x, knot), last knot) - knot for each knot but the last.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    column: str
    knots: tuple[float, ...] = Field(default=(), exclude_if=operator.not_)
    levels: tuple[Label, ...] = Field(default=(), exclude_if=operator.not_)


Pair: TypeAlias = tuple[PairSide, PairSide]
"""Two columns, in the order of the groups; their terms are the products of their factors."""


class ColumnBasis(BaseModel):
    """What a column becomes: its basis, and whatever of it is not to be learned from rows.

    `basis` is a name such as "hinge:4". `knots` are those of hinges. `levels` are the categories, or for hinges the
    values with an indicator; `other` states whether other categories share an indicator. `centre` and `scale`
    standardise a polynomial. Values outside `range` move to its nearest end. `missing` states whether missing values
    have an indicator. `quantiles` of sampled rows, at equal steps from the least value to the largest, are for plots:
    they do not change the terms. A field that is present is not learned, even if it is null. A basis may have other
    fields of its own, which it checks.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, tuple[Label, ...] | Label | None] = Field(init=False)

    basis: str | None = None
    knots: tuple[float, ...] | None = None
    levels: tuple[Label, ...] | None = None
    other: bool | None = None
    centre: float | None = None
    scale: float | None = None
    range: tuple[float, float] | None = None
    missing: bool | None = None
    quantiles: tuple[float, ...] | None = Field(default=None, min_length=2)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.quantiles is not None and list(self.quantiles) != sorted(self.quantiles):
            raise GroupsError(f"the quantiles {list(self.quantiles)} do not ascend; expected the least value first")
        if self.range is not None and self.range[0] > self.range[1]:
            raise GroupsError(f"the range {list(self.range)} ends below its start; expected [low, high]")
        return self


class FeatureGroups(BaseModel):
    """A partition of the features into groups with costs, in the order of the file, and the bases of some features.

    `types` are those of columns whose cells should not decide, and of text and booleans once they were recognised.

    `rows` is the number of rows of a call: that many rows share the fixed part of a cost. None, where nothing states
    it, is one row. `pairs` are the products that training selected (`anytime.features.screening`), in the order of
    their terms.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ignored_types=(cached_property,))

    cost_unit: str = "units"
    rows: int | None = Field(default=None, ge=1, le=MAX_ROWS, exclude_if=operator.not_)
    groups: tuple[FeatureGroup, ...]
    bases: dict[str, ColumnBasis] = {}
    types: dict[str, ColumnType] = Field(default={}, exclude_if=operator.not_)
    pairs: tuple[Pair, ...] = Field(default=(), exclude_if=operator.not_)

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        if not self.groups:
            raise GroupsError("no groups; expected at least one")
        owner: dict[str, str] = {}
        for index, group in enumerate(self.groups):
            if self.positions[group.name] != index:
                raise GroupsError(f"two groups have the name {group.name!r}; give each its own name")
            _check_cost(group)
            for feature in group.features:
                if feature in owner:
                    both = f"in group {owner[feature]!r} and in" if owner[feature] != group.name else "twice in"
                    raise GroupsError(
                        f"feature {feature!r} is {both} group {group.name!r}; expected each feature in one group, once"
                    )
                owner[feature] = group.name
        if not owner:
            raise GroupsError("no group has a feature; expected at least one feature")
        required = ((group.name, name) for group in self.groups for name in group.requires)
        if (lacking := next((each for each in required if each[1] not in self.positions), None)) is not None:
            group_name, name = lacking
            raise GroupsError(f"group {group_name!r} requires {name!r}; {suggestion(name, self.names)}")
        for field, columns in (("bases", self.bases), ("types", self.types)):
            for column in columns:
                if column not in owner and not any(_matches(name, column) for name in filter(PATTERN.search, owner)):
                    raise GroupsError(
                        f"{field} has column {column!r}, which is in no group; {suggestion(column, tuple(owner))}"
                    )
        if self.pairs:
            self._check_pairs()
        _ = self.prerequisites  # raises for a cycle
        return self

    def _check_pairs(self) -> None:
        for a, b in self.pairs:
            of = f"the pair of {a.column!r} and {b.column!r}"
            is_own = a.column != b.column and {a.column, b.column} <= {*self.features}
            has_factors = all(not side.knots if side.levels else len(side.knots) > 1 for side in (a, b))
            most = max(len(side.levels) or len(side.knots) - 1 for side in (a, b))
            uneven = next((list(knots) for knots in (a.knots, b.knots) if list(knots) != sorted({*knots})), None)
            refuse(
                {
                    f"a pair has {a.column!r} and {b.column!r}; expected two different columns of groups": not is_own,
                    f"{of} lacks factors; expected levels, or two knots or more": not has_factors,
                    f"{of} has {most} factors of one column; expected at most {MAX_FACTORS}": most > MAX_FACTORS,
                    f"{of} has knots {uneven}; expected different numbers in ascending order": uneven is not None,
                },
                GroupsError,
            )
        if self.pairs != self.with_pairs(self.pairs).pairs:
            raise GroupsError("the pairs are not in the order of the groups, or one occurs twice")

    def __len__(self) -> int:
        return len(self.groups)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the groups, in order."""
        return tuple(group.name for group in self.groups)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Return every feature, group after group: the column order of the library."""
        return tuple(feature for group in self.groups for feature in group.features)

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Return the columns of each group in `features`."""
        return tuple(starmap(slice, pairwise(accumulate((len(group.features) for group in self.groups), initial=0))))

    def amount(self, cost: float) -> str:
        """Return a cost with its unit, for messages: "2.5 ms", "1 dollar"."""
        unit = self.cost_unit
        is_one = f"{cost:g}" == "1" and len(unit) > 3 and unit.endswith("s") and not unit.endswith("ss")
        return f"{cost:g} {unit[:-1] if is_one else unit}"

    @property
    def shared_by(self) -> str:
        """Return what costs per row depend on, for messages; empty if no cost has a fixed part."""
        n = self.rows or 1
        return f"in predictions of {n} row{'s' * (n != 1)}" if any(group.parts[0] for group in self.groups) else ""

    @cached_property
    def cost_parts(self) -> Float:
        """Return the fixed part of the cost of a call, and the cost that each row adds, (2, groups), in `cost_unit`."""
        return np.array([group.parts for group in self.groups], dtype=np.float64).T

    @cached_property
    def costs(self) -> Float:
        """Return the cost of each group per row, in a call with `rows` rows, or one, (groups,), in `cost_unit`."""
        parts = (group.parts for group in self.groups)
        return np.array([per_row + fixed / (self.rows or 1) for fixed, per_row in parts], dtype=np.float64)

    def call_costs(self, rows: int) -> Float:
        """Return the cost of one call of each group with this many rows, (groups,), in `cost_unit`."""
        return np.asarray(self.cost_parts[0] + self.cost_parts[1] * rows)

    def for_rows(self, rows: int) -> FeatureGroups:
        """Return the groups with costs for calls with this many rows; raise GroupsError if the number is invalid."""
        if not 1 <= rows <= MAX_ROWS:
            raise GroupsError(f"rows is {rows}; expected a whole number from 1 to {MAX_ROWS}")
        return self._of(self.groups, rows=rows)

    @cached_property
    def positions(self) -> dict[str, int]:
        """Return the index of each group by name."""
        return {name: index for index, name in enumerate(self.names)}

    def position(self, name: str) -> int:
        """Return the index of a group; raise GroupsError with the nearest name if it does not exist."""
        if name not in self.positions:
            raise GroupsError(f"there is no group {name!r}; {suggestion(name, self.names)}")
        return self.positions[name]

    @cached_property
    def prerequisites(self) -> tuple[tuple[int, ...], ...]:
        """Return, for each group, all direct and indirect requirements, each after its own requirements."""
        required = {i: [self.positions[name] for name in group.requires] for i, group in enumerate(self.groups)}
        try:
            order = tuple(TopologicalSorter(required).static_order())
        except CycleError as error:
            cycle = " -> ".join(self.names[i] for i in reversed(error.args[1]))
            raise GroupsError(
                f"the groups require each other in a cycle: {cycle}; remove one of these requirements"
            ) from None
        closed: dict[int, tuple[int, ...]] = {}
        for i in order:
            closed[i] = tuple(dict.fromkeys(p for direct in required[i] for p in (*closed[direct], direct)))
        return tuple(closed[i] for i in range(len(self)))

    @cached_property
    def products(self) -> tuple[int, ...]:
        """Return the indices of the groups of products."""
        return tuple(index for index, group in enumerate(self.groups) if isinstance(group, ProductGroup))

    @cached_property
    def linked(self) -> tuple[int, ...]:
        """Return the groups whose step may add other groups: their requirements, or products."""
        completing = {p for product in self.products for p in self.prerequisites[product]}
        return tuple(index for index in range(len(self)) if self.prerequisites[index] or index in completing)

    def step(self, chosen: Iterable[int], selected: Bool) -> tuple[int, ...]:
        """Return some groups, each after its requirements, without `selected` ones; then the products they complete."""
        adds = dict.fromkeys(p for g in chosen for p in (*self.prerequisites[g], g) if not selected[p])
        if not self.products:
            return tuple(adds)
        joining = (
            g for g in self.products if not selected[g] and all(selected[p] or p in adds for p in self.prerequisites[g])
        )
        return (*(g for g in adds if g not in self.products), *joining)

    def with_own_products(self) -> tuple[FeatureGroups, Index]:
        """Return the groups with the products of their own columns as their features, and their features in these."""
        own = {self.prerequisites[p][-1]: p for p in self.products if len(self.groups[p].requires) == 1}
        order = [[g, own[g]] if g in own else [g] for g in range(len(self)) if g not in own.values()]
        groups = tuple(
            self.groups[of[0]].model_copy(update={"features": sum((self.groups[i].features for i in of), ())})
            for of in order
        )
        columns = [np.arange(self.slices[i].start, self.slices[i].stop) for of in order for i in of]
        return FeatureGroups(cost_unit=self.cost_unit, rows=self.rows, groups=groups), np.concatenate(columns)

    @cached_property
    def featured(self) -> tuple[str, ...]:
        """Return the names of the groups that have features."""
        return tuple(group.name for group in self.groups if group.features)

    def matched(self, columns: Iterable[str]) -> FeatureGroups:
        """Return the groups with each pattern replaced by the columns that it matches, in their order.

        `*` stands for any characters and `?` for one. A pattern matches no column that a group names; one without a
        match remains, and so does the name of a column.

        Raises
        ------
        GroupsError
            Two patterns match one column.
        """
        if not any(map(PATTERN.search, self.features)):
            return self
        names = dict.fromkeys(columns)
        patterns = [feature for feature in self.features if PATTERN.search(feature) and feature not in names]
        free = [name for name in names if name not in self.features]
        found = {pattern: [name for name in free if _matches(pattern, name)] for pattern in patterns}
        content = self.model_dump(exclude_unset=True)
        for group in content["groups"]:
            group["features"] = [name for feature in group["features"] for name in found.get(feature) or [feature]]
        return _checked(content, "groups")

    def without(self, features: Iterable[str]) -> FeatureGroups:
        """Return the groups without some features.

        A group that they empty stays only where a group with features requires it, and so do its requirements.
        """
        dropped = set(features)
        if dropped.issuperset(self.features):
            raise GroupsError("every feature is dropped; keep at least one")
        groups = tuple(
            group.model_copy(update={"features": tuple(f for f in group.features if f not in dropped)})
            for group in self.groups
        )
        required = frozenset().union(*self.prerequisites)
        useful = {
            place
            for place, (before, after) in enumerate(zip(self.groups, groups, strict=True))
            if after.features or not (before.features or place in required)
        }
        useful |= {p for place in useful for p in self.prerequisites[place]}
        return self._of(tuple(groups[place] for place in sorted(useful)))

    def only(self, groups: Iterable[int]) -> FeatureGroups:
        """Return some of these groups, by index, in the order of the file; the caller includes their requirements."""
        return self._of(tuple(self.groups[g] for g in sorted(set(groups))))

    def _of(
        self, groups: tuple[FeatureGroup, ...], *, cost_unit: str | None = None, rows: int | None = None
    ) -> FeatureGroups:
        """Return other groups, with these bases and pairs as far as they have the columns, and other fields if given.

        A copy would keep cached costs.
        """
        found = FeatureGroups(
            cost_unit=self.cost_unit if cost_unit is None else cost_unit, rows=rows or self.rows, groups=groups
        )
        return found.with_bases(self.bases, self.types).with_pairs(self.pairs)

    def with_prices(self, costs: Mapping[str, float | CallCost], cost_unit: str) -> FeatureGroups:
        """Return the groups with other costs, by name, in another unit; groups that are not named keep theirs."""
        groups = tuple(
            group.model_copy(update={"cost": costs[group.name]}) if group.name in costs else group
            for group in self.groups
        )
        return self._of(groups, cost_unit=cost_unit)

    def with_stated_costs(self, costs: Mapping[str, float | str]) -> FeatureGroups:
        """Return the groups with other costs by name, numbers in their unit or texts such as "5ms".

        Raises GroupsError if a group is unknown, or a cost is invalid or in another unit.
        """
        for name in costs:
            self.position(name)
        stated = [{"name": name, "cost": cost} for name, cost in costs.items()]
        units = _with_unit({"cost_unit": self.cost_unit, "groups": stated}, "costs")["groups"]
        wrong = next((each for each in units if not isinstance(each["cost"], int | float)), None)
        if wrong is not None:
            raise GroupsError(
                f"the cost of group {wrong['name']!r} is {wrong['cost']!r}; expected a number, such as 2.5, or one "
                "with its unit, such as 5ms"
            )
        priced = {each["name"]: float(each["cost"]) for each in units}
        for name, cost in priced.items():
            _check_cost(self.groups[self.positions[name]].model_copy(update={"cost": cost}))
        return self.with_prices(priced, self.cost_unit)

    def with_bases(
        self, bases: Mapping[str, ColumnBasis], types: Mapping[str, ColumnType] | None = None
    ) -> FeatureGroups:
        """Return the groups with these bases, and types if some are given, as far as they have the columns.

        They are in the order of the columns; last are those that a pattern stands for.
        """
        own = dict.fromkeys(self.features)
        patterns = [name for name in own if PATTERN.search(name)]
        given: dict[str, Mapping[str, Any]] = {"bases": bases} if types is None else {"bases": bases, "types": types}
        return self.model_copy(
            update={
                field: {
                    name: columns[name]
                    for name in (*own, *columns)
                    if name in columns and (name in own or any(_matches(pattern, name) for pattern in patterns))
                }
                for field, columns in given.items()
            }
        )

    @property
    def bare(self) -> FeatureGroups:
        """Return the groups without what training learned of their columns: a file states what is not to be learned."""
        return self.model_copy(update={"bases": {}, "types": {}, "pairs": ()})

    @property
    def known_types(self) -> dict[str, ColumnType]:
        """Return the types of columns that are stated, or that their levels show."""
        shown: dict[str, ColumnType] = {
            name: "text" if isinstance(basis.levels[0], str) else "bool"
            for name, basis in self.bases.items()
            if basis.levels and isinstance(basis.levels[0], str | bool)
        }
        return shown | self.types

    @property
    def column_types(self) -> dict[str, ColumnType]:
        """Return the type of every feature after training: numbers, unless another type is known."""
        return {**dict.fromkeys(self.features, "number"), **self.known_types}

    def with_pairs(self, pairs: Iterable[Pair]) -> FeatureGroups:
        """Return the groups with these pairs, as far as they have the columns, in the order of the groups."""
        group_of = {name: index for index, group in enumerate(self.groups) for name in group.features}
        place = {name: index for index, name in enumerate(self.features)}
        by_place: dict[tuple[int, int, int, int], Pair] = {}
        for pair in pairs:
            if all(side.column in place for side in pair):
                a, b = sorted(pair, key=lambda side: place[side.column])
                by_place[group_of[a.column], group_of[b.column], place[a.column], place[b.column]] = a, b
        return self.model_copy(update={"pairs": tuple(by_place[key] for key in sorted(by_place))})

    def joined_pairs(self, steps: Sequence[Iterable[str]]) -> list[tuple[tuple[str, str], ...]]:
        """Return for each step, given the groups that it adds, the columns of the pairs that it completes."""
        step = {
            feature: k
            for k, adds in enumerate(steps)
            for name in adds
            for feature in self.groups[self.positions[name]].features
        }
        pairs = [(max(step[a.column], step[b.column]), (a.column, b.column)) for a, b in self.pairs]
        return [tuple(pair for k, pair in pairs if k == place) for place in range(len(steps))]

    def with_costs(self, other: FeatureGroups) -> FeatureGroups:
        """Return these groups with the costs, unit and requirements of another file that has the same groups.

        `rows` stays, unless the file states it.
        Features of the other file that these groups lack, because training dropped them, stay dropped.

        Raises
        ------
        GroupsError
            The other file lacks a group, has an additional group, or a group there lacks a feature.
        """
        other = other.matched(self.features)
        missing, new = sorted({*self.names} - {*other.names}), sorted({*other.names} - {*self.names})
        if missing or new:
            what = f"lacks {listed(missing)}" if missing else f"has {listed(new)}, which the model lacks"
            raise GroupsError(f"the new groups file {what}; expected the model's {len(self)} groups, each once")
        pairs = [(group, other.groups[other.positions[group.name]]) for group in self.groups]
        for group, changed in pairs:
            if absent := set(group.features).difference(changed.features):
                raise GroupsError(
                    f"group {group.name!r} lacks {listed(sorted(absent))} in the new file; expected the model's"
                )
        groups = (changed.model_copy(update={"features": group.features}) for group, changed in pairs)
        return self._of(tuple(groups), cost_unit=other.cost_unit, rows=other.rows)


PATTERN = re.compile(r"[*?]")
"""What a feature of a groups file that stands for the columns that match it contains."""


def _matches(pattern: str, column: str) -> bool:
    return fnmatchcase(column, pattern.replace("[", "[[]"))  # brackets are ordinary in names such as hog[0]


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes text which `_Loader`, or another loader, would read as something else."""


class _Loader(yaml.SafeLoader):
    """A loader of YAML whose plain scalars are null, true and false, JSON's numbers, `.5`, and otherwise text.

    So `NO`, `012`, `1:30` and dates are text, as levels and names of columns are. A key that occurs twice is an error.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012  (none of YAML 1.1; the base class annotates it)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [(str(self.construct_object(key, deep=True)), None) for key, _ in node.value if key.tag != _MERGE]
        _unique(keys, f" in the mapping that begins in line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep=deep)


_MERGE = "tag:yaml.org,2002:merge"
for _tag, _pattern, _starts in (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"-?(0|[1-9][0-9]*)", list("-0123456789")),
    ("tag:yaml.org,2002:float", r"-?((0|[1-9][0-9]*)(\.[0-9]+)?|\.[0-9]+)([eE][-+]?[0-9]+)?", list("-.0123456789")),
    (_MERGE, "<<", ["<"]),
):
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(f"^({_pattern})$"), _starts)


def joined_names(names: Sequence[tuple[str, ...]], mark: str, taken: Iterable[str] = ()) -> list[str]:
    """Return the parts of each name joined by a mark; where several names would be alike, or taken, as JSON lists."""
    plain = [mark.join(parts) for parts in names]
    counts = Counter([*plain, *taken])
    return [_json(parts) if counts[name] > 1 else name for parts, name in zip(names, plain, strict=True)]


def _unique(pairs: list[tuple[str, Any]], where: str = "") -> dict[str, Any]:
    if twice := [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]:
        raise GroupsError(f"key {twice[0]!r} occurs twice{where}; expected each key once")
    return dict(pairs)


GroupsSource: TypeAlias = str | Path | Mapping[str, Any] | Sequence[Any] | FeatureGroups
"""Groups as callers have them: the path of a file, its content, or a short form of it."""


def load_groups(source: GroupsSource) -> FeatureGroups:
    """Read and check a groups file, or the same structure as a dict, or a short form (the head of this module).

    Raises
    ------
    GroupsError
        The file does not exist or is not JSON or YAML; a feature is in two groups, a cost is negative or missing, or a
        requirement is unknown or cyclic.
    """
    if isinstance(source, FeatureGroups):
        return source
    if isinstance(source, Mapping | list | tuple):
        return _checked(_expanded(source, "groups"), "groups")
    if not isinstance(source, str | Path):
        raise GroupsError(f"groups is {reprlib.repr(source)}; expected a path, a dict or a list of lists")
    path = Path(source)
    text = read_text(path, f"the groups file {str(path)!r}", GroupsError)
    kind = "JSON" if path.suffix.lower() == ".json" else "YAML"
    try:
        content = json.loads(text, object_pairs_hook=_unique) if kind == "JSON" else yaml.load(text, Loader=_Loader)  # noqa: S506
    except GroupsError as error:
        raise GroupsError(f"{str(path)!r}: {error}") from None
    except _UNREADABLE as error:
        raise GroupsError(f"{str(path)!r} is not {kind}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict | list) or not content:
        raise GroupsError(f"{str(path)!r} has no groups; expected an object with a list under 'groups'")
    return _checked(_expanded(content, repr(str(path))), repr(str(path)))


_SETTINGS = ("cost_unit", "rows", "types", "bases", "pairs")
"""Keys of a groups file besides `groups`."""


def _expanded(given: Mapping[str, Any] | Sequence[Any], source: str) -> dict[str, Any]:
    """Return a short form of groups as the complete form; what is invalid stays as it is."""
    content = dict(given) if isinstance(given, Mapping) else {"groups": list(given)}
    if "groups" not in content and not {*content} <= {*_SETTINGS}:
        settings = {
            key: content.pop(key)
            for key, value in list(content.items())
            if key in _SETTINGS
            and not (isinstance(value, list | tuple) or (isinstance(value, Mapping) and "features" in value))
        }
        content = settings | {"groups": content}
    groups = content.get("groups")
    _check_form(groups if given else given, source)
    if isinstance(groups, list | tuple) and groups and all(map(_is_names, groups)):
        named: dict[str, Sequence[str]] = {}  # the feature of one, otherwise the first and the number of the others
        for number, features in enumerate(groups, start=1):
            name = f"group {number}" if not features else features[0] + f"+{len(features) - 1}" * (len(features) > 1)
            named[f"{name} (group {number})" if name in named else name] = features
        groups = named
    if isinstance(groups, Mapping):
        content["groups"] = [_named(name, group, source) for name, group in groups.items()]
    elif not isinstance(given, Mapping) and any(isinstance(group, str) for group in given):
        shown = _json([[name] if isinstance(name, str) else name for name in given][:2])
        raise GroupsError(
            f"{source} is a list of names; expected a list for each group, such as {shown}, or "
            f'{{"a": {_json(list(given)[:2])}}} for one group named a'
        )
    return _with_unit(content, source)


def _check_form(groups: Any, source: str) -> None:
    """Raise GroupsError for forms without names of columns that people try, with the form that was meant."""
    if isinstance(groups, Mapping | list | tuple) and not groups:
        raise GroupsError(f'{source} has no groups; expected at least one, such as {{"a": ["column"]}}')
    for group in groups.values() if isinstance(groups, Mapping) else groups if isinstance(groups, list | tuple) else ():
        complete = isinstance(group, Mapping)
        features = None if complete and "name" in group else group.get("features") if complete else group
        match features:
            case [str(name), [str(), *_] as names] if not isinstance(groups, Mapping):
                shown = _json({name: list(names)[:3]})
                raise GroupsError(f"{source} is a list of pairs; expected a dict, such as {shown}")
            case int() | float() if not isinstance(groups, Mapping):
                raise GroupsError(f'{source} is a list of numbers; expected lists of columns, such as [["a", "b"]]')
            case [int(), *rest] if all(isinstance(each, int) for each in rest):
                shown = _json([f"x{each}" for each in features[:3]])
                raise GroupsError(
                    f"{source}: a group is {reprlib.repr(list(features))}; expected names of columns, such as {shown} "
                    "of an array"
                )


def _is_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _named(name: str, group: Any, source: str) -> Any:
    """Return a group of the form {name: features} or {name: {features, cost, requires}}."""
    if _is_names(group):
        return {"name": name, "features": list(group), "cost": 1.0}
    if isinstance(group, Mapping) and "name" not in group:
        return {"name": name, "features": [], "cost": 1.0} | dict(group)
    form = f'{{{_json(str(name))}: ["column", ...]}} or {{{_json(str(name))}: {{"features": ["column"], "cost": 1}}}}'
    raise GroupsError(f"{source}, group {name!r} is {reprlib.repr(group)}; expected groups such as {form}")


_AMOUNT = re.compile(r"(-?(?:\d+\.?\d*|\.\d+))\s*([^\W\d_]+)")
"""A cost with its unit, such as 5ms or 2.5 dollars."""


def _with_unit(content: dict[str, Any], source: str) -> dict[str, Any]:
    """Return groups whose costs are numbers, in the unit that they or `cost_unit` name."""
    groups = content.get("groups")
    if not isinstance(groups, list):
        return content
    copied = [dict(group) if isinstance(group, Mapping) else group for group in groups]
    holders = [group for group in copied if isinstance(group, dict)]
    for group in [group for group in holders if isinstance(group.get("cost"), Mapping)]:
        group["cost"] = dict(group["cost"])
        holders.append(group["cost"])
    amounts = [
        (holder, key, float(match[1]), match[2])
        for holder in holders
        for key in ("cost", "fixed", "per_row")
        if isinstance(holder.get(key), str) and (match := _AMOUNT.fullmatch(holder[key].strip()))
    ]
    units = dict.fromkeys(unit for *_, unit in amounts)
    if not units:
        return content
    common = next(iter(units)) if len(units) == 1 else "ms" if None not in map(milliseconds, units) else None
    unit = content.get("cost_unit") or common
    base = milliseconds(unit) if isinstance(unit, str) else None
    factors = {name: 1.0 if name == unit else (milliseconds(name) or math.nan) / (base or math.nan) for name in units}
    if any(map(math.isnan, factors.values())):
        named = listed([*units, *([content["cost_unit"]] if "cost_unit" in content else [])])
        raise GroupsError(f"{source}: the costs are in {named}; expected one unit, or units of time")
    for holder, key, number, name in amounts:
        holder[key] = number * factors[name]
    return content | {"cost_unit": unit, "groups": copied}


def singletons(features: Iterable[str]) -> FeatureGroups:
    """Return one group per feature, each at cost 1: the default when no groups are given."""
    return _checked({"groups": [{"name": f, "features": [f], "cost": 1.0} for f in features]}, "groups")


def _checked(content: dict[str, Any], source: str) -> FeatureGroups:
    bases = content.get("bases")
    if isinstance(bases, Mapping):  # a name alone is short for a basis with that name
        content = content | {
            "bases": {name: {"basis": basis} if isinstance(basis, str) else basis for name, basis in bases.items()}
        }
    try:
        # By way of JSON, so that lists become tuples under strict types.
        return FeatureGroups.model_validate_json(json.dumps(content, default=_plain))
    except ValidationError as error:
        raise GroupsError(f"{source}: {_first(error, content)}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise GroupsError(f"{source}: expected text, numbers and lists only: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{reprlib.repr(value)} is a {type(value).__name__}")


def _first(error: ValidationError, content: dict[str, Any]) -> str:
    """Return the first validation error, located by the group's name."""
    first = error.errors(include_url=False)[0]
    # Keys come from the user and are quoted: a line break in a key must not break the message.
    where = [str(part) if str(part).isidentifier() else repr(part) for part in first["loc"]]
    form = ""
    match first["loc"]:
        case ("bases", column, *_):
            where[:2] = [f"column {column!r}"]
        case ("groups", int(index), *inner):
            group = content["groups"][index]
            given = group if isinstance(group, Mapping) else {"features": group}
            name, form = given.get("name"), f"; expected {_form(given)}"
            where[:2] = [f"group {name!r}" if name else f"group number {index + 1}"]
            if inner[:1] == ["cost"] and len(inner) > 1:  # after it, the kind of cost that was assumed
                del where[2]
    if first["type"] == "value_error":  # raised by a rule for all groups or for one place; it has its own message
        return ": ".join([*where[:1], str(first["ctx"]["error"])])
    got = "" if first["type"] == "missing" else f" (got {reprlib.repr(first['input'])})"
    return f"{', '.join(where)}: {first['msg'].lower()}{got}{form}"


def _form(given: Mapping[str, Any]) -> str:
    """Return the complete form of a group, with what is stated of it."""
    lists = [each for key, each in given.items() if isinstance(each, list | tuple) and each and key != "requires"]
    features = given.get("features") or (lists[0] if len(lists) == 1 else "column")
    names = (
        [features]
        if isinstance(features, str)
        else [f for f in features if isinstance(f, str)]
        if isinstance(features, list | tuple)
        else ["column"]
    )
    name, cost = given.get("name") or "a", given.get("cost", 1)
    number = cost if isinstance(cost, int | float) and not isinstance(cost, bool) and math.isfinite(cost) else 1
    shown = [*map(clipped, names[:2]), *["..."] * (len(names) > 2)]
    return _json({"name": clipped(str(name)), "features": shown, "cost": number})


SUFFIXES = (".json", ".yaml", ".yml")


def write_groups(groups: FeatureGroups, path: Path) -> None:
    """Write a groups file, JSON or YAML by its suffix, one line per group and column; raise GroupsError on failure."""
    head: dict[str, Any] = {"cost_unit": groups.cost_unit} | ({} if groups.rows is None else {"rows": groups.rows})
    entries = [group.model_dump(mode="json", exclude_defaults=True) for group in groups.groups]
    bases = {name: basis.model_dump(mode="json", exclude_unset=True) for name, basis in groups.bases.items()}
    pairs = [[side.model_dump(mode="json") for side in pair] for pair in groups.pairs]
    if path.suffix.lower() == ".json":
        columns = ",\n".join(f"  {_json(name)}: {_json(basis)}" for name, basis in bases.items())
        parts = [
            *(f"{_json(name)}: {_json(value)}" for name, value in head.items()),
            '"groups": [\n' + ",\n".join("  " + _json(group) for group in entries) + "\n]",
            *([f'"types": {_json(groups.types)}'] if groups.types else []),
            *([f'"bases": {{\n{columns}\n}}'] if bases else []),
            *(['"pairs": [\n' + ",\n".join("  " + _json(pair) for pair in pairs) + "\n]"] if pairs else []),
        ]
        text = "{" + ", ".join(parts) + "}\n"
    else:
        lines = [
            yaml.dump(head, Dumper=_Dumper, allow_unicode=True, sort_keys=False) + "groups:",
            *(f"  - {flow(group)}" for group in entries),
            *([f"types: {flow(groups.types)}"] if groups.types else []),
            *(["bases:"] if bases else []),
            *(f"  {flow({name: basis})[1:-1]}" for name, basis in bases.items()),
            *(["pairs:"] if pairs else []),
            *(f"  - {flow(pair)}" for pair in pairs),
        ]
        text = "\n".join(lines) + "\n"
    write_text(text, path)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def flow(value: Any) -> str:
    return str(
        yaml.dump(value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9)
    ).strip()


def write_text(text: str, path: Path) -> None:
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise file_error(GroupsError, f"write {str(path)!r}", error) from error
