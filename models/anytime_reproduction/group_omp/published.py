"""The published figures of the Group-OMP paper (Tables 1 and 2), and their comparison with ours.

The tables have means and standard errors over 100 runs. The module also judges agreement and paired differences, draws
published means (hollow markers) next to ours (filled markers), and splits repetitions into batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

from anytime_reproduction.experiment import Estimate, Result, Results, Run, Setting
from anytime_reproduction.report import panels

__all__ = [
    "LOOKS",
    "MIN_RUNS",
    "TABLE_1",
    "TABLE_2",
    "Compared",
    "batched",
    "by_name",
    "direction",
    "draw_methods",
    "experiments",
    "legend",
    "verdict",
]

_GROUPED = {
    "Group Lasso (Oracle)": "0.545 0.010  0.449 0.011  0.693 0.005  0.755 0.002",
    "Group Lasso (Holdout)": "0.624 0.017  0.459 0.016  0.706 0.013  0.794 0.008",
    "Group-OMP (Oracle)": "0.730 0.017  0.998 0.002  0.999 0.001  0.998 0.002",
    "Group-OMP (Holdout)": "0.615 0.020  0.921 0.012  0.918 0.011  0.890 0.011",
}

_PRINTED = {
    "F1 (Var)": {
        "OLS": "0.333 0  0.222 0  0.545 0  0.750 0",
        "Lasso (Oracle)": "0.483 0.010  0.541 0.010  0.771 0.007  0.817 0.004",
        "Lasso (Holdout)": "0.389 0.012  0.528 0.015  0.758 0.015  0.810 0.005",
        "OMP (Oracle)": "0.531 0.019  0.787 0.009  0.532 0.004  0.781 0.005",
        "OMP (Holdout)": "0.422 0.014  0.728 0.013  0.477 0.006  0.741 0.006",
        **_GROUPED,
    },
    "F1 (Group)": {
        "OLS": "0.333 0  0.222 0  0.194 0  0.750 0",
        "Lasso (Oracle)": "0.458 0.012  0.346 0.008  0.494 0.011  0.751 0.001",
        "Lasso (Holdout)": "0.511 0.010  0.340 0.014  0.547 0.029  0.776 0.006",
        "OMP (Oracle)": "0.687 0.018  0.808 0.020  0.224 0.004  0.842 0.010",
        "OMP (Holdout)": "0.621 0.020  0.721 0.025  0.421 0.026  0.827 0.010",
        "Group Lasso (Oracle)": "0.545 0.010  0.449 0.011  0.317 0.006  0.755 0.002",
        "Group Lasso (Holdout)": "0.624 0.017  0.459 0.016  0.364 0.018  0.794 0.008",
        "Group-OMP (Oracle)": "0.730 0.017  0.998 0.002  0.998 0.001  0.998 0.002",
        "Group-OMP (Holdout)": "0.615 0.020  0.921 0.012  0.782 0.025  0.890 0.011",
    },
    "ME": {
        "OLS": "3.184 0.129  7.063 0.251  19.592 0.451  46.845 0.985",
        "Lasso (Oracle)": "1.203 0.078  1.099 0.067  9.228 0.285  30.343 0.796",
        "Lasso (Holdout)": "2.536 0.097  1.309 0.080  12.987 0.670  38.089 1.353",
        "OMP (Oracle)": "0.711 0.020  1.052 0.061  19.006 0.443  38.497 0.926",
        "OMP (Holdout)": "0.945 0.031  1.394 0.102  28.246 1.942  48.564 1.957",
        "Group Lasso (Oracle)": "0.457 0.021  0.867 0.052  11.538 0.370  31.053 0.831",
        "Group Lasso (Holdout)": "1.279 0.017  1.047 0.075  14.979 0.538  37.359 1.260",
        "Group-OMP (Oracle)": "0.601 0.0273  0.379 0.035  6.727 0.252  27.765 0.703",
        "Group-OMP (Holdout)": "0.965 0.050  0.605 0.089  12.553 1.469  35.989 1.127",
    },
}


def _estimates(line: str) -> tuple[Estimate, ...]:
    numbers = [float(word) for word in line.split()]
    return tuple(Estimate(mean, error) for mean, error in zip(numbers[::2], numbers[1::2], strict=True))


TABLE_1: dict[str, dict[str, tuple[Estimate, ...]]] = {
    measure: {row: _estimates(line) for row, line in rows.items()} for measure, rows in _PRINTED.items()
}
"""Estimates by measure and row, one for each of the four experiments."""

TABLE_2: dict[str, tuple[Estimate, Estimate]] = {
    "OLS": (Estimate(29.30, 3.25), Estimate(13.0, 0.0)),
    "Lasso": (Estimate(17.82, 0.48), Estimate(12.82, 0.05)),
    "OMP": (Estimate(19.10, 0.78), Estimate(11.51, 0.20)),
    "Group Lasso": (Estimate(18.45, 0.59), Estimate(12.50, 0.13)),
    "Group-OMP": (Estimate(17.60, 0.51), Estimate(9.09, 0.31)),
}
"""Test prediction error and number of original variables, by method."""


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
    def away(self) -> float:
        """Return the distance between the means, minus the rounding."""
        return max(abs(self.published.mean - self.ours.mean) - self.rounding, 0.0)

    @property
    def strict(self) -> bool:
        """Return whether the published mean is within three of our standard errors of ours."""
        return self.away <= ERRORS * (self.ours.error or 0.0)

    @property
    def agrees(self) -> bool:
        """Return whether the difference is within three of its standard errors, which include the published error."""
        return self.away <= ERRORS * math.hypot(self.ours.error or 0.0, self.published.error or 0.0)

    @property
    def verdict(self) -> str:
        """Return the verdict in words, for a table."""
        return "yes" if self.strict else "by both errors" if self.agrees else "no"


def verdict(agrees: bool, runs: int) -> bool | None:
    """Return the result of a comparison with published means, or None for too few runs."""
    return agrees if runs >= MIN_RUNS else None


def direction(difference: Estimate) -> int:
    """Return 1 or -1 if the 95 % interval of a difference is entirely above or below 0, otherwise 0."""
    if difference.runs < 2 or abs(difference.mean) <= difference.margin:
        return 0
    return 1 if difference.mean > 0.0 else -1


LOOKS: dict[str, tuple[str, str]] = {
    "OLS": ("0.65", "v"),
    "Lasso": ("0.5", "s"),
    "OMP": ("0.5", "^"),
    "Group Lasso": ("0.25", "D"),
    "Group-OMP": ("0.0", "o"),
}
"""Shade and marker of each method."""

APART = 0.16
"""Distance between two methods, where 1 is the distance between two experiments."""

NUDGE = 0.04
"""Half of the distance between ours and the published mean."""


def draw_methods(
    axis: Any, number: int, ours: Mapping[str, Estimate], published: Mapping[str, Estimate] | None = None
) -> None:
    """Draw the methods of one experiment around x = number, with error bars of one standard error."""
    for index, (method, (shade, marker)) in enumerate(LOOKS.items()):
        x = number + (index - (len(LOOKS) - 1) / 2) * APART
        look = {"color": shade, "marker": marker, "markersize": 5, "linestyle": "none", "elinewidth": 1.0}
        found = ours[method]
        axis.errorbar(x - NUDGE, found.mean, found.error or 0.0, **look)
        if published is not None:
            axis.errorbar(x + NUDGE, published[method].mean, published[method].error, markerfacecolor="white", **look)


def legend(axis: Any, **where: Any) -> None:
    """Add a legend of the methods' markers, and of filled and hollow markers."""
    from matplotlib.lines import Line2D  # noqa: PLC0415

    marks = [Line2D([], [], color=s, marker=m, linestyle="none", label=name) for name, (s, m) in LOOKS.items()]
    fills = [
        Line2D([], [], color="0.3", marker="o", markerfacecolor=face, linestyle="none", label=label)
        for label, face in (("filled: ours", "0.3"), ("hollow: published", "white"))
    ]
    axis.legend(handles=[*marks, *fills], fontsize=8, frameon=False, **where)


def experiments(
    measure: str, ours: Many[Mapping[str, Estimate]], published: Many[Mapping[str, Estimate]], *, log: bool
) -> Any:
    """Return a figure with one panel of the experiments side by side."""
    figure, (axis,) = panels(1, width=6.0, height=3.8)
    for number, (found, printed) in enumerate(zip(ours, published, strict=True), start=1):
        draw_methods(axis, number, found, printed)
    axis.set(xlabel="experiment", ylabel=measure, xticks=range(1, len(ours) + 1))
    if log:
        axis.set_yscale("log")
    else:
        axis.set_ylim(0.0, 1.03)
    legend(axis, loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=4)
    return figure


BATCHES, BATCH = 10, 10
"""100 repetitions, as in the paper, ten to a run."""


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
