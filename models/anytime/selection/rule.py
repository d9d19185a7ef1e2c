"""The rule that orders the groups, from the options to the search."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from functools import cache, cached_property
from importlib.metadata import entry_points

from anytime.errors import GroupsError, TrainingError
from anytime.groups import FeatureGroups
from anytime.selection.criteria import CRITERIA, Criterion, ForwardRegression, PathMethod, SelectionMethod
from anytime.types import Method


@cache
def methods() -> dict[str, type[SelectionMethod]]:
    """Return every selection method by name, also those of other packages: entry points of `anytime.methods`."""
    return {**CRITERIA, **{point.name: point.load() for point in entry_points(group="anytime.methods")}}


def method_of(method: Method | SelectionMethod) -> SelectionMethod:
    """Return the method of a name such as "fr", or the object itself.

    Raises
    ------
    TrainingError
        There is no such method.
    """
    if isinstance(method, Criterion | PathMethod):
        if not getattr(method, "name", ""):
            raise TrainingError(f"method is a {type(method).__name__} without a name; add the attribute `name`")
        return method
    if isinstance(method, type) and issubclass(method, SelectionMethod):
        raise TrainingError(f"method is the class {method.__name__}; expected an object, {method.__name__}()")
    if isinstance(method, str) and (kind := CRITERIA.get(method) or methods().get(method)):
        return kind()
    raise TrainingError(
        f"method is {method!r}; expected one of {', '.join(methods())}, or an object of a class that "
        "extends anytime.selection.Criterion or PathMethod"
    )


@dataclass(frozen=True)
class Rule:
    """How the groups are ordered.

    Attributes
    ----------
    method : Method | SelectionMethod
        A name of `methods`, or an object that states what it needs, as `anytime.selection.Criterion`.
    cost_blind : bool
        Ignore the costs in selection.
    doubling : bool
        Select no step that costs more than all before it (Algorithm 2).
    c_min : float | None
        With doubling, the cost that the first steps may have while nothing is spent, above 0; by default the smallest
        positive cost of a step.
    epsilon : float | None
        Stop when the residual's projection on every remaining group is at most this long, in standard units
        (`Criterion.lengths`; Group-OMP, Figure 1).
    first : tuple[str, ...]
        Groups placed before all others, in this order, each after its requirements.
    without : tuple[str, ...]
        Groups that are left out.
    """

    method: Method | SelectionMethod = "fr"
    _: KW_ONLY
    cost_blind: bool = False
    doubling: bool = False
    c_min: float | None = None
    epsilon: float | None = None
    first: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        by = self.by
        for option, stated in (("doubling", self.doubling), ("epsilon", self.epsilon is not None)):
            if stated and not getattr(by, option):
                others = ", ".join(name for name, kind in methods().items() if getattr(kind, option))
                raise TrainingError(
                    f"method {self.name!r} does not support {option}; turn {option} off, or choose one of {others}"
                )
        for option, number in (("epsilon", self.epsilon), ("c_min", self.c_min)):
            if number is not None and not (math.isfinite(number) and number > 0):
                raise TrainingError(f"{option} is {number}; expected a finite number above 0")
        if self.c_min is not None and not self.doubling:
            raise TrainingError(f"c_min is {self.c_min:g} without doubling, which it limits; add doubling")
        if both := [name for name in self.first if name in self.without]:
            raise GroupsError(f"group {both[0]!r} is both placed first and left out; choose one")

    @cached_property
    def by(self) -> SelectionMethod:
        """Return the method itself."""
        return method_of(self.method)

    @property
    def criterion(self) -> Criterion:
        """Return the method, which scores groups; raise TrainingError for a path, which does not."""
        if not isinstance(self.by, Criterion):
            raise TrainingError(f"method {self.name!r} states the whole order; expected one that scores the next group")
        return self.by

    @property
    def scores_gains(self) -> bool:
        """Return whether scores are gains of F, so that searches by other computations of these are equal."""
        return type(self.by) is ForwardRegression

    @property
    def name(self) -> Method:
        """Return the name of the method."""
        return self.by.name

    def forced(self, groups: FeatureGroups) -> list[int]:
        return [groups.position(name) for name in self.first]

    def remaining(self, groups: FeatureGroups) -> FeatureGroups:
        """Return the groups that are not left out; raise GroupsError if the rule does not fit them."""
        for name in (*self.without, *self.first):
            groups.position(name)
        if set(groups.names) <= set(self.without):
            raise GroupsError("all groups are left out; keep at least one")
        return without(groups, self.without, ", which is left out; leave out both")


def without(groups: FeatureGroups, names: Iterable[str], why: str) -> FeatureGroups:
    """Return the groups without some that no other may require; `why` explains the error."""
    absent = set(names)
    remaining = [g for g, name in enumerate(groups.names) if name not in absent]
    for g in remaining:
        if missing := [name for name in groups.groups[g].requires if name in absent]:
            raise GroupsError(f"group {groups.names[g]!r} requires {missing[0]!r}{why}")
    return groups.only(remaining) if absent else groups
