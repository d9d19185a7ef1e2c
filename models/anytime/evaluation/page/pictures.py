"""The pictures of a model that the report, notebooks and the console share: its curve and the shapes of its columns.

The curve is what each prefix explains: in training, on held-out rows, and the bounds of guarantee and certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anytime.errors import ValuesError, clipped
from anytime.evaluation.page.charts import Chart
from anytime.evaluation.shapes import ColumnShape, Level, column_shapes
from anytime.families import family_of
from anytime.features.expansion import Column
from anytime.model.model import Model, at_least
from anytime.tabulated import SHARE, shown
from anytime.training.guarantee import bound, buys_no_group, doubling_bound
from anytime.types import Float

LEVELS_SHOWN = 10
SCORES_SHOWN = 5
"""Most lines of a shape: the first scores."""

BINS = 24


@dataclass(frozen=True)
class CurvePoint:
    """A prefix: its cost and its explained shares.

    `r2` is R² on the training data. `cv_r2` is R² on held-out rows: 1 - cv_error/variance of the response; for several
    responses 1 - mean error/mean variance; for a likelihood 1 - deviance/null deviance. The theory is about F, which
    includes the penalty: `penalised_r2` is 2F over the number of responses, and `guaranteed_r2` is its lower bound. For
    a certified model, every set of its groups of this cost or less has a `penalised_r2` of at most `certified_r2`, and
    the prefix reaches at least the share `certified_share` of the best possible F. An unknown field is None; `r2` and
    `cv_r2` are None if a response is constant in training.
    """

    prefix: int
    group: str | None
    cost: float
    r2: float | None
    cv_r2: float | None
    cv_error: float | None
    penalised_r2: float | None
    guaranteed_r2: float | None
    certified_r2: float | None
    certified_share: float | None


@dataclass(frozen=True)
class ModelCurve:
    """The curve of a model, starting at the base rate.

    `explained` names its measure. `promise` describes the guarantee behind `guaranteed_r2`. `certified` summarises
    `certified_r2`; it is None if the model is not certified.
    """

    model: str
    version: str
    cost_unit: str
    explained: str
    points: tuple[CurvePoint, ...]
    promise: str
    certified: str | None


def model_curve(model: Model) -> ModelCurve:
    """Return the curve of a model."""
    steps = model.manifest.steps
    lower, shares, certificate = _floor(model), model.certified_shares, model.manifest.certificate
    points = tuple(
        CurvePoint(
            prefix=prefix,
            group=steps[prefix - 1].group if prefix else None,
            cost=float(model.costs[prefix]),
            r2=model.expected(prefix).r2,
            cv_r2=_held_out(model, prefix),
            cv_error=model.expected(prefix).cv_error,
            penalised_r2=_penalised(model, prefix),
            guaranteed_r2=lower[prefix],
            certified_r2=None
            if certificate is None
            else 2 * certificate.bounds[prefix] / len(model.manifest.responses),
            certified_share=None if shares is None else shares[prefix],
        )
        for prefix in range(model.steps + 1)
    )
    return ModelCurve(
        model=model.name,
        version=model.version,
        cost_unit=model.groups.cost_unit,
        explained=family_of(model.manifest.family).explained,
        points=points,
        promise=_guarantee_text(model),
        certified=_certified(model),
    )


def _held_out(model: Model, prefix: int) -> float | None:
    expected, null = model.expected(prefix), model.manifest.prior_deviance
    if expected.cv_error is None or expected.r2 is None:
        return None
    variance = float(np.mean(np.square(model.prefixes.response_scale))) if null is None else null
    return 1.0 - expected.cv_error / variance


def _penalised(model: Model, prefix: int) -> float | None:
    """Return 2F over the number of responses; None for a likelihood, to which the theory does not apply."""
    F, responses = model.expected(prefix).explained_variance, len(model.manifest.responses)
    return 2 * F / responses if model.manifest.learned.family.least_squares else None


def _floor(model: Model) -> list[float | None]:
    """Return the lower bound of each prefix's `penalised_r2`.

    Theorem 3.2 applies with K the cost of all groups, because the best set of that cost is the set of all groups.
    Theorem 4.3 applies with the prefix of cost B/4 instead of the best set of that cost, which explains at least as
    much.
    """
    guarantee, costs = model.manifest.guarantee, model.costs
    complete, total = _penalised(model, model.steps), float(costs[-1])
    if complete is None:
        return [None] * (model.steps + 1)
    if guarantee.gamma is not None and total > 0:
        return [bound(guarantee.gamma, float(cost), total) * complete for cost in costs]
    if guarantee.doubling_gamma is not None:
        share, until = doubling_bound(guarantee.doubling_gamma), guarantee.doubling_until or 0
        quarters = [_penalised(model, model.affordable(float(cost) / 4)) or 0.0 for cost in costs]
        return [share * quarter if prefix <= until else None for prefix, quarter in enumerate(quarters)]
    return [None] * (model.steps + 1)


def _certified(model: Model) -> str | None:
    """Return a sentence about the certificate; the share is rounded down, so that the statement is true."""
    shares, stopped = model.certified_shares, model.manifest.stopped
    if shares is None:
        return None
    selected = "selected " if stopped is not None and stopped.left_out else ""
    return (
        f"Certified: no set of {selected}groups of the same cost explains more than the upper line (training data, "
        f"minus the penalty), and every step explains at least {at_least(min(shares[1:]))} of it."
    )


def _guarantee_text(model: Model) -> str:
    guarantee = model.manifest.guarantee
    if guarantee.gamma is not None:
        return (
            f"Guaranteed in training: each step explains at least {bound(guarantee.gamma, 1.0, 1.0):.2%} of what the "
            f"best set of groups of its cost explains (Theorem 3.2, gamma = {guarantee.gamma:.3g})."
        )
    if guarantee.doubling_gamma is not None:
        until = model.groups.amount(model.costs[guarantee.doubling_until or 0])
        if buys_no_group(model.costs, guarantee.doubling_until or 0):
            return f"No guarantee: the bound applies to budgets of at most {until}; a quarter of that buys no group."
        return (
            f"Guaranteed in training: within any budget B up to {until} the sequence explains at least "
            f"{doubling_bound(guarantee.doubling_gamma):.2%} of what the best set of cost B/4 explains "
            f"(Theorem 4.3, gamma = {guarantee.doubling_gamma:.3g})."
        )
    return f"No guarantee: {guarantee.why}." if guarantee.why else "No guarantee is known."


def curve_chart(
    curve: ModelCurve, tested: tuple[str, Float, Float | None] | None = None, kind: Callable[..., Chart] = Chart
) -> Chart:
    """Return the chart of what is explained against cost.

    Parameters
    ----------
    tested : tuple[str, Float, Float | None] | None
        Name of a test table, R² on it of shape (steps + 1,), and its standard errors if they are known.
    kind : Callable[..., Chart]
        Makes the chart.
    """

    def of(field: str) -> Float:
        return np.array([getattr(point, field) for point in curve.points], dtype=np.float64)

    costs, training = of("cost"), of("r2")
    # The bound for the cost of a prefix also applies to lower costs, so the line extends to the left of each point.
    certified = [
        ("training, minus the penalty", of("penalised_r2"), 4, "after", False),
        ("best possible, certified", of("certified_r2"), 4, "before", True),
    ]
    optional = [
        ("cross-validated", of("cv_r2"), 1, "after", True),
        ("guaranteed", of("guaranteed_r2"), 3, "after", True),
        *(certified if curve.certified is not None else ()),
    ]
    lines = [("training", training, 0, "after", False), *(line for line in optional if np.isfinite(line[1]).any())]
    if tested is not None:
        lines.append((f"test ({tested[0]})", tested[1], 2, "after", False))
    values = np.concatenate([line[1][np.isfinite(line[1])] for line in lines])
    low, high = (min(0.0, np.quantile(values, 0.02)), values.max() * 1.15) if len(values) else (0.0, 1.0)
    name = curve.explained[0].upper() + curve.explained[1:]
    chart = kind(
        f"{name} against cost", (0.0, float(costs[-1])), (float(low), float(high)),
        f"cost of the groups used ({curve.cost_unit})", name,
    )  # fmt: skip
    for label, each, colour, stairs, dashed in lines:
        chart.line(costs, each, colour, label, stairs="before" if stairs == "before" else "after", dashed=dashed)
    names = ["base rate", *(str(point.group) for point in curve.points[1:])]
    of_test, drawn, errors = ("", training, None) if tested is None else ("test ", tested[1], tested[2])
    titles = [f"{name}: cost {c:g}, {of_test}r2 {r:.4g}" for name, c, r in zip(names, costs, drawn, strict=True)]
    chart.points(costs, drawn, titles, 0 if tested is None else 2, errors=errors)
    gains = np.diff(training)
    drawn_lines = np.array([line[1] for line in lines if line[0] != "guaranteed"])
    lows, highs = np.fmin.reduce(drawn_lines), np.fmax.reduce(drawn_lines)
    if errors is not None:
        lows, highs = np.fmin(lows, drawn - errors), np.fmax(highs, drawn + errors)
    for k in (1 + np.argsort(-np.nan_to_num(gains))[:4]).tolist():
        if gains[k - 1] > 0.04 * max(training[-1], 1e-12):
            chart.label(float(costs[k]), float(lows[k]), float(highs[k]), names[k])
    return chart


def strongest_shapes(model: Model, top: int, prefix: int | None = None) -> tuple[ColumnShape, ...]:
    """Return the shapes of the `top` strongest columns of a prefix; raise ValuesError without one."""
    if top < 1:
        raise ValuesError(f"top is {top}; expected a number of columns, 1 or more")
    if shapes := column_shapes(model, prefix)[:top]:
        return shapes
    raise ValuesError(f"prefix {prefix} of model {model.name!r} has no columns; expected one that has")


def score_words(model: Model) -> str:
    """Return what columns contribute to, such as the log-odds of the second of two classes."""
    names = model.score_names
    return family_of(model.manifest.family).link.score + (f" of {names[0]}" if len(names) == 1 else "")


def caption_of(shape: ColumnShape) -> str:
    """Return the names of a column and its group, and the deviation of its contribution, whole and alone."""
    strength = float(np.sqrt(np.mean(np.square(shape.strength))))
    title = clipped(shape.name, 40) if shape.name == shape.group else f"{clipped(shape.name)} ({clipped(shape.group)})"
    return f"{title}, ±{strength:.3g}" + ("" if shape.unique is None else f", alone ±{shape.unique:.3g}")


def shape_charts(
    model: Model, shape: ColumnShape, scores: Sequence[int] | None = None, kind: Callable[..., Chart] = Chart
) -> Iterator[Chart]:
    """Yield the charts of a shape: its line, and its levels, such as common values, or the months of dates.

    Each has its own scale: a common one flattens all but the strongest. `scores` are the indices of the scores that
    are drawn, the first ones by default; `kind` makes a chart.
    """
    drawn = range(len(model.score_names))[:SCORES_SHOWN] if scores is None else scores
    text = next(text_of(column) for column in model.expansion.columns if column.name == shape.name)
    for piece in shape.pieces():
        yield _shape(model, piece, drawn, text, kind)
        if piece.points and piece.levels:
            yield _shape(model, replace(piece, points=(), missing=None), drawn, text, kind)


def text_of(column: Column) -> Callable[[float], str]:
    """Return how a raw number of a column is shown: as in a request, but a date without its time."""
    return shown if column.reader is None else lambda value: str(column.shown(value)).partition("T")[0]


def _drawn(shape: ColumnShape) -> tuple[Float, Float, list[tuple[str, Level]]]:
    """Return what is drawn of a shape: x (corners,) of its line, y (corners or levels, scores), and its levels.

    A line is drawn from the 2 % to the 98 % quantile of the rows where these are stored, without levels; otherwise x is
    empty.
    """
    if not shape.points:
        listed = list(shape.levels)
        if shape.basis == "categories":  # by what each adds to the variance of the contribution
            listed.sort(key=lambda each: -each.share * float(np.square(each.contribution).sum()))
            del listed[LEVELS_SHOWN:]
        levels = [
            # Numbers are levels in single precision: 4.6, not 4.6000000000000005.
            *(
                (f"{a:.{7 if a % 1 else 15}g}" if isinstance(a := each.level, float) else str(a), each)
                for each in listed
            ),
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
    model: Model, shape: ColumnShape, scores: Sequence[int], text: Callable[[float], str], kind: Callable[..., Chart]
) -> Chart:
    title, named = caption_of(shape), model.score_names
    x, y, levels = _drawn(shape)
    y = y[:, list(scores)]
    gaps = [] if shape.missing is None else np.atleast_1d(shape.missing.contribution)[list(scores)].tolist()
    ends = float(min([y.min(initial=0.0), *gaps])), float(max([y.max(initial=0.0), *gaps]))
    if shape.points:
        low, high = float(x[0]), float(x[-1])
        chart = kind(title, (low, high), ends, clipped(shape.name, 40), x_shown=text)
        if shape.quantiles is not None and high > low:
            counts, edges = np.histogram(shape.values(), BINS, (low, high))
            shares = counts / max(len(shape.values()), 1)
            spans = zip(map(text, edges[:-1].tolist()), map(text, edges[1:].tolist()), shares.tolist(), strict=True)
            chart.strip(edges, shares, [f"{a} to {b}: {shown(share, SHARE)} of the rows" for a, b, share in spans])
        for column, score in enumerate(scores):
            chart.line(x, y[:, column], column % SCORES_SHOWN, named[score])
        if shape.missing is not None and len(scores) == 1:
            level = np.full(2, np.atleast_1d(shape.missing.contribution)[scores[0]], dtype=np.float64)
            chart.line(x[[0, -1]], level, 4, "missing", dashed=True)
        return chart
    names, count = [name for name, _ in levels], len(levels)
    chart = kind(title, (-0.6, count - 0.4), ends, clipped(shape.name, 40), levels=names)
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
