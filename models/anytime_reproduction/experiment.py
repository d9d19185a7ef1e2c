"""Experiments: runs that are executed one by one, and a report section made from their results.

A run is a function of the setting and of plain arguments that returns plain values (representable in JSON). Runs can
therefore be distributed over processes, stored in files, and resumed after an interruption.

A section judges a published mean by standard errors (`Compared`), a difference by its 95 % interval
(`Estimate.direction`), and several verdicts together (`unanimous`).
"""

from __future__ import annotations

import json
import math
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

    Attributes
    ----------
    data : folder with the real data sets, or None for stand-ins.
    yahoo : the owners' files (folder, cost file) that replace their public sample, or None.
    quick : fewer runs, for a preview.
    seed : seed of all random numbers.
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


BATCHES, BATCH = 10, 10
"""100 repetitions, as in the Group-OMP paper, ten to a run."""


def batched(
    setting: Setting, work: Callable[..., Result], argument: str, names: Iterable[str], *, quick: int
) -> list[Run]:
    """Return runs `work(setting, <argument>=name, first=..., count=...)` that together repeat each name 100 times.

    Parameters
    ----------
    argument : the argument of `work` that receives the name.
    quick : number of repetitions in the single batch of a quick run.
    """
    batches, size = (1, quick) if setting.quick else (BATCHES, BATCH)
    return [
        Run(f"{name}-{batch}", work, {argument: name, "first": batch * size, "count": size})
        for name in names
        for batch in range(batches)
    ]


def by_name(results: Results, names: Iterable[str]) -> dict[str, list[Result]]:
    """Return the results of the batches of each name, in order."""
    return {name: [found for run, found in results.items() if run.rpartition("-")[0] == name] for name in names}


@dataclass(frozen=True)
class Estimate:
    """A mean over runs, its standard error (None if unknown), and the number of independent values (1 if unknown)."""

    mean: float
    error: float | None = None
    runs: int = 1

    @staticmethod
    def of(values: Many[float] | Float) -> Estimate:
        """Return the mean and the standard error of the mean of independent values."""
        array = np.asarray(values, dtype=np.float64)
        error = float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else None
        return Estimate(float(array.mean()), error, len(array))

    @staticmethod
    def of_difference(first: Many[float], second: Many[float]) -> Estimate:
        """Return the mean of first - second over the same runs, in which common effects cancel."""
        return Estimate.of(np.subtract(first, second))

    @property
    def margin(self) -> float:
        """Return half the width of the 95 % confidence interval by Student's t; 0 without a standard error."""
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


ERRORS = 3.0
"""Number of standard errors within which means agree: 95 % intervals would exclude one in twenty of dozens of cells."""

MIN_RUNS = 20
"""Minimum number of runs for a verdict on published means: with fewer, the errors are too large to disagree."""


@dataclass(frozen=True)
class Compared:
    """A published mean and ours.

    Attributes
    ----------
    where, row : the cell: experiment and measure, and the row of the table.
    published, ours : the printed estimate, and ours.
    rounding : half a unit of the last digit printed.
    """

    where: str
    row: str
    published: Estimate
    ours: Estimate
    rounding: float = 0.0005

    @property
    def distance(self) -> float:
        """Return the distance between the means, minus the rounding."""
        return max(abs(self.published.mean - self.ours.mean) - self.rounding, 0.0)

    @property
    def strict(self) -> bool:
        """Return whether the published mean is within three of our standard errors of ours."""
        return self.distance <= ERRORS * (self.ours.error or 0.0)

    @property
    def agrees(self) -> bool:
        """Return whether the difference is within three of its standard errors, which include the published error."""
        return self.distance <= ERRORS * math.hypot(self.ours.error or 0.0, self.published.error or 0.0)

    @property
    def verdict(self) -> str:
        """Return the verdict in words, for a table."""
        return "yes" if self.strict else "by both errors" if self.agrees else "no"


def published(table: str) -> Any:
    """Return a table of a paper; each mean of the Group-OMP paper has its standard error."""
    return json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))[table]


def means_finding(where: str, compared: Many[Compared], more: str = "", runs: str = "runs") -> Finding:
    """Return a finding on how many published means agree, without a verdict for too few runs."""
    strict, agree = sum(c.strict for c in compared), sum(c.agrees for c in compared)
    count = compared[0].ours.runs
    return Finding(
        f"{where}: {strict} of {len(compared)} published means lie within three of our standard errors, {agree} if the "
        f"published errors are included{too_few(count, runs)}{more}.",
        agrees=agree == len(compared) if count >= MIN_RUNS else None,
    )


def too_few(count: int, runs: str = "runs") -> str:
    """Return a remark if the runs are too few for a verdict on published means, otherwise an empty string."""
    return f" ({count} {runs} are too few for a verdict)" if count < MIN_RUNS else ""


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
    """One experiment.

    Attributes
    ----------
    name : name on the command line, and of the folder of its runs.
    title, source : title in the report, and publication; empty if unpublished.
    runs, section : return its runs in a setting, and the report's section from their results.
    sets : names of the data sets that it uses.
    of_the_sets : its verdicts concern these data sets themselves, and are omitted for stand-ins.
    """

    name: str
    title: str
    source: str
    runs: Callable[[Setting], Many[Run]]
    section: Callable[[Setting, Results], Section]
    sets: tuple[str, ...] = ()
    of_the_sets: bool = False

    def reported(self, setting: Setting, results: Results) -> Section:
        """Return its section, without verdicts if the setting does not support them."""
        section = self.section(setting, results)
        if setting.data is not None or not self.of_the_sets:
            return section
        return replace(section, findings=[replace(finding, agrees=None) for finding in section.findings])
