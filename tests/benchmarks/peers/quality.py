"""The part of the report on anytime quality: accuracy against cost, by linear prefixes and by boosted trees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from anytime.types import Float
from anytime_reproduction.report import curve, panels
from benchmarks.peers.budgets import difference_error, mean_upto, value_at_budgets
from benchmarks.peers.candidates import Candidates, additive, boosted, by_least_squares, by_likelihood
from benchmarks.peers.environments import Absent, ours, prepared
from benchmarks.peers.measurements import FailedError, digits
from benchmarks.peers.quality_sets import SETS, QualitySet, load
from benchmarks.peers.section import Cell, Finding, Picture, Section, Sheet, Verdict, missing_peers, picture

__all__ = ["Cells", "compare_cells", "quality"]

SHARES = (0.05, 0.25, 1.0)
"""Shares of the cost of all groups over which curves are averaged."""

LINEAR, BASIS, LIKELIHOOD = "ours, linear columns", "ours, basis by cross-validation", "ours, linear, likelihood"
LIGHTGBM, XGBOOST = "LightGBM, a model for each budget", "XGBoost, prefixes of one model"
EBM, EBM_PAIRS = "EBM, refitted on each prefix's columns", "EBM with pairs, refitted likewise"

REQUIRED = {"r2": 0.354, "NDCG@5": 0.738}
"""Of the basis chosen by cross-validation on all training rows of yahoo_sample, with all features."""

TEXT = (
    "All methods fit on the same rows. A budget pays for every group that contains a feature of the model. Ours "
    "answers as in service: by the longest prefix within the budget, without looking at other rows. XGBoost is one "
    "model whose first trees answer (iteration_range); their number and depth are chosen on validation rows. LightGBM "
    "charges a feature at its first split (cegb_penalty_feature_coupled; it knows features, not groups, "
    "so a feature is priced at its share of its group or at all of it, both tried) at each of many trade-offs "
    "(cegb_tradeoff); for each budget the best on the validation rows of all models and prefixes is selected. "
    "So LightGBM has an advantage over an anytime predictor: it knows the budget before it is fitted. It would "
    "need one model per budget in service, and the next one cannot continue the work of the last.",
    "An explainable boosting machine (EBM) knows no prefixes: it is fitted again on the columns of our "
    "basis's prefixes (of up to nine of them if there are many), so that it pays the same, once without and once with "
    "pairs of columns (for two classes or numbers). Each is a model of its own.",
    "The mean of a curve over budgets up to a share of the cost of all groups is its timeliness, for an interrupted "
    "client (each value applies until the next is paid). After each mean, in brackets: by how much the basis chosen by "
    "cross-validation (--basis auto, on the rows to fit on alone) is better than this row, and the standard error of "
    "that difference over 1,000 bootstrap samples of the queries or distinct test rows. Two means are called equal "
    "unless they differ by two standard errors.",
)


@dataclass(frozen=True, eq=False)
class Cells:
    """The results of one measure on a data set: averages over budgets up to each share of the cost, and the end.

    Attributes
    ----------
    terms : of each method, (cells, u), one term per query or distinct test row.
    weights : (u,). A value is the sum of its terms over the sum of the weights.
    """

    terms: dict[str, Float]
    weights: Float

    def values(self, name: str) -> Float:
        """Return a method's values, (cells,)."""
        found: Float = self.terms[name].sum(axis=1) / self.weights.sum()
        return found

    def against(self, name: str) -> list[tuple[float, float]]:
        """Return by how much the basis is better than a method in each cell, and the standard error."""
        gains = self.terms[BASIS] - self.terms[name]
        return [(float(gain.sum() / self.weights.sum()), difference_error(gain, self.weights)) for gain in gains]


CELLS = (*(f"over the first {share:.0%} of the cost" for share in SHARES), "with all features")


def quality(data: Path, quick: bool) -> Section:
    """Measure, and return the section."""
    environment, machines = prepared("boosting"), prepared("ebm")
    findings = missing_peers([environment, machines])
    sheets: list[Sheet] = []
    pictures: list[Picture] = []
    for name in list(SETS)[: 1 if quick else None]:
        problem = load(name, data)
        candidates: dict[str, Candidates] = {
            LINEAR: by_least_squares(problem, "linear"),
            BASIS: by_least_squares(problem, "auto"),
            LIKELIHOOD: by_likelihood(problem),
        }
        if not isinstance(environment, Absent):
            try:
                found = boosted(problem, environment, quick)
                candidates |= {LIGHTGBM: found["lightgbm"], XGBOOST: found["xgboost"]}
            except FailedError as error:
                findings.append(Finding("absent", f"boosted trees on {name}: {error}"))
        columns = candidates[BASIS].columns
        if not isinstance(machines, Absent) and columns is not None:
            try:
                for kind, (refitted, row_us) in additive(problem, machines, columns).items():
                    method = EBM_PAIRS if kind == "pairs" else EBM
                    candidates[method] = refitted
                    findings.append(Finding("noted", f"{name}: {method} predicts a row of many in {row_us:.1f} us"))
            except FailedError as error:
                findings.append(Finding("absent", f"EBM on {name}: {error}"))
        for measure in problem.measures:
            budgets, curves, weights = _curves(problem, measure, candidates)
            cells = Cells({method: _cells(budgets, values) for method, values in curves.items()}, weights)
            sheets.append(_sheet(problem, measure, cells, candidates))
            findings += compare_cells(f"{name}, {measure}", cells)
            pictures.append(_picture(problem, measure, budgets, curves, weights))
        if name == "yahoo_sample":
            findings += _required(problem)
        print(f"{name}: measured", flush=True)
    present = [each for each in (ours(), environment, machines) if not isinstance(each, Absent)]
    versions = tuple(each.versions_text() for each in present)
    title = "Anytime quality at equal feature cost"
    return Section("quality", title, "", versions, tuple(findings), TEXT, tuple(sheets), tuple(pictures))


