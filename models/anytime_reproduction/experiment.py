"""Experiments: runs that are executed one by one, and a report section made from their results.

A run is a function of the setting and of plain arguments that returns plain values (representable in JSON). Runs can
therefore be distributed over processes, stored in files, and resumed after an interruption.

A section judges a difference by its 95 % interval (`Estimate.direction`), and several verdicts together (`unanimous`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from scipy.stats import t

from anytime.types import Float

Result: TypeAlias = dict[str, Any]
"""Return value of a run: plain values by name."""

Results: TypeAlias = Mapping[str, Result]
"""Results of the runs of one experiment, by the name of the run."""


@dataclass(frozen=True)
class Setting:
    """Settings shared by all experiments.

    `data` is the folder of the real data sets, or None for stand-ins. `yahoo` has the owners' files (folder, cost
    file), which replace their public sample.
    """

    data: Path | None = None
    yahoo: tuple[Path, Path] | None = None
    quick: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Run:
    """One unit of work: `work(setting, **arguments)`, under a name that is valid as a file name.

    `work` is a top-level function, so that another process can import it, and the arguments are plain values. A run
    that measures time is executed `alone`, without other runs at the same time.
    """

    name: str
    work: Callable[..., Result]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False


@dataclass(frozen=True)
class Estimate:
    """A mean over runs, its standard error (None if unknown), and the number of independent values (1 if unknown)."""

    mean: float
    error: float | None = None
    runs: int = 1

    @staticmethod
    def of(values: Many[float] | Float) -> Estimate:
        array = np.asarray(values, dtype=np.float64)
        error = float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else None
        return Estimate(float(array.mean()), error, len(array))

    @staticmethod
    def of_difference(first: Many[float], second: Many[float]) -> Estimate:
        """Return the estimate of first - second over the same runs, in which common effects cancel."""
        return Estimate.of(np.subtract(first, second))

    @property
    def margin(self) -> float:
        """Return half the width of the 95 % interval by Student's t; 0 without a standard error."""
        return 0.0 if self.error is None or self.runs < 2 else float(t.ppf(0.975, self.runs - 1)) * self.error

    @property
    def direction(self) -> int:
        """Return 1 or -1 if the 95 % interval is entirely above or below 0, otherwise 0."""
        return int(np.sign(self.mean)) if self.runs > 1 and abs(self.mean) > self.margin else 0


@dataclass(frozen=True)
class Finding:
    """One line that compares our result with the published one; `agrees` is None without a published result."""

    text: str
    agrees: bool | None = None


def published(table: str) -> Any:
    """Return a table of a paper; each mean of the Group-OMP paper has its standard error."""
    return json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))[table]


def merged(parts: Many[Any]) -> Any:
    """Return results of the same form as one: their lists are joined, at any depth; other values are of the first."""
    if isinstance(parts[0], dict):
        return {key: merged([part[key] for part in parts]) for key in parts[0]}
    return [value for part in parts for value in part] if isinstance(parts[0], list) else parts[0]


def unanimous(verdicts: Iterable[bool | None]) -> bool | None:
    """Return whether all verdicts agree; None if none disagrees but some are undecided."""
    found = set(verdicts)
    return False if False in found else None if None in found else True


Cell: TypeAlias = str | int | float | Estimate | None


@dataclass(frozen=True)
class Table:
    """A table of the report, with `digits` decimals; also written as a CSV file of that name, with all digits."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: Many[Many[Cell]]
    digits: int = 4

    @staticmethod
    def of(name: str, caption: str, records: Many[Mapping[str, Cell]], digits: int = 4) -> Table:
        """Return a table of at least one record, with a column for each key."""
        return Table(name, caption, tuple(records[0]), [tuple(record.values()) for record in records], digits)


@dataclass(frozen=True)
class Figure:
    """A figure of the report, also written as a file of that name; `draw` returns a matplotlib figure."""

    name: str
    caption: str
    draw: Callable[[], Any]


@dataclass(frozen=True)
class Section:
    """The report's section on an experiment: findings first, then text, tables and figures."""

    findings: Many[Finding]
    text: Many[str] = ()
    tables: Many[Table] = ()
    figures: Many[Figure] = ()


@dataclass(frozen=True)
class Experiment:
    """One experiment, by its name on the command line; `source` is its publication, empty if unpublished.

    `runs` returns its runs in a setting, `section` the report's section from their results. Verdicts that are
    `of_the_sets`, the data sets themselves, are omitted for stand-ins.
    """

    name: str
    title: str
    source: str
    runs: Callable[[Setting], Many[Run]]
    section: Callable[[Setting, Results], Section]
    sets: tuple[str, ...] = ()
    of_the_sets: bool = False

    def reported(self, setting: Setting, results: Results) -> Section:
        section = self.section(setting, results)
        if setting.data is not None or not self.of_the_sets:
            return section
        return replace(section, findings=[replace(finding, agrees=None) for finding in section.findings])
