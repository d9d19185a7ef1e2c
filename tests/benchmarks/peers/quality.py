"""The part of the report on anytime quality: accuracy against cost, by linear prefixes and by boosted trees."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anytime.types import Float
from anytime_reproduction.report import curve, panels
from benchmarks.peers.budgets import mean_upto, value_at_budgets
from benchmarks.peers.candidates import Candidates, boosted, by_least_squares, by_likelihood
from benchmarks.peers.environments import Absent, ours, prepared
from benchmarks.peers.measurements import FailedError, digits
from benchmarks.peers.quality_sets import SETS, QualitySet, load
from benchmarks.peers.section import Cell, Finding, Picture, Section, Sheet, missing_peers, picture

__all__ = ["compare_curves", "quality"]

SHARES = (0.05, 0.25, 1.0)
"""Shares of the cost of all groups over which curves are averaged."""

EQUAL = 0.005
"""Means that differ by less are called equal."""

MIN_SQUARES, LIKELIHOOD = "ours, least squares", "ours, likelihood"
LIGHTGBM, XGBOOST = "LightGBM, a model for each budget", "XGBoost, prefixes of one model"

TEXT = (
    "All methods fit on the same rows. A budget pays for every group that contains a feature of the model. Ours "
    "answers as in service: by the longest prefix within the budget, without looking at other rows. XGBoost is one "
    "model whose first trees answer (iteration_range); their number and depth are chosen on validation rows. LightGBM "
    "charges a feature at its first split (cegb_penalty_feature_coupled; it knows features, not groups, "
    "so a feature is priced at its share of its group or at all of it, both tried) at each of many trade-offs "
    "(cegb_tradeoff); for each budget the best on the validation rows of all models and prefixes is selected. "
    "So LightGBM has an advantage over an anytime predictor: it knows the budget before it is fitted. It would "
    "need one model per budget in service, and the next one cannot continue the work of the last.",
    "The mean of a curve over budgets up to a share of the cost of all groups is its timeliness, for an interrupted "
    "client (each value applies until the next is paid).",
)


def quality(data: Path, quick: bool) -> Section:
    """Measure, and return the section."""
    environment = prepared("boosting")
    findings = missing_peers([environment])
    sheets: list[Sheet] = []
    pictures: list[Picture] = []
    for name in list(SETS)[: 1 if quick else None]:
        problem = load(name, data)
        candidates: dict[str, Candidates] = {MIN_SQUARES: by_least_squares(problem), LIKELIHOOD: by_likelihood(problem)}
        if not isinstance(environment, Absent):
            try:
                found = boosted(problem, environment, quick)
                candidates |= {LIGHTGBM: found["lightgbm"], XGBOOST: found["xgboost"]}
            except FailedError as error:
                findings.append(Finding("absent", f"boosted trees on {name}: {error}"))
        for measure in problem.measures:
            budgets, curves = _curves(problem, measure, candidates)
            sheets.append(_sheet(problem, measure, budgets, curves, candidates))
            findings += compare_curves(f"{name}, {measure}", _means(budgets, curves), _final(curves))
            pictures.append(_picture(problem, measure, budgets, curves))
    versions = (
        (ours().versions_text(),)
        if isinstance(environment, Absent)
        else (ours().versions_text(), environment.versions_text())
    )
    title = "Anytime quality at equal feature cost"
    return Section("quality", title, "", versions, tuple(findings), TEXT, tuple(sheets), tuple(pictures))


def _curves(problem: QualitySet, measure: str, candidates: dict[str, Candidates]) -> tuple[Float, dict[str, Float]]:
    """Return every cost at which a curve changes, and each method's value there."""
    total = float(problem.groups.costs.sum())
    costs = np.concatenate([points[measure].costs for points, _ in candidates.values()])
    budgets = np.unique(np.concatenate([[0.0], costs, [total]]))
    prior = problem.prior(measure)
    return budgets, {
        name: value_at_budgets(points[measure], budgets, prior, chosen=name in (LIGHTGBM, XGBOOST))
        for name, (points, _) in candidates.items()
    }


def _means(budgets: Float, curves: dict[str, Float]) -> dict[str, list[float]]:
    total = float(budgets[-1])
    return {name: [mean_upto(budgets, values, share * total) for share in SHARES] for name, values in curves.items()}


def _final(curves: dict[str, Float]) -> dict[str, float]:
    return {name: float(values[-1]) for name, values in curves.items()}


def compare_curves(where: str, means: dict[str, list[float]], final: dict[str, float]) -> list[Finding]:
    """Compare our better method with the best peer: over small budgets, over all, and with all features."""
    findings = []
    ranges = [(f"over the first {share:.0%} of the cost", i) for i, share in enumerate(SHARES)]
    for what, values in [
        *((what, {name: mean[i] for name, mean in means.items()}) for what, i in ranges),
        ("with all features", final),
    ]:
        mine = {name: value for name, value in values.items() if name.startswith("ours")}
        theirs = {name: value for name, value in values.items() if name not in mine}
        if not theirs:
            continue
        own, other = max(mine, key=mine.__getitem__), max(theirs, key=theirs.__getitem__)
        difference = mine[own] - theirs[other]
        words = f"{where}, {what}: {own} {mine[own]:.4f}, {other} {theirs[other]:.4f}"
        findings.append(Finding("noted" if abs(difference) < EQUAL else "ahead" if difference > 0 else "behind", words))
    return findings


def _sheet(
    problem: QualitySet, measure: str, budgets: Float, curves: dict[str, Float], candidates: dict[str, Candidates]
) -> Sheet:
    rows: list[tuple[Cell, ...]] = []
    means = _means(budgets, curves)
    for name, values in curves.items():
        cells = [f"{mean:.4f}" for mean in means[name]]
        rows.append((name, *cells, f"{values[-1]:.4f}", digits(candidates[name][1])))
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
