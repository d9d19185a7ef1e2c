"""The survey of a training table: one pass that finds what its columns hold.

It counts the rows, collects the values of the target, and draws the sample of rows that bases are learned from. Rows
without a target, or of weight 0, are in none of these. The types of the columns are known before (`Table.types`), and
what is found here is stored with the groups, so that every other table is read with the same types.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from anytime.data.dataset import ColumnError, Dataset, check_finite, infinite_columns, rows_to_learn_from
from anytime.data.formats import ROWS, ReadAs, Table
from anytime.data.formats.arrow import foreign_number, is_number, missing_words, not_numbers
from anytime.data.suspicions import suspicions
from anytime.errors import TableError, clipped, listed
from anytime.families import default_family, family_of
from anytime.features.bases import LEVEL_ROWS, MIN_LEVEL_ROWS, Clamp, parsed_basis
from anytime.features.learning import (
    Sample,
    learned_groups,
    needs_sample,
    present,
    rare_levels,
    responses_of,
    sample_of,
    sample_size,
)
from anytime.features.readers import DATES
from anytime.groups import ColumnBasis, FeatureGroups
from anytime.target import Target, check_family, word_in_target
from anytime.types import FamilyName, Task

FIRST_ROWS = 2_000
"""Rows that suspicions are found in where no basis is learned, so that large tables are not read once more."""

ANYTHING = ColumnBasis(basis="categories", levels=(), other=True, missing=False)
"""What a column without values becomes. Its values in other tables are levels without an effect."""

MAX_CLASSES = 1000
"""Maximum number of different values of a class target."""

MAX_WHOLE = 20
"""Number of whole numbers up to which they may be classes."""


@dataclass(frozen=True)
class Survey:
    """Result of a pass over a table.

    Attributes
    ----------
    table, columns
        The name of the table, and its target columns.
    rows : int
        Number of rows of the table; `missing` of them have no target, and `used` have one and a weight above 0.
    types : Mapping[str, ReadAs]
        What the target, the features and other used columns are read as.
    values : tuple[frozenset[Any], ...]
        The different values of each target column; complete only up to the maximum number of classes.
    sample : Sample | None
        Of the features; None if no feature was read.
    layout : str
        Of the file, as `Table.layout`.
    unusable : Mapping[str, str]
        Why the groups do not have some columns of their file, by column: sentences without a subject.
    remarks : tuple[str, ...]
        What else users should know of the columns.
    decisions : tuple[str, ...]
        What was decided about the columns without the user.
    """

    table: str
    columns: tuple[str, ...]
    rows: int
    missing: int
    used: int
    types: Mapping[str, ReadAs]
    values: tuple[frozenset[Any], ...]
    sample: Sample | None = None
    layout: str = ""
    unusable: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what users should know of the columns: which are unusable and why, and what else they lose."""
        reasons = "; ".join(f"{name!r} {why}" for name, why in self.unusable.items())
        count = f"{len(self.unusable)} column{'s' * (len(self.unusable) != 1)}"
        left_out = [f"left out {count}: {reasons}; {UNUSABLE_REMEDY}"] if self.unusable else []
        return *left_out, *self.remarks


