"""A report of a model on one page: what it predicts, at which cost, how well, and what to be careful about.

The page is one HTML file without scripts, fonts or pictures from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from anytime._files import check_writable, write_atomically
from anytime.data.survey import Survey
from anytime.errors import ValuesError, clipped, listed
from anytime.evaluation import COVERAGE, SHAPES_DRAWN
from anytime.evaluation.calibrate import calibrated, held_out
from anytime.evaluation.classes import roc_curve
from anytime.evaluation.evaluate import Evaluation, evaluated
from anytime.evaluation.page.charts import STYLE, Chart, bar_rows
from anytime.evaluation.page.pictures import (
    caption_of,
    curve_chart,
    model_curve,
    score_words,
    shape_charts,
    strongest_shapes,
    text_of,
)
from anytime.families import family_of
from anytime.features.expansion import Column
from anytime.groups import ColumnBasis
from anytime.inference.conformal import conformal_rank, model_outputs
from anytime.inference.sharing import cancelling, group_sharing, sharing_table
from anytime.inference.subsets import arrived_model
from anytime.model.model import Model, manifest_of
from anytime.tabulated import R2, SHARE, Series, Tabulated, shown
from anytime.target import class_codes
from anytime.types import Float

ABSENCES = 40
"""Groups whose absence is measured, those with the largest gains: each takes one factorisation."""

MAX_SOLVED = 2000
"""Most terms of a model for which absences are measured."""

PAIRS_SHOWN, CLASSES_SHOWN, COLUMNS_SHOWN, ROC_POINTS = 30, 20, 1000, 300
SAMPLE = 200_000
"""Rows of the test table that diagrams of probabilities and residuals use, from its start."""

BINS, MIN_BIN = 10, 5
"""Bins of a diagram of the reliability, and the least rows of one: fewer have no standard error to speak of."""


PAGE_STYLE = """
*{box-sizing:border-box}
body{margin:0 auto;max-width:1000px;padding:16px;background:var(--card);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.5em;margin:.2em 0}
h2{font-size:1.15em;margin:1.6em 0 .4em;border-top:1px solid var(--line);padding-top:.8em}
p{margin:.4em 0;max-width:72ch}.soft{color:var(--soft)}.lead{font-size:1.1em}
.grid{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}
.one{max-width:620px}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9em;font-variant-numeric:tabular-nums}
th,td{padding:2px 10px 2px 0;text-align:right;vertical-align:top;font-weight:normal}
thead th{color:var(--soft);border-bottom:1px solid var(--line)}th:first-child,td.words,th.words{text-align:left}
td.words{min-width:9em;overflow-wrap:anywhere}
td.cell{padding:4px 12px;border:1px solid var(--line);text-align:center}
ul{padding-left:1.2em;margin:.4em 0}li{margin:.25em 0}.warn{border-left:3px solid var(--c1);padding-left:10px}
summary{cursor:pointer;color:var(--soft)}
code{background:var(--back);padding:1px 4px;border-radius:3px;overflow-wrap:anywhere}
@media print{body{max-width:none;font-size:11pt;padding:0}h2{break-after:avoid}.wide{overflow:visible}
table{font-size:7.5pt}th,td{padding-right:5px}}
"""


@dataclass(frozen=True)
class Picture:
    """A part of the report: notebooks show it, and `save` writes it as a page of its own.

    Attributes
    ----------
    html : str
        The part as HTML, without its style.
    """

    html: str

    def __repr__(self) -> str:
        return f"<Picture of {len(self.html):,} characters of HTML; show it in a notebook, or save it to a file>"

    def _repr_html_(self) -> str:
        style = STYLE.read_text(encoding="utf-8").replace(":root", "&")  # of this element only
        own = "padding:8px;background:var(--card);color:var(--text);"
        grid = ".grid{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}"
        return f'<div class="anytime"><style>.anytime{{{own}{grid}{style}}}</style>{self.html}</div>'

    def save(self, path: str | Path) -> None:
        """Write a page that loads nothing from elsewhere; raise AnytimeError if writing fails."""
        path = Path(path)
        check_writable(path, (".html", ".htm"))
        write_atomically(path, page(path.stem, (), [("", self.html)]).encode())


def page(title: str, lead: Iterable[str], sections: Sequence[tuple[str, str]]) -> str:
    """Return a page: its title, its first sentences as text, and sections (heading, HTML) that are not empty."""
    body = "".join(
        f"<section>{f'<h2>{escape(name)}</h2>' if name else ''}{html}</section>" for name, html in sections if html
    )
    sentences = "".join(f'<p class="lead">{escape(each)}</p>' for each in lead)
    meta = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
    )
    head = (
        f"<head>{meta}<title>{escape(title)}</title>"
        f"<style>{STYLE.read_text(encoding='utf-8')}{PAGE_STYLE}</style></head>"
    )
    return f'<!doctype html><html lang="en">{head}<body><h1>{escape(title)}</h1>{sentences}{body}</body></html>\n'


ROWS_SHOWN = 40
"""Rows of a long table that a page shows at once; a click shows the others."""


def table(results: Tabulated) -> str:
    rows = len(results.rows)
    at_once = rows if rows <= 2 * ROWS_SHOWN else ROWS_SHOWN
    first, rest = (results.take(part).html() for part in (range(at_once), range(at_once, rows)))
    more = f"<details><summary>{rows - at_once:,} more rows</summary>{rest}</details>" if at_once < rows else ""
    return f'<div class="wide">{first}{more}</div>'


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph of text; what stands between back quotes is code."""
    parts = text.split("`")
    inner = "".join(f"<code>{escape(part)}</code>" if k % 2 else escape(part) for k, part in enumerate(parts))
    return f'<p class="{kind}">{inner}</p>' if kind else f"<p>{inner}</p>"


