"""Figures 3, 4 and 5 of the UAI paper: explained variance against cost on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from anytime.groups import FeatureGroups
from anytime.model.curve import plateau_level, stopping_cost, timeliness
from anytime.model.prefixes import staircase
from anytime.selection import (
    Entries,
    FactoredSequence,
    given_sequence,
    sequence,
    shrunken_curve,
    sparse_entries,
)
from anytime.types import Float, Index, Method
from anytime_reproduction.experiment import Experiment, Figure, Finding, Result, Results, Run, Section, Setting, Table
from anytime_reproduction.report import curve, log_axis, panels
from anytime_reproduction.sets import RealSet, SetName, Split, load_set, numbered_grouping
from anytime_reproduction.uai.timeliness import validated_alpha

__all__ = [
    "CURVES",
]

METHODS: dict[str, tuple[Method, bool]] = {
    "CS-G-FR": ("fr", False),
    "CS-G-OMP": ("omp", False),
    "Single": ("single", False),
    "No-Whiten": ("no-whiten", False),
    "G-OMP": ("omp", True),
}
"""Criterion, and whether it is cost-blind."""

COMPARED = ("CS-G-FR", "CS-G-OMP", "Single", "Sparse (shrunken)")
"""Methods compared in Figure 5; the paper's Sparse has the shrunken weights."""

LEVELS = (0.9, 0.95, 0.97, 0.98, 0.99)
"""Shares of the final value at which Figure 3a stops."""


VISIBLE = 0.01
"""Share from which the difference of two areas is visible; Table 2 has the errors of such differences."""


class Problem(NamedTuple):
    """A data set of the figures: penalty (None: by validation), level where its curves stop, size of random groups."""

    name: SetName
    alpha: float | None
    level: float
    size: int | None


PROBLEMS = (
    Problem("kddcup99", 1e-7, 0.97, None),
    Problem("yahoo_sample", None, 0.98, 10),
    Problem("mq2008", 1e-5, 0.99, 5),
)
"""The paper's plots have groups of 10; mq2008 would have too few of them."""


# Runs.


def draw_curves(setting: Setting, number: int) -> Result:
    """Return curves of all methods on a problem's first split: cost, F in training and held out, natural measure."""
    problem = PROBLEMS[number]
    data = load_set(problem.name, setting)
    split, groups = data.split(0), data.groups
    order = np.arange(len(groups.features))
    alpha = problem.alpha
    if problem.size is not None:
        groups, order = numbered_grouping(setting, groups, problem.size)
        split = split.ordered(order)
        alpha = validated_alpha(setting, problem.name, problem.size) if alpha is None else alpha
    assert alpha is not None  # noqa: S101  (groups as they are have a penalty of their own)
    found: Result = {"risk": 0.5 * float(split.held.yy.sum()), "alpha": alpha, "methods": {}}
    seen = _Seen(split, data, order)
    for name, (method, cost_blind) in METHODS.items():
        found["methods"][name] = seen.prefixes(sequence(split.gram, groups, method, alpha, cost_blind=cost_blind))
    entries = sparse_entries(split.gram, groups)
    found["methods"]["Sparse"] = seen.prefixes(given_sequence(split.gram, groups, entries.steps, alpha))
    found["methods"]["Sparse (shrunken)"] = seen.path(entries, groups)
    return found


@dataclass(frozen=True)
class _Seen:
    """A split and its rows, from which curves are measured; `order` maps the split's columns to the data set's."""

    split: Split
    data: RealSet
    order: Index

    def prefixes(self, learned: FactoredSequence) -> Result:
        """Return the curves of the prefixes of a sequence."""
        W = staircase(learned.factor, learned.z, learned.ends)
        prefixes = list(zip(learned.ends, W, strict=True))
        held = [float(self.split.held.explained(learned.columns[:end], w[:end]).sum()) for end, w in prefixes]
        coef = np.zeros((len(W), len(self.order)))
        coef[:, learned.columns] = W[:, :, 0]
        return self._curves(learned.costs, learned.explained_variance, held, coef)

    def path(self, entries: Entries, groups: FeatureGroups) -> Result:
        """Return the curves of the shrunken weights of a Group Lasso path."""
        gram = self.split.gram
        costs, train = shrunken_curve(entries.path, groups, gram.own)
        _, held = shrunken_curve(entries.path, groups, self.split.held)
        coef = np.concatenate([np.zeros((1, len(self.order))), entries.path.coef[:, :, 0]])
        return self._curves(costs, train.sum(axis=1), held.sum(axis=1).tolist(), coef)

    def _curves(self, costs: Float, train: Float, held: list[float], coef: Float) -> Result:
        """Return curves with the natural measure of models `coef` (models, D) in standard units, if there is one."""
        gram, rows = self.split.gram, self.split.test
        X = (self.data.X[np.ix_(rows, self.order)] - gram.x_mean) / gram.x_scale
        measured = self.data.measured(rows, gram.y_mean[0] + gram.y_scale[0] * (coef @ X.T))
        values = None if measured is None else measured.tolist()
        return {"costs": costs.tolist(), "train": train.tolist(), "test": held, "measure": values}


