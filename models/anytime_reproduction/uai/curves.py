"""Figures 3, 4 and 5 of the UAI paper: explained variance against cost on held-out rows."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anytime.model.curve import plateau_level, stopping_cost, timeliness
from anytime.model.prefixes import staircase
from anytime.selection import given_sequence, sequence
from anytime.types import Float
from anytime_reproduction.comparison import VARIANTS, explained_by_prefixes
from anytime_reproduction.experiment import Experiment, Figure, Finding, Result, Results, Run, Section, Setting, Table
from anytime_reproduction.lasso.sparse import shrunken_curve, sparse_entries
from anytime_reproduction.report import curve, panels
from anytime_reproduction.sets import SetName, load_set, regrouping
from anytime_reproduction.uai.timeliness import validated_alpha

METHODS = {variant.name: variant for variant in VARIANTS[:5]}  # CS-G-FR, CS-G-OMP, Single, No-Whiten and G-OMP

COMPARED = ("CS-G-FR", "CS-G-OMP", "Single", "Sparse (shrunken)")  # in Figure 5; the paper's Sparse is the shrunken one
LEVELS = (0.9, 0.95, 0.97, 0.98, 0.99)  # shares of the final value at which Figure 3a stops
VISIBLE = 0.01  # share from which the difference of two areas is visible; Table 2 has the errors of such differences


MISSING = {
    "G-OMP": "costs",
    "No-Whiten": "group whitening",
    "Sparse (shrunken)": "greedy selection instead of Group Lasso",
}
"""What the methods do without that CS-G-OMP is compared with, on held-out rows."""


class CurveProblem(NamedTuple):
    """A data set of the figures: penalty (None: by validation), level where its curves stop, size of random groups.

    The report calls it `label`.
    """

    name: SetName
    alpha: float | None
    level: float
    size: int | None
    label: str = ""


PROBLEMS = (
    CurveProblem("kddcup99", 1e-7, 0.97, None),
    CurveProblem("yahoo_sample", None, 0.98, 10),
    CurveProblem("mq2008", 1e-5, 0.99, 5),
)
"""The paper's plots have groups of 10; mq2008 would have too few of them."""


def draw_curves(setting: Setting, name: SetName, alpha: float | None, size: int | None) -> Result:
    """Return curves of all methods on a problem's first split: cost, F in training and held out, natural measure."""
    data = load_set(name, setting)
    groups, order = regrouping(setting, data.groups, size)
    split = data.split(0).ordered(order)
    gram, penalty = split.gram, validated_alpha(setting, name, size or 1) if alpha is None else alpha
    X = (data.X[np.ix_(split.test, order)] - gram.x_mean) / gram.x_scale

    def curves(costs: Float, train: Float, held: Float, coef: Float) -> Result:
        """Add the natural measure, if there is one, of the models `coef` (models, D) in standard units."""
        measured = data.measured(split.test, gram.y_mean[0] + gram.y_scale[0] * (coef @ X.T))
        return {
            "costs": costs.tolist(),
            "train": train.tolist(),
            "test": held.tolist(),
            "measure": None if measured is None else measured.tolist(),
        }

    entries = sparse_entries(gram, groups)
    learned = {
        **{m: sequence(gram, groups, v.method, penalty, cost_blind=v.cost_blind) for m, v in METHODS.items()},
        "Sparse": given_sequence(gram, groups, entries.steps, penalty),
    }
    methods = {}
    for method, found in learned.items():
        W = staircase(found.state.factor, found.state.z, found.ends)
        coef = np.zeros((len(W), len(order)))
        coef[:, found.columns] = W[:, :, 0]
        held = explained_by_prefixes(found, W, split.held).sum(axis=1)
        methods[method] = curves(found.costs, found.explained_variance, held, coef)
    costs, train = shrunken_curve(entries.path, groups, gram.own)
    _, held = shrunken_curve(entries.path, groups, split.held)
    coef = np.concatenate([np.zeros((1, len(order))), entries.path.coef[:, :, 0]])
    methods["Sparse (shrunken)"] = curves(costs, train.sum(axis=1), held.sum(axis=1), coef)
    return {
        "what": data.what,
        "unit": groups.cost_unit,
        "measure": data.measure,
        "alpha": penalty,
        "risk": 0.5 * float(split.held.yy.sum()),
        "methods": methods,
    }


