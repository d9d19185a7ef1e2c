"""A groups file drafted from a table: what its columns hold, and which are better left out.

Left out are columns without two different values, columns that look like identifiers, and columns that determine the
target in every row: they are usually a copy or a consequence of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anytime.data.formats import ReadAs, Table
from anytime.data.survey import survey, with_dates
from anytime.data.suspicions import flaw, in_comment
from anytime.errors import GroupsError, listed, suggestion
from anytime.features.learning import Sample
from anytime.features.readers import DATES
from anytime.groups import FeatureGroups, flow, load_groups, singletons

MAX_COMMENTS = 20
"""Most columns of a group that are described, one a line."""


def default_groups(table: Table, used: Iterable[str] = ()) -> FeatureGroups:
    """Return each column of a table as a group at cost 1, without the index of the rows.

    `used` are columns with another use: target, query, weights. Raises GroupsError if no column remains.
    """
    return singletons(_candidates(table, used, used))


def _candidates(table: Table, used: Iterable[str], named: Iterable[str]) -> list[str]:
    """Return the columns without another use; raise GroupsError, which names some of those that have one, if none."""
    others = {*used} | table.index
    names = [name for name in table.columns if name not in others]
    if not names:
        raise GroupsError(f"{table.name} has no column besides {listed(named)}; expected at least one feature")
    return names


@dataclass(frozen=True)
class Draft:
    """Groups, what their columns hold, and the columns left out with the reason, by name."""

    groups: FeatureGroups
    held: Mapping[str, str]
    left_out: Mapping[str, str]
    rows: int

    def text(self, head: str) -> str:
        """Return the groups file as commented YAML; `head` is its first comment."""
        lines = [f"# {head}", flow({"cost_unit": self.groups.cost_unit})[1:-1], "groups:"]
        for group in self.groups.groups:
            names = group.features[:MAX_COMMENTS]
            lines += [
                f"  # {in_comment(name) + ': ' if len(group.features) > 1 else ''}{self.held[name]}" for name in names
            ]
            lines += [f"  # and {len(group.features) - len(names)} more"] * (len(group.features) > len(names))
            lines.append(f"  - {flow(group.model_dump(mode='json', exclude_defaults=True))}")
        if self.groups.types:
            lines.append(f"types: {flow(self.groups.types)}")
        if self.left_out:
            lines.append("# left out; move a name into a group to use it:")
            lines += [f"#   {in_comment(name)}: {why}" for name, why in self.left_out.items()]
        return "\n".join(lines) + "\n"


def drafted(
    table: Table,
    target: Sequence[str],
    *,
    others: Iterable[str] = (),
    stated: Mapping[str, ReadAs] = {},
    by_prefix: str | None = None,
    costs: Mapping[str, Any] = {},
) -> Draft:
    """Return the draft of a groups file for a table.

    Parameters
    ----------
    target : Sequence[str]
        The target columns; rows without a target are not looked at.
    others : Iterable[str]
        Columns with another use, such as weights.
    stated : Mapping[str, ReadAs]
        Types of columns.
    by_prefix : str | None
        Columns whose names have the same part before this mark are one group; None is a group for each column.
    costs : Mapping[str, Any]
        The cost of some groups by name, each a number or a text such as "5ms"; the others cost 1.

    Raises
    ------
    TableError
        As `anytime.data.survey.survey`.
    GroupsError
        No column remains, or a cost is that of no group.
    """
    table.require((*target, *others, *stated))
    names = _candidates(table, {*target, *others}, target)
    types = table.types([*names, *target], stated)
    found = survey(table, target, [*names, *target], types=types, drop_missing=True)
    assert found.sample is not None  # noqa: S101  (there are features)
    sample, dates = with_dates(found.sample, [name for name in names if types[name] == "text" and name not in stated])
    types |= dict.fromkeys(dates, "date")
    left_out = {name: why for name in names if (why := flaw(sample, name, target, str(types[name])))}
    kept = [name for name in names if name not in left_out]
    if not kept:
        reasons = ", ".join(f"{name!r} ({why})" for name, why in list(left_out.items())[:5])
        raise GroupsError(f"{table.name} has no column to learn from: {reasons}; write the groups file by hand")
    groups: dict[str, list[str]] = {}
    for name in kept:
        head, found_mark, _ = name.partition(by_prefix) if by_prefix else (name, "", "")
        groups.setdefault(head if found_mark and head else name, []).append(name)
    if (lost := next((name for name in costs if name not in groups), None)) is not None:
        raise GroupsError(f"--cost {lost}={costs[lost]}: there is no group {lost!r}; {suggestion(lost, list(groups))}")
    content: dict[str, Any] = {
        "groups": [{"name": name, "features": of, "cost": costs.get(name, 1.0)} for name, of in groups.items()],
        "types": {name: types[name] for name in kept if types[name] in ("text", "bool", "date")},
    }
    held = {name: _held(sample, name, str(types[name])) for name in kept}
    return Draft(load_groups(content), held, left_out, found.rows)


def _held(sample: Sample, name: str, kind: str) -> str:
    values, counts = sample.column(name).counts
    if kind in ("text", "bool"):
        common = values[np.argsort(-counts, kind="stable")][:4].tolist()
        shown = ", ".join(in_comment(str(level)) for level in common) + ", ..." * (len(values) > len(common))
        what = f"{kind}, {len(values):,} levels: {shown}"
    else:
        low, high = (DATES.shown(end) if kind == "date" else f"{end:.6g}" for end in (values[0], values[-1]))
        what = f"{kind}, {low} to {high}, {len(values):,} different values"
    rows = len(sample.columns[name])
    missing = rows - counts.sum()
    return what + (f", {max(100 * missing / rows, 0.1):.2g} % missing" if missing else "")
