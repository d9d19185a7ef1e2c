"""Plots of explained variance against cost, for one model or for several methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from anytime._files import check_writable
from anytime.errors import AnytimeError, file_error
from anytime.evaluation.compare import Comparison
from anytime.model.model import Model

FORMATS = (".png", ".svg", ".pdf")
DASHES = ((5, 1), (3, 1, 1, 1), (1, 1), (1, 3), (8, 3), (6, 1, 1, 1, 1, 1))
LINES = ("-", "--", "-.", ":", *((0, dashes) for dashes in DASHES))
"""One line style per method, so that the methods are distinguishable in greyscale."""


def plot_model(model: Model, path: Path) -> None:
    """Draw a model's curve: explained variance and error of each prefix, against its cost.

    Raise AnytimeError if matplotlib is not installed, or the file name has no suffix of a picture.
    """
    figure, axes = blank_figure(2 if model.manifest.prior_error is not None else 1)
    steps = model.manifest.steps
    explained = np.array([model.expected(prefix).r2 for prefix in range(model.steps + 1)], dtype=np.float64)
    unit = model.groups.cost_unit
    gaussian = model.manifest.family == "gaussian"
    label = "R² (training)" if gaussian else "deviance explained (training)"
    style = {"where": "post", "color": "black", "marker": "o", "markersize": 3}
    axes[0].step(model.costs, explained, **style)
    _draw_bound(axes[0], model)
    axes[0].set(ylabel=label, title=f"{model.name}: {model.manifest.method}", ylim=(0, None))
    _label_steps(axes[0], model, explained)
    if model.manifest.prior_error is not None:
        errors = [model.manifest.prior_error, *(step.cv_error for step in steps)]
        axes[1].step(model.costs, errors, linestyle="--", **style)
        axes[1].set(ylabel=f"cross-validated {'error' if gaussian else 'deviance'}", ylim=(0, None))
    axes[-1].set_xlabel(f"cost of the groups computed ({unit})")
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
    worth = [k for k in np.argsort(-gains)[:6] if gains[k] > 0.04 * max(values[-1], 1e-12)]
    for k in worth:
        cost = model.costs[k + 1]
        # Above and to the left of its point, a long name of a late step stays inside the axes and above the curve.
        side, offset = ("right", (-5, 3)) if cost > model.costs[-1] / 2 else ("left", (4, -9))
        name = model.manifest.steps[k].group
        axis.annotate(name, (cost, values[k + 1]), offset, textcoords="offset points", fontsize=8, ha=side)


def plot_comparison(compared: Comparison, cost_unit: str, path: Path) -> None:
    """Draw the methods' curves up to where timeliness stops, for training and test; errors as `plot_model`."""
    sides = {"training": compared.train} | ({"test": compared.test} if compared.test else {})
    figure, axes = blank_figure(len(sides), across=True)
    for axis, (side, curves) in zip(axes, sides.items(), strict=True):
        for (name, curve), style in zip(curves.items(), LINES, strict=True):
            axis.plot(curve.costs, curve.explained_variance, linestyle=style, linewidth=1.4, label=name)
        axis.axvline(compared.stop, color="grey", linewidth=0.8)
        axis.set(title=side, xlim=(0, 1.02 * compared.stop or 1.0), ylim=(0, None), xlabel=f"cost ({cost_unit})")
    axes[0].set_ylabel("explained variance F")
    axes[-1].legend(fontsize=8, loc="lower right")
    write_figure(figure, path)


def blank_figure(panels: int, *, across: bool = False) -> tuple[Any, list[Any]]:
    """Return a figure with panels in a row or a column, which needs no screen."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise AnytimeError("plots require matplotlib; pip install 'anytime-linear[plot]'") from error
    size = (5.5 * panels, 4.2) if across else (7.0, 3.2 * panels)
    figure = Figure(figsize=size, layout="constrained")
    rows, columns = (1, panels) if across else (panels, 1)
    axes = figure.subplots(rows, columns, squeeze=False, sharex="col")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure, list(axes.flat)


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure without interpreting its texts; raise AnytimeError if writing fails."""
    from matplotlib.text import Text  # noqa: PLC0415

    check_writable(path, FORMATS)
    _plain_logarithms(figure)
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # names come from the user, and a dollar sign does not start a formula
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise file_error(AnytimeError, f"write {str(path)!r}", error) from error


def _plain_logarithms(figure: Any) -> None:
    """Format the tick labels of logarithmic axes as numbers; matplotlib writes them as formulas."""
    from matplotlib.ticker import FuncFormatter, LogFormatter, NullFormatter  # noqa: PLC0415

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_formatter(), LogFormatter):
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axis.set_minor_formatter(NullFormatter())