def grid(parts: Iterable[str]) -> str:
    return f'<div class="grid">{"".join(parts)}</div>'


@dataclass(frozen=True, eq=False)
class _Tested:
    """A model on test rows: measures, standard errors of R² (steps + 1,), and some outputs with the truth and weights.

    `weighted` is the column of the weights, or None.
    """

    survey: Survey
    weighted: str | None
    evaluation: Evaluation
    errors: Float | None
    Y: Float
    weights: Float
    outputs: dict[int, Float]

    @property
    def name(self) -> str:
        return Path(self.survey.table).name


def report(
    model: Model, test: Any = None, calibration: Any = None, *, coverage: float = COVERAGE, weights: str | None = None
) -> str:
    """Return the report of a model as HTML.

    Parameters
    ----------
    test
        Rows that took no part in training, with the target, a table as `LoadedModel` accepts; without them, quality is
        that of training and folds. Those without a target are left out, and a warning says so.
    calibration
        Further rows, for intervals or sets of classes of the requested `coverage`.
    weights : str | None
        Column of the weights of the test rows, or None for equal weights.

    Raises
    ------
    TableError, GroupsError, TrainingError
        As `evaluate` and `calibrate`.
    ValuesError
        Weights are given without test rows, or `model` is not a `Model`.
    """
    calibrated_on = None
    if calibration is not None:
        dataset, calibrated_on = held_out(model, calibration, drop_missing=True)
        conformal_rank(calibrated_on.used, coverage)
        model = calibrated(model, dataset, coverage)
    tested = _tested_on(model, test, weights)
    warnings = [
        *(
            f"Left out: {found.missing:,} of {found.rows:,} rows of {Path(found.table).name} without a target."
            for found in (None if tested is None else tested.survey, calibrated_on)
            if found is not None and found.missing
        ),
        *_warnings(model, tested),
    ]
    sections = [
        ("Quality by cost", _curve(model, tested)),
        ("Warnings", "".join(paragraph(each, "warn") for each in warnings) or paragraph("None.")),
        ("Budgets", _budgets(model, tested)),
        ("Steps", _steps(model, tested)),
        ("Groups", _groups(model)),
        ("Shapes", _shapes(model)),
        ("Pairs", _pairs(model)),
        ("Reliability", _reliability(model, tested)),
        ("Confusion", _confusion(model, tested)),
        ("Ranking", _ranking(model, tested)),
        ("Intervals", _intervals(model, tested)),
        ("Data", _data(model)),
        ("Provenance", _provenance(model)),
    ]
    return page(f"{model.name}: {', '.join(model.manifest.target)}", _summary(model, tested), sections)


