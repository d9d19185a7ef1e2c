"""Pictures of published means beside ours: hollow markers beside filled ones."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import Any

from anytime.experiments.drawing import panels
from anytime.experiments.experiment import Estimate

__all__ = ["LOOKS", "beside", "experiments", "legend"]

LOOKS: dict[str, tuple[str, str]] = {
    "OLS": ("0.65", "v"),
    "Lasso": ("0.5", "s"),
    "OMP": ("0.5", "^"),
    "Group Lasso": ("0.25", "D"),
    "Group-OMP": ("0.0", "o"),
}
"""Shade and marker of each method."""

APART = 0.16
"""Between two methods, where 1 is between two experiments."""

NUDGE = 0.04
"""Half of what is between ours and the published one."""


def beside(
    axis: Any, number: int, ours: Mapping[str, Estimate], published: Mapping[str, Estimate] | None = None
) -> None:
    """Draw the methods of one experiment about x = number, with bars of one standard error."""
    for place, (method, (shade, marker)) in enumerate(LOOKS.items()):
        x = number + (place - (len(LOOKS) - 1) / 2) * APART
        look = {"color": shade, "marker": marker, "markersize": 5, "linestyle": "none", "elinewidth": 1.0}
        found = ours[method]
        axis.errorbar(x - NUDGE, found.mean, found.error or 0.0, **look)
        if published is not None:
            axis.errorbar(x + NUDGE, published[method].mean, published[method].error, markerfacecolor="white", **look)


def legend(axis: Any, **where: Any) -> None:
    """Markers of the methods, and what is filled and what is hollow."""
    from matplotlib.lines import Line2D  # noqa: PLC0415

    marks = [Line2D([], [], color=s, marker=m, linestyle="none", label=name) for name, (s, m) in LOOKS.items()]
    told = [
        Line2D([], [], color="0.3", marker="o", markerfacecolor=face, linestyle="none", label=label)
        for label, face in (("filled: ours", "0.3"), ("hollow: published", "white"))
    ]
    axis.legend(handles=[*marks, *told], fontsize=8, frameon=False, **where)


def experiments(
    measure: str, ours: Many[Mapping[str, Estimate]], published: Many[Mapping[str, Estimate]], *, log: bool
) -> Any:
    """One panel: the experiments side by side."""
    figure, (axis,) = panels(1, width=6.0, height=3.8)
    for number, (found, printed) in enumerate(zip(ours, published, strict=True), start=1):
        beside(axis, number, found, printed)
    axis.set(xlabel="experiment", ylabel=measure, xticks=range(1, len(ours) + 1))
    if log:
        axis.set_yscale("log")
    else:
        axis.set_ylim(0.0, 1.03)
    legend(axis, loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=4)
    return figure