def _runs(setting: Setting) -> list[Run]:  # noqa: ARG001  (a quick run draws the same curves)
    return [Run(problem.name, draw_curves, {"number": number}) for number, problem in enumerate(PROBLEMS)]


# The section.


def _section(setting: Setting, results: Results) -> Section:
    sets = {problem: results[problem.name] for problem in PROBLEMS}
    yahoo = PROBLEMS[1]
    figures = [_plateau_figure(sets[yahoo], yahoo, setting)]
    pairs = (
        ("figure-3b", "Figure 3b: the importance of costs", ("CS-G-OMP", "G-OMP"), (yahoo,)),
        ("figure-4", "Figure 4: group whitening", ("CS-G-OMP", "No-Whiten"), PROBLEMS),
        ("figure-5ab", "Figure 5a, b: the criteria", COMPARED, PROBLEMS),
    )
    for name, title, methods, problems in pairs:
        figures.append(_figure(name, title, methods, {problem: sets[problem] for problem in problems}, setting))
    measured = {p: r for p, r in sets.items() if r["methods"]["CS-G-FR"]["measure"] is not None}
    if measured:
        title = "Figure 5c, d: the same by the natural measure"
        figures.append(_figure("figure-5cd", title, COMPARED, measured, setting, "measure"))
    findings = [_plateau_finding(problem, result) for problem, result in sets.items()]
    for problem, result in sets.items():
        findings += _curve_findings(problem, result)
    return Section(tuple(findings), _text(setting, sets), (_plateau_table(sets),), tuple(figures))


def _text(setting: Setting, sets: dict[Problem, Result]) -> tuple[str, ...]:
    what = "; ".join(
        f"{p.name}: {load_set(p.name, setting).what}, "
        f"{f'random groups of {p.size}' if p.size else 'groups as they are'}, alpha "
        f"{r['alpha']:.3g}{'' if p.alpha else ' by validation'}"
        for p, r in sets.items()
    )
    return (
        f"Measured on the first split of each set. {what}. All curves except the plateau's are of held-out rows. A "
        "curve is a staircase: between two steps an interrupted client has the value of the step before. The cost axis "
        "is logarithmic, because the first steps gain most.",
        "Conclusion: a small part of the cost buys most of what a linear model explains, so the order matters long "
        "before all features are computed. anytime plot shows the plateau of your own model.",
    )


def _stop(problem: Problem, result: Result, level: float | None = None) -> float:
    """Return the cost at which a problem's curves stop: where CS-G-OMP reaches a share of its final training value."""
    reference = result["methods"]["CS-G-OMP"]
    level = problem.level if level is None else level
    return stopping_cost(np.array(reference["costs"]), np.array(reference["train"]), level)


def _plateau_table(sets: dict[Problem, Result]) -> Table:
    rows = []
    for problem, result in sets.items():
        total = result["methods"]["CS-G-OMP"]["costs"][-1]
        rows.append((problem.name, *(f"{_stop(problem, result, level) / total:.2%}" for level in LEVELS)))
    columns = ("set", *(f"{level:g}-stopping cost" for level in LEVELS))
    return Table(
        "stopping-costs",
        "Alpha-stopping costs of CS-G-OMP, as a share of the cost of all features.",
        columns,
        tuple(rows),
    )


def _plateau_finding(problem: Problem, result: Result) -> Finding:
    """Return a finding on the paper's claim that the last percent takes half of Yahoo's cost, and on the plateau."""
    reference = result["methods"]["CS-G-OMP"]
    costs, explained = np.array(reference["costs"]), np.array(reference["train"])
    level = plateau_level(costs, explained)
    last = 1.0 - stopping_cost(costs, explained, 0.99) / costs[-1]
    held = np.array(reference["test"])
    reached = float(costs[np.flatnonzero(held >= 0.99 * held.max())[0]] / costs[-1])
    words = f"{problem.name}: the last percent of what is explained in training is bought by {last:.0%} of the cost"
    words += f" (plateau by the rule of section 5.2: {f'from {level:g} on' if level < 1 else 'none'})"
    words += f"; held out, 99 % of the best value is reached at {reached:.1%} of the cost"
    if last < 0.5 <= 1.0 - reached:
        words += ": the training curve continues to rise because it fits the noise of its rows, which hides the plateau"
    if problem.name == "yahoo_sample":
        return Finding(f"{words}. Published: the last percent is bought by half of the cost, from 0.99 on", last >= 0.5)
    return Finding(f"{words}." + " AGRICULTURAL: from 0.97 on." * (problem.name == "kddcup99"))


