"""Experiments: runs that are executed one by one, estimates from their results, and a report section made of these.

A run is a function of the setting and of plain arguments that returns plain values (representable in JSON). Runs can
therefore be distributed over processes, stored in files, and resumed after an interruption.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from scipy.stats import t

from anytime.evaluation.page.charts import Chart
from anytime.tabulated import Series, Tabulated
from anytime.types import Float

Result: TypeAlias = dict[str, Any]  # return value of a run: plain values by name
Results: TypeAlias = Mapping[str, Result]  # results of the runs of one experiment, by the name of the run


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

    def replaces(self, name: str) -> bool:
        """Return whether a stand-in replaces a data set."""
        return self.data is None and not (name == "yahoo_sample" and self.yahoo is not None)

    def labelled(self, text: str, name: str) -> str:
        """Return a text on a data set, with a label if a stand-in replaces the set."""
        return f"{text} (stand-in)" if self.replaces(name) else text


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
class Finding:
    """One line on our result, or on several `claims` of a paper that have the same verdict.

    `agrees` is None without a verdict: where nothing is published, or, if `judged`, where our numbers do not decide.
    """

    text: str
    agrees: bool | None = None
    judged: bool = False
    claims: int = 1

    @property
    def verdict(self) -> str:
        return {True: "agrees", False: "differs", None: "undecided" if self.judged else "noted"}[self.agrees]


@dataclass(frozen=True, eq=False, repr=False)
class Table(Tabulated):
    """A table of the report; also written as a CSV file of that name, with all digits.

    A cell is text, a number, an `Estimate`, or None if it is empty.
    """

    name: str = ""

    @classmethod
    def titled(
        cls, name: str, caption: str, headings: Iterable[str], rows: Iterable[Iterable[object]], digits: int = 4
    ) -> Table:
        """Return a table of rows, with `digits` decimals."""
        return cls.of_rows(headings, rows, f".{digits}f", missing="", caption=caption, name=name)

    @classmethod
    def of_records(cls, name: str, caption: str, records: Sequence[Mapping[str, object]], digits: int = 4) -> Table:
        """Return a table of records of the same headings, with `digits` decimals."""
        return cls.titled(name, caption, records[0], [record.values() for record in records], digits)

    def mark(self, column: Series, row: int) -> str:
        """Return "published" for the cells of a column or a row that says so."""
        published = row >= 0 and "published" in f"{column.heading} {self.columns[0].cells[row]}"
        return "published" if published else super().mark(column, row)


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure of the report, also written as a file of that name: charts next to each other."""

    name: str
    caption: str
    charts: Sequence[Chart]


@dataclass(frozen=True)
class Section:
    """The report's section on an experiment: findings first, then text, tables and figures."""

    findings: Sequence[Finding]
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()


@dataclass(frozen=True)
class Experiment:
    """One experiment, by its name on the command line; `source` is its publication, empty if unpublished.

    `runs` returns its runs in a setting, `section` the report's section from their results. Verdicts that are
    `of_the_sets`, the data sets themselves, are omitted for stand-ins. The sets `without_stand_in` are measured only if
    there are real data sets.
    """

    name: str
    title: str
    source: str
    runs: Callable[[Setting], Sequence[Run]]
    section: Callable[[Setting, Results], Section]
    sets: tuple[str, ...] = ()
    of_the_sets: bool = False
    without_stand_in: tuple[str, ...] = ()

    def reported(self, setting: Setting, results: Results) -> Section:
        section = self.section(setting, results)
        if setting.data is not None or not self.of_the_sets:
            return section
        measured = (name for name in self.sets if name not in self.without_stand_in)
        replaced = ", ".join(filter(setting.replaces, measured))
        findings = [
            Finding(f"Not a reproduction: no published data here (stand-ins for {replaced})."),
            *(replace(finding, agrees=None, judged=False) for finding in section.findings),
        ]
        return replace(section, findings=findings)


# Results of runs, joined and estimated: means with their errors, and verdicts by 95 % intervals.


@dataclass(frozen=True)
class Estimate:
    """A mean over runs, its standard error (None if unknown), and the number of independent values (1 if unknown)."""

    mean: float
    error: float | None = None
    runs: int = 1

    @staticmethod
    def of(values: Sequence[float] | Float) -> Estimate:
        array = np.asarray(values, dtype=np.float64)
        error = float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else None
        return Estimate(float(array.mean()), error, len(array))

    @staticmethod
    def of_difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
        """Return the estimate of first - second over the same runs, in which common effects cancel."""
        return Estimate.of(np.subtract(first, second))

    def __format__(self, form: str) -> str:
        return format(self.mean, form) + ("" if self.error is None else f" ± {self.error:{form}}")

    @property
    def margin(self) -> float:
        """Return half the width of the 95 % interval by Student's t; 0 without a standard error."""
        return 0.0 if self.error is None or self.runs < 2 else float(t.ppf(0.975, self.runs - 1)) * self.error

    @property
    def direction(self) -> int:
        """Return 1 or -1 if the 95 % interval is entirely above or below 0, otherwise 0."""
        return int(np.sign(self.mean)) if self.runs > 1 and abs(self.mean) > self.margin else 0


def published(table: str) -> Any:
    """Return a table of a paper; each mean of the Group-OMP paper has its standard error."""
    return json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))[table]


def merged(parts: Sequence[Any]) -> Any:
    """Return results of the same form as one: their lists are joined, at any depth; other values are of the first."""
    if isinstance(parts[0], dict):
        return {key: merged([part[key] for part in parts]) for key in parts[0]}
    return [value for part in parts for value in part] if isinstance(parts[0], list) else parts[0]


def unanimous(verdicts: Iterable[bool | None]) -> bool | None:
    """Return whether all verdicts agree; None if none disagrees but some are undecided."""
    found = set(verdicts)
    return False if False in found else None if None in found else True