def _section(setting: Setting, results: Results) -> Section:
    sets = {p._replace(label=setting.labelled(p.name, p.name)): results[p.name] for p in PROBLEMS}
    yahoo = list(sets)[1]
    measured = {problem: result for problem, result in sets.items() if result["measure"] is not None}
    figures = [
        Figure(
            "figure-3a",
            f"Figure 3a: the plateau of CS-G-OMP on {yahoo.label}, and its alpha-stopping costs (dashed).",
            partial(_draw_plateau, yahoo, sets[yahoo]),
        ),
        _figure("3b", "Figure 3b: the importance of costs", ("CS-G-OMP", "G-OMP"), {yahoo: sets[yahoo]}),
        _figure("4", "Figure 4: group whitening", ("CS-G-OMP", "No-Whiten"), sets),
        _figure("5ab", "Figure 5a, b: the criteria", COMPARED, sets),
    ]
    if measured:
        figures.append(_figure("5cd", "Figure 5c, d: the same by the natural measure", COMPARED, measured, "measure"))
    what = [
        f"{p.label}: {result['what']}, {f'random groups of {p.size}' if p.size else 'groups as they are'}, "
        f"alpha {result['alpha']:.3g}{'' if p.alpha else ' by validation'}"
        for p, result in sets.items()
    ]
    return Section(
        [
            *(_plateau_finding(problem, result) for problem, result in sets.items()),
            *(finding for problem, result in sets.items() for finding in _area_findings(problem, result)),
        ],
        (
            f"Measured on the first split of each set. {'; '.join(what)}. All curves except the plateau's are of "
            "held-out rows. A curve is a staircase: between two steps an interrupted client has the value of the step "
            "before. The cost axis is logarithmic, because the first steps gain most.",
            "Conclusion: a small part of the cost buys most of what a linear model explains, so the order matters long "
            "before all features are computed. anytime plot shows the plateau of your own model.",
        ),
        (
            Table.titled(
                "stopping-costs",
                "Alpha-stopping costs of CS-G-OMP, as a share of the cost of all features.",
                ("set", *(f"{level:g}-stopping cost" for level in LEVELS)),
                [
                    (p.label, *(f"{_stop_share(p, result, level):.2%}" for level in LEVELS))
                    for p, result in sets.items()
                ],
            ),
        ),
        figures,
    )


def _staircase(result: Result, method: str, side: str) -> tuple[Float, Float]:
    curves = result["methods"][method]
    return np.array(curves["costs"]), np.array(curves[side])


def _stop(problem: CurveProblem, result: Result, level: float | None = None) -> float:
    """Return the cost at which CS-G-OMP reaches a share of its final training value: where curves stop, by default."""
    return stopping_cost(*_staircase(result, "CS-G-OMP", "train"), problem.level if level is None else level)


def _stop_share(problem: CurveProblem, result: Result, level: float) -> float:
    return _stop(problem, result, level) / float(result["methods"]["CS-G-OMP"]["costs"][-1])


def _plateau_finding(problem: CurveProblem, result: Result) -> Finding:
    """Judge the paper's claim that the last percent takes half of Yahoo's cost, and describe the plateau."""
    costs, explained = _staircase(result, "CS-G-OMP", "train")
    level = plateau_level(costs, explained)
    last = 1.0 - _stop_share(problem, result, 0.99)
    held = np.array(result["methods"]["CS-G-OMP"]["test"])
    reached = float(costs[np.flatnonzero(held >= 0.99 * held.max())[0]] / costs[-1])
    words = (
        f"{problem.label}: the last percent of what is explained in training is bought by {last:.0%} of the cost "
        f"(plateau by the rule of section 5.2: {f'from {level:g} on' if level < 1 else 'none'}); held out, 99 % of the "
        f"best value is reached at {reached:.1%} of the cost"
    )
    if last < 0.5 <= 1.0 - reached:
        words += ": the training curve continues to rise because it fits the noise of its rows, which hides the plateau"
    if problem.name == "yahoo_sample":
        return Finding(f"{words}. Published: the last percent is bought by half of the cost, from 0.99 on", last >= 0.5)
    return Finding(f"{words}." + " AGRICULTURAL: from 0.97 on." * (problem.name == "kddcup99"))


