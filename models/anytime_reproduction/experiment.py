"""An experiment: runs that are worked off one by one, and the section of the report that is made of their results.

A run is a function of the setting and of some plain arguments that returns plain values (what JSON can hold), so that
runs can be spread over processes, kept in files, and taken up again after an interruption.
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
"""What a run returns: plain values by name."""

Results: TypeAlias = Mapping[str, Result]
"""What the runs of one experiment returned, by the name of the run."""


@dataclass(frozen=True)
class Setting:
    """What all experiments share.

    Attributes
    ----------
    data : folder with the real data sets, or None: then stand-ins take their places.
    yahoo : the owners' files (folder, cost file) in the place of the public sample of them, or None.
    quick : fewer runs, for a look.
    seed : of everything random.
    """

    data: Path | None = None
    yahoo: tuple[Path, Path] | None = None
    quick: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Run:
    """One piece of work: `work(setting, **arguments)`.

    Attributes
    ----------
    name : its name in the experiment, fit for a file.
    work : a function at the top of its module, so that another process finds it.
    arguments : plain values.
    alone : nothing else may run beside it, because it measures time.
    """

    name: str
    work: Callable[..., Result]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False


@dataclass(frozen=True)
class Estimate:
    """A mean over runs and its standard error; None where there is one run only, or no more is known.

    Attributes
    ----------
    runs : how many independent values it is the mean of; 1 where that is not known.
    """

    mean: float
    error: float | None = None
    runs: int = 1

    @staticmethod
    def of(values: Many[float] | Float) -> Estimate:
        """Mean and standard error of the mean of independent values."""
        array = np.asarray(values, dtype=np.float64)
        error = float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else None
        return Estimate(float(array.mean()), error, len(array))

    @staticmethod
    def of_difference(first: Many[float], second: Many[float]) -> Estimate:
        """Mean of first - second over the same runs: what they have in common cancels."""
        return Estimate.of(np.subtract(first, second))

    @property
    def margin(self) -> float:
        """Half the width of the 95 % confidence interval by Student's t; 0 where there is no error."""
        return 0.0 if self.error is None or self.runs < 2 else float(t.ppf(0.975, self.runs - 1)) * self.error


Cell: TypeAlias = str | int | float | Estimate | None


@dataclass(frozen=True)
class Table:
    """A table of the report, and of a CSV file of that name.

    Attributes
    ----------
    digits : decimals of the numbers shown; the file has them all.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    digits: int = 4


@dataclass(frozen=True)
class Figure:
    """A picture of the report, and a file of that name; `draw` makes a matplotlib figure."""

    name: str
    caption: str
    draw: Callable[[], Any]


@dataclass(frozen=True)
class Finding:
    """One line on what was found beside what was published; `agrees` is None where nothing was published."""

    text: str
    agrees: bool | None = None


@dataclass(frozen=True)
class Section:
    """What the report says of an experiment: findings first, then words, tables and figures."""

    findings: tuple[Finding, ...]
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes
    ----------
    name : on the command line, and of the folder of its runs.
    title : in the report.
    source : where it was published; empty where it was not.
    runs : its runs in a setting.
    section : what the report says of their results.
    sets : names of the data sets that it is measured on.
    of_the_sets : its verdicts are about these sets themselves, and are withheld where others stand in for them.
    """

    name: str
    title: str
    source: str
    runs: Callable[[Setting], Many[Run]]
    section: Callable[[Setting, Results], Section]
    sets: tuple[str, ...] = ()
    of_the_sets: bool = False

    def reported(self, setting: Setting, results: Results) -> Section:
        """Its section, with the verdicts that the setting allows."""
        section = self.section(setting, results)
        if setting.data is not None or not self.of_the_sets:
            return section
        return replace(section, findings=tuple(replace(finding, agrees=None) for finding in section.findings))
