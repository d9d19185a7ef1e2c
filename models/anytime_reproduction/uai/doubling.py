"""Doubling against greedy selection on the problem of Eq. 10, at every budget (Theorems 4.1 and 4.3).

The problem has items 1, ..., D, item x costs x, and F(S) is the sum of e^x over S. It is a linear model of independent
features with coefficients e^(x/2): explained variances are squares.
"""

from __future__ import annotations

import numpy as np

from anytime.groups import FeatureGroups
from anytime.moments.moments import Gram
from anytime.selection import GroupOrder, sequence
from anytime.training.guarantee import doubling_bound
from anytime.types import Float, Index
from anytime_reproduction.experiment import Experiment, Figure, Finding, Result, Results, Run, Section, Setting, Table
from anytime_reproduction.report import lines
from anytime_reproduction.sets import consecutive_groups

SIZES = (8, 16, 32, 64, 128, 256, 512)  # numbers of items D; a quick run has the first three
SHARES = (1.0, 2.0, 3.0, 3.25, 3.5, 4.0, 5.0)  # values of C: the competitor's budget is B/C


def eq10(D: int) -> tuple[Float, Index]:
    """Return the values of the items of Eq. 10, the largest scaled to 1, and their costs, (D,) each."""
    costs = np.arange(1, D + 1)
    return np.exp(costs - float(D)), costs


def independent(values: Float, costs: Index) -> tuple[Gram, FeatureGroups]:
    """Return independent features of variance 1, each its own group; each explains in proportion to its value."""
    D = len(values)
    q = np.sqrt(values / values.sum())[:, np.newaxis]
    one = np.ones(1)
    gram = Gram(np.eye(D), q, one, np.zeros(D), np.ones(D), np.zeros(1), one, np.zeros(D, dtype=np.bool_), 1.0)
    return gram, consecutive_groups([1] * D, costs)


def learned(values: Float, costs: Index, *, doubling: bool) -> GroupOrder:
    """Return the sequence that our trainer learns from `independent`, by forward regression."""
    return sequence(*independent(values, costs), "fr", 1e-5, doubling=doubling)


def doubled(D: int) -> Index:
    """Return the order of Algorithm 2 on Eq. 10; within the limit the most expensive item has the best rate."""
    order: list[int] = []
    while len(order) < D:
        limit, remaining = max(sum(order), 1), set(range(1, D + 1)).difference(order)
        order.append(max((x for x in remaining if x <= limit), default=min(remaining)))
    return np.array(order, dtype=np.intp)


def knapsack(values: Float, costs: Index) -> Float:
    """Return the best sum of values (items,) within each integer budget from 0 to the sum of the costs, (budgets,).

    Costs (items,) are positive integers; an item is used at most once.
    """
    best = np.zeros(int(costs.sum()) + 1)
    for value, cost in zip(values, costs, strict=True):
        best[cost:] = np.maximum(best[cost:], best[:-cost] + value)
    return best


def ratios(order: Index, values: Float, costs: Index, share: float) -> tuple[Index, Float]:
    """Return the integer budgets B with a positive best of any set of cost B/C, and F of the prefix within B over it.

    `order` (D,) has the indices of the items in sequence, `share` is C.
    """
    best = knapsack(values, costs)
    budgets = np.arange(len(best))
    competitor = best[np.floor(budgets / share * (1 + 1e-12)).astype(np.intp)]
    ends = np.cumsum(np.append(0, costs[order]))
    reached = np.cumsum(np.append(0.0, values[order]))[np.searchsorted(ends, budgets, side="right") - 1]
    some = np.flatnonzero(competitor > 0)
    return some, reached[some] / competitor[some]


