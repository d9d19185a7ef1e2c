"""Feature groups: what is computed together at test time, and what it costs.

A groups file is JSON or YAML::

    {"cost_unit": "ms", "groups": [{"name": "hog", "features": ["hog_0", "hog_1"], "cost": 2.5, "requires":
    ["resize"]}]}

Every feature is in exactly one group. The order of the file is the order of the columns everywhere in this library: a
group is a contiguous slice of it. A group may require others, paid once, and may have no features of its own (a blood
draw).

Files written for people and programs alike: groups at new costs, and what stands beside them.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Self

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from anytime.errors import GroupsError, file_error, listed, suggestion
from anytime.types import Float

__all__ = [
    "FeatureGroup",
    "FeatureGroups",
    "check_file",
    "load_groups",
    "singletons",
    "write_groups",
    "write_text",
]

_UNREADABLE = (yaml.YAMLError, ValueError, ArithmeticError, AttributeError, LookupError, RecursionError)
"""What is raised of text that is no JSON or YAML, or holds a number too long, or a date or a value that is none."""


class FeatureGroup(BaseModel):
    """Features that are computed together, at one test-time cost."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(min_length=1)
    features: tuple[str, ...]
    cost: float
    requires: tuple[str, ...] = ()


class FeatureGroups(BaseModel):
    """A partition of the features into groups with costs, in the order of the file.

    Raises
    ------
    GroupsError
        From `load_groups`: a feature in two groups, a negative or missing cost, an unknown or cyclic requirement.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ignored_types=(cached_property,))

    cost_unit: str = "units"
    groups: tuple[FeatureGroup, ...]

    @model_validator(mode="after")
    def _rules(self) -> Self:
        _check_rules(self)
        return self

    def __len__(self) -> int:
        return len(self.groups)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the groups, in order."""
        return tuple(group.name for group in self.groups)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Every feature, group after group: the column order of the library."""
        return tuple(feature for group in self.groups for feature in group.features)

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Columns of each group in `features`."""
        ends = np.cumsum([len(group.features) for group in self.groups]).tolist()
        return tuple(slice(end - len(group.features), end) for group, end in zip(self.groups, ends, strict=True))

    @cached_property
    def costs(self) -> Float:
        """Cost of each group, (groups,), in `cost_unit`."""
        return np.array([group.cost for group in self.groups], dtype=np.float64)

    @cached_property
    def positions(self) -> dict[str, int]:
        """Index of each group by name."""
        return {name: index for index, name in enumerate(self.names)}

    def position(self, name: str) -> int:
        """Index of a group; GroupsError with the nearest name when there is none."""
        if name not in self.positions:
            raise GroupsError(f"there is no group {name!r}; {suggestion(name, self.names)}")
        return self.positions[name]

    @cached_property
    def prerequisites(self) -> tuple[tuple[int, ...], ...]:
        """For each group, all it requires, directly or not, each after what it requires itself."""
        required = {i: [self.position(name) for name in group.requires] for i, group in enumerate(self.groups)}
        try:
            order = tuple(TopologicalSorter(required).static_order())
        except CycleError as error:
            circle = " -> ".join(self.names[i] for i in reversed(error.args[1]))
            raise GroupsError(f"the groups require each other in a circle: {circle}; remove one of these") from None
        closed: dict[int, tuple[int, ...]] = {}
        for i in order:
            closed[i] = tuple(dict.fromkeys(p for direct in required[i] for p in (*closed[direct], direct)))
        return tuple(closed[i] for i in range(len(self)))

    @cached_property
    def featured(self) -> tuple[str, ...]:
        """Names of the groups that have features."""
        return tuple(group.name for group in self.groups if group.features)

    def without(self, features: Iterable[str]) -> FeatureGroups:
        """The same groups less some features; a group left empty stays, so that what requires it still pays for it."""
        dropped = set(features)
        if dropped.issuperset(self.features):
            raise GroupsError("every feature is dropped; expected at least one that is left")
        kept = tuple(
            group.model_copy(update={"features": tuple(f for f in group.features if f not in dropped)})
            for group in self.groups
        )
        return FeatureGroups(cost_unit=self.cost_unit, groups=kept)

    def only(self, groups: Iterable[int]) -> FeatureGroups:
        """Some of these groups, by index, in the order of the file; they hold what they require."""
        return FeatureGroups(cost_unit=self.cost_unit, groups=tuple(self.groups[g] for g in sorted(set(groups))))

    def with_costs(self, other: FeatureGroups) -> FeatureGroups:
        """These groups at the costs, unit and requirements of another file that has the same groups.

        Features there that these groups lack, because they were dropped in training, stay dropped.

        Raises
        ------
        GroupsError
            A group is missing there, is new, or lacks a feature.
        """
        lost, new = set(self.names) - set(other.names), set(other.names) - set(self.names)
        if lost or new:
            what = f"lacks {listed(sorted(lost))}" if lost else f"has {listed(sorted(new))}, which the model has not"
            raise GroupsError(f"the new groups file {what}; it must name the model's {len(self)} groups, each once")
        for group in self.groups:
            gone = set(group.features).difference(other.groups[other.position(group.name)].features)
            if gone:
                raise GroupsError(
                    f"group {group.name!r} lacks {listed(sorted(gone))} in the new file; expected the model's"
                )
        groups = (other.groups[other.position(name)] for name in self.names)
        kept = tuple(
            theirs.model_copy(update={"features": ours.features})
            for ours, theirs in zip(self.groups, groups, strict=True)
        )
        return FeatureGroups(cost_unit=other.cost_unit, groups=kept)