def survey(
    table: Table,
    target: Sequence[str],
    features: Sequence[str] = (),
    *,
    weights: str | None = None,
    types: Mapping[str, ReadAs] = {},
    drop_missing: bool = False,
    seed: int = 0,
    limit: int | None = None,
) -> Survey:
    """Read the target, and a sample of some features.

    Parameters
    ----------
    types : Mapping[str, ReadAs]
        Of columns whose type is stated; the others have their own.
    seed : int
        Seed of the sample.
    limit : int | None
        Maximum number of rows to learn from; None reads all of them, and the sample has as many as usual.

    Raises
    ------
    TableError
        A column does not exist or is named twice, the table has no rows, a target is infinite, or rows have no target
        (with `drop_missing`: all rows).
    """
    if len(set(target)) < len(target):
        raise TableError(f"the target {target[0]!r} is named more than once; name each column once")
    names = [*features, *target, *([] if weights is None else [weights])]
    types = {**types, **table.types(names, types)}
    for name in target:
        if types[name] == "date":
            raise TableError(
                f"{table.name}: target {name!r} is {table.described(name)}; expected numbers or text: convert it to "
                "days since a fixed date, for example"
            )
    found: list[set[Any]] = [set() for _ in target]
    rows = missing = used = 0
    first: list[int] = []

    def samples() -> Iterator[Sample]:
        nonlocal rows, missing, used, first
        for batch in table.batches(names, limit or ROWS, types=types):
            try:
                gaps, row_weights, kept = rows_to_learn_from(batch, target, weights)
                for name in target:
                    check_finite(batch, name)
            except TableError as error:
                raise TableError(f"{table.name}: {error}") from None
            rows += batch.rows
            missing += int(gaps.sum())
            used += int(kept.sum())
            first += (batch.start + np.flatnonzero(gaps)[: 5 - len(first)]).tolist()
            for name, seen in zip(target, found, strict=True):
                if len(seen) <= MAX_CLASSES:
                    seen.update(np.unique(batch.column(name)[kept])[: MAX_CLASSES + 1].tolist())
            if features:
                columns = {name: batch.column(name)[kept] for name in dict.fromkeys((*features, *target))}
                of_kept = None if row_weights is None else row_weights[kept]
                yield Sample(columns, of_kept, batch.start + np.flatnonzero(kept))
            if limit is not None and used >= limit:
                return

    sample = sample_of(samples(), limit, seed=seed)
    if not rows:
        raise table.no_rows()
    if missing and not drop_missing:
        where = ", ".join(map(str, first)) + (", ..." if missing > len(first) else "")
        raise TableError(
            f"{table.name}: {missing} of {rows} rows have no target (rows {where}, counted from 0); "
            "fix them, or leave them out: --missing-target drop"
        )
    if missing == rows:
        raise TableError(f"{table.name}: no row has a target; expected at least one")
    if target and not any(found):
        raise TableError(f"{table.name}: every weight in column {weights!r} is 0; expected some above 0")
    return Survey(
        table.name,
        tuple(target),
        rows,
        missing,
        used,
        types,
        tuple(map(frozenset, found)),
        sample if features else None,
        table.layout,
    )


def _cells(table: Table, name: str) -> Iterator[tuple[int, str]]:
    for batch in table.batches([name], types={name: "text"}):
        values = batch.column(name)
        for row in np.flatnonzero(present(values)).tolist():
            yield batch.start + row, values[row]


def check_words(table: Table, found: Survey, stated: Collection[str] = ()) -> None:
    """Raise TableError if a target that is to be settled holds words among numbers, unless its type is `stated`.

    Numbers in text are those of a regression if they are more than half of its values and have decimals or over 20
    values, or if the words are rare: then a word is a mark of a missing or censored value rather than a class.
    """
    for name, values in zip(found.columns, found.values, strict=True):
        numbers = [float(value) for value in values if is_number(value)] if found.types[name] == "text" else []
        if len(numbers) < 3 or 2 * len(numbers) <= len(values) or name in stated or name in table.factors:
            continue
        words = [(row, cell) for row, cell in _cells(table, name) if not (is_number(cell) or _is_missing(cell))]
        rare = 2 * len(words) * len(numbers) < (found.used - len(words)) * max(len(values) - len(numbers), 1)
        are_measured = len(numbers) > MAX_WHOLE or not all(number.is_integer() for number in numbers)
        if words and (rare or are_measured) and foreign_number(sorted(values)) is None:
            raise TableError(f"{found.table}: {word_in_target(name, *words[0][::-1])}")


def settle_target(
    found: Survey, task: Task | Literal["auto"] = "auto", family: FamilyName | None = None, *, partial: bool = False
) -> Target:
    """Return the target: the task and the classes.

    "auto" chooses the task of the family, if one is given. Otherwise two values are binary (whole numbers, also where
    they are written as 0.0 and 1.0), text is multiclass, and all other targets are regression.

    With `partial`, other rows will follow, so one value is enough, and text is one class. Raises TableError if the
    target has one value only, or does not fit the task.
    """
    columns, several = found.columns, len(found.columns) > 1
    if task == "auto" and family is not None and len(family_of(family).tasks) == 1:
        (task,) = family_of(family).tasks
    for name, values in zip(columns, found.values, strict=True):
        if found.types[name] == "text" and (cell := foreign_number(sorted(values))) is not None:
            raise TableError(
                f"{found.table}: target {name!r} holds numbers in another form, as {clipped(cell, 40)!r}"
                f"{found.layout}; expected numbers such as 1234.56: give --decimal and --thousands as the file has "
                f"them, rewrite them, or state --text {name} if they are classes"
            )
        if len(values) < 2 and not partial:
            (only,) = values
            raise TableError(f"{found.table}: target {name!r} is {only!r} in every row; expected at least 2 values")
        if found.types[name] == "text" and (task in ("regression", "count") or several):
            raise TableError(f"{found.table}: target {name!r} is text; expected numbers")
    if several and task not in ("auto", "regression"):
        raise TableError(f"{len(columns)} targets make a regression; give one target for task {task}")
    if task == "auto" and several:
        task = "regression"
    elif task == "auto":
        kind, values = found.types[columns[0]], found.values[0]
        if kind == "text" and 2 < len(values) > found.used / 2 and all(map(is_number, values)):
            raise TableError(
                f"{found.table}: target {columns[0]!r} holds numbers as text, such as {clipped(min(values), 40)!r}; "
                f"state --number {columns[0]}, or --task multiclass if they are classes"
            )
        is_binary = len(values) == 2 and (kind != "number" or all(float(value).is_integer() for value in values))
        task = "binary" if is_binary else "multiclass" if kind == "text" else "regression"
    family = default_family(task) if family is None else family
    is_numeric = task in ("regression", "count")
    target = Target(task, columns) if is_numeric else _class_target(found, task, partial=partial)
    target = replace(target, family_name=family)
    check_family(family, target)
    for name, values in zip(columns, found.values, strict=True) if is_numeric else ():
        known = np.array(sorted(values), dtype=np.float64)
        if (wrong := known[~target.family.valid(known)]).size:
            raise TableError(f"{found.table}: target {name!r} holds {wrong[0]:.6g}; expected {target.family.expected}")
    return target