def curve_picture(model: Model, test: Any = None, weights: str | None = None) -> Picture:
    """Return the curve of a model as the report draws it, with its values on a test table if given."""
    return Picture(_curve(model, _tested_on(model, test, weights)))


def shapes_picture(model: Model, prefix: int | None = None, top: int = SHAPES_DRAWN) -> Picture:
    """Return what the strongest columns of a prefix add to the scores; raise ValuesError if there are no columns."""
    return Picture(_shapes(model, prefix, top))


def calibration_picture(model: Model, test: Any, weights: str | None = None) -> Picture:
    """Return the diagram of the reliability on a test table, with its verdict; for numbers, of predicted and true."""
    return Picture(_reliability(model, measured_on(model, test, weights)))


def _half(model: Model) -> int:
    return model.affordable(float(model.costs[-1]) / 2)


def _tested_on(model: Model, test: Any, weights: str | None) -> _Tested | None:
    if test is None and weights is not None:
        raise ValuesError(f"weights is {weights!r}, but there is no table; expected one with this column")
    return None if test is None else measured_on(model, test, weights)


def measured_on(model: Model, test: Any, weights: str | None = None) -> _Tested:
    """Return a model's measures on test rows, and a standard error of R² for each prefix."""
    dataset, found = held_out(model, test, weights=weights, drop_missing=True)
    evaluation, family = evaluated(model, dataset), family_of(model.manifest.family)
    parts: list[tuple[Float, Float, dict[int, Float]]] = []
    weight, squared, sums = 0.0, 0.0, np.zeros((3, 1, 1))
    for rows in dataset.rows_for(model.prefixes.scores):
        counted = rows.row_weights > 0
        scores, Y, w = model.prefixes.predict_all(rows.X[counted]), rows.Y[counted], rows.row_weights[counted]
        if sum(len(part) for part, *_ in parts) < SAMPLE:
            wanted = {_half(model), model.steps}
            parts.append((Y, w, {k: model_outputs(model, scores[k]) for k in wanted}))
        losses = (
            np.square(scores - Y)
            if family.least_squares
            else np.array([family.deviances(each, Y)[:, np.newaxis] for each in scores])
        )
        weight, squared = weight + w.sum(), squared + np.square(w).sum()
        sums = sums + np.array([w @ losses, np.square(w) @ losses, np.square(w) @ np.square(losses)])
    Y, used = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    outputs = {k: np.concatenate([of[k] for _, _, of in parts]) for k in parts[0][2]}
    errors, count = None, weight**2 / squared  # the number of equally weighted rows that tell as much
    if evaluation.r2 is not None and count > 1:
        mean = sums[0] / weight
        variance = (sums[2] - 2 * mean * sums[1] + mean**2 * squared) / weight**2 * count / (count - 1)
        # 1 - r2 is a mean over responses of loss / null, so the null loss of all is loss / (1 - r2).
        share = (np.sqrt(np.maximum(variance, 0)) / np.maximum(mean, 1e-300)).mean(axis=1)
        errors = share * np.maximum(1 - evaluation.r2, 1e-300)
    return _Tested(found, dataset.weights, evaluation, errors, Y, used, outputs)


