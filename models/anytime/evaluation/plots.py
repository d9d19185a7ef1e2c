"""Plots of explained variance against cost, for one model or for several methods, and of the shapes of columns."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from anytime._files import check_writable
from anytime.errors import AnytimeError, ValuesError, clipped, file_error
from anytime.evaluation import SHAPES_DRAWN
from anytime.evaluation.shapes import ColumnShape, Level, Point, column_shapes
from anytime.families import family_of
from anytime.features.readers import DATES
from anytime.model.model import Model
from anytime.types import Float

FORMATS = (".png", ".svg", ".pdf")
DASHES = ((5, 1), (3, 1, 1, 1), (1, 1), (1, 3), (8, 3), (6, 1, 1, 1, 1, 1))
LINES = ("-", "--", "-.", ":", *((0, dashes) for dashes in DASHES))
"""One line style per method, so that the methods are distinguishable in greyscale."""


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


@default_style()
def plot_model(model: Model, path: Path) -> None:
    """Draw a model's curve: explained variance and error of each prefix, against its cost.

    Raise AnytimeError if matplotlib is not installed, or the file name has no suffix of a picture.
    """
    figure, axes = blank_figure(2 if model.manifest.prior_error is not None else 1)
    explained = np.array([model.expected(prefix).r2 for prefix in range(model.steps + 1)], dtype=np.float64)
    family = family_of(model.manifest.family)
    style = {"where": "post", "color": "black", "marker": "o", "markersize": 3}
    axes[0].step(model.costs, explained, **style)
    _draw_bound(axes[0], model)
    axes[0].set(ylabel=f"{family.explained} (training)", title=f"{model.name}: {model.manifest.method}", ylim=(0, None))
    _label_steps(axes[0], model, explained)
    if model.manifest.prior_error is not None:
        errors = [model.manifest.prior_error, *(step.cv_error for step in model.manifest.steps)]
        axes[1].step(model.costs, errors, linestyle="--", **style)
        axes[1].set(ylabel=f"cross-validated {family.error}", ylim=(0, None))
    axes[-1].set_xlabel(f"cost of the groups computed ({model.groups.cost_unit})")
    write_figure(figure, path)


def _draw_bound(axis: Any, model: Model) -> None:
    """Draw the certificate: the bound on 2F/P of any set of groups, and the penalised R² of the prefixes.

    F includes the penalty and R² does not, so the curve of R² may exceed the bound.
    """
    found, stopped = model.manifest.certificate, model.manifest.stopped
    if found is None:
        return
    retained = "retained " if stopped is not None and stopped.left_out else ""
    label = f"no set of {retained}groups of this cost has a larger R² minus penalty (certified)"
    share = 2 / len(model.manifest.responses)
    reached = [share * model.expected(prefix).explained_variance for prefix in range(model.steps + 1)]
    axis.step(model.costs, reached, where="post", color="0.45", linewidth=0.8, label="R² minus penalty", zorder=1.5)
    bounds = share * np.array(found.bounds)
    axis.step(model.costs, bounds, where="pre", color="0.45", linestyle="--", linewidth=1.2, label=label, zorder=1.5)
    axis.legend(fontsize=8, loc="lower right")


def _label_steps(axis: Any, model: Model, values: Any) -> None:
    """Name the steps with the largest gains, where there is space."""
    gains = np.diff(values)
    for k in (k for k in np.argsort(-gains)[:6] if gains[k] > 0.04 * max(values[-1], 1e-12)):
        cost = model.costs[k + 1]
        # Above and to the left of its point, a long name of a late step stays inside the axes and above the curve.
        side, offset = ("right", (-5, 3)) if cost > model.costs[-1] / 2 else ("left", (4, -9))
        axis.annotate(
            model.manifest.steps[k].group,
            (cost, values[k + 1]),
            offset,
            textcoords="offset points",
            fontsize=8,
            ha=side,
        )


def blank_figure(panels: int, *, across: bool = False) -> tuple[Any, list[Any]]:
    """Return a figure with panels in a row or a column, which needs no screen."""
    figure = _figure((5.5 * panels, 4.2) if across else (7.0, 3.2 * panels))
    rows, columns = (1, panels) if across else (panels, 1)
    axes = figure.subplots(rows, columns, squeeze=False, sharex="col")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure, list(axes.flat)


def _figure(size: tuple[float, float]) -> Any:
    from matplotlib.figure import Figure  # noqa: PLC0415

    return Figure(figsize=size, layout="constrained")


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure without interpreting its texts; raise AnytimeError if writing fails."""
    from matplotlib.text import Text  # noqa: PLC0415
    from matplotlib.ticker import FuncFormatter, LogFormatter, NullFormatter  # noqa: PLC0415

    check_writable(path, FORMATS)
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if isinstance(axis.get_major_formatter(), LogFormatter):  # matplotlib writes these numbers as formulas
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # names come from the user, and a dollar sign does not start a formula
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise file_error(AnytimeError, f"write {str(path)!r}", error) from error


ACROSS = 3
BINS = 24
MAX_LEVELS = 8
"""Maximum number of levels of a panel, the most frequent ones."""