def _class_target(found: Survey, task: Task, *, partial: bool) -> Target:
    name, values = found.columns[0], found.values[0]
    if len(values) > MAX_CLASSES:
        raise TableError(f"{found.table}: target {name!r} has over {MAX_CLASSES} values; choose --task regression")
    if task == "binary" and len(values) != 2 and not (partial and len(values) < 2):
        raise TableError(f"{found.table}: target {name!r} has {len(values)} values; expected 2 for task binary")
    if any(isinstance(value, float) and abs(value) >= 2**53 for value in values):
        raise TableError(
            f"{found.table}: target {name!r} holds numbers of 2^53 or more, which are rounded; state --text {name}"
        )
    is_bool = found.types[name] == "bool"  # with gaps, booleans are read as floats
    classes = (bool(v) if is_bool else int(v) if isinstance(v, float) and v.is_integer() else v for v in values)
    return Target.of_classes(found.columns, sorted(classes))


def surveyed(
    table: Table,
    groups: FeatureGroups,
    target: Sequence[str],
    *,
    query: str | None = None,
    weights: str | None = None,
    stated: Mapping[str, ReadAs] = {},
    option: str | None = None,
    clamp: Clamp = None,
    drop_missing: bool = False,
    min_level_rows: int | Literal["auto"] = MIN_LEVEL_ROWS,
    seed: int = 0,
    complete: bool = False,
    extrapolates: bool = True,
    further: bool = False,
    partial: bool = False,
) -> tuple[FeatureGroups, Survey]:
    """Survey a training table; return the groups with the types and bases of its columns, and what was found.

    Columns that are neither numbers nor levels, and groups of such columns only, are left out if others remain.

    Parameters
    ----------
    query, weights : str | None
        Columns that are read as such.
    stated : Mapping[str, ReadAs]
        Types that the user states besides those of the groups; other text must not look like numbers.
    option, clamp, complete, extrapolates, further
        As in `learned_groups`.
    min_level_rows : int | Literal["auto"]
        Rows of the sample that a level needs, 2 or more; "auto" leaves that to cross-validation.
    drop_missing, seed
        As in `survey`.
    partial : bool
        Whether other tables, which may have values in columns that have none here, get the same bases.

    Raises
    ------
    TableError
        As `survey`; or every column holds text that is mostly numbers, or dates and other text, or is of another type.
    GroupsError
        A basis does not fit its column.
    """
    as_text = {f: b for f, b in groups.bases.items() if b.basis and "text" in parsed_basis(b.basis)[0].fits}
    quoted: dict[str, ReadAs] = {f: "text" for f, b in as_text.items() if f in table.quoted and not b.levels}
    known: dict[str, ReadAs] = {**quoted, **groups.known_types, **stated}
    table.require(stated, ", whose type is stated")
    roles: tuple[tuple[str | None, ReadAs], ...] = ((query, "key"), (weights, "number"))
    others = {name: kind for name, kind in roles if name is not None}
    names, used = [*groups.features, *target, *others], known | others
    unusable: dict[str, TableError] = {}
    try:
        types = table.types(names, used)
    except TableError:
        for name in groups.features:
            with _collected(unusable, name):
                table.types([name], used)
        types = table.types([name for name in names if name not in unusable], used)  # raises an error about the table
        groups = _without(groups, unusable, table.name)
    features, limit = groups.features, min(FIRST_ROWS, sample_size(len(groups.features)))
    kinds: list[Any] = ["factor" if f in table.factors and types[f] != "date" else types[f] for f in features]
    needed = complete or needs_sample(groups, kinds, option, clamp, extrapolates=extrapolates)
    given: dict[str, Any] = {"weights": weights, "types": types}
    found = survey(table, target, features if needed else (), drop_missing=drop_missing, seed=seed, **given)
    first = found if needed else survey(table, target, features, drop_missing=True, limit=limit, **given)
    sample = first.sample or Sample({})
    sample = replace(
        sample,
        min_level_rows=LEVEL_ROWS if min_level_rows == "auto" else (int(min_level_rows),),
        responses=responses_of(sample.columns[name] for name in target if name in sample.columns),
    )
    text = [f for f in features if types[f] == "text" and f not in known and f not in table.factors]
    dates, remarks, decisions = list[str](), tuple[str, ...](), tuple[str, ...]()
    if text:
        sample, dates = with_dates(sample, [f for f in text if f not in as_text])
        unstated = [name for name in text if name not in dates and name not in groups.bases]
        remarks = _checked_text(table, sample, unstated, unusable)
    settled = further and (not needed or found.rows >= sample_size(len(features)))  # later rows change no type
    free = () if partial or complete or settled else [f for f in features if not (f in known or f in groups.bases)]
    empty = [name for name in free if not present(sample.columns[name]).any()]
    for batch in table.batches(empty, types=types) if empty else ():  # also rows beyond the sample
        empty = [name for name in empty if not present(batch.column(name)).any()]
    sample = replace(sample, columns={**sample.columns, **dict.fromkeys(empty, np.full(sample.rows, None, object))})
    wild = [f for f in features if (cells := sample.columns[f]).dtype.kind == "f" and np.isinf(cells).any()]
    if needed and wild:
        unusable |= {each.column: each for each in infinite_columns(table, wild, types)}
    groups = _without(groups, {name: unusable[name] for name in features if name in unusable}, table.name)
    shown: dict[str, Any] = {**types, **dict.fromkeys(dates, "date"), **dict.fromkeys(empty, "text")}
    shown = {f: shown[f] for f in groups.features if shown[f] in ("text", "bool", "date")}
    groups = groups.with_bases({**groups.bases, **dict.fromkeys(empty, ANYTHING)}, {**shown, **groups.types})
    if needed:
        stated_bases = set(groups.bases)
        groups = learned_groups(
            groups,
            sample,
            option,
            clamp,
            factors=table.factors,
            complete=complete,
            extrapolates=extrapolates,
            further=further,
        )
        lost, decisions = rare_levels(groups, sample, [name for name in groups.features if name not in stated_bases])
        if not complete:
            rare = {name: TableError(f"column {name!r} {why}; expected levels of more rows") for name, why in lost}
            groups, unusable = _without(groups, rare, table.name), unusable | rare
    suspect = suspicions(sample, [name for name, kind in groups.column_types.items() if kind != "date"], target)
    return groups, replace(
        found,
        unusable={f: _reason(error) for f, error in unusable.items()},
        remarks=remarks + suspect,
        decisions=decisions,
    )