def any_sequence(D: int, share: float) -> float:
    """Return an upper bound for all sequences of Eq. 10 with D items, of the least ratio of F within B to the best B/C.

    As in the proof of Theorem 4.1: F within B is at most the sum of e^k up to the most expensive item bought, and items
    that are cheaper than an earlier one only delay the others. The best increasing sequence follows by dynamic
    programming over (most expensive item m, spent b). Once C D is spent the competitor has item D in any case. About C
    D^3 operations, vectorised over b.
    """
    values, costs = eq10(D)
    cumulative = np.append(0.0, np.cumsum(values))
    best = knapsack(values, costs)
    late = int(np.ceil(share * D))
    within = best[np.minimum(np.floor(np.arange(late + D) / share * (1 + 1e-12)).astype(np.intp), len(best) - 1)]
    least = np.ones((D + 1, late + 1))  # the best least ratio from (m, b) on; with item D bought it is 1
    for m in range(D - 1, -1, -1):
        spent = np.arange(min(m * (m + 1) // 2, late - 1) + 1)
        found = np.zeros(len(spent))
        for item in range(m + 1, D + 1):
            # The worst budget is the last one before the item is paid.
            waiting = within[item - 1 : item - 1 + len(spent)]
            ratio = np.divide(cumulative[m], waiting, out=np.ones(len(spent)), where=waiting > 0)
            found = np.maximum(found, np.minimum(ratio, least[item, np.minimum(spent + item, late)]))
        least[m, : len(spent)] = found
        least[m, late] = min(1.0, cumulative[m] / values[-1])
    return float(least[0, 0])


def sequences_of_eq10(setting: Setting, items: int) -> Result:  # noqa: ARG001  (nothing here is random)
    """Return the sequences that our trainer learns for Eq. 10, and their ratios at every budget (budgets, ratios)."""
    values, costs = eq10(items)
    result: Result = {"items": items}
    for name, doubling in (("CS-G-FR", False), ("Doubling", True)):
        found = learned(values, costs, doubling=doubling)
        result[name] = {
            "order": (found.columns + 1).tolist(),
            "literal": (doubled(items) if doubling else np.argsort(-values / costs) + 1).tolist(),
            "until": found.doubling_until,
            **{
                key: [part.tolist() for part in ratios(found.columns, values, costs, share)]
                for key, share in (("quarter", 4.0), ("same", 1.0))
            },
        }
    twice, twice_costs = np.append(values[0], values), np.append(1, costs)
    found = learned(twice, twice_costs, doubling=True)
    result["twice"] = {
        "until": found.doubling_until,
        "steps": len(found.steps),
        "least": float(ratios(found.columns, twice, twice_costs, 4.0)[1].min()),
    }
    return result


def least_ratios(setting: Setting, items: int) -> Result:  # noqa: ARG001  (nothing here is random)
    """Return the least ratio over all budgets, for each C: of Doubling, and the upper bound of any sequence."""
    order = doubled(items) - 1
    return {
        "doubling": [float(ratios(order, *eq10(items), share)[1].min()) for share in SHARES],
        "any": [any_sequence(items, share) for share in SHARES],
    }


def _runs(setting: Setting) -> list[Run]:
    items = 20 if setting.quick else 30  # the smallest gain is still well above rounding
    sizes = SIZES[:3] if setting.quick else SIZES
    return [
        Run("sequences", sequences_of_eq10, {"items": items}),
        *(Run(f"least-{size}", least_ratios, {"items": size}) for size in sizes),
    ]


def _section(_: Setting, results: Results) -> Section:
    sequences = results["sequences"]
    by_size = {int(name.removeprefix("least-")): r for name, r in results.items() if name != "sequences"}
    sizes, budgets = list(by_size), sequences["Doubling"]["quarter"][0]
    guaranteed = {"bound (4.3)": (budgets, np.full(len(budgets), doubling_bound(1.0)))}
    return Section(
        (*_sequence_findings(sequences), *_share_findings(by_size)),
        (
            "Eq. 10: item x costs x and has value e^x, so each item outweighs all cheaper ones together. By gain per "
            "cost the most expensive item is best, and plain greedy selection buys it first: until it is paid, it "
            "has nothing. Doubling spends on a step at most what it has spent before, and so approaches it in steps.",
            "When to use it: if one group costs as much as all others together, and interruptions may occur before it "
            "is complete, train with doubling. If costs lie in a narrow range, Doubling and CS-G-FR give nearly the "
            "same sequence, and CS-G-FR suffices.",
            "Nothing in this experiment is random, and no data set is read.",
        ),
        (
            Table.titled(
                "doubling-least",
                f"Eq. 10 with D = {sequences['items']}: the worst of all budgets",
                ("method", "first item", "least ratio to the best of B/4", "least ratio to the best of B"),
                [
                    (name, found["order"][0], min(found["quarter"][1]), min(found["same"][1]))
                    for name, found in sequences.items()
                    if name in ("CS-G-FR", "Doubling")
                ],
            ),
            Table.titled(
                "doubling-share",
                "Least ratio over all budgets of F within B to the best of cost B/C",
                ("C", "sequence", *(f"D = {size}" for size in by_size)),
                [
                    (f"{share:g}", who, *(f"{r[key][k]:.2g}" for r in by_size.values()))
                    for k, share in enumerate(SHARES)
                    for who, key in (("Doubling", "doubling"), ("no sequence above", "any"))
                ],
            ),
        ),
        (
            Figure(
                "doubling-ratio",
                "Eq. 10: F within budget B as a share of the best of cost B/4 (left) and of cost B (right). CS-G-FR "
                "has nothing (ratio 0, drawn at the bottom) until its first item is paid.",
                [
                    lines(
                        f"against the best of cost {cost}",
                        {
                            name: (budgets, np.maximum(ratio, FLOOR))
                            for name in ("CS-G-FR", "Doubling")
                            for budgets, ratio in (sequences[name][key],)
                        }
                        | bound,
                        "budget B (cost units)",
                        "F within B / best",
                        log="xy",
                    )
                    for cost, key, bound in (("B/4", "quarter", guaranteed), ("B", "same", {}))
                ],
            ),
            Figure(
                "doubling-share",
                "Eq. 10 with D items: least ratio over all budgets of F within B to the best of cost B/C. Left: "
                "Doubling. Right: no sequence can do better than this (Theorem 4.1).",
                [
                    lines(
                        title,
                        {
                            f"C = {share:g}": (sizes, [r[key][SHARES.index(share)] for r in by_size.values()])
                            for share in (2.0, 3.0, 3.5, 4.0)
                        },
                        "items D",
                        "least ratio over all budgets",
                        log="xy",
                        stairs=False,
                    )
                    for title, key in (("Doubling", "doubling"), ("any sequence, at most", "any"))
                ],
            ),
        ),
    )


def _sequence_findings(found: Result) -> list[Finding]:
    greedy, doubling, twice = found["CS-G-FR"], found["Doubling"], found["twice"]
    guaranteed = doubling_bound(1.0)
    (_, greedy_ratios), (_, doubling_ratios) = greedy["quarter"], doubling["quarter"]
    least = min(doubling_ratios)
    same = greedy["order"] == greedy["literal"] and doubling["order"] == doubling["literal"]
    return [
        Finding(
            f"Theorem 4.3: at all {len(doubling_ratios)} budgets Doubling has at least {least:.3f} of the best of "
            f"a quarter of the budget; the bound is {guaranteed:.4f} (gamma = 1, since gains are additive).",
            agrees=least > guaranteed and twice["least"] > guaranteed,
        ),
        Finding(
            f"CS-G-FR falls to {min(greedy_ratios):.2g} of that best: it has nothing at {greedy_ratios.count(0)} of "
            f"{len(greedy_ratios)} budgets, up to the cost of its first choice, item {greedy['order'][0]}.",
            agrees=min(greedy_ratios) < guaranteed,
        ),
        Finding(
            "Our trainer, given the normal equations of the linear model, learns "
            f"{'exactly the orders' if same else 'other orders than those'} that Algorithms 1 and 2 give by hand; "
            f"Doubling starts with {', '.join(map(str, doubling['order'][:6]))}.",
            agrees=same,
        ),
        Finding(
            f"Strictly, Eq. 10 is not doubling-capable (Definition 4.2): after item 1 nothing costs as little, and the "
            f"model reports a valid guarantee for {doubling['until']} step of {len(doubling['order'])}. With "
            f"item 1 present twice it is valid for {twice['until']} of {twice['steps']} steps, and the least ratio is "
            f"{twice['least']:.3f}."
        ),
    ]


def _share_findings(by_size: dict[int, Result]) -> list[Finding]:
    small, large = min(by_size), max(by_size)
    by_share = {share: {size: r["any"][k] for size, r in by_size.items()} for k, share in enumerate(SHARES)}
    below = {share: (limits[small], limits[large]) for share, limits in by_share.items() if share < 4}
    waiting = [f"C = {share:g}" for share, (first, last) in below.items() if last >= first]
    falls = [f"C = {share:g}: {first:.2g} to {last:.2g}" for share, (first, last) in below.items() if last < first]
    more = f" For {' and '.join(waiting)} no fall is visible up to {large} items." if waiting else ""
    doubling = min(r["doubling"][SHARES.index(4.0)] for r in by_size.values())
    any_at_4 = min(by_share[4.0].values())
    return [
        Finding(
            f"Theorem 4.1: at C = 4 the least ratio of Doubling is at least {doubling:.3f} for every D.",
            agrees=doubling > doubling_bound(1.0),
        ),
        Finding(
            "Theorem 4.1: with less than 4B no sequence has such a bound. The largest ratio that any sequence of D "
            f"items can guarantee, as D grows from D = {small} to {large}, {'; '.join(falls) or 'nowhere yet'}.{more} "
            f"At C = 4 it stays at {any_at_4:.2g}.",
            agrees=None if waiting else any_at_4 > doubling_bound(1.0),
            judged=True,
        ),
    ]


FLOOR = 1e-9  # lowest value drawn on a logarithmic axis


DOUBLING = Experiment(
    "doubling",
    "Doubling and greedy selection at every budget",
    "Hu et al. 2016, section 4, Eq. 10 and Theorems 4.1 and 4.3",
    _runs,
    _section,
)