def load_groups(source: str | Path | Mapping[str, Any] | FeatureGroups) -> FeatureGroups:
    """Read and check a groups file, or the same structure as a dict.

    Raises
    ------
    GroupsError
        The file is not there or not JSON or YAML, or the groups break a rule of this module's head.
    """
    if isinstance(source, FeatureGroups):
        return source
    if isinstance(source, Mapping):
        return _checked(dict(source), "groups")
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise file_error(GroupsError, f"read the groups file {str(path)!r}", error) from error
    except ValueError as error:
        reason = "it is not text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise GroupsError(f"cannot read the groups file {str(path)!r}: {reason}") from error
    try:
        content = json.loads(text) if path.suffix.lower() == ".json" else yaml.safe_load(text)
    except _UNREADABLE as error:
        kind = "JSON" if path.suffix.lower() == ".json" else "YAML"
        raise GroupsError(f"{str(path)!r} is not {kind}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise GroupsError(f"{str(path)!r} holds no groups; expected an object with a list under 'groups'")
    return _checked(content, repr(str(path)))


def singletons(features: Iterable[str]) -> FeatureGroups:
    """Each feature its own group, at cost 1: what is assumed when no groups are given."""
    return _checked({"groups": [{"name": f, "features": [f], "cost": 1.0} for f in features]}, "groups")


def _checked(content: dict[str, Any], source: str) -> FeatureGroups:
    try:
        # By way of JSON, so that lists become tuples under strict types.
        return FeatureGroups.model_validate_json(json.dumps(content, default=_plain))
    except ValidationError as error:
        raise GroupsError(f"{source}: {_first(error, content)}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise GroupsError(f"{source} holds something other than text, numbers and lists: {error}") from error


def _plain(value: Any) -> Any:
    """A numpy number as Python's own."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{reprlib.repr(value)} is a {type(value).__name__}")


def _check_rules(groups: FeatureGroups) -> None:
    if not groups.groups:
        raise GroupsError("no groups; expected at least one")
    owner: dict[str, str] = {}
    names: set[str] = set()
    for group in groups.groups:
        if group.name in names:
            raise GroupsError(f"two groups are called {group.name!r}; give each its own name")
        names.add(group.name)
        if not math.isfinite(group.cost) or group.cost < 0:
            raise GroupsError(f"group {group.name!r} costs {group.cost}; expected a finite number, 0 or more")
        for feature in group.features:
            if feature in owner:
                twice = f"in group {owner[feature]!r} and in group {group.name!r}"
                where = f"twice in group {group.name!r}" if owner[feature] == group.name else twice
                raise GroupsError(f"feature {feature!r} is {where}; expected each feature in one group, once")
            owner[feature] = group.name
    if not owner:
        raise GroupsError("no group has a feature; expected at least one feature")
    for group in groups.groups:
        for name in group.requires:
            if name not in names:
                raise GroupsError(f"group {group.name!r} requires {name!r}; {suggestion(name, groups.names)}")
    _ = groups.prerequisites


def _first(error: ValidationError, content: dict[str, Any]) -> str:
    """The first complaint, located by the group's name."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "value_error":  # a rule of the whole, in its own words
        return str(first["ctx"]["error"])
    # Keys are the user's, so quoted: a line break in one must not break the line.
    where = [str(part) if str(part).isidentifier() else repr(part) for part in first["loc"]]
    match first["loc"]:
        case ("groups", int(index), *_):
            group = content["groups"][index]
            name = group.get("name") if isinstance(group, Mapping) else None
            where = [f"group {name!r}" if name else f"group number {index + 1}", *where[2:]]
    got = "" if first["type"] == "missing" else f" (got {reprlib.repr(first['input'])})"
    return f"{', '.join(where)}: {first['msg'].lower()}{got}"


_SUFFIXES = (".json", ".yaml", ".yml")


def check_file(path: Path, suffixes: tuple[str, ...] = _SUFFIXES) -> None:
    """Refuse a file that could not be written, before the work for it.

    Raises
    ------
    GroupsError
        Its suffix is not one of those, or there is no such directory.
    """
    if path.suffix.lower() not in suffixes:
        raise GroupsError(f"cannot write {str(path)!r}; expected a name that ends in {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise GroupsError(f"cannot write {str(path)!r}: there is no directory {str(path.parent)!r}")
    if path.is_dir():
        raise GroupsError(f"cannot write {str(path)!r}: it is a directory")


def write_groups(groups: FeatureGroups, path: Path) -> None:
    """Write a groups file, JSON or YAML by its suffix, a line a group; `load_groups` reads the same from it.

    Raises
    ------
    GroupsError
        It cannot be written.
    """
    told = [_told(group.model_dump(mode="json")) for group in groups.groups]
    if path.suffix.lower() == ".json":
        lines = ",\n".join("  " + json.dumps(group, ensure_ascii=False) for group in told)
        unit = json.dumps(groups.cost_unit, ensure_ascii=False)
        text = f'{{"cost_unit": {unit}, "groups": [\n{lines}\n]}}\n'
    else:
        unit = yaml.safe_dump({"cost_unit": groups.cost_unit}, allow_unicode=True)
        text = unit + "groups:\n" + "".join(f"  - {_flow(group)}\n" for group in told)
    write_text(text, path)


def write_text(text: str, path: Path) -> None:
    """Write a file; raise GroupsError where that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise file_error(GroupsError, f"write {str(path)!r}", error) from error


def _told(group: dict[str, Any]) -> dict[str, Any]:
    """A group without what need not be said."""
    return {name: value for name, value in group.items() if name != "requires" or value}


def _flow(group: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(group, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9)
    return text.strip()