def _training(model: Model) -> Float:
    return np.array([model.expected(k).r2 for k in range(model.steps + 1)], dtype=np.float64)


def _summary(model: Model, tested: _Tested | None) -> list[str]:
    manifest, amount = model.manifest, model.groups.amount
    origin, full, half = manifest.provenance, _training(model)[-1], _half(model)
    r2, where = _training(model), f"{origin.rows:,} training rows"
    if tested is not None and tested.evaluation.r2 is not None:
        weighted = "" if tested.weighted is None else f", weighted by {tested.weighted}"
        r2, where = tested.evaluation.r2, f"{tested.evaluation.rows:,} rows of {tested.name}{weighted}"
    kinds = {"regression": "numbers", "count": "counts", "binary": "two classes", "multiclass": "classes"}
    columns, groups = len(model.groups.features), len(model.groups)
    sentences = [
        f"The model predicts {', '.join(manifest.target)} ({kinds[manifest.task]}) from {columns} columns in {groups} "
        f"groups, learned from {origin.rows:,} rows of {origin.data}."
    ]
    if np.isfinite(full):
        of_all = f", {shown(r2[half] / r2[-1], SHARE)} of it" if r2[half] >= 0 < r2[-1] else ""
        share = ", which is better" if r2[half] > r2[-1] else of_all
        share = ", too" if shown(r2[half]) == shown(r2[-1]) else share
        sentences.append(
            f"All groups cost {amount(model.costs[-1])} a row and reach an r2 of {shown(r2[-1])} on "
            f"{where}; half of the cost reaches {shown(r2[half])}{share}."
        )
    step = manifest.steps[0]
    gain = "" if step.r2 is None else f", r2 {step.r2:.3g} in training"
    sentences.append(f"The first step is {' + '.join(step.adds)} for {amount(step.cost)}{gain}.")
    return sentences


def _curve(model: Model, tested: _Tested | None) -> str:
    curve = model_curve(model)
    if curve.points[-1].r2 is None:
        return paragraph("The target is constant in the training table, so there is nothing to explain.")
    r2 = None if tested is None else tested.evaluation.r2
    found = None if tested is None or r2 is None else (tested.name, r2, tested.errors)
    bars = " Bars show one standard error on the test rows." * (found is not None and found[2] is not None)
    optimistic = " Cross-validated values are optimistic, because the order was learned from all rows." * (
        curve.points[-1].cv_r2 is not None and not model.manifest.provenance.nested
    )
    bounds = "" if curve.points[-1].guaranteed_r2 is None and curve.certified is None else curve.promise
    words = [
        paragraph(each, "soft")
        for each in (
            f"Between two steps, the answer is that of the earlier one.{bars}{optimistic}",
            bounds,
            curve.certified or "",
        )
        if each
    ]
    return f'<div class="one">{curve_chart(curve, found).svg()}</div>' + "".join(words)


def _measures(tested: _Tested | None) -> list[Series]:
    """Return the measures on the test rows; the Brier score of classes is their mse."""
    columns = () if tested is None else tested.evaluation.table.columns[3:]
    are_classes = any(each.name == "brier" for each in columns)
    return [
        replace(each, heading=f"test {(each.heading or 'mse').removeprefix('test ')}")
        for each in columns
        if not (are_classes and each.name == "mse")
    ]


def _budgets(model: Model, tested: _Tested | None) -> str:
    total, (_, _, _, costs, r2, *_) = float(model.costs[-1]), model.table.columns
    shares = {"a tenth": 0.1, "a quarter": 0.25, "half": 0.5, "all": 1.0}
    prefixes = [model.affordable(total * share) for share in shares.values()]
    used = [
        ", ".join(map(clipped, names[:12])) + ", ..." * (len(names) > 12) or "none: the base rate"
        for names in (model.computed[k] for k in prefixes)
    ]
    reached = Tabulated.of(replace(costs, heading="cost"), r2, *_measures(tested))
    return table(
        reached.take(
            prefixes,
            Series("budget", [f"{name} ({total * share:g})" for name, share in shares.items()]),
            Series("groups used", used),
        )
    )