def _curve_findings(problem: Problem, result: Result) -> list[Finding]:
    """Return findings on areas up to the stop: cost-blindness and missing whitening lose on held-out rows."""
    stop = _stop(problem, result)

    def area(method: str) -> float:
        curves = result["methods"][method]
        return timeliness(np.array(curves["costs"]), np.array(curves["test"]), stop, result["risk"], "step")

    findings = []
    for worse, why in (
        ("G-OMP", "costs"),
        ("No-Whiten", "group whitening"),
        ("Sparse (shrunken)", "greedy selection instead of Group Lasso"),
    ):
        found, other = area("CS-G-OMP"), area(worse)
        words = (
            f"{problem.name}: {why}: the area under the staircase of CS-G-OMP is {found:.4f}, of {worse} {other:.4f}"
        )
        seen = abs(found - other) > VISIBLE * found
        findings.append(Finding(words + ("" if seen else ": no visible difference"), found > other if seen else None))
    return findings


def _plateau_figure(result: Result, problem: Problem, setting: Setting) -> Figure:
    def draw() -> Any:
        figure, (axis,) = panels(1, width=6.0)
        reference = result["methods"]["CS-G-OMP"]
        costs, explained = np.array(reference["costs"]), np.array(reference["train"])
        axis.step(costs, explained, where="post", color="black", linewidth=1.5)
        for level in LEVELS:
            stop = _stop(problem, result, level)
            axis.axvline(stop, color="0.5", linewidth=0.8, linestyle="--")
            axis.text(
                stop, 0.02 * explained[-1], f" {level:g}", rotation=90, fontsize=8, va="bottom", ha="right", color="0.3"
            )
        axis.set(
            xlabel=_cost_label(problem, setting),
            ylabel="explained variance F (training)",
            ylim=(0, None),
            xlim=(0, costs[-1]),
        )
        return figure

    return Figure(
        "figure-3a",
        f"Figure 3a: the plateau of CS-G-OMP on {problem.name}, and its alpha-stopping costs (dashed).",
        draw,
    )


def _figure(
    name: str, title: str, methods: Many[str], sets: dict[Problem, Result], setting: Setting, side: str = "test"
) -> Figure:
    def draw() -> Any:
        figure, axes = panels(len(sets))
        for axis, (problem, result) in zip(axes, sets.items(), strict=True):
            stop = _stop(problem, result)
            for number, method in enumerate(methods):
                curves = result["methods"][method]
                x, y = _within(np.array(curves["costs"]), np.array(curves[side]), stop)
                curve(axis, x, y, method, number, drawstyle="steps-post")
            measure = load_set(problem.name, setting).measure if side == "measure" else "explained variance F"
            axis.set(title=problem.name, xlabel=_cost_label(problem, setting), ylabel=f"{measure} (held out)")
            log_axis(axis, "x", _first_cost(result), stop)
            if side == "test":
                axis.set_ylim(0, None)
        axes[-1].legend(fontsize=9, loc="lower right", frameon=False)
        return figure

    stops = ", ".join(f"{problem.name} at {problem.level:g}" for problem in sets)
    return Figure(
        name, f"{title}. Curves stop where CS-G-OMP reaches a share of its final training value: {stops}.", draw
    )


def _within(costs: Float, values: Float, stop: float) -> tuple[Float, Float]:
    """Return the part of a staircase up to a cost, extended to it."""
    known = costs <= stop * (1 + 1e-9)
    return np.append(costs[known], stop), np.append(values[known], values[known][-1])


def _first_cost(result: Result) -> float:
    """Return the smallest cost above 0 of any curve, where a logarithmic axis begins."""
    return float(min(cost for curves in result["methods"].values() for cost in curves["costs"] if cost > 0))


def _cost_label(problem: Problem, setting: Setting) -> str:
    groups: FeatureGroups = load_set(problem.name, setting).groups
    return f"cost ({groups.cost_unit})"


CURVES = Experiment(
    "curves",
    "Explained variance against cost (Figures 3, 4 and 5)",
    "Hu et al. 2016, Figures 3, 4, 5",
    _runs,
    _section,
    tuple(problem.name for problem in PROBLEMS),
    of_the_sets=True,
)
