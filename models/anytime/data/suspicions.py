"""What is suspicious about the columns of a training table: sentences for the reader, each with a remedy.

All of it is found in the sample that bases are learned from, or in the first rows, with the target: wild values,
columns that predict the target alone, columns that number the rows, and gaps that predict the target.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from anytime.errors import clipped
from anytime.features.learning import Sample, present
from anytime.features.readers import DATES
from anytime.types import Float, Index

MIN_ROWS = 20
"""Fewest rows from which a column whose values all differ looks like an identifier, or determines a target."""

MIN_LEVEL = 4
"""Fewest rows for each value of a column of levels that determines the target."""

SAME = 1e-9
"""A squared correlation this close to 1 makes a column a copy of the target."""

ALONE = 0.999
"""Squared correlation, or area under the ROC curve, from which a column predicts the target alone."""

WILD = 100.0
"""A value is wild if its distance to the median is more than this number of distances between the deciles .1 and .9."""

MAX_WILD_SHARE, MAX_WILD_ROWS = 0.01, 5
"""More wild values than this share of the rows, and than this number, are the tail of a column."""

GAPS_EXPLAIN, GAPS_ERRORS = 0.02, 4.0
"""Gaps predict the target if they explain this share of its variance, at this number of standard errors."""

MAX_LOOKED_AT = 5_000
"""Rows that columns are compared with the target on."""

MAX_CLASSES = 20
"""Most classes whose shares are compared with gaps."""

CHUNK = 2**20
"""Values that are looked at at once, 8 MiB."""

FEW = 100
"""About the number of rows in which limits are found that the deciles of all rows probably lie beyond."""

MAX_NAMED = 3
"""Most columns that one sentence describes."""

Values = NDArray[Any]


def suspicions(sample: Sample, features: Sequence[str], target: Sequence[str]) -> tuple[str, ...]:
    """Return what is suspicious about some features of a sample, which has the target columns too."""
    fewer = sample.part(slice(None, None, max(1, sample.rows // MAX_LOOKED_AT)))
    numeric = [name for name in features if sample.columns[name].dtype.kind in "iuf"]
    targets = [_Labels.of(fewer.columns[name]) for name in target]
    alone = [repr(n) for n in features if any(_predicts(fewer.columns[n], target) for target in targets)]
    found = {
        "wild values, far from all others: {}; rows are counted from 0; fix or remove them, or limit the influence of "
        "columns by --clamp 0.01": _wild_values(
            sample, [*numeric, *(name for name in target if sample.columns[name].dtype.kind in "iuf")]
        ),
        "{} alone predicts the target almost perfectly: if its value is known only once the target is, leave it "
        "out (--drop)": alone,
        "{} has a different whole number in every row, like an identifier or a row number: new rows have others; "
        "leave it out (--drop) unless it measures something": [
            repr(name) for name in numeric if _numbers_rows(sample.columns[name])
        ],
        "missing values predict the target: those of {}; make sure that they have the same cause when the model "
        "is used, or leave the columns out (--drop)": _telling_gaps(fewer, features, targets),
    }
    said = []
    for sentence, columns in found.items():
        more = f" and {len(columns) - MAX_NAMED} more" if len(columns) > MAX_NAMED else ""
        if columns:
            said.append(sentence.format(", ".join(columns[:MAX_NAMED]) + more))
    return tuple(said)


def _wild_values(sample: Sample, names: Iterable[str]) -> list[str]:
    """Return the columns with a few values far from all others, described with their rows, the worst first.

    Most columns are seen to have none by two limits and the range, in a third of the time of exact quantiles: if over a
    tenth of the values are at most `low`, and over a tenth at least `high`, the deciles are at least as far apart, and
    no value is farther from the median than the range.
    """
    columns, worst = [*dict.fromkeys(names)] if sample.rows >= MIN_ROWS else [], list[tuple[float, str]]()
    step, tenth = max(1, CHUNK // max(sample.rows, 1)), 0.1 * sample.rows + 2  # quantiles lie between two values
    for some in (columns[start : start + step] for start in range(0, len(columns), step)):
        table = np.array([sample.columns[name] for name in some], dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            low, high = np.quantile(table[:, :: max(1, sample.rows // FEW)], [0.2, 0.8], axis=1)[:, :, np.newaxis]
            beyond = [np.count_nonzero(side, axis=1) for side in (table <= low, table >= high)]
            near = (np.minimum(*beyond) > tenth) & (np.ptp(table, axis=1) <= 0.9 * WILD * (high - low)[:, 0])
        for name, values in itertools.compress(zip(some, table, strict=True), ~near):
            known = np.flatnonzero(np.isfinite(values))
            if len(known) < MIN_ROWS:
                continue
            with np.errstate(all="ignore"):  # values near the largest number, and equal deciles
                first, middle, last = np.quantile(values[known], [0.1, 0.5, 0.9])
                distance = np.abs(values[known] - middle) / (last - first)
            wild = np.flatnonzero(distance > WILD)
            if last > first and 0 < len(wild) <= max(MAX_WILD_ROWS, MAX_WILD_SHARE * len(known)):
                order = wild[np.argsort(-distance[wild], kind="stable")]
                rows = [f"{values[i]:.4g} in row {sample.numbers[i]}" for i in known[order[:MAX_NAMED]].tolist()]
                rows += ["..."] * (len(order) > MAX_NAMED)
                worst.append((float(distance[order[0]]), f"{name!r} ({', '.join(rows)})"))
    return [text for _, text in sorted(worst, key=lambda each: -each[0])]


@dataclass(frozen=True)
class _Labels:
    """A target, and its values as numbered classes."""

    values: Values
    codes: Index
    classes: int
    most: Index  # the rows of the largest class, of the two largest, ...

    @classmethod
    def of(cls, values: Values) -> _Labels:
        labels, codes, counts = np.unique(values.astype(str), return_inverse=True, return_counts=True)
        return cls(values, codes, len(labels), np.cumsum(np.sort(counts)[::-1]))


def _predicts(column: Values, target: _Labels, least: float = ALONE) -> bool:
    """Return whether a column alone predicts a target nearly in every row, or with `least` 1 in every row.

    It does where the target is a linear function of its numbers, a threshold on them separates two classes, or nearly
    all rows that share a value have one class.
    """
    known, values, codes = present(column), target.values, target.codes
    if not known.all():
        column, values, codes = column[known], values[known], codes[known]
    if len(column) < MIN_ROWS or (codes == codes[0]).all() or (column == column[0]).all():
        return False
    if numeric := column.dtype.kind in "iufb":
        if values.dtype.kind in "iuf" and _squared_correlation(column, values) >= min(least, 1 - SAME):
            return True
        if target.classes == 2:
            area = _area(rankdata(column), codes)
            return max(area, 1 - area) >= least
    most_levels = len(column) // MIN_LEVEL
    if target.most[min(most_levels, target.classes) - 1] < least * len(column):  # if each has a class of its own
        return False
    levels, at = np.unique(column if numeric else column.astype(str), return_inverse=True)
    if len(levels) > most_levels:
        return False
    pairs, counts = np.unique(at * target.classes + codes, return_counts=True)
    most = np.zeros(len(levels))
    np.maximum.at(most, pairs // target.classes, counts)
    return float(most.sum()) >= least * len(column)


def _squared_correlation(x: Values, y: Values) -> float:
    """Return the squared correlation of two columns of numbers; 0 if one is constant."""
    with np.errstate(all="ignore"):
        a, b = (each - each.mean() for each in (np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)))
        share = np.square((a @ b) / np.sqrt(a @ a) / np.sqrt(b @ b))  # a third of the time of `np.corrcoef`
    return float(share) if np.isfinite(share) else 0.0


def _area(ranks: Float, codes: Index) -> float:
    """Return the area under the ROC curve of a column, given its ranks, for the second of two classes."""
    ones = int(codes.sum())
    return float((ranks[codes == 1].sum() - ones * (ones + 1) / 2) / (ones * (len(codes) - ones)))


def _numbers_rows(column: Values) -> bool:
    """Return whether a column counts the rows: whole numbers without a gap, or ascending over all rows."""
    if (np.floor(column[:MIN_ROWS]) < column[:MIN_ROWS]).any():  # most columns have numbers that are not whole
        return False
    numbers = np.asarray(column[present(column)], dtype=np.float64)
    whole = len(numbers) >= MIN_ROWS and (numbers == np.floor(numbers)).all()
    ordered = np.sort(numbers)
    return bool(whole and ((numbers[1:] > numbers[:-1]).all() or (ordered[1:] == ordered[:-1] + 1).all()))


def _telling_gaps(sample: Sample, features: Iterable[str], targets: Iterable[_Labels]) -> list[str]:
    """Return the columns whose missing values predict a target, as numbers or as an indicator of a class, described."""
    responses = [
        values
        for target in targets
        for values in (
            [target.values]
            if target.values.dtype.kind in "iufb"
            else [target.codes == k for k in range(min(target.classes, MAX_CLASSES))]
        )
    ]
    found: list[str] = []
    for name in features:
        gap = ~present(sample.columns[name])
        if 0.01 <= gap.mean() <= 0.99:
            explained = max((_squared_correlation(gap, each) for each in responses), default=0.0)
            if explained >= GAPS_EXPLAIN and explained * len(gap) >= GAPS_ERRORS**2:
                found.append(f"{name!r} ({100 * gap.mean():.2g} % of its values; they explain {explained:.2g})")
    return found


def flaw(sample: Sample, name: str, target: Sequence[str], kind: str) -> str:
    """Return why a column is better left out; empty if it is not."""
    values = sample.column(name).values
    distinct = len(set(values.tolist()))
    if distinct < 2:
        return "no value" if not distinct else f"the value {in_comment(str(values[0]))} in every row that has one"
    if (
        len(values) >= MIN_ROWS
        and distinct == len(values)
        and (kind == "text" or (kind != "date" and (np.diff(np.sort(np.asarray(values, dtype=np.float64))) == 1).all()))
    ):
        return (
            f"holds dates such as {in_comment(str(values[0]))}; expected ISO form: 2024-05-17"
            if kind == "text" and 2 * sum(map(DATES.has_other_form, values.tolist())) >= len(values)
            else f"looks like an identifier: {distinct:,} different values in {len(values):,} rows"
        )
    copied = next((y for y in target if _predicts(sample.columns[name], _Labels.of(sample.columns[y]), 1.0)), None)
    return "" if copied is None else f"determines {in_comment(copied)} in every row: a copy or a consequence of it?"


def in_comment(text: str) -> str:
    """Return a text for a comment, on one line."""
    return clipped(re.sub(r"\s+", " ", "".join(c if c.isprintable() else " " for c in text)), 40)
