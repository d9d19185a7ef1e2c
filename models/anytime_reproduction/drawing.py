"""Drawing for the report: every method has its own line style, marker and shade, distinguishable in greyscale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anytime.evaluation.plots import blank_figure
from anytime.types import Float

__all__ = [
    "STYLES",
    "Style",
    "curve",
    "log_axis",
    "panels",
]


@dataclass(frozen=True)
class Style:
    """Look of a line: shade (0 black to 1 white), dashes, marker."""

    shade: str
    dashes: Any
    marker: str = ""


STYLES: dict[str, Style] = {
    "CS-G-FR": Style("0.0", "-"),
    "CS-G-OMP": Style("0.0", "--"),
    "Single": Style("0.45", "-."),
    "No-Whiten": Style("0.45", ":"),
    "G-OMP": Style("0.6", "-", "s"),
    "Doubling": Style("0.3", (0, (5, 1)), "^"),
    "FR Oracle": Style("0.75", "-"),
    "OMP Oracle": Style("0.75", "--"),
    "Sparse": Style("0.5", (0, (3, 1, 1, 1)), "x"),
    "Sparse (shrunken)": Style("0.5", (0, (1, 1)), "o"),
}
"""Styles of the methods, by the paper's names."""

OTHERS = (Style("0.0", "-", "o"), Style("0.4", "--", "s"), Style("0.6", ":", "^"), Style("0.25", "-.", "x"))
"""Styles for all other lines, used in turn."""

MARKS = 12
"""Maximum number of markers on a line."""


def panels(count: int, width: float = 4.6, height: float = 3.6) -> tuple[Any, list[Any]]:
    """Return a figure with panels side by side, and their axes."""
    figure, axes = blank_figure(count, across=True)
    figure.set_size_inches(width * count, height)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
    return figure, axes


def curve(axis: Any, x: Float, y: Float, name: str, number: int = 0, **more: Any) -> None:
    """Draw one line in the style of a method, or the style of that number."""
    style = STYLES.get(name, OTHERS[number % len(OTHERS)])
    every = max(1, len(x) // MARKS)
    axis.plot(
        x,
        y,
        color=style.shade,
        linestyle=style.dashes,
        marker=style.marker or None,
        markevery=every,
        markersize=4,
        linewidth=1.5,
        label=name,
        **more,
    )


def log_axis(axis: Any, name: str, first: float, last: float) -> None:
    """Make the axis "x" or "y" logarithmic between two values."""
    axis.set(**{f"{name}scale": "log", f"{name}lim": (first, last)})