@contextmanager
def _collected(errors: dict[str, TableError], name: str) -> Iterator[None]:
    """Keep an error about a column instead of raising it."""
    try:
        yield
    except TableError as error:
        if f"column {name!r} " not in str(error):  # it is about the whole table
            raise
        errors[name] = error


def without_columns(
    groups: FeatureGroups, errors: Sequence[ColumnError], found: Survey
) -> tuple[FeatureGroups, Survey]:
    """Return groups without some unusable columns, and the survey that reports them; raise if no other remains."""
    remaining = _without(groups, {error.column: error for error in errors}, found.table)
    return remaining, replace(found, unusable={**found.unusable, **{e.column: _reason(e) for e in errors}})


def _without(groups: FeatureGroups, unusable: Mapping[str, TableError], table: str) -> FeatureGroups:
    """Return the groups without unusable columns; raise one error for all of them if no other remains."""
    if len(unusable) < len(groups.features):
        return groups.without(unusable) if unusable else groups
    if len(unusable) == 1:
        raise next(iter(unusable.values()))
    reasons = "; ".join(f"{name!r} {_reason(error)}" for name, error in unusable.items())
    raise TableError(f"{table}: no column of the groups is usable: {reasons}; {UNUSABLE_REMEDY}")


def _reason(error: TableError) -> str:
    """Return why a column is unusable, from a message `column NAME is ...; expected ...`."""
    return re.sub(r"^(\'.*?\'|\".*?\") ", "", str(error).partition("column ")[2].partition("; expected")[0])


