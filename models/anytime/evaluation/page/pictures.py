"""The pictures of a model that the report, notebooks and the console share: its curve and the shapes of its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from anytime.errors import ValuesError, clipped
from anytime.evaluation.explained import ModelCurve
from anytime.evaluation.page.charts import Chart
from anytime.evaluation.shapes import ColumnShape, Level, column_shapes
from anytime.features.expansion import Column
from anytime.model.model import Model
from anytime.tabulated import SHARE, shown
from anytime.types import Float

LEVELS_SHOWN = 10
SCORES_SHOWN = 5
"""Most lines of a shape: the first scores."""

BINS = 24


def curve_chart(curve: ModelCurve, tested: tuple[str, Float, Float | None] | None = None) -> Chart:
    """Return the chart of what is explained against cost.

    Parameters
    ----------
    tested : tuple[str, Float, Float | None] | None
        Name of a test table, R² on it of shape (steps + 1,), and its standard errors if they are known.
    """

    def of(field: str) -> Float:
        return np.array([getattr(point, field) for point in curve.points], dtype=np.float64)

    costs, training = of("cost"), of("r2")
    optional = [
        ("cross-validated", of("cv_r2"), 1, "after", True),
        ("guaranteed", of("guaranteed_r2"), 3, "after", True),
    ]
    if curve.certified is not None:
        # The bound for the cost of a prefix also applies to lower costs, so the line extends to the left of each point.
        optional += [
            ("training, less the penalty", of("penalised_r2"), 4, "after", False),
            ("best possible, certified", of("certified_r2"), 4, "before", True),
        ]
    lines = [("training", training, 0, "after", False), *(line for line in optional if np.isfinite(line[1]).any())]
    if tested is not None:
        lines.append((f"test ({tested[0]})", tested[1], 2, "after", False))
    values = np.concatenate([line[1][np.isfinite(line[1])] for line in lines])
    low, high = (min(0.0, np.quantile(values, 0.02)), values.max() * 1.15) if len(values) else (0.0, 1.0)
    name = curve.explained[0].upper() + curve.explained[1:]
    chart = Chart(
        f"{name} against cost", (0.0, float(costs[-1])), (float(low), float(high)),
        f"cost of the groups used ({curve.cost_unit})", name,
    )  # fmt: skip
    for label, each, colour, stairs, dashed in lines:
        chart.line(costs, each, colour, label, stairs="before" if stairs == "before" else "after", dashed=dashed)
    names = ["base rate", *(str(point.group) for point in curve.points[1:])]
    kind, drawn, errors = ("", training, None) if tested is None else ("test ", tested[1], tested[2])
    titles = [f"{name}: cost {c:g}, {kind}r2 {r:.4g}" for name, c, r in zip(names, costs, drawn, strict=True)]
    chart.points(costs, drawn, titles, 0 if tested is None else 2, errors=errors)
    gains = np.diff(training)
    drawn_lines = np.array([line[1] for line in lines if line[0] != "guaranteed"])
    lows, highs = np.nanmin(drawn_lines, axis=0), np.nanmax(drawn_lines, axis=0)
    if errors is not None:
        lows, highs = np.fmin(lows, drawn - errors), np.fmax(highs, drawn + errors)
    for k in (1 + np.argsort(-np.nan_to_num(gains))[:4]).tolist():
        if gains[k - 1] > 0.04 * max(training[-1], 1e-12):
            chart.label(float(costs[k]), float(lows[k]), float(highs[k]), names[k])
    return chart


def shape_pictures(model: Model, top: int, prefix: int | None = None) -> list[str]:
    """Return the charts of the strongest columns, on one scale so that they compare."""
    if top < 1:
        raise ValuesError(f"top is {top}; expected a number of columns, 1 or more")
    shapes = column_shapes(model, prefix)[:top]
    if not shapes:
        raise ValuesError(f"prefix {prefix} of model {model.name!r} has no columns; expected one that has")
    drawn = [_drawn(shape)[1] for shape in shapes]
    ends = min(0.0, *(float(y.min(initial=0.0)) for y in drawn)), max(0.0, *(float(y.max(initial=0.0)) for y in drawn))
    return [
        chart.svg(caption_of(shape)) for shape in shapes for chart in shape_charts(model, shape, ends=ends)
    ]  # fmt: skip


def caption_of(shape: ColumnShape) -> str:
    """Return the names of a column and its group, and the deviation of its contribution, whole and alone."""
    strength = float(np.sqrt(np.mean(np.square(shape.strength))))
    title = clipped(shape.name, 40) if shape.name == shape.group else f"{clipped(shape.name)} ({clipped(shape.group)})"
    return f"{title}, ±{strength:.3g}" + ("" if shape.unique is None else f", alone ±{shape.unique:.3g}")


def shape_charts(
    model: Model, shape: ColumnShape, scores: Sequence[int] | None = None, ends: tuple[float, float] | None = None
) -> Iterator[Chart]:
    """Yield the charts of a shape: its line and its levels, such as the months of dates or common values.

    Parameters
    ----------
    scores : Sequence[int] | None
        Indices of the scores that are drawn, the first ones by default.
    ends : tuple[float, float] | None
        Of the y axis, those of the shape by default.
    """
    drawn = range(len(model.score_names))[:SCORES_SHOWN] if scores is None else scores
    text = next(text_of(column) for column in model.expansion.columns if column.name == shape.name)
    yield _shape(model, shape, drawn, ends, text)
    if shape.points and shape.levels:
        yield _shape(model, replace(shape, points=(), missing=None), drawn, ends, text)


def text_of(column: Column) -> Callable[[float], str]:
    """Return how a raw number of a column is shown: as in a request, but a date without its time."""
    return shown if column.reader is None else lambda value: str(column.shown(value)).partition("T")[0]


def _drawn(shape: ColumnShape) -> tuple[Float, Float, list[tuple[str, Level]]]:
    """Return what is drawn of a shape: x (corners,) of its line, y (corners or levels, scores), and its levels.

    A line is drawn from the 2 % to the 98 % quantile of the rows where these are stored, without levels; otherwise x is
    empty.
    """
    if not shape.points:
        # By what each adds to the variance of the contribution.
        ranked = sorted(shape.levels, key=lambda each: -each.share * float(np.square(each.contribution).sum()))
        levels = [
            *((str(each.level), each) for each in ranked[:LEVELS_SHOWN]),
            *((name, each) for name, each in (("(other)", shape.other), ("(missing)", shape.missing)) if each),
        ]
        return (
            np.empty(0),
            np.array([np.atleast_1d(level.contribution) for _, level in levels], dtype=np.float64),
            levels,
        )
    x = np.array([point.x for point in shape.points])
    y = np.array([np.atleast_1d(point.contribution) for point in shape.points], dtype=np.float64)
    low, high = float(x[0]), float(x[-1])
    if shape.quantiles is not None and shape.quantiles[-1] > shape.quantiles[0]:
        ends = np.quantile(shape.quantiles, [0.02, 0.98]).tolist()
        low, high = ends if ends[1] > ends[0] else (low, high)
    at = np.unique(np.concatenate([[low, high], x[(x > low) & (x < high)]]))
    return at, np.column_stack([np.interp(at, x, column) for column in y.T]), []


def _shape(
    model: Model,
    shape: ColumnShape,
    scores: Sequence[int],
    ends: tuple[float, float] | None,
    text: Callable[[float], str],
) -> Chart:
    title, named = caption_of(shape), model.score_names
    x, y, levels = _drawn(shape)
    y = y[:, list(scores)]
    if ends is None:
        gaps = [] if shape.missing is None else np.atleast_1d(shape.missing.contribution)[list(scores)].tolist()
        ends = float(min([y.min(initial=0.0), *gaps])), float(max([y.max(initial=0.0), *gaps]))
    if shape.points:
        low, high = float(x[0]), float(x[-1])
        chart = Chart(title, (low, high), ends, clipped(shape.name, 40), x_shown=text)
        if shape.quantiles is not None and high > low:
            counts, edges = np.histogram(shape.values(), BINS, (low, high))
            shares = counts / max(len(shape.values()), 1)
            chart.strip(edges, shares, [f"{shown(share, SHARE)} of the rows" for share in shares.tolist()])
        for column, score in enumerate(scores):
            chart.line(x, y[:, column], column % SCORES_SHOWN, named[score])
        if shape.missing is not None and len(scores) == 1:
            level = np.full(2, np.atleast_1d(shape.missing.contribution)[scores[0]], dtype=np.float64)
            chart.line(x[[0, -1]], level, 4, "missing", dashed=True)
        return chart
    names, count = [name for name, _ in levels], len(levels)
    chart = Chart(title, (-0.6, count - 0.4), ends, clipped(shape.name, 40), levels=names)
    of_rows = [level.share for _, level in levels]
    edges = np.arange(count + 1, dtype=np.float64) - 0.5
    chart.strip(edges, np.array(of_rows), [f"{shown(share, SHARE)} of the rows" for share in of_rows])
    for column, (score, heights) in enumerate(zip(scores, y.T, strict=True)):
        titles = [
            f"{name}: {at:.4g}, {shown(share, SHARE)} of the rows"
            for name, at, share in zip(names, heights, of_rows, strict=True)
        ]
        if len(scores) == 1:
            chart.bars(heights, titles)
        else:
            chart.points(np.arange(float(count)), heights, titles, column % SCORES_SHOWN, named[score])
    return chart
