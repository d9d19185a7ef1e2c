"""Charts as files, drawn by matplotlib: those of a model's page, and any other."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from anytime._files import check_writable
from anytime.errors import AnytimeError, clipped, file_error
from anytime.evaluation import SHAPES_DRAWN
from anytime.evaluation.page.charts import COLOURS, MAX_LABEL, STRIP, Chart
from anytime.evaluation.page.pictures import curve_chart, model_curve, score_words, shape_charts, strongest_shapes
from anytime.model.model import Model
from anytime.tabulated import shown
from anytime.types import Float

FORMATS = (".png", ".svg", ".pdf")
DASHES = ((5, 1), (3, 1, 1, 1), (1, 1), (1, 3), (8, 3), (6, 1, 1, 1, 1, 1))
LINES = ("-", "--", "-.", ":", *((0, dashes) for dashes in DASHES))
"""One line style for each colour, and then for each colour of a dashed line: they are distinguishable in greyscale."""

ACROSS = 3
"""Charts next to each other."""


@contextmanager
def default_style() -> Iterator[None]:
    """Draw as matplotlib does by default, whatever a matplotlibrc or a notebook sets; raise AnytimeError without it."""
    backend = os.environ.get("MPLBACKEND")
    try:
        if "matplotlib" not in sys.modules:
            os.environ["MPLBACKEND"] = "agg"  # that of a notebook may not be installed here
        from matplotlib import style  # noqa: PLC0415
    except ImportError as error:
        raise AnytimeError("plots require matplotlib; pip install 'anytime-linear[plot]'") from error
    finally:
        if backend is None:
            os.environ.pop("MPLBACKEND", None)
        else:
            os.environ["MPLBACKEND"] = backend
    with style.context("default"):
        yield


class Plot(Chart):
    """A chart that matplotlib draws, in black, on linear axes."""

    def __init__(
        self,
        title: str,
        x: tuple[float, float],
        y: tuple[float, float],
        *labels: str,
        levels: Sequence[str] | None = None,
        x_shown: Callable[[float], str] = shown,
    ) -> None:
        super().__init__(title, x, y, levels=levels)
        self._named, self._x_shown = labels, x_shown
        self._marks: list[Callable[[Any], object]] = []

    def draw(self, axis: Any) -> None:
        """Draw on an axis of matplotlib."""
        names = dict(zip(("xlabel", "ylabel"), self._named, strict=False))
        axis.set(xlim=self._x, ylim=self._y, **names)
        axis.set_title(self._title, fontsize=9)
        axis.grid(alpha=0.3)
        if self._levels is not None:
            turned = 30 if sum(map(len, self._levels)) > MAX_LABEL else 0
            axis.set_xticks(range(len(self._levels)), [clipped(name, 14) for name in self._levels], rotation=turned)
        elif self._x_shown is not shown:
            axis.xaxis.set_major_formatter(lambda value, _: self._x_shown(value))
        for mark in self._marks:
            mark(axis)
        if len(axis.get_legend_handles_labels()[1]) > 1:
            axis.legend(fontsize=8)

    def line(
        self,
        x: Float,
        y: Float,
        colour: int = 0,
        label: str = "",
        *,
        stairs: Literal["after", "before"] | None = None,
        dashed: bool = False,
    ) -> None:
        """Draw a line, as `Chart.line`."""
        shape = {"after": "steps-post", "before": "steps-pre", None: "default"}[stairs]
        look = {"color": "black", "linewidth": 1.4, "linestyle": LINES[(colour + COLOURS * dashed) % len(LINES)]}
        self._marks.append(lambda axis: axis.plot(x, y, drawstyle=shape, label=label or None, **look))

    def points(
        self,
        x: Float,
        y: Float,
        titles: Any,  # noqa: ARG002
        colour: int = 0,
        label: str = "",
        errors: Float | None = None,
    ) -> None:
        """Draw points, as `Chart.points`."""
        look = {"color": "black", "fmt": "osD^v"[colour], "markersize": 3, "markerfacecolor": "0.75"}
        self._marks.append(lambda axis: axis.errorbar(x, y, errors, label=label or None, **look))

    def bars(self, heights: Float, titles: Any, colour: int = 0, width: float = 0.7) -> None:  # noqa: ARG002
        """Draw bars, as `Chart.bars`."""
        look = {"color": "0.75", "edgecolor": "0.35", "linewidth": 0.5}
        self._marks.append(lambda axis: axis.bar(range(len(heights)), heights, width, **look))

    def strip(self, edges: Float, shares: Float, titles: Any) -> None:  # noqa: ARG002
        """Draw the shares of the rows, as `Chart.strip`."""
        tall = STRIP * (self._y[1] - self._y[0]) * shares / max(shares.max(initial=0.0), 1e-300)
        look = {"bottom": self._y[0], "align": "edge", "color": "0.9", "zorder": 0}
        self._marks.append(lambda axis: axis.bar(edges[:-1], tall, np.diff(edges), **look))

    def label(self, x: float, low: float, high: float, words: str) -> None:
        """Write words next to lines, as `Chart.label`: above them and on the left of a point near the right end."""
        side, y, offset = ("right", high, (-5, 3)) if x > np.mean(self._x) else ("left", low, (4, -9))
        look = {"textcoords": "offset points", "fontsize": 8, "ha": side}
        self._marks.append(lambda axis: axis.annotate(clipped(words, MAX_LABEL), (x, y), offset, **look))


@default_style()
def plot_model(model: Model, path: Path) -> None:
    """Draw what each prefix of a model explains against its cost, in training and on held-out rows.

    Raise AnytimeError if matplotlib is not installed, or the file name has no suffix of a picture.
    """
    write_charts([curve_chart(model_curve(model), kind=Plot)], path, (7.0, 4.2), model.name)


@default_style()
def plot_shapes(model: Model, path: Path, *, prefix: int | None = None, top: int = SHAPES_DRAWN) -> None:
    """Draw the shapes of the strongest columns of a prefix, with the distribution of the rows below each.

    Raise ValuesError if there is no such prefix or no column, and other errors as `plot_model`.
    """
    shapes = strongest_shapes(model, top, prefix)
    charts = [chart for shape in shapes for chart in shape_charts(model, shape, kind=Plot)]
    steps = f"{model.steps if prefix is None else prefix} of {model.steps} steps"
    write_charts(charts, path, (4.2, 2.9), f"{model.name}, {steps}: contribution to the {score_words(model)}")


def write_charts(charts: Sequence[Any], path: Path, size: tuple[float, float], title: str = "") -> None:
    """Write charts next to each other, each of a size in inches, below a title; raise AnytimeError if writing fails.

    No text is interpreted: names come from the user, and a dollar sign does not start a formula.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.text import Text  # noqa: PLC0415

    check_writable(path, FORMATS)
    across = min(len(charts), ACROSS)
    down = -(-len(charts) // across)
    figure = Figure(figsize=(size[0] * across, size[1] * down), layout="constrained")
    figure.suptitle(title, fontsize=11)
    for number, chart in enumerate(charts, 1):
        chart.draw(figure.add_subplot(down, across, number))
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise file_error(AnytimeError, f"write {str(path)!r}", error) from error