def _curves(
    problem: QualitySet, measure: str, candidates: dict[str, Candidates]
) -> tuple[Float, dict[str, Float], Float]:
    """Return every cost at which a curve changes, each method's terms there (budgets, u), and their weights (u,)."""
    total = float(problem.groups.costs.sum())
    costs = np.concatenate([points[measure].costs for points, *_ in candidates.values()])
    budgets = np.unique(np.concatenate([[0.0], costs, [total]]))
    prior, weights = problem.prior(measure)
    curves = {
        name: value_at_budgets(points[measure], budgets, prior, chosen=name in (LIGHTGBM, XGBOOST))
        for name, (points, *_) in candidates.items()
    }
    return budgets, curves, weights


def _cells(budgets: Float, values: Float) -> Float:
    """Return the terms (budgets, u) of a curve averaged over budgets up to each share, and its last, (cells, u)."""
    total = float(budgets[-1])
    return np.array([*(mean_upto(budgets, values, share * total) for share in SHARES), values[-1]])


def compare_cells(where: str, cells: Cells) -> list[Finding]:
    """Compare the basis with linear columns, which it must not lose to, and with the best peer, in each cell."""
    findings = []
    peers = [name for name in cells.terms if not name.startswith("ours")]
    against = {name: cells.against(name) for name in (LINEAR, *peers)}
    for i, what in enumerate(CELLS):

        def words(other: str, i: int = i, what: str = what) -> str:
            gain, error = against[other][i]
            values = f"{BASIS} {cells.values(BASIS)[i]:.4f}, {other} {cells.values(other)[i]:.4f}"
            return f"{where}, {what}: {values}, difference {gain:+.4f} ± {error:.4f}"

        gain, error = against[LINEAR][i]
        findings.append(Finding("holds" if gain >= -2 * error else "missed", words(LINEAR)))
        if peers:
            best = max(peers, key=lambda name: float(cells.values(name)[i]))
            gain, error = against[best][i]
            verdict: Verdict = "noted" if abs(gain) <= 2 * error else "ahead" if gain > 0 else "behind"
            findings.append(Finding(verdict, words(best)))
    return findings


def _required(problem: QualitySet) -> list[Finding]:
    """Compare the basis, fitted on all training rows, with what is required of all features."""
    whole = problem.fit.joined(problem.choose)
    points, *_ = by_least_squares(replace(problem, fit=whole), "auto")
    findings = []
    for measure, limit in REQUIRED.items():
        terms = points[measure].test[-1]
        value = float(terms.sum() / problem.prior(measure)[1].sum())
        verdict: Verdict = "holds" if value >= limit else "missed"
        words = f"{problem.name}, {measure} with all features, fitted on all training rows: {value:.4f}"
        findings.append(Finding(verdict, f"{words}, required {limit:g}"))
    return findings


def _sheet(problem: QualitySet, measure: str, cells: Cells, candidates: dict[str, Candidates]) -> Sheet:
    rows: list[tuple[Cell, ...]] = []
    for name in cells.terms:
        texts = [f"{value:.4f}" for value in cells.values(name)]
        if name != BASIS:
            against = cells.against(name)
            texts = [f"{text} ({gain:+.4f} ± {error:.4f})" for text, (gain, error) in zip(texts, against, strict=True)]
        rows.append((name, *texts, digits(candidates[name][1])))
    columns = ("", *(f"mean to {share:.0%} of cost" for share in SHARES), "all features", "seconds to fit")
    return Sheet(f"{problem.what}: {measure} on the test rows", columns, tuple(rows))


def _picture(problem: QualitySet, measure: str, budgets: Float, curves: dict[str, Float], weights: Float) -> Picture:
    figure, (axis,) = panels(1, width=7.0, height=4.0)
    for number, (name, terms) in enumerate(curves.items()):
        curve(axis, budgets, terms.sum(axis=1) / weights.sum(), name, number, drawstyle="steps-post")
    smallest = float(problem.groups.costs[problem.groups.costs > 0].min())
    axis.set_xscale("symlog", linthresh=smallest)
    axis.set(xlabel=f"cost of the features ({problem.groups.cost_unit})", ylabel=f"{measure} (test)", xlim=(0, None))
    axis.legend(fontsize=8, loc="lower right")
    return picture(f"{problem.name}: {measure} on the test rows for what the features cost.", figure)