def _area_findings(problem: CurveProblem, result: Result) -> list[Finding]:
    """Return findings on areas up to the stop: cost-blindness and missing whitening lose on held-out rows."""
    stop, risk = _stop(problem, result), result["risk"]
    area = {name: timeliness(*_staircase(result, name, "test"), stop, risk, "step") for name in result["methods"]}
    best = area["CS-G-OMP"]
    seen = {name: abs(best - value) > VISIBLE * best for name, value in area.items()}
    return [
        Finding(
            f"{problem.label}: {why}: the area under the staircase of CS-G-OMP is {best:.4f}, of {worse} "
            f"{area[worse]:.4f}{'' if seen[worse] else ': no visible difference'}",
            best > area[worse] if seen[worse] else None,
            judged=True,
        )
        for worse, why in MISSING.items()
    ]


def _draw_plateau(problem: CurveProblem, result: Result) -> Any:
    figure, (axis,) = panels(1, width=6.0)
    costs, explained = _staircase(result, "CS-G-OMP", "train")
    axis.step(costs, explained, where="post", color="black", linewidth=1.5)
    for level in LEVELS:
        stop = _stop(problem, result, level)
        axis.axvline(stop, color="0.5", linewidth=0.8, linestyle="--")
        axis.text(
            stop, 0.02 * explained[-1], f" {level:g}", rotation=90, fontsize=8, va="bottom", ha="right", color="0.3"
        )
    axis.set(
        xlabel=f"cost ({result['unit']})", ylabel="explained variance F (training)", ylim=(0, None), xlim=(0, costs[-1])
    )
    return figure


def _figure(
    number: str, title: str, methods: tuple[str, ...], sets: dict[CurveProblem, Result], side: str = "test"
) -> Figure:
    stops = ", ".join(f"{problem.label} at {problem.level:g}" for problem in sets)
    caption = f"{title}. Curves stop where CS-G-OMP reaches a share of its final training value: {stops}."
    return Figure(f"figure-{number}", caption, partial(_draw, methods, sets, side))


def _draw(methods: tuple[str, ...], sets: dict[CurveProblem, Result], side: str) -> Any:
    figure, axes = panels(len(sets))
    for axis, (problem, result) in zip(axes, sets.items(), strict=True):
        stop = _stop(problem, result)
        for number, method in enumerate(methods):
            costs, values = _staircase(result, method, side)
            known = costs <= stop * (1 + 1e-9)
            x, y = np.append(costs[known], stop), np.append(values[known], values[known][-1])
            curve(axis, x, y, method, number, drawstyle="steps-post")
        measure = result["measure"] if side == "measure" else "explained variance F"
        first = min(cost for curves in result["methods"].values() for cost in curves["costs"] if cost > 0)
        axis.set(
            title=problem.label,
            xlabel=f"cost ({result['unit']})",
            ylabel=f"{measure} (held out)",
            xscale="log",
            xlim=(first, stop),
        )
        if side == "test":
            axis.set_ylim(0, None)
    axes[-1].legend(fontsize=9, loc="lower right", frameon=False)
    return figure


CURVES = Experiment(
    "curves",
    "Explained variance against cost (Figures 3, 4 and 5)",
    "Hu et al. 2016, Figures 3, 4, 5",
    lambda _: [Run(p.name, draw_curves, {"name": p.name, "alpha": p.alpha, "size": p.size}) for p in PROBLEMS],
    _section,
    tuple(problem.name for problem in PROBLEMS),
    of_the_sets=True,
)