def _steps(model: Model, tested: _Tested | None) -> str:
    *own, alpha = model.table.columns[:7]
    return table(Tabulated.of(*own, replace(alpha, heading="penalty"), *_measures(tested)))


def _unmeasured(model: Model) -> str | None:
    """Return why the report does not measure what r2 loses without a group; None if it does."""
    if model.moments is not None:
        return f"the model has over {MAX_SOLVED} terms" if len(model.prefixes.mean) > MAX_SOLVED else None
    if model.supports_arrived:
        return "refitting a likelihood needs the rows (`anytime what-if --without GROUP --data TABLE`)"
    return model.fallback_reason("arrived")


def _groups(model: Model) -> str:
    training = _training(model)
    gains = {step.group: training[k + 1] - training[k] for k, step in enumerate(model.manifest.steps)}
    ranked = sorted(gains, key=lambda name: -np.nan_to_num(gains[name]))
    adds = [(clipped(name, 40), gains[name], f"{gains[name]:+.4f}") for name in ranked[:ABSENCES]]
    left = (
        f"<figure><figcaption>What each step adds to r2, the largest gain first</figcaption>{bar_rows(adds)}</figure>"
    )
    shares = "" if not (sharing := group_sharing(model)) else paragraph(
        "Below, ± is the standard deviation of a group's contribution over the training rows; 'alone' is the part that "
        "no other group replaces. Of a group that shares over 90 %, 'most with' is the group whose contribution "
        "correlates the most with its own.",
        "soft",
    ) + table(sharing_table(sharing[:ABSENCES], "contribution ±", "alone ±", "shared with others"))  # fmt: skip
    note = f" {len(gains) - ABSENCES} groups with smaller gains are not shown." * (len(gains) > ABSENCES)
    why = _unmeasured(model)
    if why is not None:
        return grid([left]) + paragraph(f"What r2 loses without a group is not measured: {why}.{note}", "soft") + shares
    every, full = frozenset(model.needed[-1]), training[-1]
    others = {
        name: arrived_model(model, every - {name}).expected.r2 if len(every) > 1 else 0.0
        for name in ranked[:ABSENCES]
        if name in every
    }
    losses = [(clipped(name, 40), full - (np.nan if r2 is None else r2)) for name, r2 in others.items()]
    losses.sort(key=lambda each: -np.nan_to_num(each[1]))
    right = (
        "<figure><figcaption>What r2 loses without the group, if the others are refitted</figcaption>"
        f"{bar_rows([(name, loss, shown(loss, R2)) for name, loss in losses], 1)}</figure>"
    )
    return (
        grid([left, right])
        + paragraph(
            "A group that adds much, and whose absence costs little, has its information in common with other groups."
            f"{note}",
            "soft",
        )
        + shares
    )


def _shapes(model: Model, prefix: int | None = None, top: int = SHAPES_DRAWN) -> str:
    shapes, said = strongest_shapes(model, top, prefix), f"What each column adds to the {score_words(model)}"
    pictures = (chart.svg(caption_of(shape)) for shape in shapes for chart in shape_charts(model, shape))
    return paragraph(f"{said}, the strongest first.", "soft") + grid(pictures)


def _pairs(model: Model) -> str:
    pairs = [" * ".join(pair) for step in model.manifest.steps for pair in step.pairs]
    more = f" and {len(pairs) - PAIRS_SHOWN} more" if len(pairs) > PAIRS_SHOWN else ""
    said = f"These products of two columns are terms, too: {', '.join(map(clipped, pairs[:PAIRS_SHOWN]))}{more}."
    return paragraph(said) if pairs else ""


