"""A groups file drafted from a table: what its columns hold, and which are better left out.

Left out are columns without two different values, columns that look like identifiers, and columns that determine the
target in every row: they are usually a copy or a consequence of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anytime.data.formats import ReadAs, Table
from anytime.data.survey import survey, with_dates
from anytime.errors import GroupsError, TableError, clipped, listed, suggestion
from anytime.features.bases import DATES
from anytime.features.learning import Sample, present
from anytime.groups import FeatureGroups, flow, load_groups, singletons

MIN_IDENTIFIER_ROWS = 20
"""Fewest rows from which a column whose values all differ looks like an identifier."""

MIN_DETERMINED_ROWS = 4
"""Fewest rows for each value of a column of levels that determines the target."""

SAME = 1e-9
"""A squared correlation this close to 1 makes a column a copy of the target."""

MAX_COMMENTS = 20
"""Most columns of a group that are described, one a line."""


def default_groups(table: Table, used: Iterable[str] = ()) -> FeatureGroups:
    """Return each column of a table as a group at cost 1, without the index of the rows.

    `used` are columns with another use: target, query, weights. Raises GroupsError if no column remains.
    """
    names = _candidates(table, used)
    if not names:
        raise GroupsError(f"{table.name} has no column besides {listed(used)}; expected at least one feature")
    return singletons(names)


def _candidates(table: Table, used: Iterable[str]) -> list[str]:
    taken = {*used, *table.index}
    return [name for name in table.columns if name not in taken]


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
            several = len(group.features) > 1
            lines += [f"  # {_comment(name) + ': ' if several else ''}{self.held[name]}" for name in names]
            lines += [f"  # and {len(group.features) - len(names)} more"] * (len(group.features) > len(names))
            lines.append(f"  - {flow(group.model_dump(mode='json', exclude_defaults=True))}")
        if self.groups.types:
            lines.append(f"types: {flow(self.groups.types)}")
        if self.left_out:
            lines.append("# left out; move a name into a group to use it:")
            lines += [f"#   {_comment(name)}: {why}" for name, why in self.left_out.items()]
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
    target : the target columns; rows without a target are not looked at.
    others : columns with another use, such as weights.
    stated : types of columns.
    by_prefix : columns whose names have the same part before this mark are one group; None is a group for each column.
    costs : the cost of some groups by name, each a number or a text such as "5ms"; the others cost 1.

    Raises
    ------
    TableError
        As `anytime.data.survey.survey`.
    GroupsError
        No column remains, or a cost is that of no group.
    """
    names = _candidates(table, {*target, *others})
    unknown = next((name for name in (*target, *others, *stated) if not table.has(name)), None)
    if unknown is not None:
        raise TableError(f"{table.name} has no column {unknown!r}; {suggestion(unknown, table.columns)}")
    types = table.types([*names, *target], stated)
    left_out: dict[str, str] = {}
    if not names:
        raise GroupsError(f"{table.name} has no column besides {listed(target)}; expected at least one feature")
    found = survey(table, target, [*names, *target], types=types, drop_missing=True)
    assert found.sample is not None  # noqa: S101  (there are features)
    sample, dates = with_dates(found.sample, [name for name in names if types[name] == "text" and name not in stated])
    types |= dict.fromkeys(dates, "date")
    for name in names:
        why = _flaw(sample, name, target, str(types[name]))
        if why:
            left_out[name] = why
    kept = [name for name in names if name not in left_out]
    if not kept:
        reasons = ", ".join(f"{name!r} ({why})" for name, why in list(left_out.items())[:5])
        raise GroupsError(f"{table.name} has no column to learn from: {reasons}; write the groups file by hand")
    groups = _grouped(kept, by_prefix)
    lost = next((name for name in costs if name not in groups), None)
    if lost is not None:
        raise GroupsError(f"--cost {lost}={costs[lost]}: there is no group {lost!r}; {suggestion(lost, list(groups))}")
    content: dict[str, Any] = {
        "groups": [{"name": name, "features": of, "cost": costs.get(name, 1.0)} for name, of in groups.items()],
        "types": {name: types[name] for name in kept if types[name] in ("text", "bool", "date")},
    }
    held = {name: _held(sample, name, str(types[name])) for name in kept}
    return Draft(load_groups(content), held, left_out, found.rows)


