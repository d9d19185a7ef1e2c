"""Certificates: proved bounds on how close forward regression is to the best possible set at each of its costs.

The papers have no certificates. The report compares them with the bound of Theorem 3.2, which ignores the optimum of
the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from anytime.evaluation.certificate.certify import at_least, certify_prefixes
from anytime.groups import FeatureGroup, FeatureGroups
from anytime.moments.accumulate import moments_of
from anytime.moments.moments import Gram, Moments
from anytime.selection import sequence
from anytime.training.guarantee import bound as least_share
from anytime.training.guarantee import guarantee
from anytime.types import Float, Index
from anytime_reproduction.experiment import Experiment, Figure, Finding, Result, Results, Run, Section, Setting, Table
from anytime_reproduction.report import log_axis, panels
from anytime_reproduction.sets import RealSet, SetName, load_set, numbered_grouping, regrouped

__all__ = [
    "CERTIFICATES",
    "PROBLEMS",
    "SLACK",
    "Optimum",
    "ProblemName",
    "SmallProblem",
    "best_of_sets",
    "cheapest",
    "drawn_costs",
    "knapsack",
    "recosted",
    "small_problem",
]

ALPHA = 1e-5


class Case(NamedTuple):
    """A data set in its own groups, or in random groups of a size, and seconds for its certificate."""

    label: str
    name: SetName
    size: int | None
    seconds: float


CASES = (
    Case("mq2008", "mq2008", None, 60.0),
    Case("boston_housing", "boston_housing", None, 60.0),
    Case("kddcup99", "kddcup99", None, 120.0),
    Case("yahoo_sample", "yahoo_sample", None, 300.0),
    Case("yahoo_sample in fives", "yahoo_sample", 5, 200.0),
)

QUICK_CASES = 2
QUICK_SECONDS = 5.0


def certified(setting: Setting, number: int, seconds: float) -> Result:
    """Return the certificate of the sequence of forward regression on all training rows."""
    case = CASES[number]
    data = load_set(case.name, setting)
    trained = data.splits[0][0] if case.name == "yahoo_sample" else range(int(data.part.max()) + 1)
    moments = data.moments()
    gram, groups = Gram.of(Moments.merged([moments[part] for part in trained])), data.groups
    if case.size is not None:
        groups, order = numbered_grouping(setting, groups, case.size)
        gram = gram.restricted(order)
    learned = sequence(gram, groups, "fr", ALPHA)
    costs, explained = learned.costs[1:], learned.explained_variance[1:]
    found = certify_prefixes(gram, groups, costs, explained, ALPHA, seconds=seconds, nodes=100_000, n_jobs=1)
    gamma = guarantee(gram, groups, "fr", ALPHA).gamma
    return {
        "groups": len(groups),
        "costs": costs.tolist(),
        "F": explained.tolist(),
        "bound": [prefix.bound for prefix in found],
        "exact": [prefix.exact for prefix in found],
        "best": [prefix.reached for prefix in found],
        "nodes": sum(prefix.nodes for prefix in found),
        "promised": None if gamma is None else least_share(gamma, 1.0, 1.0),
    }


def _cases(setting: Setting) -> list[Case]:
    return list(CASES[:QUICK_CASES] if setting.quick else CASES)


def _runs(setting: Setting) -> list[Run]:
    return [
        Run(
            case.label.replace(" ", "-"),
            certified,
            {"number": number, "seconds": QUICK_SECONDS if setting.quick else case.seconds},
        )
        for number, case in enumerate(_cases(setting))
    ]


def _section(setting: Setting, results: Results) -> Section:
    found = {case: results[case.label.replace(" ", "-")] for case in _cases(setting)}
    rows = []
    for case, result in found.items():
        shares, exact = _shares(result), result["exact"]
        promised = "" if result["promised"] is None else f"{result['promised']:.1%}"
        middle = at_least(float(np.median(shares)))
        rows.append(
            (
                case.label,
                result["groups"],
                len(exact),
                sum(exact),
                at_least(min(shares)),
                middle,
                promised,
                result["nodes"],
            )
        )
    columns = (
        "set",
        "groups",
        "prefixes",
        "best known exactly",
        "least certified",
        "median",
        "Theorem 3.2 at B = K",
        "nodes",
    )
    table = Table(
        "certificates",
        "The certified share of every prefix of CS-G-FR of the best possible F at its cost.",
        columns,
        tuple(rows),
    )
    figure = Figure(
        "certificates",
        "The widest gaps: F of CS-G-FR (solid) and the certified bound on the F of any set of groups of that cost "
        "(dashed).",
        lambda: _draw(found, setting),
    )
    return Section(tuple(_finding(case, result) for case, result in found.items()), _text(found), (table,), (figure,))


def _text(found: dict[Case, Result]) -> tuple[str, ...]:
    least = min(min(_shares(result)) for result in found.values())
    promised = [result["promised"] for result in found.values() if result["promised"] is not None]
    guarantee = f"at most {max(promised):.1%} at equal cost" if promised else "nothing"
    return (
        "For every prefix, branch and bound searches the best set of groups that costs no more, and maintains a bound "
        "that no such set exceeds. If the search completes, the best set is known; if its time expires first, the "
        "bound is still valid, and a faster machine finds a tighter one. anytime certify does the same for your "
        "model.",
        f"Conclusion: Theorem 3.2, which is valid for any data, guarantees {guarantee} on these sets; the "
        f"certificates, which are specific to the data, prove {at_least(least)} or more for every prefix of each.",
    )


def _shares(result: Result) -> list[float]:
    return [F / bounded for F, bounded in zip(result["F"], result["bound"], strict=True)]


def _finding(case: Case, result: Result) -> Finding:
    shares, exact = _shares(result), result["exact"]
    optimal = sum(
        best * (1 - 1e-9) <= F for F, best, known in zip(result["F"], result["best"], exact, strict=True) if known
    )
    known = f"the best set is known at {sum(exact)} of {len(exact)} costs, and the greedy prefix is it {optimal} times"
    words = f"{case.label}: {known}; every prefix has at least {at_least(min(shares))} of the best possible"
    return Finding(words)


def _draw(found: dict[Case, Result], setting: Setting) -> Any:
    """Draw the widest gaps between the value reached and the bound, at most three."""
    widest = sorted(found, key=lambda case: min(_shares(found[case])))[:3]
    found = {case: found[case] for case in found if case in widest}
    figure, axes = panels(len(found), width=4.0)
    for axis, (case, result) in zip(axes, found.items(), strict=True):
        costs = np.array(result["costs"])
        axis.step(costs, result["F"], where="post", color="black", linewidth=1.5, label="CS-G-FR")
        # The bound at a cost is valid for smaller costs: a budget between two prefixes has that of the second.
        bound, look = result["bound"], {"color": "0.5", "linestyle": "--", "linewidth": 1.5}
        axis.step(costs, bound, where="pre", label="no set is better", **look)
        unit = load_set(case.name, setting).groups.cost_unit
        axis.set(title=case.label, xlabel=f"cost ({unit})", ylim=(0, None))
        if costs[0] > 0 and costs[-1] > 20 * costs[0]:
            log_axis(axis, "x", float(costs[0]), float(costs[-1]))
    axes[0].set_ylabel("explained variance F (training)")
    axes[-1].legend(fontsize=9, loc="lower right", frameon=False)
    return figure


CERTIFICATES = Experiment(
    "certificates",
    "Certified shares of the best possible F",
    "",
    _runs,
    _section,
    ("mq2008", "boston_housing", "kddcup99", "yahoo_sample"),
)


SLACK = 1 + 1e-9
"""Costs are sums: a cost above a budget by this share only is within it."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """The optimum as a function of the budget: a staircase.

    Attributes
    ----------
    costs : (steps,) costs at which a better set becomes affordable, increasing, from 0 on.
    values : (steps,) the best value of any set of at most that cost.
    """

    costs: Float
    values: Float

    def within(self, budgets: Float) -> Float:
        """Return the best value of any set within each of some budgets."""
        best: Float = self.values[np.searchsorted(self.costs, budgets * SLACK, side="right") - 1]
        return best


def best_of_sets(values: Float, costs: Float) -> Optimum:
    """Return the optimum over all sets of groups.

    Parameters
    ----------
    values : (2^groups,) value of every set; bit g of the index marks group g, as in `subset_values`.
    costs : (groups,) cost of each group.
    """
    sets = np.arange(len(values))
    totals = sum(((sets >> g & 1) * cost for g, cost in enumerate(costs)), start=np.zeros(len(values)))
    order: Index = np.argsort(totals, kind="stable")
    best = np.maximum.accumulate(values[order])
    better = np.append(True, best[1:] > best[:-1])
    return Optimum(totals[order][better], best[better])


def knapsack(values: Float, costs: Index) -> Float:
    """Return the best sum of values within each integer budget from 0 to the sum of the costs, (budgets,).

    Parameters
    ----------
    values, costs : (items,) value and cost, a positive integer, of each item; an item is used at most once.
    """
    best = np.zeros(int(costs.sum()) + 1)
    for value, cost in zip(values, costs, strict=True):
        best[cost:] = np.maximum(best[cost:], best[:-cost] + value)
    return best


ProblemName = Literal[
    "mq2008", "boston_housing", "kddcup99", "yahoo_sample", "nearly independent", "one cause", "families"
]

PROBLEMS: tuple[ProblemName, ...] = (
    "mq2008",
    "boston_housing",
    "kddcup99",
    "yahoo_sample",
    "nearly independent",
    "one cause",
    "families",
)

ROWS = 2000
"""Number of rows of the synthetic problems."""


@dataclass(frozen=True, eq=False)
class SmallProblem:
    """A problem whose sets are enumerated.

    Attributes
    ----------
    what : description in the report.
    gram, groups : the problem, with its own costs.
    """

    what: str
    gram: Gram
    groups: FeatureGroups


def small_problem(setting: Setting, name: ProblemName, max_groups: int) -> SmallProblem:
    """Return a problem of at most `max_groups` groups: the cheapest groups of a larger data set."""
    if name in _SYNTHETIC:
        X, y, sizes = _SYNTHETIC[name](np.random.default_rng([setting.seed, PROBLEMS.index(name)]), max_groups)
        built = [_group(g, size) for g, size in enumerate(sizes)]
        groups = recosted(
            FeatureGroups(groups=tuple(built)), drawn_costs(np.random.default_rng(setting.seed), max_groups, 0)
        )
        return SmallProblem(
            f"synthetic: {len(groups)} groups of {X.shape[1]} features", Gram.of(moments_of(X, y)), groups
        )
    data = load_set(_SETS[name], setting)
    if name == "yahoo_sample":
        data = regrouped(data, 20, np.random.default_rng([setting.seed, 20]))
    few = cheapest(data, max_groups)
    selection = "" if few is data else f"; its {max_groups} cheapest groups, {few.X.shape[1]} features"
    return SmallProblem(data.what + selection, Gram.of(moments_of(few.X, few.y)), few.groups)


def cheapest(data: RealSet, max_groups: int) -> RealSet:
    """Return the cheapest groups of a data set, in the order of its groups file."""
    if len(data.groups) <= max_groups:
        return data
    selected = sorted(np.argsort(data.groups.costs, kind="stable")[:max_groups].tolist())
    columns = np.concatenate([np.arange(s.start, s.stop) for s in (data.groups.slices[g] for g in selected)])
    groups = FeatureGroups(cost_unit=data.groups.cost_unit, groups=tuple(data.groups.groups[g] for g in selected))
    return RealSet(data.name, data.what, groups, data.X[:, columns], data.y, data.part, data.splits)


def drawn_costs(rng: np.random.Generator, count: int, number: int) -> Float:
    """Return random costs: alternately integers with the smallest occurring twice, and any numbers from 1 to 100."""
    if number % 2 == 0:
        integers = rng.choice([1.0, 2.0, 3.0, 5.0, 8.0, 13.0], count)
        integers[rng.choice(count, 2, replace=False)] = 1.0
        return integers
    drawn: Float = np.exp(rng.uniform(0.0, np.log(100.0), count))
    return drawn


def recosted(groups: FeatureGroups, costs: Float) -> FeatureGroups:
    """Return the same groups at other costs."""
    built = [group.model_copy(update={"cost": float(cost)}) for group, cost in zip(groups.groups, costs, strict=True)]
    return FeatureGroups(cost_unit=groups.cost_unit, groups=tuple(built))


def _group(g: int, size: int) -> FeatureGroup:
    return FeatureGroup(name=f"g{g}", features=tuple(f"g{g}x{d}" for d in range(size)), cost=1.0)


def _nearly_independent(rng: np.random.Generator, count: int) -> tuple[Float, Float, list[int]]:
    """Return single features that are nearly independent."""
    X = rng.normal(size=(ROWS, count)) + 0.2 * rng.normal(size=(ROWS, 1))
    return X, X @ rng.normal(size=count) + rng.normal(size=ROWS), [1] * count


def _one_cause(rng: np.random.Generator, count: int) -> tuple[Float, Float, list[int]]:
    """Return single features with a common cause that the response does not depend on: each helps only with others."""
    common = rng.normal(size=(ROWS, 1))
    X = rng.normal(size=(ROWS, count)) + 2.0 * common
    weights = rng.normal(size=count)
    return X, X @ (weights - weights.mean()) + rng.normal(size=ROWS), [1] * count


def _families(rng: np.random.Generator, count: int) -> tuple[Float, Float, list[int]]:
    """Return groups of ten measurements of one quantity each, with correlated quantities."""
    size = 10
    quantity = rng.normal(size=(ROWS, count)) * 0.4 + rng.normal(size=(ROWS, 1))
    X = np.repeat(quantity, size, axis=1) + 1.2 * rng.normal(size=(ROWS, count * size))
    return X, quantity @ rng.normal(size=count) + rng.normal(size=ROWS), [size] * count


_SYNTHETIC: dict[str, Callable[[np.random.Generator, int], tuple[Float, Float, list[int]]]] = {
    "nearly independent": _nearly_independent,
    "one cause": _one_cause,
    "families": _families,
}

_SETS: dict[str, SetName] = {name: name for name in ("mq2008", "boston_housing", "kddcup99", "yahoo_sample")}
