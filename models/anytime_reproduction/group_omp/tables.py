"""Tables of the Group-OMP paper compared with ours: repetitions in batches, and published means with their errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from anytime_reproduction.experiment import Estimate, Finding, Result, Results, Run, Setting, merged

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