def _grouped(names: Sequence[str], mark: str | None) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        head, found, _ = name.partition(mark) if mark else (name, "", "")
        groups.setdefault(head if found and head else name, []).append(name)
    return groups


def _flaw(sample: Sample, name: str, target: Sequence[str], kind: str) -> str:
    """Return why a column is better left out; empty if it is not."""
    values = sample.column(name).values
    distinct = len(set(values.tolist()))
    if distinct < 2:
        return "no value" if not distinct else f"the value {_comment(str(values[0]))} in every row that has one"
    if len(values) >= MIN_IDENTIFIER_ROWS and distinct == len(values) and _is_identifier(values, kind):
        return f"looks like an identifier: {distinct:,} different values in {len(values):,} rows"
    copied = next((each for each in target if _determines(sample.columns[name], sample.columns[each], kind)), None)
    return "" if copied is None else f"determines {_comment(copied)} in every row: a copy or a consequence of it?"


def _is_identifier(values: NDArray[Any], kind: str) -> bool:
    """Return whether different values are text, or whole numbers that count the rows."""
    if kind in ("text", "date"):
        return kind == "text"
    numbers = np.sort(np.asarray(values, dtype=np.float64))
    return bool((np.diff(numbers) == 1).all())


def _determines(column: NDArray[Any], target: NDArray[Any], kind: str) -> bool:
    """Return whether the target is a linear function of a column of numbers, or has one value for each of its values.

    A column determines classes also if a threshold separates the two of them.
    """
    both = present(column) & present(target)
    column, target = column[both], target[both]
    if len(set(target.tolist())) < 2 or len(column) < MIN_IDENTIFIER_ROWS:
        return False
    if kind != "text" and target.dtype.kind in "ifu":
        x, y = (np.asarray(each, dtype=np.float64) for each in (column, target))
        with np.errstate(all="ignore"):
            r = np.corrcoef(x, y)[0, 1]
        if r * r >= 1 - SAME:
            return True
    classes, codes = np.unique(target.astype(str), return_inverse=True)
    if kind != "text" and len(classes) == 2:
        x = np.asarray(column, dtype=np.float64)
        one, other = x[codes == 0], x[codes == 1]
        return bool(one.max() < other.min() or other.max() < one.min())
    levels, at = np.unique(column.astype(str), return_inverse=True)
    if len(levels) * MIN_DETERMINED_ROWS > len(column):
        return False
    return len(set(zip(at.tolist(), codes.tolist(), strict=True))) == len(levels)


def _held(sample: Sample, name: str, kind: str) -> str:
    found = sample.column(name)
    values, rows = found.values.tolist(), len(sample.columns[name])
    distinct = set(values)
    if kind in ("text", "bool"):
        levels, counts = np.unique(np.asarray(values, dtype=object).astype(str), return_counts=True)
        common = levels[np.argsort(-counts, kind="stable")][:4].tolist()
        shown = ", ".join(map(_comment, common)) + ", ..." * (len(levels) > len(common))
        what = f"{kind}, {len(distinct):,} levels: {shown}"
    elif kind == "date":
        what = f"date, {DATES.shown(min(values))} to {DATES.shown(max(values))}, {len(distinct):,} different values"
    else:
        what = f"{kind}, {min(values):.6g} to {max(values):.6g}, {len(distinct):,} different values"
    missing = rows - len(values)
    return what + (f", {max(100 * missing / rows, 0.1):.2g} % missing" if missing else "")


def _comment(text: str) -> str:
    """Return a text for a comment, on one line."""
    return clipped(re.sub(r"\s+", " ", "".join(c if c.isprintable() else " " for c in text)), 40)
