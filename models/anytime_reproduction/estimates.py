"""Results of runs, joined and estimated: means with their errors, and verdicts on published means and on claims.

Also the repetitions of the Group-OMP paper's experiments, in batches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

from anytime.types import Float
from anytime_reproduction.experiment import Finding, Result, Results, Run, Setting


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


BATCHES, BATCH = 10, 10  # 100 repetitions, as in the Group-OMP paper, ten to a run
ERRORS = 3.0  # standard errors within which means agree: 95 % intervals would exclude one in twenty of many cells
MIN_RUNS = 20  # runs needed for a verdict on published means: with fewer, the errors are too large to disagree


def batched(setting: Setting, work: Callable[..., Result], names: Iterable[str], *, quick: int) -> list[Run]:
    """Return runs `work(setting, name=..., first=..., count=...)` that together repeat each name 100 times.

    A quick run has a single batch of `quick` repetitions.
    """
    batches, size = (1, quick) if setting.quick else (BATCHES, BATCH)
    return [
        Run(f"{name}-{batch}", work, {"name": name, "first": batch * size, "count": size})
        for name in names
        for batch in range(batches)
    ]


def by_name(results: Results, names: Iterable[str]) -> dict[str, Any]:
    """Return the results of each name, with those of its batches in one list, in order."""
    return {n: merged([found for run, found in results.items() if run.rpartition("-")[0] == n]) for n in names}


@dataclass(frozen=True)
class Compared:
    """A cell of a published table and ours; `rounding` is half a unit of the last digit printed."""

    where: str
    row: str
    published: Estimate
    ours: Estimate
    rounding: float = 0.0005

    @property
    def distance(self) -> float:
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
        return "yes" if self.strict else "by both errors" if self.agrees else "no"


def agreeing(cells: Iterable[Compared]) -> int:
    return sum(cell.agrees for cell in cells)


def means_finding(where: str, cells: Sequence[Compared], more: str = "", runs: str = "runs") -> Finding:
    """Return a finding on how many published means agree, without a verdict for too few runs."""
    strict, agree, count = sum(c.strict for c in cells), agreeing(cells), cells[0].ours.runs
    return Finding(
        f"{where}: {strict} of {len(cells)} published means lie within three of our standard errors, {agree} if the "
        f"published errors are included{too_few(count, runs)}{more}.",
        agrees=agree == len(cells) if count >= MIN_RUNS else None,
        judged=True,
    )


def too_few(count: int, runs: str = "runs") -> str:
    """Return a remark if the runs are too few for a verdict on published means, otherwise an empty string."""
    return f" ({count} {runs} are too few for a verdict)" if count < MIN_RUNS else ""