def _reliability(model: Model, tested: _Tested | None) -> str:
    if tested is None:
        return paragraph("For a reliability diagram, give rows that took no part in training: `--test TABLE`.", "soft")
    outputs, Y = tested.outputs[model.steps], tested.Y
    if len(Y) < 4 * MIN_BIN:
        return paragraph(
            f"{len(Y)} test row{'s are' if len(Y) != 1 else ' is'} too few for a reliability diagram; expected "
            f"{4 * MIN_BIN} or more.",
            "soft",
        )
    classes = model.manifest.classes
    if classes is None:
        label = f"mean prediction of {clipped(model.manifest.target[0])}"
        picture, outside, bins, *_ = _diagram(outputs[:, 0], Y[:, 0], tested.weights, label, "mean of the target")
        follow = "follow the target" if _is_few(outside, bins) else "differ from the target in places"
        return picture + paragraph(
            f"The predictions {follow}: in {outside} of {bins} bins, the mean target is more than two standard errors "
            "away from the mean prediction."
        )
    codes, two = class_codes(Y), len(classes) == 2
    chance = outputs[:, 1] if two else outputs.max(axis=1)
    right = (codes == 1) if two else (outputs.argmax(axis=1) == codes)
    label = f"predicted probability of {classes[1] if two else 'the most likely class'}"
    picture, outside, bins, gap, bias = _diagram(chance, right.astype(np.float64), tested.weights, label, "")
    verdict = "calibrated" if _is_few(outside, bins) else "off" if gap > 0.05 else "slightly off"
    side = f"; they are too {'high' if bias > 0 else 'low'} by {shown(abs(bias), SHARE)} over all"
    remedy = " A likelihood (`--family`) or more rows make them more reliable." * (verdict != "calibrated")
    return picture + paragraph(
        f"The probabilities are {verdict}: in {outside} of {bins} bins they differ from the observed shares by more "
        f"than two standard errors, and by {shown(gap, SHARE)} on average{side * (abs(bias) > 0.01)}.{remedy}"
    )


