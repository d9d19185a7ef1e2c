"""The part of the report on anytime quality: what each cost buys, by linear prefixes and by boosted trees."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anytime.types import Float
from anytime_reproduction.report import curve, panels
from benchmarks.peers.environments import Absent, ours, prepared
from benchmarks.peers.offers import Offers, boosted, by_least_squares, by_likelihood
from benchmarks.peers.quality_sets import SETS, QualitySet, load
from benchmarks.peers.section import Cell, Finding, Picture, Section, Sheet, absence, picture
from benchmarks.peers.spending import mean_upto, served
from benchmarks.peers.turns import FailedError, digits

__all__ = ["quality", "said"]

SHARES = (0.05, 0.25, 1.0)
"""Shares of the cost of all groups up to which curves are averaged."""

ALIKE = 0.005
"""Means that differ by less are called the same."""

MIN_SQUARES, LIKELIHOOD = "ours, least squares", "ours, likelihood"
LIGHTGBM, XGBOOST = "LightGBM, a model for each budget", "XGBoost, prefixes of one model"

TEXT = (
    "All methods fit on the same rows. A budget buys every group of which the model asks for a feature, whole. Ours "
    "answers as it is served: by the longest prefix that the budget pays, with no look at other rows. XGBoost is one "
    "model whose first trees answer (iteration_range), which of them chosen on rows set aside, its depth too. LightGBM "
    "charges a feature when the first split asks for it (cegb_penalty_feature_coupled; it knows features, not groups, "
    "so a feature is priced at its share of its group or at all of it, both tried) at each of many trade-offs "
    "(cegb_tradeoff); of all models and all their prefixes the best on the rows set aside is taken, anew for each "
    "budget. So LightGBM is given what an anytime predictor has not: it knows the budget before it is fitted. It would "
    "take as many models as there are budgets to serve it, and another one does not begin where the last one stopped.",
    "The mean of a curve over budgets up to a share of the cost of all groups is its timeliness, as an interrupted "
    "client lives it (it holds a value until the next is paid).",
)


def quality(data: Path, quick: bool) -> Section:
    """Measure and tell."""
    environment = prepared("boosting")
    findings = absence([environment])
    sheets: list[Sheet] = []
    pictures: list[Picture] = []
    for name in list(SETS)[: 1 if quick else None]:
        problem = load(name, data)
        offers: dict[str, Offers] = {MIN_SQUARES: by_least_squares(problem), LIKELIHOOD: by_likelihood(problem)}
        if not isinstance(environment, Absent):
            try:
                found = boosted(problem, environment, quick)
                offers |= {LIGHTGBM: found["lightgbm"], XGBOOST: found["xgboost"]}
            except FailedError as error:
                findings.append(Finding("absent", f"boosted trees on {name}: {error}"))
        for measure in problem.measures:
            budgets, curves = _curves(problem, measure, offers)
            sheets.append(_sheet(problem, measure, budgets, curves, offers))
            findings += said(f"{name}, {measure}", _means(budgets, curves), _final(curves))
            pictures.append(_picture(problem, measure, budgets, curves))
    versions = (ours().told(),) if isinstance(environment, Absent) else (ours().told(), environment.told())
    title = "Anytime quality at equal feature cost"
    return Section("quality", title, "", versions, tuple(findings), TEXT, tuple(sheets), tuple(pictures))


def _curves(problem: QualitySet, measure: str, offers: dict[str, Offers]) -> tuple[Float, dict[str, Float]]:
    """Every cost at which something changes, and each method's worth there."""
    total = float(problem.groups.costs.sum())
    costs = np.concatenate([points[measure].costs for points, _ in offers.values()])
    budgets = np.unique(np.concatenate([[0.0], costs, [total]]))
    prior = problem.prior(measure)
    return budgets, {
        name: served(points[measure], budgets, prior, chosen=name in (LIGHTGBM, XGBOOST))
        for name, (points, _) in offers.items()
    }


def _means(budgets: Float, curves: dict[str, Float]) -> dict[str, list[float]]:
    total = float(budgets[-1])
    return {name: [mean_upto(budgets, values, share * total) for share in SHARES] for name, values in curves.items()}


def _final(curves: dict[str, Float]) -> dict[str, float]:
    return {name: float(values[-1]) for name, values in curves.items()}


def said(where: str, means: dict[str, list[float]], final: dict[str, float]) -> list[Finding]:
    """Who is ahead: over small budgets, over all, and with all features; the better of ours beside the best rival."""
    told = []
    asked = [(f"over the first {share:.0%} of the cost", i) for i, share in enumerate(SHARES)]
    for what, values in [
        *((what, {name: mean[i] for name, mean in means.items()}) for what, i in asked),
        ("with all features", final),
    ]:
        mine = {name: value for name, value in values.items() if name.startswith("ours")}
        theirs = {name: value for name, value in values.items() if name not in mine}
        if not theirs:
            continue
        own, other = max(mine, key=mine.__getitem__), max(theirs, key=theirs.__getitem__)
        apart = mine[own] - theirs[other]
        words = f"{where}, {what}: {own} {mine[own]:.4f}, {other} {theirs[other]:.4f}"
        told.append(Finding("noted" if abs(apart) < ALIKE else "ahead" if apart > 0 else "behind", words))
    return told


def _sheet(
    problem: QualitySet, measure: str, budgets: Float, curves: dict[str, Float], offers: dict[str, Offers]
) -> Sheet:
    rows: list[tuple[Cell, ...]] = []
    means = _means(budgets, curves)
    for name, values in curves.items():
        cells = [f"{mean:.4f}" for mean in means[name]]
        rows.append((name, *cells, f"{values[-1]:.4f}", digits(offers[name][1])))
    columns = ("", *(f"mean to {share:.0%} of cost" for share in SHARES), "all features", "seconds to fit")
    return Sheet(f"{problem.what}: {measure} on the test rows", columns, tuple(rows))


def _picture(problem: QualitySet, measure: str, budgets: Float, curves: dict[str, Float]) -> Picture:
    figure, (axis,) = panels(1, width=7.0, height=4.0)
    for number, (name, values) in enumerate(curves.items()):
        curve(axis, budgets, values, name, number, drawstyle="steps-post")
    smallest = float(problem.groups.costs[problem.groups.costs > 0].min())
    axis.set_xscale("symlog", linthresh=smallest)
    axis.set(xlabel=f"cost of the features ({problem.groups.cost_unit})", ylabel=f"{measure} (test)", xlim=(0, None))
    axis.legend(fontsize=8, loc="lower right")
    return picture(f"{problem.name}: {measure} on the test rows for what the features cost.", figure)