@default_style()
def plot_shapes(model: Model, path: Path, *, prefix: int | None = None, top: int = SHAPES_DRAWN) -> None:
    """Draw the shapes of the strongest columns of a prefix, with the distribution of the rows below each.

    Raise ValuesError if there is no such prefix or no column, and other errors as `plot_model`.
    """
    shapes = [piece for shape in column_shapes(model, prefix)[:top] for piece in shape.pieces()]
    if not shapes:
        raise ValuesError(f"prefix {prefix} of model {model.name!r} has no columns; expected one that has")
    rows = -(-len(shapes) // ACROSS)
    figure = _figure((4.2 * min(ACROSS, len(shapes)), 2.9 * rows + 0.4))
    scores = list(model.score_names)
    cells = figure.add_gridspec(rows, min(ACROSS, len(shapes)))
    for number, shape in enumerate(shapes):
        cell = cells[divmod(number, ACROSS)].subgridspec(2, 1, height_ratios=(4, 1), hspace=0.06)
        axis = figure.add_subplot(cell[0])
        below = figure.add_subplot(cell[1], sharex=axis)
        strength = float(np.linalg.norm(np.atleast_1d(shape.strength)) / np.sqrt(len(scores)))
        name, group = clipped(shape.name, 24), clipped(shape.group, 24)
        title = name if shape.name == shape.group else f"{name} ({group})"
        axis.set_title(f"{title}  ±{strength:.3g}", fontsize=9)
        axis.axhline(0.0, color="0.6", linewidth=0.8)
        axis.grid(alpha=0.3)
        _draw_shape(axis, below, shape, scores)
        axis.tick_params(labelbottom=False, labelsize=8)
        below.tick_params(labelsize=8)
        below.set(yticks=[], ylim=(0, None))
        below.spines[["top", "right", "left"]].set_visible(False)
    what = family_of(model.manifest.family).link.score
    if len(scores) > 1:
        figure.axes[0].legend(fontsize=7)
    scored = f" of {'class ' * (model.manifest.classes is not None)}{scores[0]}" if len(scores) == 1 else ""
    steps = model.steps if prefix is None else prefix
    figure.suptitle(f"{model.name}, {steps} of {model.steps} steps: contribution to the {what}{scored}", fontsize=11)
    write_figure(figure, path)


def _draw_shape(axis: Any, below: Any, shape: ColumnShape, scores: list[str]) -> None:
    """Draw a line or a curve with marks of the common values, or a bar for each level; below, the shares of rows."""
    bar = {"color": "0.75", "edgecolor": "0.35", "linewidth": 0.5}
    if shape.points:
        x = [point.x for point in shape.points]
        for name, style, values in zip(scores, cycle(LINES), _of_scores(shape.points, len(scores)), strict=False):
            axis.plot(x, values, linestyle=style, color="black", linewidth=1.4, label=name)
        for level in shape.levels:
            axis.plot(len(scores) * [level.level], np.atleast_1d(level.contribution), "ko", markersize=4)
        low, high = _window(shape)
        counts, edges = np.histogram(np.clip(shape.values(), low, high), BINS, (low, high))
        below.bar(edges[:-1], counts, np.diff(edges), align="edge", **bar)
        margin = 0.04 * (high - low)
        right = high + margin
        if shape.missing is not None:
            at = high + 3 * margin
            for value in np.atleast_1d(shape.missing.contribution):
                axis.plot([at], [value], "D", color="black", markerfacecolor="white", markersize=5)
            axis.axvline(high + margin, color="0.6", linewidth=0.8, linestyle=":")
            below.bar([at], [shape.missing.share * counts.sum()], 2 * margin, hatch="////", **bar)
            ticks = [tick for tick in below.get_xticks() if low <= tick <= high]
            below.set_xticks([*ticks, at], [*(f"{tick:.6g}" for tick in ticks), "missing"])
            right = at + 2 * margin
        elif shape.basis == "date":
            ticks = np.linspace(low, high, 4).tolist()
            below.set_xticks(ticks, [DATES.shown(tick).partition("T")[0] for tick in ticks])
        axis.set_xlim(low - margin, right)
        return
    levels = list(shape.levels)
    if shape.basis == "categories":
        levels = sorted(levels, key=lambda level: -level.share)[:MAX_LEVELS]
    named = [(f"{level.level:g}" if isinstance(level.level, float) else str(level.level), level) for level in levels]
    drawn = [*named, *((name, each) for name, each in (("(other)", shape.other), ("(missing)", shape.missing)) if each)]
    places = np.arange(len(drawn))
    for j, values in enumerate(_of_scores([level for _, level in drawn], len(scores))):
        if len(scores) == 1:
            hatches = ["////" if level is shape.missing else "" for _, level in drawn]
            axis.bar(places, values, 0.6, hatch=hatches, **bar)
        else:
            axis.plot(
                places,
                values,
                "osD^vPX*<>"[j % 10],
                color="black",
                markerfacecolor="0.75",
                markersize=5,
                label=scores[j],
            )
    below.bar(places, [level.share for _, level in drawn], 0.6, **bar)
    labels = [clipped(name, 14) for name, _ in drawn]
    below.set_xticks(places, labels, rotation=30 if sum(map(len, labels)) > 30 else 0, ha="center")
    axis.set_xlim(-0.6, len(drawn) - 0.4)


def _of_scores(values: Sequence[Point | Level], scores: int) -> Float:
    """Return contributions as (scores, values)."""
    return np.array([value.contribution for value in values], dtype=np.float64).reshape(len(values), scores).T


def _window(shape: ColumnShape) -> tuple[float, float]:
    """Return the ends of the x-axis: those of the line, unless few rows lie far out."""
    low, high = shape.points[0].x, shape.points[-1].x
    if shape.quantiles is not None:
        early, late = np.quantile(shape.quantiles, [0.05, 0.95]).tolist()
        if late > early:
            low, high = max(low, 2 * early - late), min(high, 2 * late - early)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