UNUSABLE_REMEDY = (
    "expected numbers, text or dates: convert or fix such columns (a duration to seconds, for example), or state "
    "their type by --text, --number or `types` in the groups file"
)


def _checked_text(
    table: Table, sample: Sample, columns: Sequence[str], unusable: dict[str, TableError]
) -> tuple[str, ...]:
    """Return a remark on columns of text whose levels differ in blanks only; add those that are mostly no levels.

    Raises TableError if the text of some is numbers in another form: a table with another locale or units.
    """
    cells = {name: sample.column(name).values.tolist() for name in columns}
    foreign = {name: cell for name, values in cells.items() if (cell := foreign_number(values)) is not None}
    if foreign:
        (name, cell), *others = foreign.items()
        row = sample.numbers[(sample.columns[name] == cell).argmax()]
        too = f", and so {'does' if len(others) == 1 else 'do'} {listed(dict(others), 10)}" if others else ""
        raise TableError(
            f"{table.name}: column {name!r} holds numbers in another form, as {clipped(cell, 40)!r} in row {row} "
            f"(counted from 0){table.layout}{too}; expected numbers such as 1234.56: give --decimal and --thousands as "
            f"the file has them, rewrite them, or state `types: {{{name}: text}}` in the groups file if they are levels"
        )
    said: list[str] = []
    for name, values in cells.items():
        with _collected(unusable, name):
            _check_levels(table, name, sample)
        levels = {*values}
        same = sorted(level for level in levels if level != level.strip() and level.strip() in levels)
        said += [f"{level!r} and {level.strip()!r} of {name!r}" for level in same[:1]]
    named = ", ".join(said[:5])
    remark = f"levels that differ in blanks only are different levels: {named}; write them alike if they are the same"
    return (remark,) if said else ()


def _check_levels(table: Table, name: str, sample: Sample) -> None:
    """Raise TableError if the text of a column is mostly dates or numbers, which would become rare levels."""
    values = sample.column(name).values.tolist()
    _, counts = sample.column(name).counts
    has_levels = (
        2 * counts[counts >= sample.min_level_rows[0]].sum() >= counts.sum()
    )  # most rows are of frequent levels
    iso, foreign = sum(map(_is_date, values)), sum(map(DATES.has_other_form, values))
    if 2 * (iso + foreign) >= len(values) and (iso or not has_levels):
        other = next(value for value in values if not (_is_date(value) or _is_missing(value)))
        raise TableError(
            f"column {name!r} holds dates, and {clipped(other, 40)!r}, which is no date in ISO form; expected dates "
            f"such as 2024-05-17 or 2024-05-17T09:30:00Z: fix it, or state `types: {{{name}: text}}` in the groups file"
        )
    plain = [is_number(value) for value in values]
    if 2 * sum(plain) < len(values) or (all(plain) and has_levels):
        return
    for _ in table.batches([name], types={name: "number"}):
        pass  # raises an error that names the first cell that is no number
    raise TableError(f"{table.name}: {not_numbers(name, values[0], sample.numbers[present(sample.columns[name])][0])}")


def _is_missing(value: str) -> bool:
    return value.strip() in missing_words()


def _is_date(value: str) -> bool:
    return not math.isnan(DATES.coded([value])[0])


def with_dates(sample: Sample, columns: Iterable[str]) -> tuple[Sample, list[str]]:
    """Return a sample with dates as seconds, and the columns of text that are dates in every row."""
    dates = [name for name in columns if _are_dates(sample.column(name).values.tolist())]
    coded = {name: DATES.coded(sample.columns[name].tolist()) for name in dates}
    return replace(sample, columns={**sample.columns, **coded}), dates


def _are_dates(values: list[str]) -> bool:
    """Return whether some texts are dates and words for missing values; the first date decides of most columns."""
    first = next((value for value in values if not _is_missing(value)), "")
    return _is_date(first) and all(_is_date(value) or _is_missing(value) for value in set(values))


def checked_dataset(dataset: Dataset) -> tuple[Dataset, Survey]:
    """Check a further table; return it, without the query if the table lacks it, and what it holds."""
    if dataset.query is not None and not dataset.table.has(dataset.query):
        dataset = replace(dataset, query=None)
    dataset.check()
    return dataset, survey(
        dataset.table,
        dataset.target.columns,
        weights=dataset.weights,
        types=dataset.types,
        drop_missing=dataset.drop_missing,
    )
