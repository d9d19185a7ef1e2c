"""Experiments: runs that are executed one by one, and a report section made from their results.

A run is a function of the setting and of plain arguments that returns plain values (representable in JSON). Runs can
therefore be distributed over processes, stored in files, and resumed after an interruption.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from scipy.stats import t

from anytime.types import Float

__all__ = [
    "Cell",
    "Estimate",
    "Experiment",
    "Figure",
    "Finding",
    "Result",
    "Results",
    "Run",
    "Section",
    "Setting",
    "Table",
]

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
    """One unit of work: `work(setting, **arguments)`.

    Attributes
    ----------
    name : its name in the experiment, valid as a file name.
    work : a top-level function, so that another process can import it.
    arguments : plain values.
    alone : run without other runs at the same time, because it measures time.
    """

    name: str
    work: Callable[..., Result]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False


@dataclass(frozen=True)
class Estimate:
    """A mean over runs and its standard error; None for one run only, or if unknown.

    Attributes
    ----------
    runs : number of independent values in the mean; 1 if unknown.
    """

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


Cell: TypeAlias = str | int | float | Estimate | None


@dataclass(frozen=True)
class Table:
    """A table of the report, also written as a CSV file of that name.

    Attributes
    ----------
    digits : decimals of the numbers shown; the file has all digits.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    digits: int = 4


@dataclass(frozen=True)
class Figure:
    """A figure of the report, also written as a file of that name; `draw` returns a matplotlib figure."""

    name: str
    caption: str
    draw: Callable[[], Any]


@dataclass(frozen=True)
class Finding:
    """One line that compares our result with the published one; `agrees` is None without a published result."""

    text: str
    agrees: bool | None = None


@dataclass(frozen=True)
class Section:
    """The report's section on an experiment: findings first, then text, tables and figures."""

    findings: tuple[Finding, ...]
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes
    ----------
    name : name on the command line, and of the folder of its runs.
    title : title in the report.
    source : publication; empty if unpublished.
    runs : returns its runs in a setting.
    section : returns the report's section from their results.
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
        return replace(section, findings=tuple(replace(finding, agrees=None) for finding in section.findings))
