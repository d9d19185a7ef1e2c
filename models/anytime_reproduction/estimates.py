"""Results of runs, joined and estimated: means with their errors, and verdicts by 95 % intervals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

from anytime.types import Float


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