def _is_few(outside: int, bins: int) -> bool:
    return outside <= max(1, bins // 10)


def _diagram(x: Float, y: Float, weights: Float, x_label: str, y_label: str) -> tuple[str, int, int, float, float]:
    """Return the diagram of mean y in bins of about equally many x; without a label, y is whether something occurred.

    Also return how many bins differ by more than two standard errors, the number of bins, and the mean absolute and the
    mean difference. Equal x share a bin.
    """
    edges = np.unique(np.sort(x)[np.linspace(0, len(x) - 1, min(BINS, len(x) // MIN_BIN) + 1).astype(np.intp)][1:-1])
    at = np.searchsorted(edges, x, side="right")
    sums = np.array([np.bincount(at, each * weights) for each in (1 / weights, 1, x, y, np.square(y), weights)])
    rows, mass, *others = sums[:, sums[0] > 0.5]
    means, shares, squares, mean_weights = (each / mass for each in others)
    counts = mass / mean_weights  # of rows of the same weight that tell as much
    chance = not y_label
    variances = np.maximum(means * (1 - means), 1e-4) if chance else np.maximum(squares - shares**2, 0.0)
    errors = np.sqrt(variances / (counts if chance else np.maximum(counts - 1, 1)))
    both = np.append(means, shares)
    ends, form = ((0.0, 1.0), ".3f") if chance else ((float(both.min()), float(both.max())), ".4g")
    chart = Chart("predicted and observed", ends, ends, x_label, y_label or "observed share")
    chart.line(np.array(ends), np.array(ends), 4, "perfect", dashed=True)
    titles = [
        f"predicted {m:{form}}, observed {s:{form}}, {n:,.0f} rows" for m, s, n in zip(means, shares, rows, strict=True)
    ]
    chart.points(means, shares, titles, 0, "all steps", errors=errors)
    difference = means - shares
    outside = int((np.abs(difference) > 2 * errors).sum())
    gap, bias = (float(mass @ each / mass.sum()) for each in (np.abs(difference), difference))
    return f'<div class="one">{chart.svg()}</div>', outside, len(means), gap, bias


def _confusion(model: Model, tested: _Tested | None) -> str:
    classes = model.manifest.classes
    if classes is None or tested is None:
        return ""
    if len(classes) > CLASSES_SHOWN:
        return paragraph(f"{len(classes)} classes are too many for a table.", "soft")
    parts, names = [], [clipped(str(label), 20) for label in classes]
    for k in sorted(tested.outputs):
        cells = class_codes(tested.Y) * len(classes) + tested.outputs[k].argmax(axis=1)
        counts = np.bincount(cells, tested.weights, len(classes) ** 2).reshape(len(classes), -1)
        columns = (Series(name, column, form=",.10g") for name, column in zip(names, counts.T, strict=True))
        parts.append(
            f"<figure><figcaption>{k} of {model.steps} steps; rows are the truth, columns the predictions</figcaption>"
            f"{table(Tabulated.of(Series('', names), *columns))}</figure>"
        )
    return grid(parts)


def _ranking(model: Model, tested: _Tested | None) -> str:
    if tested is None:
        return ""
    found = tested.evaluation
    auc = None if found.classes is None else found.classes.auc
    parts = [
        _by_cost(model, name, values, (min(least, float(values.min())), max(most, float(values.max()))))
        for name, values, least, most in (("NDCG@5", found.ndcg, np.inf, -np.inf), ("AUC", auc, 0.5, 1.0))
        if values is not None
    ]
    if auc is not None and len(model.manifest.classes or ()) == 2:
        chart = Chart("ROC", (0, 1), (0, 1), "false positive rate", "true positive rate")
        chart.line(np.array([0.0, 1.0]), np.array([0.0, 1.0]), 4, "chance", dashed=True)
        for colour, k in enumerate(sorted(tested.outputs, reverse=True)):
            x, y = roc_curve(class_codes(tested.Y) == 1, tested.outputs[k][:, 1], tested.weights)
            at = np.unique(np.linspace(0, len(x) - 1, ROC_POINTS).astype(np.intp))
            chart.line(x[at], y[at], colour, f"{k} steps, AUC {auc[k]:.3f}")
        parts.append(chart.svg())
    return grid(parts) if parts else ""


def _by_cost(model: Model, name: str, values: Float, ends: tuple[float, float]) -> str:
    chart = Chart(f"{name} by cost", (0, float(model.costs[-1])), ends, f"cost ({model.groups.cost_unit})", name)
    chart.line(model.costs, values, 0, stairs="after")
    return chart.svg()


def _intervals(model: Model, tested: _Tested | None) -> str:
    calibration = model.manifest.calibration
    if calibration is None:
        return paragraph(
            "The model has no intervals or sets of classes. `anytime report --calibrate TABLE` computes them for this "
            "page, and `anytime train --calibrate TABLE` stores them in the model. TABLE has rows that took no part in "
            "training.", "soft"
        )  # fmt: skip
    what = "interval width" if model.manifest.classes is None else "classes in a set"
    found = None if tested is None else tested.evaluation
    step, _, _, total, *_ = model.table.columns
    covered = Series("covered test rows", found and found.coverage, form=SHARE)
    return paragraph(
        f"Calibrated on {calibration.rows:,} rows of {calibration.data} for a coverage of "
        f"{shown(calibration.coverage, SHARE)}."
    ) + table(Tabulated.of(step, total, Series(f"mean {what}", calibration.sizes), covered))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _warnings(model: Model, tested: _Tested | None) -> list[str]:
    manifest, training, terms = manifest_of(model), float(_training(model)[-1]), len(model.prefixes.mean)
    origin, redundant = manifest.provenance, manifest.redundant
    constant, collinear, imputed = (
        listed(map(clipped, names), 10) for names in (redundant.constant, redundant.collinear, origin.imputed)
    )
    found = None if tested is None else tested.evaluation
    r2 = np.nan if found is None or found.r2 is None else float(found.r2[-1])
    error = 0.0 if tested is None or tested.errors is None else float(tested.errors[-1])
    notes = () if found is None else (found.classes and found.classes.note, found.unweighted)
    said = {
        "No test rows: all values are of the training rows. Give `--test TABLE`.": tested is None,
        **dict.fromkeys(map(_sentence, manifest.warnings), True),
        "The model has no cross-validated errors: train it on the table with `--folds 5`.": manifest.prior_error
        is None,
        f"Columns that are constant in training add nothing: {constant}. Drop them.": constant,
        f"Terms that are linear combinations of others: {collinear}. They add nothing, and share contributions.": (
            collinear
        ),
        "r2 is near 1 in training: look for a column computed from the target (`anytime groups` names such columns).": (
            training > 0.999
        ),
        f"r2 is {shown(training)} in training and {shown(r2)} on the test rows: fewer terms, a larger penalty "
        "(`--one-se`) or more rows narrow the gap, unless the test rows are of another kind.": (
            training - r2 > max(0.1, 3 * error)
        ),
        **dict.fromkeys(map(_sentence, filter(None, (*notes, cancelling(group_sharing(model))))), True),
        f"{origin.rows:,} rows for {terms} terms: fewer than ten rows a term. Judge the model by cross-validated and "
        "test values, not by those of training.": origin.rows < 10 * terms,
        f"Columns with missing values in training: {imputed}. Their training means replace these.": imputed,
    }
    return [text for text, applies in said.items() if applies]


def _data(model: Model) -> str:
    columns, types, bases = model.expansion.columns[:COLUMNS_SHOWN], model.groups.column_types, model.groups.bases
    group_of = {column: group.name for group in model.groups.groups for column in group.features}
    more = len(model.expansion.columns) - COLUMNS_SHOWN
    described = Tabulated.of(
        Series("column", [clipped(each.name) for each in columns]),
        Series("group", [clipped(group_of[each.name]) for each in columns]),
        Series("type", [types[each.name] for each in columns]),
        Series("range or levels", [_range(each, bases.get(each.name)) for each in columns]),
        Series("basis", [str(getattr(bases.get(each.name), "basis", None) or "linear") for each in columns]),
        Series("terms", [len(each.terms) for each in columns]),
        Series("missing values", ["indicator" if each.indicator else "" for each in columns]),
    )
    notes = [*[f"{more} more columns are not shown."] * (more > 0), *map(_sentence, model.manifest.decisions)]
    return table(described) + "".join(paragraph(each, "soft") for each in notes)


def _range(column: Column, basis: ColumnBasis | None) -> str:
    """Return the range of a column's numbers, or its first levels."""
    if basis is not None and basis.quantiles is not None:
        return " to ".join(map(text_of(column), (basis.quantiles[0], basis.quantiles[-1])))
    levels = () if basis is None or basis.levels is None else basis.levels
    return ", ".join(clipped(str(level), 20) for level in levels[:6]) + ", ..." * (len(levels) > 6)


def _provenance(model: Model) -> str:
    manifest = model.manifest
    origin = manifest.provenance
    entries = {
        "model": f"{model.name} {model.version}".rstrip(),
        "created": origin.created,
        "library": f"anytime-linear {origin.library}",
        "data": f"{origin.data}, {origin.rows:,} rows of weight {origin.weight:g}",
        "task": f"{manifest.task}, {manifest.family}",
        "order": f"{model.rule_in_words}, penalty {manifest.alpha:.3g}",
        "folds and seed": f"{origin.folds or 'none'}{' (nested)' * origin.nested}, "
        f"{'none' if origin.seed is None else origin.seed}",
        "reordered from": origin.resequenced_from or "",
    }
    return table(Tabulated.of_rows(("", ""), [each for each in entries.items() if each[1]]))
